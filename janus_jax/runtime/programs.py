"""Everything that is compiled for a pipeline, rank by rank: phases of stages, losses, sums; and what they load."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import PartitionSpec as P

from janus_jax.graph import AtomGraph, LabelCounts, Targets
from janus_jax.models.potential import from_gradient
from janus_jax.phases import Cut, Memory, Phases
from janus_jax.phases.tracing import Part
from janus_jax.runtime.layout import AXES, Layout, view
from janus_jax.runtime.sizes import apart, message, operations, parts, sizes
from janus_jax.schedule.footprint import Sizes
from janus_jax.schedule.instructions import Schedule
from janus_jax.stages import Place, Stage
from janus_jax.train.loss import LossConfig, LossTerms, energy_loss, force_loss
from janus_jax.typing import shapes

NO_TERMS = LossTerms(*(np.zeros(()) for _ in dataclasses.fields(LossTerms)))


@dataclasses.dataclass(frozen=True)
class Batch:
    """A global batch on the host: micro-batches stacked over the devices of a rank, and where counts are known.

    Attributes:
        micro_batches: graphs without targets; leading axis of each array: device of the rank.
        targets: of each, stacked likewise; empty where nothing is learned.
        counts: of the labels, on the ranks that evaluate the loss.
    """

    micro_batches: tuple[AtomGraph, ...]
    targets: tuple[Targets, ...]
    counts: Mapping[int, LabelCounts]


def _size(graph: AtomGraph) -> tuple[tuple[int, ...], ...]:
    """What programs are compiled for."""
    return graph.numbers.shape, graph.src.shape, graph.charge.shape


class Programs:
    """Compiled programs of all stages on their ranks, made when first needed.

    Args:
        weights: of the loss.
        compiler_options: of jax.jit.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        schedule: Schedule,
        layout: Layout,
        memory: Memory,
        weights: LossConfig,
        compiler_options: dict[str, Any] | None = None,
    ):
        self.stages, self.schedule, self.layout = stages, schedule, layout
        self.memory, self.weights, self.options = memory, weights, compiler_options
        self.loss_ranks = {"forces": schedule.force_device[0], "energy": schedule.energy_device[-1]}
        self.names = [[stage.in_model(path) for path, _ in nnx.to_flat_state(stage.params)] for stage in stages]
        self._phases: dict[tuple, Phases] = {}
        self._cuts: dict[tuple, Cut] = {}
        self._cache: dict[tuple, Any] = {}
        self._fixed: dict[tuple[int, int], Any] = {}
        self.add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), compiler_options=compiler_options)
        self.held_by = [
            (rank, number)
            for number in range(len(stages))
            for rank in sorted({schedule.energy_device[number], schedule.force_device[number]} & set(layout.here))
        ]

    # what stages are given

    def params(self, params: nnx.State) -> dict[tuple[int, int], list[jax.Array]]:
        """Parameters of each stage on each rank of this process that runs it, given the model's on their ranks."""
        names = (path for path, _ in nnx.to_flat_state(params))
        flat = dict(zip(names, jax.tree.leaves(params), strict=True))
        return {
            (rank, number): [view(flat[path], self.layout.replicated((rank,))) for path in self.names[number]]
            for rank, number in self.held_by
        }

    def set_fixed(self, fixed: nnx.State) -> None:
        """What is not trained, the model's, to be given to all stages."""
        flat = {path: np.asarray(variable[...]) for path, variable in nnx.to_flat_state(fixed)}
        for rank, number in self.held_by:
            stage, width = self.stages[number], self.layout.width
            leaves = [flat[stage.in_model(path)] for path, _ in nnx.to_flat_state(stage.fixed)]
            stacked = [np.broadcast_to(leaf, (width, *leaf.shape)) for leaf in leaves]
            tree = jax.tree.structure(stage.fixed)
            self._fixed[rank, number] = jax.tree.unflatten(tree, self.layout.put(stacked, rank))

    def fixed(self, rank: int, stage: int) -> Any:
        return self._fixed[rank, stage]

    def load(self, batch: Batch, rank: int, micro: int) -> tuple[AtomGraph, Place, Targets | None]:
        """A micro-batch on a rank; targets go only where the loss is evaluated."""
        graph = batch.micro_batches[micro]
        targets = batch.targets[micro] if batch.targets and rank in self.loss_ranks.values() else None
        strain = np.zeros(graph.cell.shape, graph.positions.dtype)
        graph, strain, targets = self.layout.put((graph, strain, targets), rank)
        return graph, Place(graph.positions, strain), targets

    # phases

    def cut(self, rank: int, part: Part, stage: int, arrives: tuple) -> Cut:
        """The programs of a stage on a rank for what arrives at FE."""
        _, _, (graph, _) = arrives
        key = (rank, part, stage, *_size(graph))
        if key not in self._cuts:
            self._cuts[key] = self._stage_phases(rank, part, stage).at(self.stages[stage].params, *arrives)
        return self._cuts[key]

    def _stage_phases(self, rank: int, part: Part, stage: int) -> Phases:
        function, mesh = self.stages[stage].function, self.layout.mesh((rank,))
        if (function, part) not in self._phases:
            self._phases[function, part] = Phases(
                function, self.memory, split=self.schedule.split, part=part, mesh=mesh, compiler_options=self.options
            )
        if (function, part, rank) not in self._phases:
            self._phases[function, part, rank] = self._phases[function, part].on(mesh)
        return self._phases[function, part, rank]

    def zeros(self, rank: int, stage: int) -> list[jax.Array]:
        """A gradient of nothing."""
        leaves = jax.tree.leaves(self.stages[stage].params)

        def make():
            return [jnp.zeros((self.layout.width, *leaf.shape), leaf.dtype) for leaf in leaves]

        return self._cached(("zeros", rank, stage), lambda: self._jit(make, self.layout.stacked((rank,))))()

    def ones(self, rank: int, graph: AtomGraph) -> jax.Array:
        """dE/dE: the gradient that FF starts from."""
        shape, dtype = graph.charge.shape, graph.positions.dtype
        sharding = self.layout.stacked((rank,))
        return self._cached(("ones", rank, shape), lambda: self._jit(lambda: jnp.ones(shape, dtype), sharding)())

    def sizes(self, graph: AtomGraph, targets: Targets) -> Sizes:
        """Bytes on a device of everything that a micro-batch leaves there; stages that never ran are cut for it."""
        place, features, width = shapes(Place.of(graph)), self._features(graph), self.layout.width
        held: dict[tuple[str, int], float] = {}
        for number, stage in enumerate(self.stages):
            fixed = jax.tree.map(lambda a: jax.ShapeDtypeStruct((width, *a.shape), a.dtype), stage.fixed)
            for part in parts(self.schedule):
                rank = (self.schedule.force_device if part == "forces" else self.schedule.energy_device)[number]
                cut = self.cut(rank, part, number, (features[number], place, (shapes(graph), fixed)))
                held |= {(op, number): float(cut.held_bytes(step.program)) for op, step in operations(cut, part)}
        energies = np.zeros_like(graph.charge, graph.positions.dtype)
        return sizes(self.schedule, held, features, place, (graph, place.strain), targets, energies, width)

    def message(self, data: tuple[str, int, int], graph: AtomGraph) -> tuple[Any, dict]:
        """Shapes of what a transfer carries: (main, by stage)."""
        kind, virtual, _ = data

        def make():
            return message(kind, virtual, self._features(graph), shapes(Place.of(graph)), apart(self.schedule))

        return self._cached(("message", kind, virtual, *_size(graph)), make)

    def _features(self, graph: AtomGraph) -> list[Any]:
        """Shapes of the inputs of all stages, stacked; () for the first."""

        def make():
            one, place = shapes((graph, Place.of(graph)), drop=1)
            found: list[Any] = [()]
            for stage in self.stages[:-1]:
                found.append(jax.eval_shape(stage.function, stage.params, found[-1], place, (one, stage.fixed)))
            width = self.layout.width
            return [jax.tree.map(lambda a: jax.ShapeDtypeStruct((width, *a.shape), a.dtype), f) for f in found]

        return self._cached(("features", *_size(graph)), make)

    # the loss

    def force_loss(self, rank: int, gx: Place, labelled: tuple, counts: LabelCounts, terms: LossTerms | None):
        """(dL/d(dE/dx), terms so far) on the rank of stage 0's forces."""

        def local(gx, graph, counts, terms):
            def value(gx):
                energy = jnp.zeros(graph.charge.shape, gx.positions.dtype)
                found = from_gradient(energy, gx.positions, gx.strain, graph)
                parts = force_loss(found.forces, found.stress, graph, counts, self.weights)
                return parts.total, parts

            gradient, parts = jax.grad(value, has_aux=True)(gx)
            return gradient, terms + parts

        return self._loss(rank, "forces", local, gx, labelled, counts, terms)

    def energy_loss(self, rank: int, energy: jax.Array, labelled: tuple, counts: LabelCounts, terms: LossTerms | None):
        """(dL/dE, terms so far) on the rank of the last stage's energies."""

        def local(energy, graph, counts, terms):
            def value(energy):
                parts = energy_loss(energy, graph, counts, self.weights)
                return parts.total, parts

            gradient, parts = jax.grad(value, has_aux=True)(energy)
            return gradient, terms + parts

        return self._loss(rank, "energy", local, energy, labelled, counts, terms)

    def _loss(self, rank: int, kind: str, local, value, labelled: tuple[AtomGraph, Targets], counts, terms):
        def make():
            def on_device(value, labelled, counts, terms):
                value, (graph, targets), terms = jax.tree.map(lambda a: a[0], (value, labelled, terms))
                out = local(value, graph.replace(targets=targets), counts, terms)
                return jax.tree.map(lambda a: jnp.asarray(a)[None], out)

            rest = P(AXES)
            return self._jit(
                jax.shard_map(
                    on_device, mesh=self.layout.mesh((rank,)), in_specs=(rest, rest, P(), rest), out_specs=rest,
                    check_vma=False,
                )
            )  # fmt: skip

        if terms is None:
            terms = self.no_terms(rank, labelled[0].positions.dtype)
        return self._cached((kind, rank), make)(value, labelled, counts, terms)

    def no_terms(self, rank: int, dtype) -> LossTerms:
        """Zeros, one for each device of a rank."""
        zeros = np.zeros(self.layout.width, dtype)
        return self._cached(("terms", rank), lambda: self.layout.put(jax.tree.map(lambda _: zeros, NO_TERMS), rank))

    def count(self) -> int:
        """Cut stages so far: one a stage, rank and shape of micro-batches."""
        return len(self._cuts)

    def _jit(self, function, out_shardings=None):
        return partial(jax.jit, compiler_options=self.options)(function, out_shardings=out_shardings)

    def _cached(self, key: tuple, make):
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]
