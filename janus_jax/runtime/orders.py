"""The schedule that a run follows: by name or from a file, the same in all processes."""

from pathlib import Path

from janus_jax import schedule as schedules
from janus_jax.errors import ScheduleError, UnknownNameError
from janus_jax.runtime.config import PipelineConfig
from janus_jax.schedule import PhaseTimes, Schedule
from janus_jax.schedule.times import TYPICAL


def make_schedule(config: PipelineConfig, stages: int, micro_batches: int, times: PhaseTimes = TYPICAL) -> Schedule:
    """The schedule that a configuration names; one from a file is checked.

    Raises:
        UnknownNameError: neither a schedule nor a file.
        ScheduleError: it is for other numbers, or cannot be run.
    """
    if config.schedule in schedules.NAMES:
        return schedules.make(config.schedule, stages, micro_batches, unit=config.unit, cap=config.cap, times=times)
    path = Path(config.schedule)
    if not path.is_file():
        raise UnknownNameError("pipeline.schedule (no such file either)", config.schedule, schedules.NAMES)
    if config.unit or config.cap:
        raise ScheduleError(f"pipeline.unit and pipeline.cap belong to wavek and split; {path} is a schedule already")
    return checked(schedules.from_text(path.read_text()), stages, micro_batches)


def checked(schedule: Schedule, stages: int, micro_batches: int) -> Schedule:
    """The schedule, if it is for these numbers and can be run.

    Raises:
        ScheduleError: it is not.
    """
    found = schedule.stages, schedule.micro_batches, len(schedule.devices)
    if found != (stages, micro_batches, stages):
        raise ScheduleError(
            f"schedule {schedule.name}: for {found[0]} stages and {found[1]} micro-batches on {found[2]} ranks; "
            f"mesh.pipe is {stages}, batch.micro_batches / mesh.data {micro_batches}"
        )
    schedules.validate(schedule)
    return schedule
