"""Which blocks of a model each pipeline stage gets, so that the slowest stage is as fast as possible.

The cost of a stage is counted on its trace: operations of its blocks, of the geometry that every stage
makes for itself, and of the embedding or readout if it has them.
"""

from collections.abc import Sequence
from itertools import pairwise

import jax
import numpy as np

from janus_jax.errors import MeshError
from janus_jax.models.potential import Potential
from janus_jax.phases.cost import flops
from janus_jax.phases.equations import flatten
from janus_jax.stages import Place, blank_graph, cut_model

ATOMS, EDGES = 64, 2048
"""Size of the graph that costs are counted for."""


def blocks(model: Potential, stages: int) -> tuple[int, ...]:
    """Numbers of blocks whose dearest stage is cheapest; of several, the one with the least sum of squares.

    Raises:
        MeshError: more stages than blocks.
    """
    count = len(model.blocks)
    if stages > count:
        raise MeshError(f"mesh.pipe={stages}: the model has {count} blocks (model.num_layers); each stage needs one.")
    if stages == 1:
        return (count,)
    if stages == count:
        return (1,) * count
    return partition(*block_costs(model), stages)


def block_costs(model: Potential) -> tuple[np.ndarray, float]:
    """Operations of each of three or more blocks, embedding and readout in the first and last; and of geometry."""
    count = len(model.blocks)
    alone = stage_costs(model, [1] * count)
    geometry = max(alone[0] + alone[1] - stage_costs(model, [2] + [1] * (count - 2))[0], 0.0)
    return np.maximum(alone - geometry, 0.0), float(geometry)


def stage_costs(model: Potential, sizes: Sequence[int]) -> np.ndarray:
    """Operations of each stage with these numbers of blocks [stages], for a graph of a usual size."""
    graph = blank_graph(model.dtype, ATOMS, EDGES)
    place, h, costs = Place.of(graph), (), []
    for stage in cut_model(model, sizes):
        arguments = stage.params, h, place, (graph, stage.fixed)
        closed, h = jax.make_jaxpr(stage.function, return_shape=True)(*arguments)
        costs.append(sum(flops(eqn) for eqn in flatten(closed).equations))
    return np.array(costs)


def partition(cost: np.ndarray, geometry: float, stages: int) -> tuple[int, ...]:
    """Runs of blocks with the smallest largest cost, by dynamic programming over (blocks so far, stages so far)."""
    count = len(cost)
    total = np.concatenate([[0.0], np.cumsum(cost)])

    def price(a: int, b: int) -> float:
        return float(total[b] - total[a]) + geometry

    # number of blocks -> (largest cost, sum of squares, borders)
    best: dict[int, tuple[float, float, tuple[int, ...]]]
    best = {b: (price(0, b), price(0, b) ** 2, (0, b)) for b in range(1, count + 1)}
    for _ in range(stages - 1):
        best = {
            b: min(
                (max(best[a][0], price(a, b)), best[a][1] + price(a, b) ** 2, (*best[a][2], b))
                for a in range(1, b)
                if a in best
            )
            for b in range(2, count + 1)
            if any(a in best for a in range(1, b))
        }
    return tuple(b - a for a, b in pairwise(best[count][2]))


def shared(micro_batches: int, data: int) -> int:
    """Micro-batches of each data rank.

    Raises:
        MeshError: they cannot be shared evenly.
    """
    if micro_batches % data:
        raise MeshError(
            f"{micro_batches} micro-batches (batch.micro_batches) cannot be shared by mesh.data={data}; "
            f"choose a multiple of {data}."
        )
    return micro_batches // data


def checked(sizes: Sequence[int], model: Potential, stages: int) -> tuple[int, ...]:
    """`sizes` if they are for this model and number of stages.

    Raises:
        MeshError: they are not.
    """
    if len(sizes) != stages or sum(sizes) != len(model.blocks):
        raise MeshError(
            f"pipeline.blocks={list(sizes)} does not fit mesh.pipe={stages} and a model of {len(model.blocks)} blocks: "
            "give one number a stage, with the model's number of blocks as sum."
        )
    return tuple(sizes)
