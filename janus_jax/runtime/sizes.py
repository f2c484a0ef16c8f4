"""What travels between stages, and the bytes that a micro-batch takes on each device: from shapes alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from janus_jax.schedule.footprint import Sizes
from janus_jax.schedule.instructions import Schedule, stage_of

ENERGIES_WAIT = {False: ("FE", "FF", "BF", "BFt", "BFr"), True: ("FE",)}
"""Operations of the last stage after which its energies wait for the loss, by whether FE is run again for FF."""


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
    nbytes: Callable[[Any], float],
) -> Sizes:
    """Bytes on one device of a rank.

    Args:
        held: what phases hold: (operation, stage) -> bytes.
        nbytes: of arrays or shapes, on one device.
    """
    carried, last = apart(schedule), schedule.stages - 1
    kept = dict(held)
    for name, stage in kept:  # what waits for the loss, and what FE* and BE will ask for
        if (name, stage) == ("FF", 0):
            kept[name, stage] += nbytes(place)
        if name == "FE" and schedule.recompute and stage not in carried:
            kept[name, stage] += 2 * nbytes(features[stage])
        if stage == last and name in ENERGIES_WAIT[schedule.recompute]:
            kept[name, stage] += nbytes(energies)
    ways = [("activation", v) for v in range(1, 2 * schedule.stages)]
    ways += [("gradient", v) for v in range(2 * schedule.stages - 1)]
    messages = {way: nbytes(message(*way, features, place, carried)) for way in ways}
    loss = schedule.force_device[0], schedule.energy_device[-1]
    loaded = (nbytes(graph) + nbytes(targets) * (rank in loss) for rank in range(len(schedule.devices)))
    return Sizes(kept, messages, tuple(loaded))
