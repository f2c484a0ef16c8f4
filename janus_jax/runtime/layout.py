"""The device grid [pipe, data, graph], and arrays that live on rows of it.

A rank is a row: the devices that run one of a schedule's instruction lists, data and graph parallel. Arrays
of a rank are of two kinds. Replicated ones (parameters) are the same on each device of one or several
ranks. Stacked ones (everything of a micro-batch, and gradients) have a leading axis with one entry a
device. Nothing here moves data: arrays are put together from what the devices hold already.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from janus_jax.errors import MeshError
from janus_jax.runtime.config import MeshConfig

AXES = ("pipe", "data", "graph")
Device = Any
"""jax.Device, which type checkers do not take for a class."""


class Layout:
    """The grid of a run; every process makes the same one.

    Attributes:
        devices: [pipe, data, graph].
        here: ranks with a device of this process.
    """

    def __init__(self, devices: np.ndarray):
        self.devices = devices
        self.width = devices[0].size
        process = jax.process_index()
        self.owned = [[d for d in row.flat if d.process_index == process] for row in devices]
        self.here = tuple(rank for rank, owned in enumerate(self.owned) if owned)
        self.everyone = tuple(range(len(devices)))
        self.mesh: Callable[[tuple[int, ...]], Mesh] = cache(lambda ranks: Mesh(devices[list(ranks)], AXES))

    @staticmethod
    def of(config: MeshConfig) -> "Layout":
        """The first devices of all processes, in JAX's order.

        Raises:
            MeshError: there are not enough, or processes would be left without work.
        """
        there, wanted = jax.devices(), config.devices
        processes = jax.process_count()
        if wanted > len(there) or (processes > 1 and wanted != len(there)):
            kinds = f"{len(there)} {there[0].platform} devices in {processes} processes"
            what = f"mesh.pipe={config.pipe} x mesh.data={config.data} x mesh.graph={config.graph}"
            raise MeshError(f"{what} takes {wanted} devices; there are {kinds}. Change the mesh or the devices.")
        return Layout(np.array(there[:wanted]).reshape(config.pipe, config.data, config.graph))

    @property
    def share(self) -> frozenset[int]:
        """Data ranks that this process has devices of."""
        process = jax.process_index()
        return frozenset(int(k) for (_, k, _), d in np.ndenumerate(self.devices) if d.process_index == process)

    def replicated(self, ranks: Sequence[int]) -> NamedSharding:
        return NamedSharding(self.mesh(tuple(ranks)), P())

    def stacked(self, ranks: Sequence[int]) -> NamedSharding:
        return NamedSharding(self.mesh(tuple(ranks)), P(AXES))

    def whole(self, rank: int) -> bool:
        """Whether all devices of a rank are this process's."""
        return len(self.owned[rank]) == self.width

    def put(self, tree: Any, rank: int) -> Any:
        """Host arrays with a leading axis for all devices of a rank, stacked there; each process loads its own."""
        sharding = self.stacked((rank,))
        if self.whole(rank):
            return jax.device_put(tree, sharding)
        return jax.tree.map(lambda a: scattered(a, sharding), tree)

    def put_replicated(self, tree: Any, ranks: Sequence[int]) -> Any:
        """Host arrays or arrays of one device, the same on all devices of some ranks."""
        sharding = self.replicated(ranks)
        return jax.tree.map(lambda a: scattered(np.asarray(a), sharding), tree)


def scattered(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    """A host array on devices; each process puts its own parts there."""
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index], dtype=array.dtype)


def shards(array: jax.Array) -> dict[Device, jax.Array]:
    return {shard.device: shard.data for shard in array.addressable_shards}


def assemble(shape: tuple[int, ...], dtype, sharding: NamedSharding, pieces: dict[Device, jax.Array]) -> jax.Array:
    """The array whose shards are there already; those of other processes need not be given."""
    local = [pieces[device] for device in sharding.addressable_devices_indices_map(shape)]
    return jax.make_array_from_single_device_arrays(shape, sharding, local, dtype=dtype)


def view(array: jax.Array, sharding: NamedSharding) -> jax.Array:
    """A replicated array on some of its devices."""
    if array.sharding == sharding:
        return array
    return assemble(array.shape, array.dtype, sharding, shards(array))


def joined(arrays: Sequence[jax.Array], sharding: NamedSharding, count: int) -> jax.Array:
    """Stacked arrays of ranks, those of this process, as one array stacked over `count` devices."""
    if len(arrays) == 1 and arrays[0].shape[0] == count:
        return arrays[0]
    pieces = {device: data for array in arrays for device, data in shards(array).items()}
    return assemble((count, *arrays[0].shape[1:]), arrays[0].dtype, sharding, pieces)
