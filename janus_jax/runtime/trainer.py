"""Training on a grid of devices: the pipeline counterpart of `janus_jax.train.state.Trainer`, with one interface.

A step runs the schedule, adds gradients over the devices of each group (AR), takes one norm over all
stages, and updates each group (OS).
"""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from janus_jax import schedule as schedules
from janus_jax.errors import ScheduleError
from janus_jax.graph import AtomGraph, LabelCounts
from janus_jax.models.potential import Potential
from janus_jax.runtime import balance
from janus_jax.runtime.config import MeshConfig, PipelineConfig
from janus_jax.runtime.executor import Executor, Step
from janus_jax.runtime.groups import Parts, make_groups
from janus_jax.runtime.layout import Layout, joined, shards, view
from janus_jax.runtime.orders import checked, make_schedule
from janus_jax.runtime.predict import PipelinePredictor
from janus_jax.runtime.programs import NO_TERMS, Batch, Programs
from janus_jax.runtime.transport import Transport
from janus_jax.schedule import Schedule, Sizes
from janus_jax.stages import Stage, cut_model
from janus_jax.train import optimizer
from janus_jax.train.loss import LossConfig, LossTerms
from janus_jax.train.optimizer import OptimizerConfig
from janus_jax.train.state import StepReport, Trainer, TrainState, updated
from janus_jax.typing import shapes


class PipelineTrainer:
    """Compiled steps of one model on a grid of devices.

    Args:
        steps: of the whole run, for the learning rate.
        schedule: for micro_batches / data micro-batches; None: made from `pipeline`.
        micro_batches: of a global batch.

    Raises:
        MeshError: devices, stages or micro-batches do not fit the grid.
        ScheduleError: the schedule is for other numbers of stages or micro-batches, or cannot be run.
    """

    def __init__(
        self,
        model: Potential,
        config: OptimizerConfig,
        steps: int,
        weights: LossConfig,
        mesh: MeshConfig,
        pipeline: PipelineConfig,
        micro_batches: int,
        *,
        schedule: Schedule | None = None,
        compiler_options: dict[str, Any] | None = None,
    ):
        self.single = Trainer(model, config, steps, weights)
        self.config, self.mesh, self.method = config, mesh, self.single.method
        self.graphdef = self.single.graphdef
        share = balance.shared(micro_batches, mesh.data)
        given = schedule is not None
        self.schedule = checked(schedule, mesh.pipe, share) if given else make_schedule(pipeline, mesh.pipe, share)
        blocks = pipeline.blocks or balance.blocks(model, mesh.pipe)
        self.stages = [_shapes_only(s) for s in cut_model(model, balance.checked(blocks, model, mesh.pipe))]
        self.layout = Layout.of(mesh)
        self.options = compiler_options
        self.programs = Programs(self.stages, self.schedule, self.layout, pipeline.memory, weights, compiler_options)
        transport = Transport(self.layout)
        self.executor = Executor(self.schedule, self.programs, transport)
        self.forward = Executor(self.schedule, self.programs, transport, forward=True)
        graphdef, variables = nnx.split(model)
        self.metadata: Potential = nnx.merge(graphdef, shapes(variables))
        self.groups = make_groups(self.stages, self.schedule)
        like = jax.eval_shape(self.single.init, model)
        self.parts = Parts(self.layout, self.groups, like, self.method, mesh.shard_optimizer)
        self._reduce = [self._reducer(number) for number in range(len(self.groups))]
        self._update = [self._updater(number) for number in range(len(self.groups))]
        self._finish = self._jit(self._finished, out_shardings=self.layout.replicated(self.layout.everyone))
        self.dtype = np.dtype(model.dtype)
        self._fixed: list[jax.Array] | None = None

    def _jit(self, function, **more):
        return jax.jit(function, compiler_options=self.options, **more)

    def init(self, model: Potential) -> TrainState:
        """The state at the start; made on the host, so that no device has to hold all of it."""
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            graphdef, variables = nnx.split(model)
            state = self.single.init(nnx.merge(graphdef, jax.tree.map(np.asarray, variables)))
        return self.place(state)

    def place(self, state: TrainState) -> TrainState:
        """A state from elsewhere (one device, another layout), on these devices."""
        return self.parts.place(state)

    def step(
        self,
        state: TrainState,
        micro_batches: Sequence[AtomGraph | None],
        counts: LabelCounts,
        observe: Callable | None = None,
    ) -> tuple[TrainState, LossTerms, StepReport]:
        """One update from the micro-batches of a global batch.

        Args:
            observe: called after each instruction, as `janus_jax.runtime.profile.Recorder` is.
        """
        done = self.executor.run(self.stage_params(state), self.batch(micro_batches, counts), observe)
        gradients, squares = self.reduced(done)
        norm, terms = self._finish(squares, self._terms(done))
        leaves = jax.tree.leaves(state)
        changed = {}
        for number, gradient in gradients.items():
            part = self.parts.part(leaves, number)
            ranks = self.groups[number].ranks
            changed[number] = self._update[number](part, gradient, view(norm, self.layout.replicated(ranks)))
        return self.parts.merged(state, changed), terms, StepReport(norm, jnp.isfinite(norm))

    def stage_params(self, state: TrainState, *, averaged: bool = False) -> dict[tuple[int, int], list[jax.Array]]:
        """What the executor takes: raw or averaged parameters by rank and stage."""
        fixed = jax.tree.leaves(state.fixed)
        if self._fixed is None or any(a is not b for a, b in zip(fixed, self._fixed, strict=True)):
            self.programs.set_fixed(state.fixed)
            self._fixed = fixed
        return self.programs.params(self.parts.unsharded(state.ema) if averaged else state.params)

    def needs(self, number: int) -> bool:
        """Whether this process needs a micro-batch of a global batch."""
        return number % self.mesh.data in self.layout.share

    def batch(self, micro_batches: Sequence[AtomGraph | None], counts: LabelCounts | None) -> Batch:
        """Micro-batches dealt out to the data ranks in turn; those that belong to other processes may be None."""
        data = self.mesh.data
        some = next(graph for graph in micro_batches if graph is not None)
        filled = [some if graph is None else graph for graph in micro_batches]  # never leaves the host
        graphs = _stacked([graph.replace(targets=None) for graph in filled], data)
        if counts is None:
            return Batch(graphs, (), {})
        ranks = set(self.programs.loss_ranks.values()) & set(self.layout.here)
        targets = _stacked([graph.targets for graph in filled], data)
        return Batch(graphs, targets, {rank: self.layout.put_replicated(counts, (rank,)) for rank in ranks})

    def with_schedule(self, schedule: Schedule) -> "PipelineTrainer":
        """The same programs in another order.

        Raises:
            ScheduleError: it needs other programs: stages elsewhere, phases split otherwise.
        """
        schedules.validate(schedule)
        for what in ("stages", "energy_device", "force_device", "recompute", "split", "micro_batches"):
            if getattr(schedule, what) != getattr(self.schedule, what):
                raise ScheduleError(f"{schedule.name}: {what} differs from that of {self.schedule.name}")
        other = copy.copy(self)
        other.schedule, transport = schedule, self.executor.transport
        other.executor = Executor(schedule, self.programs, transport)
        other.forward = Executor(schedule, self.programs, transport, forward=True)
        return other

    def sizes(self, graph: AtomGraph) -> Sizes:
        """Bytes that micro-batches shaped like this one leave on a device."""
        width = self.layout.width
        both = graph.replace(targets=None), graph.targets
        bare, targets = jax.tree.map(lambda a: np.broadcast_to(a, (width, *a.shape)), both)
        return self.programs.sizes(bare, targets)

    # AR

    def reduced(self, done: Step) -> tuple[dict[int, nnx.State], list[jax.Array]]:
        """Gradient of each group of this process, and the squared norm of each group, for `_finished`."""
        buffers: dict[tuple[int, Any], jax.Array] = {}
        for (rank, _, stage), sums in done.gradient.items():
            for path, leaf in zip(self.programs.names[stage], sums, strict=True):
                key = rank, path
                buffers[key] = self.programs.add(buffers[key], leaf) if key in buffers else leaf
        done.gradient.clear()
        gradients, squares = {}, []
        for number, group in enumerate(self.groups):
            square = None
            if self.parts.here(group):
                over = self.layout.stacked(group.ranks)
                mine = [rank for rank in group.ranks if rank in self.layout.here]
                count = len(group.ranks) * self.layout.width
                stacked = [joined([buffers[rank, path] for rank in mine], over, count) for path in group.paths]
                gradients[number], square = self._reduce[number](stacked)
            squares.append(self._everywhere(square, group.ranks[0]))
        return gradients, squares

    def _reducer(self, number: int):
        group = self.groups[number]
        tree = self.parts.trees[number]
        params = jax.tree.unflatten(tree, range(tree.num_leaves)).params
        structure = jax.tree.structure(params)
        order = [group.paths.index(path) for path, _ in nnx.to_flat_state(params)]
        count = len(group.ranks) * self.layout.width

        def reduce(stacked):
            gradient = jax.tree.unflatten(structure, [stacked[k].sum(0) for k in order])
            return gradient, jnp.broadcast_to(optimizer.squared_norm(gradient, self.config), (count,))

        places = self.layout.replicated(group.ranks), self.layout.stacked(group.ranks)
        return self._jit(reduce, out_shardings=places)

    def _everywhere(self, array: jax.Array | None, rank: int) -> jax.Array:
        """Numbers stacked on a rank (None: not of this process) as an array stacked over all, zeros elsewhere."""
        own = set(self.layout.owned[rank])
        pieces = {} if array is None else {d: data for d, data in shards(array).items() if d in own}
        return self.executor.transport.spread(pieces, (), self.dtype)

    def _terms(self, done: Step) -> list[list[jax.Array]]:
        """The numbers of both parts of the loss, stacked over all devices."""
        found = []
        for kind, rank in self.programs.loss_ranks.items():
            arrays = jax.tree.leaves(done.terms[kind]) if kind in done.terms else [None] * TERMS.num_leaves
            found.append([self._everywhere(array, rank) for array in arrays])
        return found

    def _finished(self, squares: list[jax.Array], terms: list[list[jax.Array]]) -> tuple[jax.Array, LossTerms]:
        """(global norm, loss terms): the numbers that all devices must agree on."""
        width = self.layout.width
        total = sum(square[group.ranks[0] * width] for square, group in zip(squares, self.groups, strict=True))
        energy, forces = (jax.tree.unflatten(TERMS, [a.sum() for a in part]) for part in terms)
        return jnp.sqrt(total), energy + forces

    # OS

    def _updater(self, number: int):
        shardings = self.parts.part_shardings(number)
        return self._jit(partial(updated, method=self.method, config=self.config), out_shardings=shardings)

    # what else a run asks for

    def model(self, state: TrainState, *, params: nnx.State | None = None) -> Potential:
        """The potential with the averaged parameters, or those given; all processes call this, each gets all of it."""
        chosen = self.parts.unsharded(state.ema if params is None else params)
        return nnx.merge(self.graphdef, self._on_host(chosen), jax.tree.map(np.asarray, state.fixed))

    def _on_host(self, params: nnx.State) -> nnx.State:
        """Parameters as numpy arrays, fetched one by one."""
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, params)
        leaves, tree = jax.tree.flatten(params)
        found = []
        for leaf, ranks in zip(leaves, self.parts.params_ranks, strict=True):
            own = set(self.layout.owned[ranks[0]])
            pieces = {d: data[None] for d, data in shards(leaf).items() if d in own}
            found.append(self.executor.transport.gather([pieces], [shapes(leaf)])[0][0])
        return jax.tree.unflatten(tree, found)

    def predictor(self, state: TrainState) -> PipelinePredictor:
        """Predictions with the averaged parameters."""
        return PipelinePredictor(self, state, self.metadata)

    def compilations(self) -> int:
        """Traced stages so far, one per kind, phase split and capacity."""
        return self.programs.count()


TERMS = jax.tree.structure(NO_TERMS)


def _shapes_only(stage: Stage) -> Stage:
    return dataclasses.replace(stage, params=shapes(stage.params), fixed=shapes(stage.fixed))


def _stacked(trees: Sequence[Any], data: int) -> tuple:
    runs = (trees[k : k + data] for k in range(0, len(trees), data))
    return tuple(jax.tree.map(lambda *arrays: np.stack(arrays), *run) for run in runs)
