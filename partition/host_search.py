"""Exact neighbours of one rank's atoms on the host (vesin), level 3 of the search."""

import dataclasses

import numpy as np
import vesin

from partition.cell import combine, complete_cell, displacements, extremes, heights, slack, squared
from partition.cut import atoms, cut
from partition.errors import CapacityError, checked
from partition.exchange import Requests, requests
from partition.search import Edges

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
    # vesin rounds in its own way: it searches a little farther, and pairs near the cutoff are decided here
    spare = slack(cutoff, float(np.abs(moved).max()), owned.dtype)
    rows = np.arange(checked("atoms and candidates of a rank", len(moved)), dtype=np.int32)
    dst, src, distance = _near(moved, rows[:n], rows[n:], cutoff + spare)
    turns = np.concatenate([np.zeros((n, 3), np.int32), images.astype(np.int32)])
    inside = distance < cutoff - spare
    edge = np.flatnonzero(~inside)
    points = np.concatenate([owned, candidates])
    vectors = displacements(points, src[edge], dst[edge], turns[src[edge]], cell)
    inside[edge] = squared(vectors) < np.square(owned.dtype.type(cutoff))
    dst, src = dst[inside], src[inside]
    order = _sorted(dst, n)
    src = src[order]
    return Pairs(src, dst[order], turns[src])


def padded(pairs: Pairs, length: int, rows: int) -> Edges:
    """Pairs in arrays of a fixed length, as the device search gives them; `rows` are those of the rank's arrays.

    Raises:
        CapacityError: more pairs than `length`.
    """
    need = len(pairs)
    if need > length:
        raise CapacityError({"edges": (need, length)})
    src, dst = np.zeros(length, np.int32), np.full(length, rows - 1, np.int32)
    image, mask = np.zeros((length, 3), np.int32), np.arange(length) < need
    src[:need], dst[:need], image[:need] = pairs.src, pairs.dst, pairs.image
    return Edges(src, dst, image, mask)


def _sorted(dst: np.ndarray, count: int) -> np.ndarray:
    """Stable order of destinations below `count`; numpy sorts 16-bit numbers by radix, in linear time."""
    if count <= 2**16:
        return np.argsort(dst.astype(np.uint16), kind="stable")
    low = np.argsort((dst & 0xFFFF).astype(np.uint16), kind="stable")
    return low[np.argsort((dst[low] >> 16).astype(np.uint16), kind="stable")]


def _near(points, mine, others, reach: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of `mine` with any of `mine` and `others` (rows of `points`) within `reach`, and their distances.

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
        dst, src, distance = (np.concatenate(part) for part in zip(*parts, strict=True))
        return dst, src, distance
    rows = np.concatenate([mine, others])
    first, second, distance = vesin.NeighborList(cutoff=reach, full_list=False).compute(
        points=points[rows] - low, box=np.zeros((3, 3)), periodic=False, quantities="ijd"
    )
    first, second = first.astype(np.int32), second.astype(np.int32)
    parts = []
    for dst, src in ((first, second), (second, first)):
        kept = dst < len(mine)
        parts.append((rows[dst[kept]], rows[src[kept]], distance[kept]))
    dst, src, distance = (np.concatenate(part) for part in zip(*parts, strict=True))
    return dst, src, distance


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


def neighbors(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> tuple:
    """Pairs of a whole system without ranks: (centre i, neighbour j, image S), in any cell.

    Raises:
        CellError: as `cut.atoms`.
    """
    system = atoms(positions, cell, pbc)
    return all_pairs(requests(system, cut(system, 1, "hilbert"), cutoff), cutoff)


def vesin_safe(positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float) -> bool:
    """Whether vesin may be given this system as it is: see `_near`."""
    cell = complete_cell(cell, pbc)
    fractional = positions @ np.linalg.inv(cell)
    extent = np.where(pbc, 1.0, np.ptp(fractional, axis=0) if len(positions) else 0.0) * heights(cell)
    return bool(np.prod(extent / cutoff + 1) <= MOST_CELLS)
