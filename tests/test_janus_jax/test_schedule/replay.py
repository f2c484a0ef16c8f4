"""A schedule gone through by other means than janus_jax.schedule's, of which only the data are used.

It stands on what each phase reads (`READS`, which test_replay.py derives from the programs themselves) and on the
chain of 2P virtual stages: activations go up it, gradients down. Nothing here knows `dependencies.needs`.
"""

from collections import defaultdict

READS = {
    "whole": {"FE": (), "FF": ("FE",), "BF": ("FF",), "BE": ("BF",)},
    "split": {"FE": (), "FF": ("FE",), "BFt": ("FF",), "BFr": ("BFt",), "BEh": ("BFr",), "BEw": ("BEh",)},
    "again": {"FE": (), "FE*": (), "FF": ("FE*",), "BF": ("FF",), "BE": ("FE",)},
}
"""Phases of the same stage and micro-batch whose values a phase finds on its device, by kind of schedule."""
FORWARD, BACKWARD = ("FE", "FF"), ("BFt", "BF", "BEh", "BE")
"""Phases that take a message from one neighbour on the chain and leave one for the other."""


class Refused(Exception):
    """The schedule cannot be run as it stands."""


def kind(schedule) -> str:
    if schedule.recompute:
        return "again"
    return "split" if any(i.op == "BFt" for device in schedule.devices for i in device) else "whole"


def place(op: str, stage: int, stages: int) -> int:
    """On the chain; the second letter of transfers is their kind, the third whose end it is."""
    energy = op[2] == "E" if op[0] in "SR" else op in ("FE", "BE", "BEh", "BEw")
    return stage if energy else 2 * stages - 1 - stage


def takes(op: str, stage: int, stages: int):
    """The message that a phase takes, as (letter, place it goes to); None at the ends of the chain."""
    here = place("FF" if op == "FE*" else op, stage, stages)
    if op in (*FORWARD, "FE*"):
        return ("A", here) if here else None
    return ("G", here) if op in BACKWARD and here < 2 * stages - 1 else None


def gives(op: str, stage: int, stages: int):
    here = place(op, stage, stages)
    if op in FORWARD:
        return ("A", here + 1) if here < 2 * stages - 1 else None
    return ("G", here - 1) if op in BACKWARD and here else None


def moved(instruction, stages: int):
    """Message of a transfer."""
    op, stage, micro = instruction
    here = place(op, stage, stages)
    step = (1 if op[1] == "A" else -1) * (op[0] == "S")
    return op[1], here + step, micro


def owner(schedule, place_: int) -> int:
    p = schedule.stages
    return (*schedule.energy_device, *reversed(schedule.force_device))[place_] if 0 <= place_ < 2 * p else -1


def named(schedule, device: int) -> dict[int, tuple[str, int, int]]:
    """(phase, stage, micro) at each position that computes; where FE is run again, the second one is FE*."""
    found, seen = {}, set()
    for position, (op, stage, micro) in enumerate(schedule.devices[device]):
        if op not in {phase for table in READS.values() for phase in table}:
            continue
        if op == "FE" and schedule.recompute:
            first = schedule.energy_device[stage] == device and (stage, micro) not in seen
            seen.add((stage, micro))
            op = "FE" if first else "FE*"
        found[position] = op, stage, micro
    return found


class Replay:
    """Start and end of every instruction, as `start[device][position]`; raises Refused where it cannot go on.

    Args:
        duration: of (phase, stage, micro); transfer: of one transfer.
        blocking: both ends of a transfer are busy with it; otherwise it is on its way while devices go on.
    """

    def __init__(self, schedule, duration, transfer=0.0, *, blocking=True):
        self.schedule, self.stages, self.duration, self.transfer = schedule, schedule.stages, duration, transfer
        count = len(schedule.devices)
        self.phases = [named(schedule, k) for k in range(count)]
        self.start, self.end = ([[] for _ in range(count)] for _ in range(2))
        self.clock = [0.0] * count
        self.done = [{} for _ in range(count)]  # phase -> its end
        self.here = [{} for _ in range(count)]  # message that may be taken -> when it is there
        self.leaving = [set() for _ in range(count)]
        self.under_way: dict = {}
        self.link: dict = defaultdict(float)
        self.loaded = [set() for _ in range(count)]
        moving = True
        while moving:
            moving = False
            for k in range(count):
                while len(self.end[k]) < len(schedule.devices[k]) and self._go(k, blocking):
                    moving = True
        if any(len(self.end[k]) < len(schedule.devices[k]) for k in range(count)):
            raise Refused("devices wait for each other")
        self._complete()

    def _pass(self, k, start, end):
        self.start[k].append(start)
        self.end[k].append(end)
        self.clock[k] = end

    def _go(self, k: int, blocking: bool) -> bool:
        position = len(self.end[k])
        instruction = self.schedule.devices[k][position]
        if position in self.phases[k]:
            self._compute(k, self.phases[k][position])
        elif instruction.op[0] in "SR":
            return self._together(k, instruction) if blocking else self._overlapped(k, instruction)
        else:
            if instruction.op == "LM":
                if instruction.micro in self.loaded[k]:
                    raise Refused("loaded twice")
                self.loaded[k].add(instruction.micro)
            elif instruction.op not in ("AR", "OS"):
                raise Refused(f"{instruction} is of another kind of schedule")
            self._pass(k, self.clock[k], self.clock[k])
        return True

    def _compute(self, k: int, phase) -> None:
        op, stage, micro = phase
        reads = READS[kind(self.schedule)]
        if op not in reads or phase in self.done[k] or micro not in self.loaded[k]:
            raise Refused(f"{phase}: of another kind, done before, or not loaded")
        if owner(self.schedule, place("FF" if op == "FE*" else op, stage, self.stages)) != k:
            raise Refused(f"{phase} belongs elsewhere")
        start = self.clock[k]
        for other in reads[op]:
            if (other, stage, micro) not in self.done[k]:
                raise Refused(f"{phase} reads what {other} has not left")
            start = max(start, self.done[k][other, stage, micro])
        message = takes(op, stage, self.stages)
        if message is not None:
            if (*message, micro) not in self.here[k]:
                raise Refused(f"{phase}: its message is not there")
            start = max(start, self.here[k][(*message, micro)])
            if op != "FE*":  # looks at it; FF takes it
                del self.here[k][(*message, micro)]
        end = self.done[k][phase] = start + self.duration(*phase)
        message = None if op == "FE*" else gives(op, stage, self.stages)
        if message is not None and owner(self.schedule, message[1]) == k:
            self.here[k][(*message, micro)] = end
        elif message is not None:
            self.leaving[k].add((*message, micro))
        self._pass(k, start, end)

    def _ends(self, k: int, instruction):
        """(message, device at the other end); the device must be that of its own end."""
        message = moved(instruction, self.stages)
        before = message[1] - (1 if message[0] == "A" else -1)
        mine, other = (before, message[1]) if instruction.op[0] == "S" else (message[1], before)
        if owner(self.schedule, mine) != k or owner(self.schedule, other) in (-1, k):
            raise Refused(f"{instruction}: not between these devices")
        return message, owner(self.schedule, other)

    def _leave(self, k: int, message) -> None:
        if message not in self.leaving[k]:
            raise Refused(f"{message}: nothing to send")
        self.leaving[k].remove(message)

    def _together(self, k: int, instruction) -> bool:
        message, other = self._ends(k, instruction)
        position = len(self.end[other])
        theirs = self.schedule.devices[other][position : position + 1]
        if not theirs or theirs[0].op[0] not in "SR" or self._ends(other, theirs[0]) != (message, k):
            return False
        if theirs[0].op[0] == instruction.op[0]:
            raise Refused("both ends do the same")
        sender, receiver = (k, other) if instruction.op[0] == "S" else (other, k)
        self._leave(sender, message)
        start = max(self.clock[k], self.clock[other])
        self.here[receiver][message] = start + self.transfer
        for device in (k, other):
            self._pass(device, start, start + self.transfer)
        return True

    def _overlapped(self, k: int, instruction) -> bool:
        message, other = self._ends(k, instruction)
        if instruction.op[0] == "S":
            self._leave(k, message)
            self.link[k, other] = max(self.clock[k], self.link[k, other]) + self.transfer
            self.under_way[message] = self.link[k, other]
        elif message not in self.under_way:
            return False
        else:
            self.here[k][message] = self.under_way.pop(message)
        self._pass(k, self.clock[k], self.clock[k])
        return True

    def _complete(self) -> None:
        schedule = self.schedule
        everything = {
            (op, stage, micro) for op in READS[kind(schedule)]
            for stage in range(schedule.stages) for micro in range(schedule.micro_batches)
        }  # fmt: skip
        if {phase for done in self.done for phase in done} != everything:
            raise Refused("something is missing")
        if any(self.here) or any(self.leaving) or self.under_way:
            raise Refused("something is never used")
        for k, device in enumerate(schedule.devices):
            ends = [i.op for i in device if i.op in ("AR", "OS")]
            if ends != ["AR", "OS"] or [i.op for i in device[-2:]] != ends:
                raise Refused("the end is not AR OS")
            if self.loaded[k] != {micro for _, _, micro in self.done[k]}:
                raise Refused("loaded for nothing")

    def inflight(self, k: int) -> int:
        """Most micro-batches at once on a device, from the start of the first phase to the end of the last."""
        spans = defaultdict(list)
        for position, (_, _, micro) in self.phases[k].items():
            spans[micro] += [self.start[k][position], self.end[k][position]]
        return max(sum(min(s) <= t < max(s) for s in spans.values()) for t, *_ in spans.values())

    def units(self, k: int, until: dict[str, tuple[str, ...]]) -> float:
        """Most results at once, each there from the start of its phase to the end of those in `until`, if here."""
        spans = [
            (self.start[k][p], max(self.done[k].get((o, s, m), 0.0) for o in (op, *until[op])))
            for p, (op, s, m) in self.phases[k].items() if op in until
        ]  # fmt: skip
        return max(sum(a <= t < b for a, b in spans) for t, _ in spans)


def bytes_after(schedule, k: int, held, messages, loaded: float) -> list[float]:
    """Bytes on a device after each instruction: every thing is there from where it comes to where it goes."""
    curve = [0.0] * len(schedule.devices[k])
    stages, phases = schedule.stages, named(schedule, k)

    def add(size, first, last):
        for position in range(first, last):
            curve[position] += size

    comes, goes, load, chains = {}, {}, {}, defaultdict(list)
    for position, instruction in enumerate(schedule.devices[k]):
        op, stage, micro = phases.get(position, instruction)
        if op == "LM":
            load[micro] = position
        elif op[0] == "S":
            goes[moved(instruction, stages)] = position
        elif op[0] == "R":
            comes[moved(instruction, stages)] = position
        elif position in phases:
            chains[stage, micro, schedule.recompute and op in ("FE", "BE")].append((position, op))
            taken, given = (takes(op, stage, stages), gives(op, stage, stages)) if op != "FE*" else (None, None)
            if taken:
                goes[(*taken, micro)] = position
            if given:
                comes[(*given, micro)] = position
    for message, position in comes.items():
        add(messages[message[:2]], position, goes[message])
    for micro, position in load.items():
        add(loaded, position, max(p for p, phase in phases.items() if phase[2] == micro))
    for (stage, _, _), entries in chains.items():
        for (position, op), (after, _) in zip(entries, [*entries[1:], (len(curve), "")], strict=True):
            add(held[op, stage], position, after)
    return curve
