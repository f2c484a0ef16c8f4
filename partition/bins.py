"""Requests by bins of one global grid (the paper's spatial-bin scheme), on the host.

Every rank publishes which bins its atoms, and their images, are in. A bin is sent whole to every rank that has
an atom within reach of it along all three axes. Bins are as wide as half the cutoff, and wider where a rank
would have more than 8192. Source: Tessera, section 3.3.
"""

import dataclasses
import functools

import numpy as np

from partition import boxes
from partition.cell import combine, heights, images
from partition.cut import Atoms
from partition.exchange import Requests
from partition.layout import Cut

MOST_BINS = 8192
BIN_BYTES = 16 * 8


@dataclasses.dataclass(frozen=True, eq=False)
class BinRequests(Requests):
    """`bins` [3]: how many along each axis; `boxes` [K, 4, 3] of ranks, for a first look; `images` [images, 3]."""

    system: Atoms
    cut: Cut
    reach: float
    bins: np.ndarray
    boxes: np.ndarray
    images: np.ndarray

    def _at(self, ids: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Bins [n, 3] of the images of atoms; those of the system itself are 0 to bins - 1."""
        fractional = combine(np.take(self.system.positions, ids, axis=0), np.linalg.inv(self.system.cell))
        spread = (fractional + image - self.system.low) / _span(self.system, self.reach)
        return np.floor(spread * self.bins).astype(np.int64)

    @functools.cached_property
    def _margin(self) -> np.ndarray:
        """Bins that `reach` spans along each axis; rounding at the faces of bins may cost one more."""
        width = _span(self.system, self.reach) * heights(self.system.cell) / self.bins
        margin = np.floor(self.reach / width).astype(np.int64) + 2
        return np.where(self.system.pbc, margin, np.minimum(margin, self.bins + 1))

    def candidates(self, rank: int, stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
        mine = self._at(self.cut.ids(rank), np.zeros(3))
        if not len(mine):
            return np.zeros(0, np.int64), np.zeros((0, 3), np.int32)
        margin = self._margin
        corner = mine.min(0) - margin
        near = np.zeros(mine.max(0) - mine.min(0) + 1 + 2 * margin, bool)
        near[tuple((mine - corner).T)] = True
        for axis in range(3):
            near = _widened(near, axis, int(margin[axis]))
        height, ids, turns = heights(self.system.cell), [], []
        for image in self.images:
            moved = boxes.shifted(self.boxes, image.astype(float)[None], self.system.cell)
            for other in np.flatnonzero(boxes.bound(moved, self.boxes[rank][None], height) <= self.reach).tolist():
                if other == rank and not image.any():
                    continue
                atoms = self.cut.ids(other)[::stride]
                at = self._at(atoms, image) - corner
                inside = ((at >= 0) & (at < near.shape)).all(1)
                inside[inside] = near[tuple(at[inside].T)]
                ids.append(atoms[inside])
                turns.append(np.broadcast_to(image, (int(inside.sum()), 3)))
        if not ids:
            return np.zeros(0, np.int64), np.zeros((0, 3), np.int32)
        return np.concatenate(ids), np.concatenate(turns)

    @property
    def pairs(self) -> np.ndarray:
        table, owner = np.eye(self.cut.ranks, dtype=bool), self.cut.owner()
        for rank in range(self.cut.ranks):
            table[rank, owner[self.candidates(rank)[0]]] = True
        return table

    @property
    def metadata_bytes(self) -> int:
        """Occupied bins of a rank, as asking and as asked ones, with the images near the system."""
        most = 0
        for rank in range(self.cut.ranks):
            mine = np.unique(self._at(self.cut.ids(rank), np.zeros(3)), axis=0)
            entries = len(mine)
            for image in self.images:
                moved = mine + np.round(image / _span(self.system, self.reach) * self.bins)
                entries += int(((moved >= -self._margin) & (moved < self.bins + self._margin)).all(1).sum())
            most = max(most, entries)
        return most * BIN_BYTES


def _widened(occupied: np.ndarray, axis: int, margin: int) -> np.ndarray:
    """True within `margin` of an occupied bin along the axis."""
    counts = np.cumsum(np.insert(occupied.astype(np.int64), 0, 0, axis=axis), axis=axis)
    length = occupied.shape[axis]
    at = np.arange(length)
    upper, lower = np.minimum(at + margin + 1, length), np.maximum(at - margin, 0)
    return np.take(counts, upper, axis) > np.take(counts, lower, axis)


def bin_requests(system: Atoms, cut: Cut, reach: float) -> BinRequests:
    """Requests with bins of half the reach, or wider."""
    owner = np.repeat(np.arange(cut.ranks), cut.counts)
    lengths, width = _span(system, reach) * heights(system.cell), reach / 2
    fractional = combine(np.take(system.positions, cut.order, axis=0), np.linalg.inv(system.cell))
    spread = (fractional - system.low) / _span(system, reach)
    while True:
        bins = np.maximum(np.floor(lengths / width), 1.0)
        if np.prod(bins + 8) <= max(2**18, 4 * len(system)):  # occupancy is kept as an array
            bins = bins.astype(np.int64)
            at = np.minimum((spread * bins).astype(np.int64), bins - 1)
            occupied = np.unique(((owner * bins[0] + at[:, 0]) * bins[1] + at[:, 1]) * bins[2] + at[:, 2])
            if np.bincount(occupied // np.prod(bins), minlength=cut.ranks).max(initial=0) <= MOST_BINS:
                break
        width *= 1.25
    return BinRequests(system, cut, reach, bins, boxes.of_ranks(system, cut), images(system.cell, system.pbc, reach))


def _span(system: Atoms, reach: float) -> np.ndarray:
    """Width of the binned range, of the cell; at least one bin of half the reach, so that margins are few bins."""
    return np.maximum(system.span, reach / 2 / heights(system.cell))
