"""Which atoms a rank asks of which other ranks before its search (level 1), by four schemes, on the host.

Every scheme groups the atoms of each rank into runs and publishes a box of each run, and one box for each of
its periodic images that comes near the system at all. From these, one small gather, everybody knows the whole
table of requests (rank x run x image).

- `all-gather`: everything to everybody; the reference.
- `rank-box`: one box a rank; the owner sends the atoms within reach of the box that asks (the paper sends all
  atoms of a requested image).
- `multi-box`: a few boxes a rank, of consecutive pieces of its Hilbert order.
- `spatial-bin`: bins of a global grid instead of boxes (`bins`).

Source: Tessera, sections 3.2, 3.3 and appendix C.
"""

import abc
import dataclasses

import numpy as np

from partition import boxes
from partition.cell import BLOCK, combine, heights, images, in_threads, slack
from partition.cut import Atoms
from partition.errors import PartitionError, check_cutoff
from partition.layout import Cut

SCHEMES = ("all-gather", "rank-box", "multi-box", "spatial-bin")
POSITION_BYTES = 3 * 8 + 8  # a position and the number of its atom
BOX_BYTES = 13 * 8  # two kinds of corners and a count


@dataclasses.dataclass(frozen=True, eq=False)
class Traffic:
    """What a scheme sends before one search.

    Attributes:
        peers: [K] source ranks of each rank, itself included (the paper's count).
        candidates: [K] atoms of other ranks and images of own ones that a rank then holds.
        atoms: [K, K] atoms that rank q gets from rank s, each once: [q, s].
        metadata_bytes: published by a rank before anything is sent, the largest.
    """

    scheme: str
    peers: np.ndarray
    candidates: np.ndarray
    atoms: np.ndarray
    metadata_bytes: int

    @property
    def bytes(self) -> np.ndarray:
        """Bytes of positions each rank receives [K]."""
        return self.atoms.sum(1) * POSITION_BYTES


class Requests(abc.ABC):
    """Who asks whom for what."""

    system: Atoms
    cut: Cut

    @property
    @abc.abstractmethod
    def pairs(self) -> np.ndarray:
        """[K, K]: rank q asks rank s for something; the diagonal is set."""

    @property
    @abc.abstractmethod
    def metadata_bytes(self) -> int:
        """Published by a rank before anything is sent, the largest."""

    @abc.abstractmethod
    def candidates(self, rank: int, stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Atoms (ids [m]) and images ([m, 3]) that `rank` searches besides its own atoms; each pair once.

        `stride`: only every so many atoms, for estimates.
        """


def traffic(requests: Requests, scheme: str = "", stride: int = 1) -> Traffic:
    """Peers, atoms and bytes; with `stride` > 1 estimated from a sample."""
    ranks, owner = requests.cut.ranks, requests.cut.owner()
    held, atoms = np.zeros(ranks, np.int64), np.zeros((ranks, ranks), np.int64)

    def one(q: int) -> None:
        ids, _ = requests.candidates(q, stride)
        held[q] = len(ids) * stride
        atoms[q] = np.bincount(owner[np.unique(ids)], minlength=ranks) * stride
        atoms[q, q] = 0

    in_threads(one, range(ranks))
    return Traffic(scheme, requests.pairs.sum(1), held, atoms, requests.metadata_bytes)


@dataclasses.dataclass(frozen=True, eq=False)
class BoxRequests(Requests):
    """Requests by boxes of runs of atoms.

    Attributes:
        ids, starts, rank: runs of atoms: run r is ids[starts[r]:starts[r + 1]] and belongs to rank[r].
        queries: [runs, 4, 3] boxes of the runs.
        run, image, box: [entries] images of runs that come near the system; the identity of each is among them.
        wanted: [K, entries] who asks for which.
        trim: whether the owner sends only atoms within reach of the boxes that ask.
    """

    system: Atoms
    cut: Cut
    reach: float
    ids: np.ndarray
    starts: np.ndarray
    rank: np.ndarray
    queries: np.ndarray
    run: np.ndarray
    image: np.ndarray
    box: np.ndarray
    wanted: np.ndarray
    trim: bool

    @property
    def pairs(self) -> np.ndarray:
        table = np.eye(self.cut.ranks, dtype=bool)
        asking, entry = np.nonzero(self.wanted)
        table[asking, self.rank[self.run[entry]]] = True
        return table

    @property
    def metadata_bytes(self) -> int:
        ranks = self.cut.ranks
        entries = np.bincount(self.rank[self.run], minlength=ranks) + np.bincount(self.rank, minlength=ranks)
        return int(entries.max(initial=0)) * BOX_BYTES

    def candidates(self, rank: int, stride: int = 1) -> tuple[np.ndarray, np.ndarray]:
        inverse, height = np.linalg.inv(self.system.cell), heights(self.system.cell)
        targets = self.queries[self.rank == rank] if self.trim else whole(self.system)[None]
        entries = np.flatnonzero(self.wanted[rank])
        entries = entries[(self.rank[self.run[entries]] != rank) | self.image[entries].any(1)]
        run = self.run[entries]
        counts = -(-(self.starts[run + 1] - self.starts[run]) // stride)
        ids, turns = [], []
        for some in np.split(np.arange(len(entries)), np.flatnonzero(np.diff(np.cumsum(counts) // BLOCK)) + 1):
            place = np.repeat(some, counts[some])  # the entry of each of their atoms
            within = np.arange(len(place)) - np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
            atoms = self.ids[self.starts[run[place]] + within * stride]
            image = self.image[entries[place]]
            check = image.any(1) | self.trim
            moved = np.take(self.system.positions, atoms[check], axis=0)
            points = boxes.points(moved + combine(image[check].astype(float), self.system.cell), inverse)
            near = np.zeros(len(points), bool)
            for target in targets:
                near |= boxes.point_bound(points, target[None], height) <= self.reach
            kept = ~check
            kept[check] = near
            ids.append(atoms[kept])
            turns.append(image[kept])
        if not ids:
            return np.zeros(0, np.int64), np.zeros((0, 3), np.int32)
        return np.concatenate(ids), np.concatenate(turns)


def requests(system: Atoms, cut: Cut, cutoff: float, scheme: str = "rank-box", pieces: int = 4) -> Requests:
    """The table of requests of a cut.

    Args:
        cutoff: Å, with the skin.
        scheme: one of `SCHEMES`.
        pieces: boxes a rank of `multi-box`.

    Raises:
        PartitionError: an unknown scheme, a cutoff that is not positive and finite, no pieces.
    """
    check_cutoff(cutoff)
    if pieces < 1:
        raise PartitionError(f"{pieces} pieces a rank; at least one is needed")
    if scheme not in SCHEMES:
        raise PartitionError(f"unknown exchange scheme {scheme!r}; allowed: {', '.join(SCHEMES)}")
    scale = float(np.abs(system.positions).max(initial=0)) + float(np.abs(system.cell).max())
    reach = cutoff + slack(cutoff, scale, np.float64)
    if scheme == "spatial-bin":
        from partition.bins import bin_requests

        return bin_requests(system, cut, reach)
    pieces = pieces if scheme == "multi-box" else 1
    ids, rank = cut.order, np.repeat(np.arange(cut.ranks), pieces)
    parts = np.arange(pieces)
    starts = np.append((cut.starts[:-1, None] + cut.counts[:, None] * parts // pieces).ravel(), cut.atoms)
    queries = boxes.of_runs(system, ids, starts)
    run, image, box = _images(system, ids, starts, queries, reach)
    height = heights(system.cell)
    wanted = np.zeros((cut.ranks, len(run)), bool)
    if scheme == "all-gather":
        wanted[:] = (cut.counts > 0)[:, None]
    else:
        ranks = np.stack([_merged(queries[rank == q]) for q in range(cut.ranks)])
        for q in np.flatnonzero(cut.counts):
            near = np.flatnonzero(boxes.bound(ranks[q][None], box, height) <= reach)
            for query in queries[rank == q]:
                wanted[q, near] |= boxes.bound(query[None], box[near], height) <= reach
    mutual = np.zeros((cut.ranks, cut.ranks), bool)
    asking, entry = np.nonzero(wanted)
    mutual[asking, rank[run[entry]]] = True
    wanted &= (mutual & mutual.T)[:, rank[run]]  # if one of two need not ask, there is no pair of theirs
    trim = scheme != "all-gather"
    return BoxRequests(system, cut, reach, ids, starts, rank, queries, run, image, box, wanted, trim)


def whole(system: Atoms) -> np.ndarray:
    """Box of the whole system [4, 3]; its Cartesian part is unbounded."""
    return np.stack([np.full(3, -np.inf), np.full(3, np.inf), system.low, system.low + system.span])


def _merged(several: np.ndarray) -> np.ndarray:
    """The box around boxes [n, 4, 3]."""
    box = np.empty((4, 3))
    box[0::2] = several[:, 0::2].min(0, initial=np.inf)
    box[1::2] = several[:, 1::2].max(0, initial=-np.inf)
    return box


def _images(system: Atoms, ids, starts, queries, reach) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images of runs within reach of the system: (run, image [., 3], box of the atoms that are)."""
    inverse, height = np.linalg.inv(system.cell), heights(system.cell)
    everything = whole(system)
    turns = images(system.cell, system.pbc, reach)
    used = np.flatnonzero(np.diff(starts))
    near = np.zeros((len(used), len(turns)), bool)
    for k, image in enumerate(turns):
        moved = boxes.shifted(queries[used], image.astype(float)[None], system.cell)
        near[:, k] = boxes.bound(moved, everything[None], height) <= reach
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in used]

    def one(k: int) -> None:
        """Boxes of the images of one run, from its atoms near the faces of the system."""
        positions = np.take(system.positions, ids[starts[used[k]] : starts[used[k] + 1]], axis=0)
        inside = combine(positions, inverse) - system.low
        faces = (inside * height <= reach) | ((system.span - inside) * height <= reach)
        positions = positions[(faces & system.pbc).any(1)]
        several = max(BLOCK // max(len(positions), 1), 1)
        for some in np.split(np.flatnonzero(near[k]), range(several, int(near[k].sum()), several)):
            moved = positions + combine(turns[some].astype(float), system.cell)[:, None]
            points = boxes.points(moved, inverse)
            close = boxes.point_bound(points, everything[None, None], height) <= reach
            occupied = close.any(1)
            box = np.asarray(boxes.around(points[occupied], close[occupied]))
            found[k].append((turns[some[occupied]], box))

    near, own = near & turns.any(1), near & ~turns.any(1)
    in_threads(one, np.flatnonzero(near.any(1)).tolist())
    flat = [(used[k], image, box) for k, some in enumerate(found) for image, box in some]
    run = [used[own.any(1)], *(np.full(len(image), k) for k, image, _ in flat)]
    image = [np.zeros((int(own.any(1).sum()), 3), np.int32), *(image for _, image, _ in flat)]
    box = [queries[used[own.any(1)]], *(box for _, _, box in flat)]
    return np.concatenate(run), np.concatenate(image), np.concatenate(box)
