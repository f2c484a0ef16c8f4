"""Whether a schedule can be run and does all that a training step needs; errors name device and position.

The schedule is run without times: each device goes through its list, a send waits for its receive (which
is the strictest way transfers can behave), a computation finds its inputs on its device or the schedule
is wrong.
"""

from collections import Counter, deque

from janus_jax.errors import ScheduleError
from janus_jax.schedule.dependencies import Key, expected, keys, needs, sent_by
from janus_jax.schedule.instructions import (
    COMPUTE,
    FIRST_ORDER,
    RECEIVE,
    SEND,
    Instruction,
    Schedule,
    peer,
    stage_of,
    virtual_stage,
)

Data = tuple[str, int, int]
"""("activation" or "gradient", virtual stage it goes to, micro-batch)."""


def validate(schedule: Schedule) -> None:
    """Raises ScheduleError if a schedule is not complete and runnable, even with sends that block.

    Checked: operations, stages and micro-batches exist and are on their device; each computation is there
    once, so is each load, send and receive; inputs are there when it runs; sends and receives match, in the same
    order on both ends; nothing waits for ever; AR and OS end each device's list.
    """
    _check_placement(schedule)
    _check_complete(schedule)
    _run(schedule)


def _at(device: int, position: int, instruction: Instruction) -> str:
    return f"device {device}, position {position}, {instruction}"


def _check_placement(schedule: Schedule) -> None:
    p, n = schedule.stages, schedule.micro_batches
    if len(schedule.energy_device) != p or len(schedule.force_device) != p:
        raise ScheduleError(f"the placement must name a device for energy and for forces of each of {p} stages")
    if schedule.recompute and schedule.split:
        raise ScheduleError("FE is run again for FF only where BF and BE are whole; this schedule splits them")
    if len(schedule.devices) != max(*schedule.energy_device, *schedule.force_device) + 1:
        raise ScheduleError(f"{len(schedule.devices)} devices, but the placement has other ones")
    for device, position, instruction in schedule:
        op, stage, micro = instruction
        where = _at(device, position, instruction)
        if op in FIRST_ORDER:
            raise ScheduleError(f"{where}: a first-order operation; apply pass 1")
        if op in ("AR", "OS"):
            continue
        if not 0 <= micro < n:
            raise ScheduleError(f"{where}: micro-batches are 0 to {n - 1}")
        if op == "LM":
            continue
        if not 0 <= stage < p:
            raise ScheduleError(f"{where}: stages are 0 to {p - 1}")
        own = {schedule.virtual_device(virtual_stage(op, stage, p))}
        if op == "FE" and schedule.recompute:
            own.add(schedule.force_device[stage])
        if device not in own:
            raise ScheduleError(f"{where}: belongs on device {min(own)}")
        if op in SEND + RECEIVE:
            other = peer(op, stage, p)
            if not 0 <= other < 2 * p:
                raise ScheduleError(f"{where}: there is no stage at the other end")
            if schedule.virtual_device(other) == device:
                raise ScheduleError(f"{where}: both ends are on this device; no transfer is needed")


def _check_complete(schedule: Schedule) -> None:
    split = schedule.split
    wanted = expected(schedule)
    found: set[Key] = set()
    for device, instructions in enumerate(schedule.devices):
        for position, key in keys(instructions, schedule, device):
            where = _at(device, position, instructions[position])
            if key not in wanted:
                raise ScheduleError(f"{where}: not a phase of a schedule {'with' if split else 'without'} split phases")
            if key in found or wanted[key] != device:
                raise ScheduleError(f"{where}: done already on this device")
            found.add(key)
    for key, device in wanted.items():
        if key not in found:
            raise ScheduleError(f"device {device}: {Instruction(*key)} is missing")
    _check_moved(schedule)
    for device, instructions in enumerate(schedule.devices):
        if [i.op for i in instructions[-2:]] != ["AR", "OS"]:
            raise ScheduleError(f"device {device}: the list must end with AR OS")
        for op, count in Counter(i.op for i in instructions).items():
            if op in ("AR", "OS") and count > 1:
                raise ScheduleError(f"device {device}: {op} is there {count} times")


def _check_moved(schedule: Schedule) -> None:
    """Each micro-batch is loaded once where it is used, each result that leaves is sent once and received once."""
    p = schedule.stages
    wanted = {(k, Instruction("LM", -1, micro)): False for (_, _, micro), k in expected(schedule).items()}
    for (op, stage, micro), device in expected(schedule).items():
        sent = None if op == "FE*" else sent_by(op, stage, p)
        if sent is not None and schedule.virtual_device(sent[1]) != device:
            to, part = stage_of(sent[1], p)
            wanted[device, Instruction(sent[0], stage, micro)] = False
            wanted[schedule.virtual_device(sent[1]), Instruction(f"R{sent[0][1]}{part}", to, micro)] = False
    for device, position, instruction in schedule:
        if instruction.op not in ("LM", *SEND, *RECEIVE):
            continue
        entry = device, instruction._replace(stage=-1) if instruction.op == "LM" else instruction
        if wanted.get(entry, True):
            raise ScheduleError(f"{_at(device, position, instruction)}: is there already")
        wanted[entry] = True
    for (device, instruction), there in wanted.items():
        if not there:
            raise ScheduleError(f"device {device}: {instruction} is missing")


class _Device:
    """What a device has got so far."""

    def __init__(self, instructions, named: dict[int, Key]):
        self.list, self.named, self.at = instructions, named, 0
        self.loaded: set[int] = set()
        self.inbox: set[Data] = set()
        self.outbox: set[Data] = set()
        self.done: set[Key] = set()

    @property
    def next(self) -> Instruction | None:
        return self.list[self.at] if self.at < len(self.list) else None


def _run(schedule: Schedule) -> None:
    p = schedule.stages
    devices = [_Device(list_, dict(keys(list_, schedule, k))) for k, list_ in enumerate(schedule.devices)]
    ready = deque(range(len(devices)))
    while ready:
        k = ready.popleft()
        device = devices[k]
        while (instruction := device.next) is not None:
            op, stage, micro = instruction
            where = _at(k, device.at, instruction)
            if op in SEND + RECEIVE:
                other = schedule.virtual_device(peer(op, stage, p))
                if not _meet(schedule, devices, k, other):
                    break
                ready.append(other)
                continue
            if op == "LM":
                device.loaded.add(micro)
            elif op in COMPUTE:
                _compute(schedule, device, k, where)
            device.at += 1
    _check_end(schedule, devices)


def _compute(schedule: Schedule, device: _Device, k: int, where: str) -> None:
    p, key = schedule.stages, device.named[device.at]
    op, stage, micro = key
    if micro not in device.loaded:
        raise ScheduleError(f"{where}: micro-batch {micro} has not been loaded on this device")
    for need in needs(key, p, split=schedule.split, recompute=schedule.recompute):
        remote = data(need, key, p)
        if remote is None or schedule.virtual_device(virtual_stage(need[0].rstrip("*"), need[1], p)) == k:
            if need not in device.done:
                raise ScheduleError(f"{where}: {Instruction(*need)} has not been done yet on this device")
        elif remote in device.inbox:
            device.inbox.remove(remote)
        else:
            raise ScheduleError(f"{where}: its input from {Instruction(*need)} has not been received")
    device.done.add(key)
    sent = None if op == "FE*" else sent_by(op, stage, p)
    if sent is not None and schedule.virtual_device(sent[1]) != k:
        kind = "activation" if sent[0][1] == "A" else "gradient"
        device.outbox.add((kind, sent[1], micro))


def data(need: Key, key: Key, stages: int) -> Data | None:
    """What travels from one computation to another; None if they share a virtual stage."""
    here = virtual_stage(need[0].rstrip("*"), need[1], stages)
    there = virtual_stage("FF" if key[0] == "FE*" else key[0], key[1], stages)
    if here == there or need[0] == "FE*":
        return None
    return ("activation" if there > here else "gradient", there, key[2])


def _meet(schedule: Schedule, devices: list[_Device], k: int, other: int) -> bool:
    """Let the transfer that device k stands at happen if the other end stands at its counterpart."""
    here, there = devices[k], devices[other]
    mine, theirs = here.next, there.next
    if mine is None or theirs is None or theirs.op not in SEND + RECEIVE:
        return False
    if schedule.virtual_device(peer(theirs.op, theirs.stage, schedule.stages)) != k:
        return False
    sender, receiver = (here, there) if mine.op in SEND else (there, here)
    where = _at(*((k, here.at, mine) if mine.op in SEND else (other, there.at, theirs)))
    send, receive = sender.next, receiver.next
    assert send is not None
    assert receive is not None
    if send.op not in SEND or receive.op not in RECEIVE:
        raise ScheduleError(
            f"{where}: device {other if sender is here else k} is at {receive} then; both ends {send.op[0]}"
        )
    sent, received = carried(send, schedule.stages), carried(receive, schedule.stages)
    if sent != received:
        at = _at(*((other, there.at, theirs) if sender is here else (k, here.at, mine)))
        raise ScheduleError(f"{where}: meets {at}, which receives something else")
    if sent not in sender.outbox:
        raise ScheduleError(f"{where}: there is nothing to send; it has not been computed yet")
    sender.outbox.remove(sent)
    receiver.inbox.add(received)
    sender.at += 1
    receiver.at += 1
    return True


def carried(instruction: Instruction, stages: int) -> Data:
    """What a transfer carries."""
    op, stage, micro = instruction
    virtual = peer(op, stage, stages) if op in SEND else virtual_stage(op, stage, stages)
    return ("activation" if op[1] == "A" else "gradient", virtual, micro)


def _check_end(schedule: Schedule, devices: list[_Device]) -> None:
    for k, device in enumerate(devices):
        if device.next is not None:
            other = schedule.virtual_device(peer(device.next.op, device.next.stage, schedule.stages))
            theirs = devices[other].next
            stands = "is at the end" if theirs is None else f"stands at position {devices[other].at}, {theirs}"
            raise ScheduleError(f"{_at(k, device.at, device.next)}: waits for ever; device {other} {stands}")
