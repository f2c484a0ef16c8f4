"""Boxes around the atoms of a rank and lower bounds of the distance between them (levels 1 and 2 of the search).

A box [..., 4, 3] holds four corners: lowest and highest Cartesian coordinates, lowest and highest fractional
ones. The Cartesian one bounds the distance well where the cell is rectangular, the fractional one where it
is skewed; both are true lower bounds, so the larger counts. Images are explicit: a box of atoms shifted by
S @ cell, never a minimum image. Empty boxes are infinitely far from everything.

Source: Tessera, section 3.3 and appendix C (rank-box); the fractional bound is ours.
"""

import numpy as np

from partition.cell import combine, extremes, in_threads, xp
from partition.cut import Atoms
from partition.layout import Cut


def points(positions, inverse):
    """Cartesian and fractional coordinates [..., 2, 3] of positions [..., 3]."""
    return xp(positions).stack([positions, combine(positions, inverse)], -2)


def around(points, mask=None, axis: int = -3):
    """Box of points [..., n, 2, 3] over the axis of the points: [..., 4, 3]."""
    np_ = xp(points)
    low = points if mask is None else np_.where(mask[..., None, None], points, np.inf)
    high = points if mask is None else np_.where(mask[..., None, None], points, -np.inf)
    low, high = low.min(axis, initial=np.inf), high.max(axis, initial=-np.inf)
    return np_.stack([low[..., 0, :], high[..., 0, :], low[..., 1, :], high[..., 1, :]], -2)


def shifted(box, image, cell):
    """Boxes [..., 4, 3] of the images [..., 3] (float) of boxes."""
    np_ = xp(box)
    move, turn = combine(image, cell), image
    return box + np_.stack([move, move, np_.broadcast_to(turn, move.shape), np_.broadcast_to(turn, move.shape)], -2)


def bound(a, b, heights):
    """Lower bound (Å) of the distance between points in boxes `a` and `b` [..., 4, 3]; heights: face distances [3]."""
    np_ = xp(a)

    def gap(low_a, high_a, low_b, high_b):
        return np_.maximum(np_.maximum(low_b - high_a, low_a - high_b), 0)

    straight = gap(a[..., 0, :], a[..., 1, :], b[..., 0, :], b[..., 1, :])
    skewed = gap(a[..., 2, :], a[..., 3, :], b[..., 2, :], b[..., 3, :]) * heights[(None,) * (max(a.ndim, b.ndim) - 2)]
    return np_.maximum(np_.sqrt((straight * straight).sum(-1)), skewed.max(-1))


def point_bound(points, box, heights):
    """`bound` of points [..., 2, 3] and boxes."""
    return bound(xp(points).repeat(points, 2, -2), box, heights)


def of_runs(system: Atoms, ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Boxes [runs, 4, 3] of runs of atoms: run r is ids[starts[r]:starts[r + 1]]; runs may be empty."""
    boxes = np.full((len(starts) - 1, 4, 3), np.inf)
    boxes[:, 1::2] = -np.inf
    inverse = np.linalg.inv(system.cell)

    def run(k: int) -> None:
        positions = np.take(system.positions, ids[starts[k] : starts[k + 1]], axis=0)
        for half, values in enumerate((positions, combine(positions, inverse))):
            boxes[k, 2 * half : 2 * half + 2] = extremes(values)

    in_threads(run, np.flatnonzero(np.diff(starts)).tolist())
    return boxes


def of_ranks(system: Atoms, cut: Cut) -> np.ndarray:
    """One box a rank [K, 4, 3]."""
    return of_runs(system, cut.order, cut.starts)
