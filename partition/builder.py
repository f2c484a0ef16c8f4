"""Builds of topologies over a device mesh: grows capacities, widens the set of offsets, and says why it compiled."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from partition import boxes
from partition.capacity import Capacity, Need, bucket, grow, over
from partition.cell import heights, images, slack, working_cell
from partition.cut import Atoms
from partition.errors import CellError, PartitionError, checked
from partition.layout import Cut
from partition.offsets import offsets
from partition.topology import Settings, Topology, build
from partition.transport import Transport, permute


def stacked(tree):
    """One rank's part [...] as [1, ...], so that all ranks' parts make one array [K, ...]."""
    return jax.tree.map(lambda leaf: leaf[None], tree)


def unstacked(tree):
    """The inverse of `stacked`, inside shard_map."""
    return jax.tree.map(lambda leaf: leaf[0], tree)


def asked(system: Atoms, cut: Cut, reach: float) -> np.ndarray:
    """[K, K]: by its box, rank q may need atoms of rank s. What `build` tests, on the host."""
    ranks = boxes.of_ranks(system, cut)
    height, table = heights(system.cell), np.zeros((cut.ranks, cut.ranks), bool)
    spare = slack(reach, np.abs(system.positions).max(initial=0) + np.abs(system.cell).max(), np.float32)
    for image in images(system.cell, system.pbc, reach):
        moved = boxes.shifted(ranks, image.astype(float)[None], system.cell)
        table |= boxes.bound(ranks[:, None], moved[None], height) <= reach + 2 * spare
    return table


def transport_for(system: Atoms, cut: Cut, reach: float, axis: str, kind: str = "") -> Transport:
    """The exchange of a cut: permutations for a grid, an all-to-all for a curve, unless `kind` says otherwise.

    Raises:
        PartitionError: an unknown kind, or a ragged exchange on CPU.
    """
    if kind == "ragged" and jax.default_backend() == "cpu":
        raise PartitionError("the ragged exchange does not run on CPU; use all_to_all")
    kind = kind or ("permute" if cut.method == "grid" or cut.ranks == 1 else "all_to_all")
    if kind != "permute":
        return Transport(kind, axis, cut.ranks)
    return permute(cut.shape, offsets(cut.shape, asked(system, cut, reach)), axis)


def estimate(system: Atoms, cut: Cut, settings: Settings, rows: int) -> Capacity:
    """A first capacity from the density of atoms; what is too small grows at the first build.

    No array is longer than all images of all atoms can fill, however large and empty the cell is.
    """
    reach, transport, ranks = settings.reach, settings.transport, cut.ranks
    lengths = np.maximum(system.lengths, 1.0)
    density = float(np.clip(max(len(system) / np.prod(lengths), _crowding(system, cut, reach)), 1e-3, 0.3))
    cube = (rows / density) ** (1 / 3)
    sides = lengths / cut.shape
    if cut.method != "grid" or np.prod(sides) > 4 * cube**3:  # along a curve, or in a box that is mostly empty
        sides = np.minimum(lengths, cube)
    turns = images(system.cell, system.pbc, reach, transport.spread)
    everything = len(system) * len(turns)

    def room(count: float, spare: float = 1.4, most: int = everything) -> int:
        return bucket(int(min(spare * count + 16, most)))

    def around(width: float) -> float:
        return density * float(np.prod(np.where(system.pbc, sides + 2 * width, np.minimum(sides + 2 * width, lengths))))

    def slot(sources: tuple[int, ...]) -> int:
        """Atoms within reach of one logical neighbour, twice if it is neighbour to both sides."""
        steps = np.subtract(np.unravel_index(sources[0], cut.shape), np.unravel_index(0, cut.shape))
        both = np.prod(np.where((steps > 0) & (np.array(cut.shape) == 2), 2, 1))
        return min(rows, room(density * both * np.prod(np.where(steps > 0, np.minimum(reach, sides), sides))))

    shell = around(reach) - rows
    sent = {
        "permute": tuple(slot(sources) for sources in transport.sources),
        "all_gather": (),
    }.get(transport.kind, (min(rows, room(shell / 2)),) * ranks)
    edges = [density * 4 / 3 * math.pi * (cutoff + settings.skin) ** 3 for cutoff in settings.cutoffs]
    remote = min(9 * reach / (8 * float(sides.min())), 1.0) if ranks > 1 else 0.0
    chunk = (64 / density) ** (1 / 3)
    return Capacity(
        sent=sent,
        images=bucket(len(turns)),
        near=room(rows + shell, 1.3),
        blocks=room(density * (2 * reach + 2.2 * chunk) ** 3 / 32),
        chunk=room(density * (2 * reach + chunk) ** 3),
        degree=room(max(edges)),
        local=tuple(room(rows * n, 1.1, rows * everything) for n in edges),
        remote=tuple(room(rows * n * remote, 1.2, rows * everything) for n in edges)
        if ranks > 1
        else (8,) * len(edges),
        halo=((room(shell),) if transport.kind == "ragged" else sent,) * len(edges),
    )


def _crowding(system: Atoms, cut: Cut, reach: float, most: int = 100_000) -> float:
    """Atoms per Å^3 where there are any: of the bins of side `reach` that the first `most` atoms of a cut are in."""
    if not len(system):
        return 0.0
    bins = np.floor(np.take(system.positions, cut.order[:most], axis=0) / reach)
    return min(len(system), most) / (len(np.unique(bins, axis=0)) * reach**3)


def _even(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Slots of an all-to-all have one length."""
    return (max(lengths, default=0),) * len(lengths)


class Builder:
    """Builds topologies of one system on one mesh axis; remembers what it compiled.

    Args:
        mesh: devices; `settings.transport.axis` is one of its axes.
        shape: the logical grid of the cut, to widen the offsets of `permute` on.

    Attributes:
        compiled: what was compiled or grown, and why; need: of the last build, on the host.
    """

    def __init__(self, mesh: Mesh, settings: Settings, capacity: Capacity, shape: tuple[int, int, int]):
        self.mesh, self.settings, self.capacity, self.shape = mesh, settings, capacity, shape
        self.compiled: list[str] = []
        self.need: Need | None = None
        self._programs: dict[tuple[Settings, Capacity, int, str], Callable] = {}

    def __call__(self, positions: jax.Array, ids: jax.Array, cell) -> Topology:
        """Topology with a leading axis of ranks, of positions [K n, 3] and ids [K n] sharded over it.

        Raises:
            CellError: positions are not finite or more than 2^30 cells away, or a cell has too many images.
            CountError: arrays that 32 bits cannot number.
        """
        cell = working_cell(np.asarray(cell, float), np.array(self.settings.pbc))
        spread = self.settings.transport.spread
        turns = images(cell, np.array(self.settings.pbc), self.settings.reach * (1 + 1e-3), spread)
        if len(turns) > self.capacity.images:
            self._grow(dataclasses.replace(self.capacity, images=bucket(len(turns))), "periodic images")
        while True:
            topology, need = self._program(positions)(positions, ids, *self._cell(cell, turns, positions.dtype))
            need = jax.device_get(need)
            if need.far:
                raise CellError("positions are not finite, or more than 2^30 cells away; wrap them")
            if self.settings.transport.kind == "permute" and need.outside.any():
                self._widen(need.outside)
                continue
            if self.fit(need):
                self.need = need
                return topology

    def fit(self, need: Need) -> bool:
        """Whether the arrays are long enough for this need; if not, the next build has longer ones."""
        larger = grow(self.capacity, need)
        if larger is None:
            return True
        if self.settings.transport.kind != "permute":
            sent, halo = _even(larger.sent), tuple(_even(lengths) for lengths in larger.halo)
            larger = dataclasses.replace(larger, sent=sent, halo=halo)
        self._grow(larger, ", ".join(f"{k} {h} -> {n}" for k, (n, h) in over(self.capacity, need).items()))
        return False

    def _cell(self, cell, turns, dtype):
        padded = np.zeros((self.capacity.images, 3), np.int32)
        padded[: len(turns)] = turns
        place = NamedSharding(self.mesh, PartitionSpec())
        arrays = (
            cell.astype(dtype),
            padded,
            np.arange(self.capacity.images) < len(turns),
        )
        return tuple(jax.device_put(array, place) for array in arrays)

    def _grow(self, capacity: Capacity, why: str) -> None:
        self.capacity = capacity
        self.compiled.append(f"capacity: {why}")

    def _widen(self, outside: np.ndarray) -> None:
        """Add the offsets of requests no slot serves; `outside` [asked, asking]."""
        transport = self.settings.transport
        known = np.zeros((transport.ranks, transport.ranks), bool)
        for row in transport.sources:
            known[np.arange(transport.ranks), row] = True
        wider = offsets(self.shape, known | outside.T)
        new = permute(self.shape, wider, transport.axis)
        longest = {row: k for k, row in enumerate(transport.sources)}

        def lengths(old: Sequence[int]) -> tuple[int, ...]:
            return tuple(old[longest[row]] if row in longest else 64 for row in new.sources)

        capacity = dataclasses.replace(
            self.capacity, sent=lengths(self.capacity.sent), halo=tuple(lengths(old) for old in self.capacity.halo)
        )
        self.settings = dataclasses.replace(self.settings, transport=new)
        self._grow(capacity, f"offsets {transport.slots} -> {new.slots}")

    def _program(self, positions: jax.Array) -> Callable:
        rows = len(positions) // self.settings.transport.ranks
        checked("pairs of rows and images", rows * self.capacity.images)
        received = len(positions) if self.settings.transport.kind == "all_gather" else sum(self.capacity.sent)
        checked("pairs of candidates and images", received * self.capacity.images)
        checked("rows of the neighbour table", rows * self.capacity.degree)
        key = (self.settings, self.capacity, rows, str(positions.dtype))
        if key not in self._programs:
            axis = self.settings.transport.axis
            over_ranks, everywhere = PartitionSpec(axis), PartitionSpec()

            @jax.jit
            @partial(
                jax.shard_map,
                mesh=self.mesh,
                in_specs=(over_ranks, over_ranks, everywhere, everywhere, everywhere),
                out_specs=(over_ranks, everywhere),
                check_vma=False,
            )
            def program(positions, ids, cell, turns, used, settings=self.settings, capacity=self.capacity):
                topology, need = build(positions, ids, cell, turns, used, settings, capacity)
                return stacked(topology), need

            self._programs[key] = program
            self.compiled.append(f"build with {rows} rows")
        return self._programs[key]
