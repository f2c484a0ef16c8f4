"""A schedule in time: start and end of every instruction, bubble, memory of each device.

Every device goes through its list in order. Transfers either block (send and receive meet and keep both
devices busy) or are overlapped (they take their time on the way, devices go on, and a computation waits
until its input is there; the link between two devices in one direction carries one transfer at a time).
"""

import dataclasses
from collections import deque
from collections.abc import Mapping

import numpy as np

from janus_jax.errors import ScheduleError
from janus_jax.schedule.dependencies import keys, needs
from janus_jax.schedule.footprint import Sizes, footprint
from janus_jax.schedule.instructions import COMPUTE, RECEIVE, SEND, Instruction, Schedule, peer
from janus_jax.schedule.times import PhaseTimes
from janus_jax.schedule.validate import Data, carried, data

KEPT = {"FE": 1.0, "FF": 1.0, "BF": 1.0, "BFt": 0.0, "BFr": 1.0, "BE": 0.0, "BEh": 0.0, "FE*": 1.0}
"""Memory units each phase leaves behind where no sizes are given."""
RELEASED = {"FE": ("BE", "BEw"), "FE*": ("BF", "BFr"), "FF": ("BF", "BFr"), "BF": ("BE",), "BFt": ("BFr",), "BFr": ("BEw",), "BEh": ("BEw",)}  # fmt: skip # noqa: E501
"""Which phase of the same stage and micro-batch frees what another has kept."""


@dataclasses.dataclass(frozen=True)
class Timeline:
    """When everything happens.

    Attributes:
        start, end: of each instruction, per device an array [instructions].
        busy: computing time of each device.
        inflight: most micro-batches that each device held at once, between FE (or FF) and its last backward phase.
        memory: per device (times, bytes after it), from the sizes given.
    """

    schedule: Schedule
    times: PhaseTimes
    start: tuple[np.ndarray, ...]
    end: tuple[np.ndarray, ...]
    busy: np.ndarray
    inflight: np.ndarray
    memory: tuple[tuple[np.ndarray, np.ndarray], ...]

    @property
    def makespan(self) -> float:
        return max(float(end[-1]) for end in self.end if len(end))

    @property
    def bubble(self) -> float:
        """Part of all device time that is not spent computing."""
        return float(1 - self.busy.sum() / (len(self.busy) * self.makespan))

    @property
    def parts(self) -> dict[str, float]:
        """Idle part of device time before a device's first, after its last, and between its computations."""
        total, parts = len(self.busy) * self.makespan, {"warm_up": 0.0, "steady": 0.0, "cool_down": 0.0}
        for device, instructions in enumerate(self.schedule.devices):
            chosen = [k for k, i in enumerate(instructions) if i.op in COMPUTE]
            if not chosen:
                parts["steady"] += self.makespan / total
                continue
            first, last = float(self.start[device][chosen[0]]), float(self.end[device][chosen[-1]])
            parts["warm_up"] += first / total
            parts["cool_down"] += (self.makespan - last) / total
            parts["steady"] += (last - first - float(self.busy[device])) / total
        return parts

    @property
    def peak_memory(self) -> np.ndarray:
        """[devices]."""
        return np.array([values.max(initial=0.0) for _, values in self.memory])


def simulate(
    schedule: Schedule,
    times: PhaseTimes,
    transfer: float = 0.0,
    *,
    blocking: bool = False,
    sizes: Mapping[str, float] | Sizes | None = None,
) -> Timeline:
    """Run a schedule in time.

    Args:
        transfer: time of one transfer.
        blocking: see the module docstring.
        sizes: memory each phase keeps until it is released, by operation; None: one unit a phase. Or `Sizes`.

    Raises:
        ScheduleError: it cannot be run; `validate` says more.
    """
    times.check(schedule.stages, schedule.micro_batches)
    state = _State(schedule, times, transfer, blocking)
    state.run()
    if isinstance(sizes, Sizes):
        curves = enumerate(footprint(schedule, sizes))
        memory = tuple((np.array(state.end[k]), curve) for k, curve in curves)
    else:
        memory = tuple(_memory(schedule, k, state, sizes or KEPT) for k in range(len(schedule.devices)))
    inflight = np.array([_inflight(schedule, k, state) for k in range(len(schedule.devices))])
    start, end = (tuple(np.array(values) for values in lists) for lists in (state.start, state.end))
    return Timeline(schedule, times, start, end, np.array(state.busy), inflight, memory)


class _State:
    """Where every device stands, and when things were done."""

    def __init__(self, schedule: Schedule, times: PhaseTimes, transfer: float, blocking: bool):
        self.schedule, self.times, self.transfer, self.blocking = schedule, times, transfer, blocking
        count = len(schedule.devices)
        self.named = [dict(keys(list_, schedule, k)) for k, list_ in enumerate(schedule.devices)]
        self.at, self.free, self.busy = [0] * count, [0.0] * count, [0.0] * count
        self.start: list[list[float]] = [[] for _ in range(count)]
        self.end: list[list[float]] = [[] for _ in range(count)]
        self.done: list[dict] = [{} for _ in range(count)]
        self.sent: dict[Data, float] = {}  # when what is on its way arrives
        self.link: dict[tuple[int, int], float] = {}
        self.arrived: list[dict[Data, float]] = [{} for _ in range(count)]
        self.split, self.recompute = schedule.split, schedule.recompute

    def run(self) -> None:
        ready = deque(range(len(self.at)))
        while ready:
            k = ready.popleft()
            while self.at[k] < len(self.schedule.devices[k]):
                instruction = self.schedule.devices[k][self.at[k]]
                woken = self._step(k, instruction)
                if woken is None:
                    break
                ready.extend(woken)
        for k, position in enumerate(self.at):
            if position < len(self.schedule.devices[k]):
                raise ScheduleError(
                    f"device {k}, position {position}, {self.schedule.devices[k][position]}: waits for ever"
                )

    def _finish(self, k: int, start: float, end: float) -> None:
        self.start[k].append(start)
        self.end[k].append(end)
        self.free[k] = end
        self.at[k] += 1

    def _step(self, k: int, instruction: Instruction) -> list[int] | None:
        """Run one instruction; returns devices that may go on because of it, None if it has to wait."""
        op, stages = instruction.op, self.schedule.stages
        if op in SEND + RECEIVE:
            what = carried(instruction, stages)
            other = self.schedule.virtual_device(peer(op, instruction.stage, stages))
            if self.blocking:
                return self._meet(k, other, what) if self._standing(other) == what else None
            return self._send(k, what, other) if op in SEND else self._receive(k, what)
        start = self.free[k]
        if op not in COMPUTE:
            self._finish(k, start, start)
            return []
        key = self.named[k][self.at[k]]
        for need in needs(key, stages, split=self.split, recompute=self.recompute):
            if need in self.done[k]:
                start = max(start, self.done[k][need])
                continue
            wanted = data(need, key, stages)
            if wanted is None or wanted not in self.arrived[k]:
                raise ScheduleError(f"device {k}, position {self.at[k]}, {instruction}: its input {need} is not there")
            start = max(start, self.arrived[k][wanted])
        took = self.times.of(*key)
        self.busy[k] += took
        self.done[k][key] = start + took
        self._finish(k, start, start + took)
        return []

    def _send(self, k: int, what: Data, other: int) -> list[int]:
        """Overlapped: the device goes on, the link is taken."""
        begin = max(self.free[k], self.link.get((k, other), 0.0))
        self.link[k, other] = self.sent[what] = begin + self.transfer
        self._finish(k, self.free[k], self.free[k])
        return [other]

    def _receive(self, k: int, what: Data) -> list[int] | None:
        """Overlapped: what has been sent will arrive; computations wait for it, the device does not."""
        if what not in self.sent:
            return None
        self.arrived[k][what] = self.sent[what]
        self._finish(k, self.free[k], self.free[k])
        return []

    def _standing(self, k: int) -> Data | None:
        """What the transfer carries that a device stands at."""
        if self.at[k] >= len(self.schedule.devices[k]):
            return None
        instruction = self.schedule.devices[k][self.at[k]]
        return carried(instruction, self.schedule.stages) if instruction.op in SEND + RECEIVE else None

    def _meet(self, k: int, other: int, what: Data) -> list[int]:
        start = max(self.free[k], self.free[other])
        receiver = k if self.schedule.devices[k][self.at[k]].op in RECEIVE else other
        self.arrived[receiver][what] = start + self.transfer
        for device in (k, other):
            self._finish(device, start, start + self.transfer)
        return [other]


def _memory(schedule: Schedule, k: int, state: _State, sizes: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Bytes on a device over time: kept from the start of a phase to the end of the one that needs it last."""
    changes = []
    for position, key in state.named[k].items():
        op, stage, micro = key
        size = sizes.get(op, sizes.get("FE", 0.0) if op == "FE*" else 0.0)
        if not size:
            continue
        changes.append((state.start[k][position], size))
        last = [state.done[k][o, stage, micro] for o in RELEASED.get(op, ()) if (o, stage, micro) in state.done[k]]
        changes.append((max(last, default=state.end[k][position]), -size))
    changes.sort(key=lambda change: (change[0], change[1]))
    if not changes:
        return np.zeros(1), np.zeros(1)
    at, amounts = np.array(changes).T
    return at, np.cumsum(amounts)


def _inflight(schedule: Schedule, k: int, state: _State) -> int:
    spans: dict[int, tuple[float, float]] = {}
    for position, (_, _, micro) in state.named[k].items():
        start, end = state.start[k][position], state.end[k][position]
        low, high = spans.get(micro, (start, end))
        spans[micro] = min(low, start), max(high, end)
    events = sorted([(low, 1) for low, _ in spans.values()] + [(high, -1) for _, high in spans.values()])
    level, most = 0, 0
    for _, change in events:
        level += change
        most = max(most, level)
    return most
