"""What each computation waits for, and where its inputs come from.

A computation is named by a key (op, stage, micro); FE run again for FF's sake is ("FE*", stage, micro).
"""

from collections.abc import Iterator, Mapping, Sequence

from janus_jax.errors import ScheduleError
from janus_jax.schedule.instructions import COMPUTE, Instruction, Schedule, stage_of, virtual_stage

Key = tuple[str, int, int]


def needs(key: Key, stages: int, *, split: bool, recompute: bool) -> list[Key]:
    """Computations that must have finished before this one starts, on this device or another."""
    op, s, m = key
    bf, be = ("BFt", "BEh") if split else ("BF", "BE")
    if op == "FE":
        return [("FE", s - 1, m)] if s else []
    forces_before = ("FF", s + 1, m) if s < stages - 1 else ("FE", s, m)
    if op == "FE*":  # what FF needs comes to its device with the activations; so do the inputs of its stage
        return [forces_before]
    if op == "FF":
        return [("FE*", s, m)] if recompute else [forces_before, ("FE", s, m)]
    if op in ("BF", "BFt"):
        return [(bf, s - 1, m), ("FF", s, m)] if s else [("FF", 0, m)]
    if op == "BFr":
        return [("BFt", s, m)]
    if op in ("BE", "BEh"):
        after = [(be, s + 1, m)] if s < stages - 1 else [(bf, s, m)]
        local = [] if recompute else [("BFr" if split else "BF", s, m)]
        return [*after, *local, ("FE", s, m)]
    if op == "BEw":
        return [("BEh", s, m)]
    raise ScheduleError(f"{op} is no computation of a second-order schedule")


def sent_by(op: str, stage: int, stages: int) -> tuple[str, int] | None:
    """What a computation sends on: (send operation, virtual stage it goes to); None where nothing leaves."""
    here = virtual_stage(op, stage, stages)
    _, kind = stage_of(here, stages)
    if op in ("FE", "FF"):
        return (f"SA{kind}", here + 1) if here < 2 * stages - 1 else None
    if op in ("BF", "BFt", "BE", "BEh"):
        return (f"SG{kind}", here - 1) if here > 0 else None
    return None


def keys(instructions: Sequence[Instruction], schedule: Schedule, device: int) -> Iterator[tuple[int, Key]]:
    """(position, key) of the computations of a device, telling a recomputed FE from the first."""
    seen: set[tuple[int, int]] = set()
    for position, (op, stage, micro) in enumerate(instructions):
        if op not in COMPUTE:
            continue
        if op == "FE" and schedule.recompute:
            again = schedule.energy_device[stage] != device or (stage, micro) in seen
            seen.add((stage, micro))
            yield position, ("FE*" if again else "FE", stage, micro)
        else:
            yield position, (op, stage, micro)


def expected(schedule: Schedule) -> Mapping[Key, int]:
    """Every computation a step needs, with the device it belongs on."""
    forward = ("FE", "FF") if not schedule.recompute else ("FE", "FE*", "FF")
    backward = ("BFt", "BFr", "BEh", "BEw") if schedule.split else ("BF", "BE")
    return {
        (op, stage, micro): (schedule.energy_device if op in ("FE", "BE", "BEh", "BEw") else schedule.force_device)[
            stage
        ]
        for op in (*forward, *backward)
        for stage in range(schedule.stages)
        for micro in range(schedule.micro_batches)
    }
