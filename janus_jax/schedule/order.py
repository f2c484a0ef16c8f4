"""One order for all instructions of all devices, which every process follows for the devices it has."""

import heapq
from collections.abc import Iterator

from janus_jax.errors import ScheduleError
from janus_jax.schedule.instructions import RECEIVE, SEND, Instruction, Schedule, peer
from janus_jax.schedule.simulate import simulate
from janus_jax.schedule.times import TYPICAL, PhaseTimes


def global_order(schedule: Schedule, times: PhaseTimes = TYPICAL) -> list[tuple[int, int, Instruction]]:
    """(device, position, instruction), by simulated start, each send directly followed by its receive.

    Each device's own order is kept, so processes that follow this order can never wait for each other in
    a circle, whatever transfers do.

    Raises:
        ScheduleError: devices wait for each other.
    """
    return list(_ordered(schedule, simulate(schedule, times).start))


def _ordered(schedule: Schedule, start) -> Iterator[tuple[int, int, Instruction]]:
    lists = schedule.devices
    at = [0] * len(lists)
    ready = [(float(start[k][0]), k) for k in range(len(lists)) if lists[k]]
    heapq.heapify(ready)
    waiting: set[int] = set()

    def advance(k: int) -> tuple[int, int, Instruction]:
        entry = k, at[k], lists[k][at[k]]
        at[k] += 1
        if at[k] < len(lists[k]):
            heapq.heappush(ready, (float(start[k][at[k]]), k))
        return entry

    while ready:
        _, k = heapq.heappop(ready)
        instruction = lists[k][at[k]]
        if instruction.op not in SEND + RECEIVE:
            yield advance(k)
            continue
        other = schedule.virtual_device(peer(instruction.op, instruction.stage, schedule.stages))
        if other not in waiting or _other_end(schedule, lists[other][at[other]]) != k:
            waiting.add(k)
            continue
        waiting.remove(other)
        sender, receiver = (k, other) if instruction.op in SEND else (other, k)
        yield advance(sender)
        yield advance(receiver)
    if any(at[k] < len(lists[k]) for k in range(len(lists))):
        raise ScheduleError("devices wait for each other; validate says where")


def _other_end(schedule: Schedule, instruction: Instruction) -> int:
    return schedule.virtual_device(peer(instruction.op, instruction.stage, schedule.stages))
