"""Graph-aware re-scheduling: the structures of a global batch packed anew into balanced micro-batches.

Algorithm 1 of the JanusPipe paper (appendix A): largest first into the micro-batch with the least load,
then shuffled, then tagged. Only the grouping changes, so the gradient of the global batch does not.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Literal

import numpy as np

from janus_jax.graph import Capacity

Kind = Literal["comm_free", "dist"]


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Structures by their place in the global batch.

    Attributes:
        kind: comm_free: every structure fits on one graph-parallel rank; dist: one must be spread over them.
        ranks: of a comm_free micro-batch, the structures of each graph-parallel rank, balanced; else empty.
    """

    members: tuple[int, ...]
    kind: Kind
    ranks: tuple[tuple[int, ...], ...]


def repack(
    atoms: np.ndarray,
    edges: np.ndarray,
    micro_batches: int,
    capacity: Capacity,
    seed: Sequence[int] = (0,),
    *,
    cost: Literal["atoms", "edges"] = "atoms",
    graph: int = 1,
) -> list[MicroBatch] | None:
    """Micro-batches of a global batch, each within `capacity`; None if packing by load alone does not fit.

    A structure goes to the least loaded micro-batch that has room for it. Costs O(M log M) for M structures.

    Args:
        atoms, edges: sizes [structures].
        seed: of the shuffle.
        cost: what load is counted in.
        graph: graph-parallel degree.
    """
    load = atoms if cost == "atoms" else edges
    sizes = np.stack([atoms, edges, np.ones_like(atoms)], 1).astype(np.int64)
    room = np.tile(np.array([capacity.atoms, capacity.edges, capacity.structures], np.int64), (micro_batches, 1))
    groups: list[list[int]] = [[] for _ in range(micro_batches)]
    heap = [(0, k) for k in range(micro_batches)]
    for index in np.argsort(-load, kind="stable"):
        full = []
        while heap and (room[heap[0][1]] < sizes[index]).any():
            full.append(heapq.heappop(heap))
        if not heap:
            return None
        total, k = heapq.heappop(heap)
        groups[k].append(int(index))
        room[k] -= sizes[index]
        for entry in [*full, (total + int(load[index]), k)]:
            heapq.heappush(heap, entry)
    rng = np.random.default_rng(list(seed))
    return [_tagged([group[k] for k in rng.permutation(len(group))], load, graph) for group in groups]


def _tagged(group: list[int], load: np.ndarray, graph: int) -> MicroBatch:
    share = load[group].sum() / graph if group else 0
    if group and load[group].max() > share:
        return MicroBatch(tuple(group), "dist", ())
    return MicroBatch(tuple(group), "comm_free", least_loaded(group, load, graph))


def least_loaded(group: Sequence[int], load: np.ndarray, bins: int) -> tuple[tuple[int, ...], ...]:
    """The second level: each structure, in the given order, to the bin with the least load."""
    found: list[list[int]] = [[] for _ in range(bins)]
    heap = [(0, k) for k in range(bins)]
    for index in group:
        total, k = heapq.heappop(heap)
        found[k].append(index)
        heapq.heappush(heap, (total + int(load[index]), k))
    return tuple(map(tuple, found))
