"""Schedules as data: pure Python and numpy, no JAX.

schedule = make("split", stages=4, micro_batches=12, cap=8, times=paper("UMA-1.2B"))
validate(schedule)
timeline = simulate(schedule, paper("UMA-1.2B"))
timeline.bubble, gantt(timeline)
"""

from janus_jax.schedule.footprint import Sizes, footprint
from janus_jax.schedule.instructions import Instruction, Schedule, from_csv, from_text, to_csv, to_text
from janus_jax.schedule.registry import NAMES, make
from janus_jax.schedule.render import chrome_trace, gantt, svg
from janus_jax.schedule.simulate import Timeline, simulate
from janus_jax.schedule.split import lower_bound, split
from janus_jax.schedule.times import PAPER, PhaseTimes, paper
from janus_jax.schedule.tune import tune
from janus_jax.schedule.validate import validate

__all__ = [
    "NAMES", "PAPER", "Instruction", "PhaseTimes", "Schedule", "Sizes", "Timeline", "chrome_trace", "footprint",
    "from_csv", "from_text", "gantt", "lower_bound", "make", "paper", "simulate", "split", "svg", "to_csv", "to_text",
    "tune", "validate",
]  # fmt: skip
