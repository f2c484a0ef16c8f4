"""What a configuration will need on each device, from shapes alone: nothing is read, no device is used.

Bytes and operations are counted on the traced phases of each stage. Time comes from phase times that are
given, or from operations, in which case it has no unit.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from janus_jax import bundle
from janus_jax import schedule as schedules
from janus_jax.errors import ConfigError
from janus_jax.graph import AtomGraph, Capacity, Targets
from janus_jax.models import build, convert
from janus_jax.phases import Phases
from janus_jax.phases.cost import flops
from janus_jax.runtime import balance
from janus_jax.runtime.groups import make_groups
from janus_jax.runtime.orders import make_schedule
from janus_jax.runtime.sizes import nbytes, operations, parts, sizes
from janus_jax.schedule import PhaseTimes, Sizes, Timeline
from janus_jax.schedule.dependencies import expected
from janus_jax.schedule.instructions import SEND, peer
from janus_jax.stages import Place, Stage, blank_graph, cut_model
from janus_jax.train import optimizer
from janus_jax.train.config import TrainConfig
from janus_jax.typing import shapes

ATOMS_PER_ANGSTROM3 = 0.07
"""Where no number of neighbours is given: that of oxides, and of light molecules in condensed phases."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """The schedule in time, and all figures; bytes are those of one device."""

    timeline: Timeline
    figures: dict[str, Any]


def plan(
    config: TrainConfig,
    neighbors: float | None = None,
    times: PhaseTimes | None = None,
    progress: Callable[[int, str], None] = lambda done, what: None,
) -> Plan:
    """The plan of a training configuration.

    Args:
        neighbors: edges per atom; None: from the cutoff and a usual density.
        times: of the phases of one stage and micro-batch, ms; None: operations are taken for times.
        progress: called with the stages traced so far, and what is done next.

    Raises:
        MeshError, ScheduleError: model, batch and mesh do not fit together.
    """
    if neighbors is not None and not neighbors > 0:
        raise ConfigError(f"{neighbors:g} neighbors: edges per atom must be a positive number.")
    if config.start_from:
        config = config.model_copy(update={"model": bundle.load(config.start_from).config})
    mesh, pipeline = config.mesh, config.pipeline
    model = nnx.eval_shape(lambda: convert.cast(build(config.model, rngs=nnx.Rngs(0)), config.precision))
    blocks = balance.checked(pipeline.blocks or balance.blocks(model, mesh.pipe), model, mesh.pipe)
    stages = cut_model(model, blocks)
    micro_batches = balance.shared(config.batch.micro_batches, mesh.data)
    if neighbors is None:
        neighbors = ATOMS_PER_ANGSTROM3 * 4 / 3 * math.pi * config.model.cutoff_angstrom**3
    atoms = config.batch.atoms
    capacity = Capacity(atoms, math.ceil(atoms * neighbors), max(1, atoms // 25))
    progress(0, "making the schedule")
    schedule = make_schedule(pipeline, mesh.pipe, micro_batches)  # says where phases are; times change their order only
    flop, bytes_ = _counted(stages, config, schedule, capacity, progress)
    progress(len(stages), "making the schedule with these times")
    if times is None:
        unit = float(np.mean([value for (op, _), value in flop.items() if op == "FE"]))
        # One stage has nothing to send back, so its BEh counts no operation; a time is positive.
        timing = PhaseTimes.measured({key: max(value / unit, 1e-6) for key, value in flop.items()})
    else:
        timing = times
    schedule = make_schedule(pipeline, mesh.pipe, micro_batches, timing)
    constant = _constant(model, stages, schedule, config)
    timeline = schedules.simulate(schedule, timing, sizes=bytes_)
    rows, where = [], expected(schedule)
    for k, memory in enumerate(constant):
        work = sum(flop[op, s] for (op, s, micro), device in where.items() if device == k and not micro)
        activations = float(timeline.peak_memory[k])
        rows.append({**memory, "activations": activations, "bytes": sum(memory.values()) + activations, "flop": work})
    sends = [i for _, _, i in schedule if i.op in SEND]
    moved = sum(bytes_.messages[_message(i, mesh.pipe)] for i in sends)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    figures: dict[str, Any] = {
        "parameters": parameters,
        "devices": mesh.devices,
        "mesh": {"pipe": mesh.pipe, "data": mesh.data, "graph": mesh.graph},
        "blocks": list(blocks),
        "capacity": dataclasses.asdict(capacity),
        "edges_per_atom": neighbors,
        "schedule": schedule.name,
        "bubble": timeline.bubble,
        "shares": timing.shares if schedule.split else "BF and BE are whole",
        "transfers": len(sends),
        "transferred_bytes": moved * mesh.data,
        "device_rows": rows,
        "largest_bytes": max(row["bytes"] for row in rows),
        "flop_per_step": sum(flop.values()) * micro_batches * mesh.data,
    }
    if times is not None and schedule.split and times.table is None:
        others = [other for other in (times.as_measured(), times.bft_is_fe()) if other.shares != times.shares]
        made = [make_schedule(pipeline, mesh.pipe, micro_batches, other) for other in others]
        figures["bubble_with_other_shares"] = {
            other.shares: schedules.simulate(one, other).bubble for other, one in zip(others, made, strict=True)
        }
    if times is not None:
        figures["step_s"] = timeline.makespan / 1e3
        figures["atoms_per_s"] = config.batch.micro_batches * atoms / figures["step_s"]
    return Plan(timeline, figures)


def _message(instruction, stages: int) -> tuple[str, int]:
    return "activation" if instruction.op[1] == "A" else "gradient", peer(instruction.op, instruction.stage, stages)


def _counted(
    stages: list[Stage], config: TrainConfig, schedule, capacity: Capacity, progress: Callable[[int, str], None]
) -> tuple[dict, Sizes]:
    """Operations by (operation, stage), and bytes; stages of one kind are traced once."""
    graph = shapes(_graph(config.precision, capacity))
    place = jax.eval_shape(Place.of, graph)
    phases: dict[Any, Phases] = {}
    work, held, features, h = {}, {}, [], ()
    for number, stage in enumerate(stages):
        features.append(h)
        progress(number, "tracing the phases of the next one")
        for part in parts(schedule):
            key, kept = (stage.function, part), config.pipeline.memory
            phases.setdefault(key, Phases(stage.function, kept, split=schedule.split, part=part))
            cut = phases[key].at(stage.params, h, place, (graph, stage.fixed))
            for op, step in operations(cut, part):
                work[op, number] = sum(flops(cut.trace.equations[i]) for i in step.program.equations)
                held[op, number] = float(cut.held_bytes(step.program))
        h = jax.eval_shape(stage.function, stage.params, h, place, (graph, stage.fixed))
    targets = jax.eval_shape(_targets, graph)
    energies = jax.ShapeDtypeStruct(graph.charge.shape, graph.positions.dtype)
    return work, sizes(schedule, held, features, place, (graph, place.strain), targets, energies)


def _targets(graph: AtomGraph) -> Targets:
    structures = jnp.zeros(graph.charge.shape, graph.positions.dtype)
    return Targets(
        structures, graph.structure_mask, jnp.zeros_like(graph.positions), graph.atom_mask,
        jnp.zeros_like(graph.cell), graph.structure_mask, structures,
    )  # fmt: skip


def _constant(model, stages: list[Stage], schedule, config: TrainConfig) -> list[dict[str, float]]:
    """Bytes of parameters and what goes with them on each device."""
    method = optimizer.make(config.optimizer, config.steps)
    params = nnx.state(model, nnx.Param)
    spread = config.mesh.data if config.mesh.shard_optimizer else 1
    rows = [{"parameters": 0.0, "averages": 0.0, "gradients": 0.0, "optimizer": 0.0} for _ in schedule.devices]
    for group in make_groups(stages, schedule):
        part = group.part(params)
        size, moments = nbytes(part), nbytes(jax.eval_shape(method.init, part))
        for rank in group.ranks:
            rows[rank]["parameters"] += size
            rows[rank]["gradients"] += size
            rows[rank]["averages"] += size / spread
            rows[rank]["optimizer"] += moments / spread
    return rows


def _graph(precision: str, capacity: Capacity) -> AtomGraph:
    one, n = blank_graph(np.dtype(precision), capacity.atoms, capacity.edges), capacity.structures
    names = ("cell", "pbc", "structure_mask", "charge", "spin", "dataset")
    return one.replace(**{name: np.repeat(getattr(one, name), n, axis=0) for name in names})
