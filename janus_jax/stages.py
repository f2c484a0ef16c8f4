"""A potential cut into pipeline stages: runs of its blocks, the embedding in the first, the readout in the last.

Every stage makes its own geometry from the positions, so what geometry needs (element tables, the vector of
charge, spin and data set) is held by every stage, and its gradients are summed over stages.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from flax import nnx
from numpy.typing import DTypeLike

from janus_jax.errors import StageError
from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Exchange, Potential, no_exchange, propagate, read_out
from janus_jax.phases.equations import flatten, upstream, variables
from janus_jax.typing import Array, Float, pytree

Path = tuple[Any, ...]
"""Of a parameter in a module."""


@pytree
class Place:
    """What forces and stress are gradients in; in a pipeline with a leading axis for the devices of a rank."""

    positions: Float[Array, "*devices atoms 3"]
    strain: Float[Array, "*devices structures 3 3"]

    @staticmethod
    def of(graph: AtomGraph) -> "Place":
        return Place(graph.positions, np.zeros(graph.cell.shape, graph.positions.dtype))


@dataclasses.dataclass(frozen=True)
class StageFunction:
    """What a kind of stage computes; equal for stages of equal structure, so that they share programs.

    Called as f(params, h, place, (graph, fixed)): `h` is () on the first stage, and the last returns the
    energies of the structures (eV) from the atoms this device owns.

    Attributes:
        unused: parameters of the graph definition that the stage never reads, as (path, shape, type).
    """

    graphdef: Any
    unused: tuple[tuple[Path, tuple[int, ...], str], ...]
    first: bool
    last: bool
    exchange: Exchange = no_exchange

    def __call__(self, params: nnx.State, h: Any, place: Place, constants: tuple[AtomGraph, nnx.State]) -> Any:
        graph, fixed = constants
        blank = nnx.from_flat_state([(p, nnx.Param(jnp.zeros(shape, kind))) for p, shape, kind in self.unused])
        model: Potential = nnx.merge(self.graphdef, params, fixed, blank)
        h = propagate(model, graph, place.positions, place.strain, self.exchange, None if self.first else h)
        return read_out(model, h, graph) if self.last else h


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage of a model.

    Attributes:
        params: trained variables it reads, under their names in the stage (its blocks are counted from 0).
        fixed: variables that are not trained.
        start: number of its first block in the model.
    """

    function: StageFunction
    params: nnx.State
    fixed: nnx.State
    start: int

    def in_model(self, path: Path) -> Path:
        """Path in the whole model of a path in the stage."""
        return (path[0], path[1] + self.start, *path[2:]) if path[0] == "blocks" else path


def cut_model(model: Potential, blocks: Sequence[int], exchange: Exchange = no_exchange) -> list[Stage]:
    """`model` as stages with these numbers of blocks.

    Raises:
        StageError: the numbers are not positive or do not add up to the model's.
    """
    count = len(model.blocks)
    if sum(blocks) != count or min(blocks, default=0) < 1:
        raise StageError(f"stages of {list(blocks)} blocks for a model of {count}: give positive numbers with that sum")
    graphdef, state = nnx.split(model)
    stages, start = [], 0
    for k, size in enumerate(blocks):
        part: Potential = nnx.merge(graphdef, state)
        part.blocks = nnx.List(list(part.blocks)[start : start + size])
        stages.append(_stage(part, start, k == 0, k == len(blocks) - 1, exchange))
        start += size
    return stages


def _stage(part: Potential, start: int, first: bool, last: bool, exchange: Exchange) -> Stage:
    graphdef, params, fixed = nnx.split(part, nnx.Param, ...)
    whole = StageFunction(graphdef, (), first, last)  # without the exchange, which needs the devices' axes
    graph = blank_graph(part.dtype, 1, 1)
    place = Place.of(graph)
    h = () if first else jax.eval_shape(_features, graphdef, params, fixed, graph, place)  # params may be shapes
    flat = nnx.to_flat_state(params)
    closed = jax.make_jaxpr(whole)(params, h, place, (graph, fixed))
    read = _read(closed)
    variables_ = list(zip(flat, closed.jaxpr.invars, strict=False))
    used = nnx.from_flat_state([item for item, v in variables_ if v in read])
    unused = tuple((path, var.shape, str(var.dtype)) for (path, var), v in variables_ if v not in read)
    return Stage(StageFunction(graphdef, unused, first, last, exchange), used, fixed, start)


def _features(graphdef, params: nnx.State, fixed: nnx.State, graph: AtomGraph, place: Place):
    return propagate(nnx.merge(graphdef, params, fixed), graph, place.positions, place.strain)


def _read(closed: Any) -> set[jex.Var]:
    """Variables that any output depends on."""
    trace = flatten(closed)
    operands = (v for index in upstream(trace, trace.outputs) for v in trace.equations[index].invars)
    return set(variables([*operands, *trace.outputs]))


def blank_graph(dtype: DTypeLike, atoms: int, edges: int) -> AtomGraph:
    """A graph to trace with, of one structure."""
    one = np.zeros(1, np.int32)

    def integers(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.int32)

    return AtomGraph(
        positions=np.zeros((atoms, 3), dtype), numbers=integers(atoms), atom_structure=integers(atoms),
        atom_mask=np.ones(atoms, np.bool_), src=integers(edges), dst=integers(edges), image=integers(edges, 3),
        edge_mask=np.ones(edges, np.bool_), cell=np.eye(3, dtype=dtype)[None], pbc=np.ones((1, 3), np.bool_),
        structure_mask=np.ones(1, np.bool_), charge=one, spin=one, dataset=one,
    )  # fmt: skip
