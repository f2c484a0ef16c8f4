"""How a system lies on devices: mesh, cut, rows, settings and lengths of lists; and arrays of rows by atom."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential
from md.config import EngineConfig
from partition import builder, cut, topology
from partition.capacity import Capacity, bucket
from partition.layout import Cut

AXIS = "ranks"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Who owns what, in how many rows, and what lists are built with."""

    cut: Cut
    rows: int
    lists: topology.Settings
    room: Capacity


@dataclasses.dataclass(frozen=True)
class Place:
    """Where arrays of rows [K rows, ...] and small arrays go: a mesh, who owns what, rows of a rank."""

    mesh: Mesh
    cut: Cut
    rows: int

    def by_owner(self, values: np.ndarray, fill: Any = 0) -> jax.Array:
        """Values of atoms [N, ...] as [K rows, ...] on the devices."""
        padded = self.cut.scatter(values, self.rows, fill)
        flat = padded.reshape(-1, *padded.shape[2:])
        sharded = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return jax.make_array_from_callback(flat.shape, sharded, lambda index: flat[index])

    def everywhere(self, value: Any) -> jax.Array:
        """A small array on all devices."""
        replicated = NamedSharding(self.mesh, PartitionSpec())
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            numbers = self.everywhere(np.asarray(jax.random.key_data(value)))
            return jax.jit(jax.random.wrap_key_data, out_shardings=replicated)(numbers)
        value = np.asarray(value)
        return jax.make_array_from_callback(np.shape(value), replicated, lambda index: value[index])


def mesh_of(devices: int) -> Mesh:
    """So many of JAX's devices in a row.

    Raises:
        DynamicsError: JAX has fewer.
    """
    if not 1 <= devices <= len(jax.devices()):
        raise DynamicsError(f"{devices} devices; JAX has {len(jax.devices())} here")
    return Mesh(np.array(jax.devices()[:devices]), (AXIS,))


def periodic(atoms: Atoms) -> tuple[bool, bool, bool]:
    x, y, z = map(bool, atoms.pbc)
    return x, y, z


def lists_of(model: Potential, skin: float, pbc: tuple[bool, bool, bool], transport) -> topology.Settings:
    """Lists up to the model's cutoff, with the skin (Å)."""
    return topology.Settings((float(model.cutoff),), skin, pbc, transport)


def of(model: Potential, start: cut.Atoms, pbc: tuple[bool, bool, bool], settings: EngineConfig) -> Layout:
    """The layout of a start on `settings.devices`."""
    reach = float(model.cutoff) + settings.skin_angstrom
    made = cut.cut(start, settings.devices, settings.cut, cutoff=reach)
    return around(model, start, made, bucket(made.rows), settings.skin_angstrom, pbc)


def around(
    model: Potential, start: cut.Atoms, made: Cut, rows: int, skin: float, pbc: tuple[bool, bool, bool]
) -> Layout:
    """The layout of a start that has been cut, with so many rows a rank."""
    transport = builder.transport_for(start, made, float(model.cutoff) + skin, AXIS)
    lists = lists_of(model, skin, pbc, transport)
    return Layout(made, rows, lists, builder.estimate(start, made, lists, rows))


def gathered(array: jax.Array) -> np.ndarray:
    """A sharded array on this host, also where other processes have parts of it."""
    if jax.process_count() == 1:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def rows_by_id(ids: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values [N, ...] of rows [K rows, ...] in the order of their ids."""
    result = np.empty((int((ids >= 0).sum()), *values.shape[1:]), values.dtype)
    result[ids[ids >= 0]] = values[ids >= 0]
    return result
