"""When the instructions of a step really ran, and how long phases take on these devices.

Programs run asynchronously; one thread a rank waits for the end of each in turn. The start of a computation
is the end of the one before on its rank, its dispatch, or the arrival of its input, whichever is last: devices
run what they are given in order.
"""

import queue
import threading
import time
from collections import defaultdict
from typing import Any

import jax
import numpy as np

from janus_jax.runtime import multihost
from janus_jax.runtime.executor import Executor, Step
from janus_jax.schedule.dependencies import needs
from janus_jax.schedule.instructions import COMPUTE, RECEIVE, Instruction
from janus_jax.schedule.simulate import Timeline
from janus_jax.schedule.times import PhaseTimes
from janus_jax.schedule.validate import carried, data

SHORTEST = 1e-7
"""Seconds; a phase with nothing to do takes some time too."""


class Recorder:
    """Give it to `Executor.run` as `observe`, then ask for the `timeline`."""

    def __init__(self, executor: Executor):
        self.executor, schedule = executor, executor.schedule
        shape = [len(device) for device in schedule.devices]
        self.dispatched, self.ended = ([np.full(n, np.nan) for n in shape] for _ in range(2))
        multihost.wait_for_all("recording starts")
        self.zero = time.perf_counter()  # clocks of different machines have different origins
        self.queues: dict[tuple[int, bool], queue.Queue] = {}
        self.threads: list[threading.Thread] = []
        for rank in executor.layout.here:
            for transfers in (False, True):
                waiting = self.queues[rank, transfers] = queue.Queue()
                thread = threading.Thread(target=self._wait, args=(rank, waiting), daemon=True)
                thread.start()
                self.threads.append(thread)

    def __call__(self, step: Step, rank: int, position: int, instruction: Instruction) -> None:
        if rank not in self.executor.layout.here:
            return
        self.dispatched[rank][position] = time.perf_counter() - self.zero
        if instruction.op in COMPUTE:
            self.queues[rank, False].put((position, step.done))
        elif instruction.op in RECEIVE:
            message = step.inbox[rank, carried(instruction, self.executor.schedule.stages)]
            self.queues[rank, True].put((position, jax.tree.leaves(message)))

    def _wait(self, rank: int, waiting: queue.Queue) -> None:
        while (entry := waiting.get()) is not None:
            position, arrays = entry
            jax.block_until_ready(arrays)
            self.ended[rank][position] = time.perf_counter() - self.zero

    def timeline(self) -> Timeline:
        """Seconds from the first dispatch; all processes call this."""
        for waiting in self.queues.values():
            waiting.put(None)
        for thread in self.threads:
            thread.join()
        schedule, executor = self.executor.schedule, self.executor
        self.dispatched = [multihost.known(times) for times in self.dispatched]
        self.ended = [multihost.known(times) for times in self.ended]
        zero = min(float(np.nanmin(times)) for times in self.dispatched if not np.isnan(times).all())
        start, end, busy = [], [], []
        for rank, instructions in enumerate(schedule.devices):
            begins, ends = np.zeros(len(instructions)), np.zeros(len(instructions))
            arrived: dict[Any, float] = {}
            last = total = 0.0
            for k, instruction in enumerate(instructions):
                at, done = self.dispatched[rank][k] - zero, self.ended[rank][k] - zero
                if instruction.op in RECEIVE and np.isfinite(done):
                    arrived[carried(instruction, schedule.stages)] = done
                    begins[k] = ends[k] = max(last, done)
                elif instruction.op in COMPUTE and np.isfinite(done):
                    key = executor.named[rank][k]
                    wanted = needs(key, schedule.stages, split=schedule.split, recompute=schedule.recompute)
                    inputs = [arrived.get(data(need, key, schedule.stages), 0.0) for need in wanted]
                    begins[k] = min(max(last, at, *inputs), done)
                    ends[k] = last = done
                    total += done - begins[k]
                else:
                    begins[k] = ends[k] = last
            start.append(begins)
            end.append(ends)
            busy.append(total)
        none = tuple((np.zeros(1), np.zeros(1)) for _ in start)
        found = Timeline(schedule, PhaseTimes.measured(self._table(start, end)), tuple(start), tuple(end),
                         np.array(busy), np.zeros(len(start), int), none)  # fmt: skip
        return found

    def _table(self, start, end) -> dict[tuple[str, int], float]:
        """Median time of each operation of each stage."""
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for rank in self.executor.layout.everyone:
            for k, (op, stage, _) in self.executor.named[rank].items():
                found[op, stage].append(float(end[rank][k] - start[rank][k]))
        return {key: max(float(np.median(values)), SHORTEST) for key, values in found.items()}
