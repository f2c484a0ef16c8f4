"""Bytes on each device after each instruction, from what phases hold, what travels and what is loaded.

Unlike the memory curve of `simulate` without sizes, this counts everything of a micro-batch: its graph from
its load to its last computation on the device, messages from their computation or receipt to their use, and
what phases hold. Space that a program needs only while it runs is the compiler's and not counted.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from janus_jax.schedule.dependencies import keys, needs, sent_by
from janus_jax.schedule.instructions import COMPUTE, RECEIVE, SEND, Schedule
from janus_jax.schedule.validate import Data, carried, data


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes on one device of a rank.

    Attributes:
        held: what a stage holds of a micro-batch after an operation, its graph not counted: (op, stage) -> bytes.
        messages: ("activation" or "gradient", virtual stage it goes to) -> bytes.
        loaded: a micro-batch's graph, and its labels where the loss is evaluated [devices]; or () for none.
    """

    held: Mapping[tuple[str, int], float]
    messages: Mapping[tuple[str, int], float]
    loaded: tuple[float, ...] = ()


def footprint(schedule: Schedule, sizes: Sizes) -> list[np.ndarray]:
    """Bytes after each instruction of each device, beside parameters, optimizer state and gradients."""
    return [_device(schedule, k, sizes) for k in range(len(schedule.devices))]


def _device(schedule: Schedule, k: int, sizes: Sizes) -> np.ndarray:
    named = dict(keys(schedule.devices[k], schedule, k))
    last = {key[2]: position for position, key in named.items()}
    held: dict[tuple, float] = {}
    messages: dict[Data, float] = {}
    graphs: set[int] = set()
    loaded = sizes.loaded[k] if sizes.loaded else 0.0
    curve = []
    for position, instruction in enumerate(schedule.devices[k]):
        op, _, micro = instruction
        if op == "LM":
            graphs.add(micro)
        elif op in RECEIVE:
            what = carried(instruction, schedule.stages)
            messages[what] = sizes.messages[what[:2]]
        elif op in SEND:
            messages.pop(carried(instruction, schedule.stages))
        elif op in COMPUTE:
            _compute(schedule, named[position], sizes, held, messages)
            if last[micro] == position:
                graphs.discard(micro)
        curve.append(sum(held.values()) + sum(messages.values()) + loaded * len(graphs))
    return np.array(curve)


def _compute(schedule: Schedule, key, sizes: Sizes, held: dict[tuple, float], messages: dict[Data, float]) -> None:
    op, stage, micro = key
    energy = op in ("FE", "BE", "BEh", "BEw")
    chain = (stage, micro, energy and schedule.recompute)
    held[chain] = sizes.held[op.rstrip("*") if op == "FE*" and (op, stage) not in sizes.held else op, stage]
    if not held[chain]:
        del held[chain]
    if op != "FE*":
        taking = ("FE*", stage, micro) if op == "FF" and schedule.recompute else key  # FF takes what FE* looked at
        for need in needs(taking, schedule.stages, split=schedule.split, recompute=schedule.recompute):
            what = data(need, key, schedule.stages)
            if what is not None:
                messages.pop(what, None)
    sent = None if op == "FE*" else sent_by(op, stage, schedule.stages)
    if sent is not None:
        kind = "activation" if sent[0][1] == "A" else "gradient"
        what = (kind, sent[1], micro)
        messages[what] = sizes.messages[what[:2]]
