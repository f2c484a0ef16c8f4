"""How a system lies on devices: mesh, cut, rows, settings and lengths of lists; and arrays of rows by atom."""

import dataclasses

import jax
import numpy as np
from ase import Atoms
from jax.sharding import Mesh

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


def lists_of(model: Potential, settings: EngineConfig, pbc: tuple[bool, bool, bool], transport) -> topology.Settings:
    """Lists up to the model's cutoff, with the skin."""
    return topology.Settings((float(model.cutoff),), settings.skin_angstrom, pbc, transport)


def of(model: Potential, start: cut.Atoms, pbc: tuple[bool, bool, bool], settings: EngineConfig) -> Layout:
    """The layout of a start on `settings.devices`."""
    reach = float(model.cutoff) + settings.skin_angstrom
    made = cut.cut(start, settings.devices, settings.cut, cutoff=reach)
    rows = bucket(made.rows)
    lists = lists_of(model, settings, pbc, builder.transport_for(start, made, reach, AXIS))
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
