"""An endless, deterministic stream of global batches from structures in memory.

A global batch is a fixed number of micro-batches, each filled in shuffled order up to the capacity.
The order of epoch n depends on the seed and n alone, so a position (epoch, structures drawn) is
all that is needed to go on from.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike

from janus_jax.data.batching import fill, need, pad
from janus_jax.graph import AtomGraph, Capacity, LabelCounts


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a stream stands: structures already drawn in this epoch."""

    epoch: int = 0
    drawn: int = 0


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """Micro-batches of one optimizer step, the label counts of all of them, and the position after it."""

    micro_batches: tuple[AtomGraph, ...]
    counts: LabelCounts
    atoms: int
    position: Position


def stream(
    graphs: Sequence[AtomGraph],
    capacity: Capacity,
    micro_batches: int,
    seed: int,
    dtype: DTypeLike = np.float32,
    start: Position = Position(),
) -> Iterator[GlobalBatch]:
    """Global batches forever, from `start` on.

    Raises:
        CapacityError: a structure does not fit into the capacity.
    """
    indices = _indices(len(graphs), seed, start)
    pending: list[tuple[AtomGraph, Position]] = []

    def drawn():
        for index, position in indices:
            pending.append((graphs[index], position))
            yield graphs[index]

    groups = fill(drawn(), capacity)
    while True:
        batch = [next(groups) for _ in range(micro_batches)]
        used = sum(len(group) for group in batch)
        position = pending[used - 1][1]
        del pending[:used]
        members = [graph for group in batch for graph in group]
        atoms = sum(need(graph).atoms for graph in members)
        yield GlobalBatch(
            tuple(pad(group, capacity, dtype) for group in batch), LabelCounts.of(members, dtype), atoms, position
        )


def _indices(size: int, seed: int, start: Position) -> Iterator[tuple[int, Position]]:
    """(index of a structure, position after drawing it), epoch after epoch."""
    epoch, skip = start.epoch, start.drawn
    while True:
        order = np.random.default_rng([seed, epoch]).permutation(size)
        for drawn in range(skip, size):
            yield int(order[drawn]), Position(epoch, drawn + 1)
        epoch, skip = epoch + 1, 0


def split_by_fraction(graphs: list, fraction: float, seed: int) -> tuple[list, list]:
    """(training, held out) by a seeded shuffle; at least one structure is held out."""
    order = np.random.default_rng(seed).permutation(len(graphs))
    held = max(1, round(fraction * len(graphs)))
    return [graphs[i] for i in order[held:]], [graphs[i] for i in order[:held]]
