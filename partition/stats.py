"""What a cut costs: peers, halo, bytes, balance of edges, padding (on the host, rank after rank).

Memory: the atoms of the system, and the edges of one rank at a time.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from partition import boxes
from partition.builder import estimate, transport_for
from partition.cut import Atoms
from partition.exchange import Requests, requests, traffic
from partition.host_search import search
from partition.layout import Cut
from partition.topology import Settings


@dataclasses.dataclass(frozen=True, eq=False)
class RankCounts:
    """Counts [K] of the ranks, from their exact neighbours.

    Attributes:
        atoms, edges: owned atoms, and edges to them.
        local: edges whose source is owned too.
        halo: atoms of other ranks that edges need, each once.
        sources: ranks they come from.
        sent: [K, K] halo atoms of rank q owned by rank s.
        boxes: volume of the rank's box, Å^3.
    """

    atoms: np.ndarray
    edges: np.ndarray
    local: np.ndarray
    halo: np.ndarray
    sources: np.ndarray
    sent: np.ndarray
    boxes: np.ndarray


def count(
    table: Requests, cutoff: float, ranks: list[int] | None = None, progress: Callable[[int], None] | None = None
) -> RankCounts:
    """Search the neighbours of each rank (or of some `ranks`; the others stay zero)."""
    system, cut = table.system, table.cut
    owner, size = cut.owner(), cut.ranks
    edges, local = np.zeros(size, np.int64), np.zeros(size, np.int64)
    sent = np.zeros((size, size), np.int64)
    for done, rank in enumerate(range(size) if ranks is None else ranks):
        owned, (ids, images) = cut.ids(rank), table.candidates(rank)
        pairs = search(system.positions[owned], system.positions[ids], images, system.cell, cutoff)
        source = np.concatenate([owned, ids])[pairs.src]
        mine = owner[source] == rank
        edges[rank], local[rank] = len(pairs), mine.sum()
        sent[rank] = np.bincount(owner[np.unique(source[~mine])], minlength=size)
        if progress:
            progress(done + 1)
    corners = boxes.of_ranks(system, cut)
    sides = np.maximum(corners[:, 3] - corners[:, 2], 0)
    volume = np.where(cut.counts > 0, sides.prod(1, where=cut.counts[:, None] > 0) * _volume(system), 0.0)
    return RankCounts(cut.counts, edges, local, sent.sum(1), (sent > 0).sum(1), sent, volume)


def edges_of_atoms(system: Atoms, cut: Cut, cutoff: float) -> np.ndarray:
    """Edges to each atom [N]: weights of a balanced cut."""
    table, edges = requests(system, cut, cutoff), np.zeros(len(system))
    for rank in range(cut.ranks):
        owned, (ids, images) = cut.ids(rank), table.candidates(rank)
        pairs = search(system.positions[owned], system.positions[ids], images, system.cell, cutoff)
        edges[owned] = np.bincount(pairs.dst, minlength=len(owned))
    return edges


def _volume(system: Atoms) -> float:
    return abs(float(np.linalg.det(system.cell)))


def local_fraction(cutoff: float, atoms: float, density: float) -> float:
    """Expected share of neighbours on the same rank for cubes: 1 - 9 r / (8 L) (Tessera, formula 10)."""
    return max(1 - 9 * cutoff / (8 * (atoms / density) ** (1 / 3)), 0.0)


def summary(
    system: Atoms,
    cut: Cut,
    cutoff: float,
    *,
    skin: float = 0.0,
    scheme: str = "rank-box",
    numbers: int = 9 * 128,
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Any], RankCounts]:
    """Figures of a cut, and the counts they come from.

    Args:
        cutoff, skin: Å; edges and halo are those of cutoff + skin.
        scheme: how candidates are asked for.
        numbers: 4-byte numbers of one atom's features, for bytes per layer.
    """
    reach = cutoff + skin
    table = requests(system, cut, reach, scheme)
    asked, counts = traffic(table, scheme), count(table, reach, progress=progress)
    atoms, ranks = cut.atoms, cut.ranks
    span = np.where(system.span > 0, system.span, 1.0)
    occupied = max(float(span.prod()) * _volume(system), 1e-300)
    transport = transport_for(system, cut, reach, "ranks")
    capacity = estimate(system, cut, Settings((cutoff,), skin, _flags(system), transport), cut.rows)
    halo_rows = sum(capacity.halo[0])
    mean_edges = counts.edges.mean()

    def most(values: np.ndarray) -> float:
        return float(values.max(initial=0))

    figures = {
        "atoms": atoms,
        "ranks": ranks,
        "cut": cut.method,
        "shape": list(cut.shape),
        "reason": cut.reason,
        "cutoff_angstrom": cutoff,
        "skin_angstrom": skin,
        "atoms_per_rank": [int(counts.atoms.min()), int(counts.atoms.max())],
        "scheme": scheme,
        "peers_max": int(most(asked.peers)),
        "peers_mean": float(asked.peers.mean()),
        "candidates_per_atom": most(asked.candidates) * ranks / max(atoms, 1),
        "metadata_bytes": asked.metadata_bytes,
        "halo_sources_max": int(most(counts.sources)),
        "halo_atoms_max": int(most(counts.halo)),
        "halo_atoms_mean": float(counts.halo.mean()),
        "halo_per_atom": float(counts.halo.sum() / max(atoms, 1)),
        "halo_bytes_per_layer_max": int(most(counts.halo)) * numbers * 4,
        "exchange": transport.kind,
        "slots": transport.slots,
        "box_inflation_mean": float(counts.boxes.sum() / occupied),
        "box_inflation_max": most(counts.boxes) * ranks / occupied,
        "edges": int(counts.edges.sum()),
        "edges_max": int(most(counts.edges)),
        "edge_imbalance": most(counts.edges) / mean_edges if mean_edges else 1.0,
        "local_edge_fraction": float(counts.local.sum() / max(counts.edges.sum(), 1)),
        "local_edge_fraction_of_cubes": local_fraction(reach, atoms / ranks, atoms / occupied) if atoms else 1.0,
        "node_padding": 1 - atoms / (ranks * cut.rows),
        "halo_padding": 1 - float(counts.halo.mean()) / halo_rows if halo_rows else 0.0,
        "halo_capacity_use": most(counts.halo) / halo_rows if halo_rows else 0.0,
        "edge_capacity_use": most(counts.local) / capacity.local[0],
    }
    return figures, counts


def _flags(system: Atoms) -> tuple[bool, bool, bool]:
    x, y, z = (bool(flag) for flag in system.pbc)
    return x, y, z
