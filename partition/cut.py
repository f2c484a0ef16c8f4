"""Cuts of atoms into ranks of equal count: along a curve, or into the boxes of a logical grid.

Every cut is a nested split: level after level, runs of atoms are sorted by a key and divided at equal counts
(or equal weights). A curve is one level with the code as key; a grid is slabs, pencils and blocks, three
levels with one coordinate each. Ties are broken by atom id, so equal coordinates give equal cuts.
Rank r gets exactly floor((r + 1) N / K) - floor(r N / K) atoms. Inside a rank atoms are in Hilbert order.

Source: Tessera, section 3.2 (curves); the grid of equal counts is ours.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from partition import curves
from partition.cell import combine, extremes, heights, in_blocks, in_threads, working_cell, wrap
from partition.errors import PartitionError, check_cutoff, checked
from partition.layout import Cut

METHODS = ("auto", "grid", "hilbert", "morton")


@dataclasses.dataclass(frozen=True, eq=False)
class Atoms:
    """Atoms as the cuts see them.

    Attributes:
        positions: [N, 3] wrapped, Å.
        turns: [N, 3] int64; given positions = positions + turns @ cell.
        cell: [3, 3] `working_cell`.
        pbc: [3].
        low, span: [3] occupied range of the fractional coordinates.
    """

    positions: np.ndarray
    turns: np.ndarray
    cell: np.ndarray
    pbc: np.ndarray
    low: np.ndarray
    span: np.ndarray

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def lengths(self) -> np.ndarray:
        """Occupied width between the faces, per axis, Å."""
        return self.span * heights(self.cell)

    def spread(self, ids: np.ndarray) -> np.ndarray:
        """Fractional coordinates of the occupied range, in [0, 1]: [n, 3]."""
        fractional = combine(np.take(self.positions, ids, axis=0), np.linalg.inv(self.cell))
        fractional -= self.low
        fractional /= np.where(self.span > 0, self.span, 1.0)
        return fractional


def atoms(positions: np.ndarray, cell: np.ndarray, pbc) -> Atoms:
    """Wrap and measure.

    Raises:
        CellError: as `cell.working_cell` and `cell.wrap`.
        CountError: more atoms than 32 bits can number.
    """
    positions, pbc = np.asarray(positions, float), np.asarray(pbc, bool)
    checked("atoms", len(positions))
    cell = working_cell(cell, pbc)
    wrapped, turns = wrap(positions, cell, pbc)
    inverse = np.linalg.inv(cell)
    ranges = []

    def block(rows: slice) -> None:
        ranges.append(extremes(combine(wrapped[rows], inverse)))

    in_blocks(block, len(wrapped))
    low = np.min([low for low, _ in ranges], axis=0) if ranges else np.zeros(3)
    high = np.max([high for _, high in ranges], axis=0) if ranges else np.zeros(3)
    return Atoms(wrapped, turns, cell, pbc, low, high - low)


def cut(
    system: Atoms,
    ranks: int,
    method: str = "auto",
    *,
    cutoff: float = 6.0,
    weights: np.ndarray | None = None,
    rows: int | None = None,
) -> Cut:
    """Divide atoms among ranks.

    Args:
        system: from `atoms`.
        ranks: any number, also more than there are atoms.
        method: "grid", "hilbert", "morton", or "auto": the one of "grid" and "hilbert" that is predicted to
            send fewer bytes; `Cut.reason` says so.
        cutoff: Å, with the skin; the factors of the grid and the prediction depend on it.
        weights: [N] cost of each atom (such as its edges); without it counts are exact.
        rows: with weights, the most atoms a rank may have (default: 1.4 times the mean).

    Raises:
        PartitionError: an unknown method, no ranks, a cutoff that is not positive, weights that are negative or
            not finite, too few rows, or rows without weights.
    """
    if method not in METHODS:
        raise PartitionError(f"unknown cut {method!r}; allowed: {', '.join(METHODS)}")
    if ranks < 1:
        raise PartitionError(f"{ranks} ranks; at least one is needed")
    check_cutoff(cutoff)
    if rows is not None and weights is None:
        raise PartitionError(f"rows={rows} without weights; counts without weights are exact")
    if method == "auto":
        from partition.offsets import choose

        return choose(system, ranks, cutoff, weights=weights, rows=rows)
    shape = factors(ranks, system.lengths, cutoff, system.pbc) if method == "grid" else (ranks, 1, 1)
    bits = curves.bits_for(len(system))
    if method == "grid":
        levels = [(axis_key(system, axis), shape[axis]) for axis in range(3)]
    else:
        levels = [(curve_key(system, method, bits), ranks)]
    if weights is None:
        order, starts = nested(len(system), levels)
    else:
        order, starts = _weighted(len(system), levels, ranks, np.asarray(weights, float), rows)
    if method != "hilbert":  # shards of a Morton or grid cut, in Hilbert order for the locality of gathers
        key = curve_key(system, "hilbert", bits)
        for start, stop in itertools.pairwise(starts):
            order[start:stop] = _sorted(order[start:stop], key, len(system))
    return Cut(method, shape, order, starts)


def factors(ranks: int, lengths: np.ndarray, cutoff: float, pbc: np.ndarray) -> tuple[int, int, int]:
    """K = kx ky kz with the least predicted halo: the shell of width `cutoff` around one box."""
    best = None
    for kx in (k for k in range(1, ranks + 1) if ranks % k == 0):
        for ky in (k for k in range(1, ranks // kx + 1) if ranks // kx % k == 0):
            shape = (kx, ky, ranks // kx // ky)
            inner = outer = 1.0
            for length, parts, periodic in zip(lengths, shape, pbc, strict=True):
                side = max(length, 1e-9) / parts
                # an axis that is not cut has no halo; one that is cut, at most the rest of the system
                shell = 0 if parts == 1 else (2 if periodic or parts > 2 else 1) * cutoff
                inner *= side
                outer *= min(side + shell, max(length, 1e-9)) if parts > 1 else side
            cost = (outer / inner, sum(shape), shape)
            best = cost if best is None else min(best, cost)
    assert best is not None
    return best[2]


Key = Callable[[np.ndarray], np.ndarray]


def curve_key(system: Atoms, curve: str, bits: int) -> Key:
    """Code of atoms along a curve. Morton has cells of equal width along all axes, as in the paper."""
    lengths = system.lengths
    scale = lengths / max(lengths.max(), 1e-300) if curve == "morton" else None

    def key(ids):
        cells = curves.quantize(system.spread(ids), bits, scale)
        return curves.join(*curves.CURVES[curve](cells, bits))

    return key


def axis_key(system: Atoms, axis: int) -> Key:
    """Coordinate of atoms along one axis, as 32-bit integer."""

    def key(ids):
        return np.clip(np.floor(system.spread(ids)[:, axis] * 2.0**32), 0, 2.0**32 - 1).astype(np.uint64)

    return key


def _sorted(ids: np.ndarray, key: Key, total: int) -> np.ndarray:
    """Ids by key, ties by id: both are packed into one 64-bit number, which sorts faster than an index."""
    bits = np.uint64(max(int(total - 1).bit_length(), 1))
    packed = np.empty(len(ids), np.uint64)

    def block(rows: slice) -> None:
        packed[rows] = key(ids[rows]) << bits | ids[rows].astype(np.uint64)

    in_blocks(block, len(ids))
    if len(packed) > 2**21:  # two halves, in two threads
        below = packed < np.median(packed[:: len(packed) // 1024])
        halves = [packed[below], packed[~below]]
        in_threads(np.ndarray.sort, halves)
        packed = np.concatenate(halves)
    else:
        packed.sort()
    packed &= (np.uint64(1) << bits) - np.uint64(1)
    return packed.view(np.int64)


def nested(
    total: int, levels: Sequence[tuple[Key, int]], weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Sort and divide, level after level: (order [N], starts [K + 1])."""
    ranks = int(np.prod([parts for _, parts in levels]))
    order, starts = np.arange(total), np.array([0, total])
    below = ranks
    for key, parts in levels:
        if parts == 1 and (ranks > 1 or key is not levels[0][0]):
            continue
        below //= parts
        bounds = [0]
        for k, (start, stop) in enumerate(itertools.pairwise(starts)):
            order[start:stop] = _sorted(order[start:stop], key, total)
            first = k * parts * below  # ranks before this run
            if weights is None:
                ends = [(first + below * (part + 1)) * total // ranks for part in range(parts)]
            else:
                heap = np.concatenate([[0.0], np.cumsum(weights[order[start:stop]])])
                targets = heap[-1] * np.arange(1, parts) / parts
                # the bound nearest to the target: the heavier half of an atom decides
                inner = np.searchsorted((heap[1:] + heap[:-1]) / 2, targets)
                ends = [*(start + inner), stop]
            bounds.extend(int(end) for end in ends)
        starts = np.array(bounds)
    return order, starts


def _weighted(total, levels, ranks, weights, rows) -> tuple[np.ndarray, np.ndarray]:
    """Equal weights, as far as no rank gets more than `rows` atoms.

    Every atom gets the same amount on top of its weight, the smallest that keeps the counts: with weights w + a
    a rank has at most (mean(w) / a + 1) N / K atoms, so there is always one.
    """
    if len(weights) != total or not np.isfinite(weights).all() or (weights < 0).any():
        worst = f", among them {weights[np.argmin(np.nan_to_num(weights, nan=-np.inf))]}" if len(weights) else ""
        raise PartitionError(f"{len(weights)} weights for {total} atoms{worst}; they must be finite and not negative")
    mean = total / ranks
    rows = int(np.ceil(1.4 * mean)) + 1 if rows is None else rows
    if rows < mean:
        raise PartitionError(f"{rows} rows for {total} atoms on {ranks} ranks")
    average = float(weights.mean()) if total else 0.0
    if average == 0.0 or rows < mean + 1:
        return nested(total, levels)

    def trial(share: float):
        order, starts = nested(total, levels, weights + share * average)
        return (order, starts), bool(np.diff(starts).max() <= rows)

    found, fits = trial(0.0)
    high = 2.0**-6
    while not fits and high < 2**20:
        high *= 2
        found, fits = trial(high)
    if not fits:
        return nested(total, levels)
    low = high / 2
    for _ in range(8 if high > 2.0**-6 else 0):
        middle = (low + high) / 2
        attempt, fits = trial(middle)
        low, high, found = (low, middle, attempt) if fits else (middle, high, found)
    return found
