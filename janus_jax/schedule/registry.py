"""Schedules by name."""

from collections.abc import Callable

from janus_jax.errors import ScheduleError, UnknownNameError
from janus_jax.schedule import baselines, passes
from janus_jax.schedule.instructions import Schedule
from janus_jax.schedule.split import split
from janus_jax.schedule.times import TYPICAL, PhaseTimes

SIMPLE: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe_2nd": baselines.gpipe_2nd,
    "1f1b_2nd": baselines.one_f_one_b_2nd,
    "hanayo_2nd": baselines.hanayo_2nd,
    "symfold": passes.symfold,
}
NAMES = (*SIMPLE, "wavek", "split")


def make(
    name: str,
    stages: int,
    micro_batches: int,
    *,
    unit: int | None = None,
    cap: int | None = None,
    times: PhaseTimes = TYPICAL,
    **search,
) -> Schedule:
    """A schedule by name.

    Args:
        unit: of wavek (None: P).
        cap: of split (None: 2P).
        search: `trials`, `seed` of split.

    Raises:
        UnknownNameError: no such schedule.
        ScheduleError: a number is below 1, or an option belongs to another schedule.
    """
    if name not in NAMES:
        raise UnknownNameError("schedule", name, NAMES)
    for what, value in (("stages", stages), ("micro-batches", micro_batches), ("unit", unit), ("cap", cap)):
        if value is not None and value < 1:
            raise ScheduleError(f"{what} is {value}; it must be at least 1")
    if unit is not None and name != "wavek":
        raise ScheduleError(f"a unit belongs to wavek, not to {name}")
    if cap is not None and name != "split":
        raise ScheduleError(f"a cap belongs to split, not to {name}")
    times.check(stages, micro_batches)
    if name == "wavek":
        return passes.wavek(stages, micro_batches, unit or stages)
    if name == "split":
        return split(stages, micro_batches, cap, times, **search)
    return SIMPLE[name](stages, micro_batches)
