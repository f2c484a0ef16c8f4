"""Exact neighbours of one rank's atoms on the host (vesin), level 3 of the search."""

import dataclasses

import numpy as np
import vesin

from partition.cell import combine, displacements, extremes, slack, squared
from partition.errors import checked
from partition.exchange import Requests

MOST_CELLS = 100_000


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """Directed edges, sorted by destination: `src` j, `dst` i, `image` S with r = x[j] + S @ cell - x[i].

    `src` counts the points of the search (owned atoms first, then candidates), `dst` owned atoms.
    """

    src: np.ndarray
    dst: np.ndarray
    image: np.ndarray

    def __len__(self) -> int:
        return len(self.src)


def search(owned: np.ndarray, candidates: np.ndarray, images: np.ndarray, cell: np.ndarray, cutoff: float) -> Pairs:
    """All pairs of an owned atom with an owned atom or an image of a candidate closer than `cutoff`.

    Args:
        owned: [n, 3] wrapped positions, Å.
        candidates: [m, 3] wrapped positions; an atom may occur several times, and owned atoms may occur too.
        images: [m, 3] the image of each candidate that is meant.
        cell: [3, 3].
        cutoff: Å; a pair counts if its squared distance, computed by `cell.squared`, is below its square.
    """
    n = len(owned)
    moved = np.concatenate([owned, candidates + combine(images.astype(owned.dtype), cell)]).astype(float)
    if n == 0:
        return Pairs(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros((0, 3), np.int32))
    # vesin rounds in its own way: it searches a little farther, and the decision is made below
    reach = cutoff + slack(cutoff, float(np.abs(moved).max()), owned.dtype)
    rows = np.arange(checked("atoms and candidates of a rank", len(moved)), dtype=np.int32)
    centre, other = _near(moved, rows[:n], rows[n:], reach)
    image = np.concatenate([np.zeros((n, 3), np.int32), images.astype(np.int32)])[other]
    points = np.concatenate([owned, candidates])
    near = squared(displacements(points, other, centre, image, cell)) < np.square(owned.dtype.type(cutoff))
    order = np.flatnonzero(near)
    order = order[np.argsort(centre[order], kind="stable")]
    return Pairs(other[order], centre[order], image[order])


def _near(points, mine, others, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of `mine` with any of `mine` and `others` (rows of `points`) that may be within `reach`.

    vesin 0.6 divides by zero where a long and thin box has more than 100,000 cells, and makes cells larger
    than the cutoff in any box that has: such boxes are divided.
    """
    low, high = extremes(points[mine])
    others = others[((points[others] >= low - reach) & (points[others] <= high + reach)).all(1)]
    if np.prod((high - low) / reach + 3) > MOST_CELLS and len(mine) > 1:
        axis = int(np.argmax(high - low))
        order = np.argpartition(points[mine, axis], len(mine) // 2)
        halves = np.sort(mine[order[: len(mine) // 2]]), np.sort(mine[order[len(mine) // 2 :]])
        parts = [_near(points, a, np.concatenate([b, others]), reach) for a, b in (halves, halves[::-1])]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))  # type: ignore[return-value]
    rows = np.concatenate([mine, others])
    found = vesin.NeighborList(cutoff=reach, full_list=True).compute(
        points=points[rows] - low, box=np.zeros((3, 3)), periodic=False, quantities="ij"
    )
    centre, other = (np.asarray(index) for index in found)
    kept = centre < len(mine)
    return rows[centre[kept]], rows[other[kept]]


def all_pairs(requests: Requests, cutoff: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of all ranks by atom ids, relative to the positions as given: (centre i, neighbour j, image S)."""
    system, cut = requests.system, requests.cut
    parts = []
    for rank in range(cut.ranks):
        owned, (ids, images) = cut.ids(rank), requests.candidates(rank)
        pairs = search(system.positions[owned], system.positions[ids], images, system.cell, cutoff)
        i, j = owned[pairs.dst], np.concatenate([owned, ids])[pairs.src]
        parts.append((i, j, pairs.image + system.turns[i] - system.turns[j]))
    i, j, image = (np.concatenate(part) for part in zip(*parts, strict=True))
    return i, j, image
