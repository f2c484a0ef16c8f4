"""An endless, deterministic stream of global batches, made ahead of time by a thread or by processes.

The order of epoch n depends on the seed and n alone. Within windows of shuffled structures, those
that fit together are put into one micro-batch, by their sizes, before anything is read. So a position
(epoch, micro-batches drawn) is all that is needed to go on from.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike

from janus_jax.data import gars
from janus_jax.data.batching import pad
from janus_jax.data.dataset import Dataset
from janus_jax.errors import CapacityError
from janus_jax.graph import AtomGraph, Capacity, LabelCounts

WINDOW = 512
FILLED = 4
"""Micro-batches that a window can fill at least, however large they are."""


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a stream stands: micro-batches already drawn in this epoch."""

    epoch: int = 0
    drawn: int = 0


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """Micro-batches of one optimizer step, the label counts of all of them, and the position after it."""

    micro_batches: tuple[AtomGraph | None, ...]
    """None: belongs to other processes."""
    counts: LabelCounts
    members: tuple[int, ...]
    """Structures in it, by number in the data set."""
    atoms: int
    edges: int
    position: Position


def plan(atoms: np.ndarray, edges: np.ndarray, capacity: Capacity, seed: int, epoch: int) -> Iterator[list[int]]:
    """Micro-batches of one epoch as lists of structures; every structure is in exactly one.

    In each window of the shuffled order: best fit, largest first, then the micro-batches in random
    order. Costs no more than sizes: nothing is read.

    Args:
        atoms, edges: sizes [structures].
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(atoms))
    length = max(WINDOW, FILLED * int(capacity.atoms * len(atoms) // max(1, atoms.sum(dtype=np.int64))))
    for start in range(0, len(order), length):
        window = order[start : start + length]
        groups: list[list[int]] = []
        room = np.zeros((len(window), 3), np.int64)
        for index in window[np.argsort(-atoms[window], kind="stable")]:
            size = np.array([atoms[index], edges[index], 1])
            fits = (room[: len(groups)] >= size).all(1)
            if fits.any():
                k = int(np.where(fits, room[: len(groups), 0], np.iinfo(np.int64).max).argmin())
            else:
                k = len(groups)
                groups.append([])
                room[k] = capacity.atoms, capacity.edges, capacity.structures
            groups[k].append(int(index))
            room[k] -= size
        yield from (groups[k] for k in rng.permutation(len(groups)))


def stream(
    data: Dataset,
    capacity: Capacity,
    micro_batches: int,
    seed: int,
    dtype: DTypeLike = np.float32,
    start: Position = Position(),
    workers: int = 0,
    ahead: int = 4,
    needs: Callable[[int], bool] | None = None,
    balance: Literal["atoms", "edges"] | None = None,
) -> Iterator[GlobalBatch]:
    """Global batches forever, from `start` on.

    Args:
        balance: pack each global batch anew, so that micro-batches have equal atoms or edges (see `gars`).
        needs: whether this process needs a micro-batch of a global batch, by number; others are not read.
        workers: processes that read and pad; 0: one thread of this process.
        ahead: global batches made before they are asked for.

    Raises:
        CapacityError: a structure does not fit into the capacity.
    """
    check(data, capacity)
    pool: Executor
    if workers:
        pool = ProcessPoolExecutor(workers, get_context("spawn"), _set_data, (data, capacity, dtype))
        build = _build_in_worker
    else:
        pool = ThreadPoolExecutor(1, thread_name_prefix="janus-jax-data")

        def build(members: list[int]) -> AtomGraph:
            return _build(data, capacity, dtype, members)

    groups = _groups(data, capacity, seed, start)
    waiting: deque = deque()
    try:
        while True:
            while len(waiting) < ahead:
                drawn = [next(groups) for _ in range(micro_batches)]
                if balance is not None:
                    drawn = _balanced(data, capacity, seed, drawn, balance)
                waiting.append(([
                    pool.submit(build, members) if needs is None or needs(number) else None
                    for number, (members, _) in enumerate(drawn)
                ], drawn))  # fmt: skip
            futures, drawn = waiting.popleft()
            built = tuple(None if future is None else future.result() for future in futures)
            members = [index for group, _ in drawn for index in group]
            sizes = int(data.atoms[members].sum()), int(data.edges[members].sum())
            yield GlobalBatch(built, data.label_counts(members, dtype), tuple(members), *sizes, drawn[-1][1])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def check(data: Dataset, capacity: Capacity) -> None:
    """Raises CapacityError, naming the structure, if one does not fit into the capacity."""
    for sizes in (data.atoms, data.edges):
        if len(sizes):
            largest = int(sizes.argmax())
            if not capacity.fits(data.need(largest)):
                raise CapacityError(data.need(largest), capacity, f"raise batch.atoms ({data.name(largest)})")


def _groups(data: Dataset, capacity: Capacity, seed: int, start: Position) -> Iterator[tuple[list[int], Position]]:
    """(structures of a micro-batch, position after it), epoch after epoch."""
    atoms, edges, epoch, skip = data.atoms, data.edges, start.epoch, start.drawn
    while True:
        for drawn, group in enumerate(plan(atoms, edges, capacity, seed, epoch), 1):
            if drawn > skip:
                yield group, Position(epoch, drawn)
        epoch, skip = epoch + 1, 0


def _balanced(data: Dataset, capacity: Capacity, seed: int, drawn: list, cost: Literal["atoms", "edges"]) -> list:
    """The same structures in balanced micro-batches; as they were drawn where that does not fit."""
    members = np.array([index for group, _ in drawn for index in group])
    last = drawn[-1][1]
    key = seed, last.epoch, last.drawn
    packed = gars.repack(data.atoms[members], data.edges[members], len(drawn), capacity, key, cost=cost)
    if packed is None or not all(micro.members for micro in packed):
        return drawn
    pairs = zip(packed, drawn, strict=True)
    return [(members[list(micro.members)].tolist(), position) for micro, (_, position) in pairs]


def _build(data: Dataset, capacity: Capacity, dtype: DTypeLike, members: list[int]) -> AtomGraph:
    return pad([data[index] for index in members], capacity, dtype)


_data: Any = None


def _set_data(*data) -> None:
    global _data
    _data = data


def _build_in_worker(members: list[int]) -> AtomGraph:
    data, capacity, dtype = _data
    return _build(data, capacity, dtype, members)
