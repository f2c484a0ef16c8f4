"""From an order of computations to full instruction lists: loads, transfers, reduction, optimizer step.

Transfers are put where they fall in one global order in time, and each device keeps its part of that
order. Devices that follow one order cannot wait for each other in a circle, even if sends block.
"""

from collections.abc import Sequence

from janus_jax.errors import ScheduleError
from janus_jax.schedule.dependencies import Key, keys, needs, sent_by
from janus_jax.schedule.instructions import Instruction, Schedule, stage_of
from janus_jax.schedule.times import TYPICAL, PhaseTimes


def timed(schedule: Schedule, times: PhaseTimes) -> dict[Key, tuple[float, float, int]]:
    """(start, end, device) of every computation when each device runs its list in order; transfers are free.

    Raises:
        ScheduleError: the order cannot be run; names what waits for what.
    """
    lists = [list(keys(device, schedule, k)) for k, device in enumerate(schedule.devices)]
    at, free = [0] * len(lists), [0.0] * len(lists)
    done: dict[Key, tuple[float, float, int]] = {}
    split, recompute, stages = schedule.split, schedule.recompute, schedule.stages
    waiting: dict[Key, list[int]] = {}
    ready = list(range(len(lists)))
    while ready:
        device = ready.pop()
        while at[device] < len(lists[device]):
            key = lists[device][at[device]][1]
            wanted = needs(key, stages, split=split, recompute=recompute)
            missing = next((need for need in wanted if need not in done), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(device)
                break
            start = max([free[device], *(done[need][1] for need in wanted)])
            end = start + times.of(*key)
            done[key] = start, end, device
            free[device] = end
            at[device] += 1
            ready.extend(waiting.pop(key, ()))
    for device, rest in enumerate(lists):
        if at[device] < len(rest):
            position, key = rest[at[device]]
            missing = next(n for n in needs(key, stages, split=split, recompute=recompute) if n not in done)
            raise ScheduleError(
                f"device {device}, position {position}: {_name(key)} waits for {_name(missing)} forever"
            )
    return done


def _name(key: Key) -> str:
    return str(Instruction(key[0], key[1], key[2]))


def lower(schedule: Schedule, times: PhaseTimes = TYPICAL) -> Schedule:
    """The schedule with everything but its computations made anew.

    Raises:
        ScheduleError: the computations cannot be run in this order.
    """
    stages = schedule.stages
    done = timed(schedule, times)
    events: list[tuple[float, int, int, Key, int]] = []
    for number, (key, (start, end, device)) in enumerate(sorted(done.items(), key=lambda item: item[1])):
        events.append((start, 1, number, key, device))
        sent = None if key[0] == "FE*" else sent_by(key[0], key[1], stages)
        if sent is not None and schedule.virtual_device(sent[1]) != device:
            events.append((end, 0, number, key, device))
    lists: list[list[Instruction]] = [[] for _ in schedule.devices]
    loaded: set[tuple[int, int]] = set()
    for _, kind, _, (op, stage, micro), device in sorted(events):
        if kind == 1:
            if (device, micro) not in loaded:
                loaded.add((device, micro))
                lists[device].append(Instruction("LM", -1, micro))
            lists[device].append(Instruction(op.rstrip("*"), stage, micro))
        else:
            send, receive, to = transfer(op, stage, stages)
            lists[device].append(Instruction(send, stage, micro))
            lists[schedule.virtual_device(to)].append(Instruction(receive, stage_of(to, stages)[0], micro))
    ends = (Instruction("AR"), Instruction("OS"))
    return schedule.replace(devices=tuple((*instructions, *ends) for instructions in lists))


def transfer(op: str, stage: int, stages: int) -> tuple[str, str, int]:
    """(send, receive, virtual stage it goes to) of what a computation sends on; the ends have letters of their own."""
    sent = sent_by(op, stage, stages)
    assert sent is not None
    send, to = sent
    return send, f"R{send[1]}{stage_of(to, stages)[1]}", to


def computations(
    name: str,
    order: Sequence[Sequence[tuple[str, int, int]]],
    micro_batches: int,
    energy_device: tuple[int, ...],
    force_device: tuple[int, ...],
    *,
    recompute: bool = False,
) -> Schedule:
    """A schedule of computations only, to be lowered."""
    devices = tuple(tuple(Instruction(*key) for key in device) for device in order)
    return Schedule(name, len(energy_device), micro_batches, devices, energy_device, force_device, recompute)
