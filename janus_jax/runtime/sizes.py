"""What travels between stages, and the bytes that a micro-batch takes on each device: from shapes alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from janus_jax.phases import Cut, Step
from janus_jax.phases.tracing import Part
from janus_jax.schedule.footprint import Sizes
from janus_jax.schedule.instructions import Schedule, stage_of

ENERGIES_WAIT = {False: ("FE", "FF", "BF", "BFt", "BFr"), True: ("FE",)}
"""Operations of the last stage after which its energies wait for the loss, by whether FE is run again for FF."""


def parts(schedule: Schedule) -> tuple[Part, ...]:
    """The traces that a schedule needs of each stage."""
    return ("energy", "forces") if schedule.recompute else ("both",)


def operations(cut: Cut, part: Part) -> Iterator[tuple[str, Step]]:
    """(operation, program) of a stage; FE of the forces' trace is the one that is run again."""
    for step in cut:
        yield ("FE*" if part == "forces" and step.name == "FE" else step.name), step


def nbytes(tree: Any) -> int:
    """Of arrays or shapes."""
    return sum(a.size * np.dtype(a.dtype).itemsize for a in jax.tree.leaves(tree))


def apart(schedule: Schedule) -> frozenset[int]:
    """Stages whose inputs travel to another rank for FE to be run again; the first has no input but the graph."""
    pairs = zip(schedule.energy_device, schedule.force_device, strict=True)
    return frozenset(s for s, (energy, force) in enumerate(pairs) if s and energy != force)


def message(
    kind: str, virtual: int, features: Sequence[Any], place: Any, carried: frozenset[int]
) -> tuple[Any, dict[int, Any]]:
    """What a transfer to a virtual stage carries (see `janus_jax.runtime.executor`): (main, by stage).

    Args:
        features: input of each stage, () for the first; place: positions and strain. Arrays, shapes or bytes.
        carried: see `apart`.
    """
    count = len(features)
    stage, part = stage_of(virtual, count)
    last = stage == count - 1

    def of(most: int) -> dict[int, Any]:
        return {s: features[s] for s in sorted(carried) if s <= most}

    if kind == "activation":
        if part == "E":
            return features[stage], of(stage - 1)
        return () if last else (features[stage + 1], place), of(stage)
    if part == "F":
        return (features[stage], place), of(stage - 1)
    return () if last else features[stage + 1], of(stage)


def sizes(
    schedule: Schedule,
    held: Mapping[tuple[str, int], float],
    features: Sequence[Any],
    place: Any,
    graph: Any,
    targets: Any,
    energies: Any,
    devices: int = 1,
) -> Sizes:
    """Bytes on one device of a rank.

    Args:
        held: what phases hold on one device: (operation, stage) -> bytes.
        devices: that arrays and shapes are stacked over.
    """

    def each(tree: Any) -> float:
        return nbytes(tree) / devices

    carried, last = apart(schedule), schedule.stages - 1
    kept = dict(held)
    for name, stage in kept:  # what waits for the loss, and what FE* and BE will ask for
        if (name, stage) == ("FF", 0):
            kept[name, stage] += each(place)
        if name == "FE" and schedule.recompute and stage not in carried:
            kept[name, stage] += 2 * each(features[stage])
        if stage == last and name in ENERGIES_WAIT[schedule.recompute]:
            kept[name, stage] += each(energies)
    ways = [("activation", v) for v in range(1, 2 * schedule.stages)]
    ways += [("gradient", v) for v in range(2 * schedule.stages - 1)]
    messages = {way: each(message(*way, features, place, carried)) for way in ways}
    loss = schedule.force_device[0], schedule.energy_device[-1]
    loaded = (each(graph) + each(targets) * (rank in loss) for rank in range(len(schedule.devices)))
    return Sizes(kept, messages, tuple(loaded))
