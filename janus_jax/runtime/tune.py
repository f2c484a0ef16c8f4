"""Choose the cap of split, or the unit of wavek, on this hardware (JanusPipe, Figure 6).

Phase times are measured in one step, memory is counted, what does not fit is left out, and the best few by
simulation are run.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from janus_jax import schedule as schedules
from janus_jax.graph import AtomGraph, LabelCounts
from janus_jax.runtime import multihost
from janus_jax.runtime.profile import Recorder
from janus_jax.runtime.trainer import PipelineTrainer
from janus_jax.schedule.tune import option
from janus_jax.train.state import TrainState

CANDIDATES, STEPS = 3, 2
SHARE = 0.8
"""Of free device memory that micro-batches may keep; the rest is for what programs need while they run."""


def free_bytes(trainer: PipelineTrainer, state: TrainState) -> float | None:
    """What is left on the fullest device beside state and gradients; None where JAX does not know, as on CPUs.

    The same in all processes.
    """
    jax.block_until_ready(state)
    stats = [device.memory_stats() for owned in trainer.layout.owned for device in owned]
    known = all(s and "bytes_limit" in s for s in stats)
    free = min(s["bytes_limit"] - s["bytes_in_use"] for s in stats if s) if known else 0
    gradients = sum(leaf.nbytes for leaf in jax.tree.leaves(state.params) if leaf.addressable_shards)
    mib = -multihost.largest(-int((SHARE * free - gradients) / 2**20))
    return mib * 2.0**20 if known else None


def tune(
    trainer: PipelineTrainer,
    state: TrainState,
    micro_batches: Sequence[AtomGraph | None],
    counts: LabelCounts,
    name: str,
    budget_bytes: float | None = None,
) -> tuple[PipelineTrainer, dict[str, Any]]:
    """(trainer with the best schedule, figures); all processes choose the same.

    Args:
        micro_batches, counts: of a global batch; all micro-batches have the shapes of the worst.
        name: split or wavek.

    Raises:
        ScheduleError: nothing to tune, or nothing fits; says what the smallest needs.
    """
    batch, chosen_by = (micro_batches, counts), option(name)
    schedule, stages = trainer.schedule, trainer.schedule.stages
    graph = next(g for g in micro_batches if g is not None)
    sizes = trainer.sizes(graph)
    jax.block_until_ready(trainer.step(state, *batch)[0])  # compiles
    record = Recorder(trainer.executor)
    jax.block_until_ready(trainer.step(state, *batch, record)[0])
    times = record.timeline().times
    size = name, stages, schedule.micro_batches
    _, tried = schedules.tune(*size, times, budget_bytes, sizes=sizes)
    fitting = sorted((c for c in tried if c.fits), key=lambda choice: (choice.makespan, choice.memory))
    runs = []
    for choice in fitting[:CANDIDATES]:
        one = trainer.with_schedule(schedules.make(*size, times=times, **{chosen_by: choice.value}))
        runs.append((_seconds(one, state, batch), choice, one))
    seconds, best, chosen = min(runs, key=lambda entry: (entry[0], entry[1].memory))
    figures = {
        "schedule": name,
        chosen_by: best.value,
        "step_s": seconds,
        "budget_bytes": budget_bytes,
        "phase_s": {f"{op}{stage}": value for (op, stage), value in sorted((times.table or {}).items())},
        "simulated": [dataclasses.asdict(choice) for choice in tried],
        "measured": [{chosen_by: choice.value, "step_s": took} for took, choice, _ in runs],
    }
    return chosen, figures


def _seconds(trainer: PipelineTrainer, state: TrainState, batch) -> float:
    """Of the fastest of a few steps, as the slowest process sees it."""
    found = []
    for _ in range(STEPS):
        began = time.perf_counter()
        jax.block_until_ready(trainer.step(state, *batch)[0])
        found.append(multihost.largest(int(1e6 * (time.perf_counter() - began))))
    return min(found) / 1e6
