"""Choose the unit of WaveK, or the cap of split, under a memory budget, by simulation (JanusPipe, Figure 6)."""

import dataclasses
from collections.abc import Iterator, Mapping

from janus_jax.errors import ScheduleError
from janus_jax.schedule.footprint import Sizes
from janus_jax.schedule.registry import make
from janus_jax.schedule.simulate import Timeline, simulate
from janus_jax.schedule.times import PhaseTimes

OPTION = {"wavek": "unit", "split": "cap"}
"""What there is to choose, by schedule."""


def option(name: str) -> str:
    """What `tune` chooses for a schedule.

    Raises:
        ScheduleError: nothing.
    """
    if name not in OPTION:
        raise ScheduleError(f"{name} has nothing to tune; wavek has its unit, split its cap")
    return OPTION[name]


@dataclasses.dataclass(frozen=True)
class Choice:
    """One value tried.

    Attributes:
        value: unit of wavek or cap of split.
        memory: peak over devices, in the unit of the sizes.
        fits: whether that is within the budget.
    """

    value: int
    makespan: float
    bubble: float
    memory: float
    fits: bool


class NothingFitsError(ScheduleError):
    """No value fits into the budget; `least` needs the least memory, in the unit of the sizes."""

    def __init__(self, name: str, budget: float, least: Choice):
        self.least = least
        super().__init__(
            f"nothing fits into {budget:g}; {name} needs the least with {OPTION[name]} {least.value}: {least.memory:g}"
        )


def tune(
    name: str,
    stages: int,
    micro_batches: int,
    times: PhaseTimes,
    budget: float | None = None,
    *,
    sizes: Mapping[str, float] | Sizes | None = None,
    transfer: float = 0.0,
    blocking: bool = False,
    **search,
) -> tuple[Choice, list[Choice]]:
    """(best that fits, all tried), values in ascending order.

    Args:
        budget: memory a device has for what phases keep; None: no limit.
        sizes: memory each phase keeps, by operation; or `Sizes`.

    Raises:
        ScheduleError: the schedule has nothing to tune.
        NothingFitsError: says what the smallest needs.
    """
    option(name)
    tried = []
    for value, timeline in _candidates(name, stages, micro_batches, times, sizes, transfer, blocking, search):
        memory = float(timeline.peak_memory.max())
        fits = budget is None or memory <= budget
        tried.append(Choice(value, timeline.makespan, timeline.bubble, memory, fits))
    fitting = [choice for choice in tried if choice.fits]
    if not fitting:
        least = min(tried, key=lambda choice: choice.memory)
        raise NothingFitsError(name, budget or 0.0, least)
    return min(fitting, key=lambda choice: (choice.makespan, choice.memory)), tried


def _candidates(
    name, stages, micro_batches, times, sizes, transfer, blocking, search
) -> Iterator[tuple[int, Timeline]]:
    if name == "wavek":
        values = sorted({*range(min(stages, micro_batches), min(micro_batches, 3 * stages) + 1), micro_batches})
    else:
        values = sorted({min(v, micro_batches) for v in range(max(1, stages // 2), 3 * stages + 1)})
    for value in values:
        schedule = make(name, stages, micro_batches, times=times, **{OPTION[name]: value}, **search)
        yield value, simulate(schedule, times, transfer, blocking=blocking, sizes=sizes)
