"""Instructions and schedules: immutable data, nothing executes here.

A schedule gives each device a list of instructions. Computation acts on one stage of the model and one
micro-batch. With P stages there are 2P virtual stages (JanusPipe, section 4.1): FE (and BE) of stage s
is virtual stage s, FF (and BF) of stage s is virtual stage 2P - 1 - s. Activations go from a virtual
stage to the next, gradients to the one before; a transfer is a send on one device and a receive on
another, and none where both are on the same device.

Names are those of the paper's Table 2, and BFt + BFr = BF, BEh + BEw = BE (DESIGN.md, section 4).
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from janus_jax.errors import ScheduleError

COMPUTE = ("FE", "FF", "BF", "BE", "BFt", "BFr", "BEh", "BEw")
SEND = ("SAE", "SAF", "SGE", "SGF")
RECEIVE = ("RAE", "RAF", "RGE", "RGF")
CONTROL = ("LM", "AR", "OS")
FIRST_ORDER = ("FW", "BW", "SA", "RA", "SG", "RG")
"""Of pass 0, before phases are told apart; stages are virtual stages there."""
OPS = (*COMPUTE, *SEND, *RECEIVE, *CONTROL, *FIRST_ORDER)

FORWARD = {"FE": "E", "FF": "F"}
BACKWARD = {"BE": "E", "BEh": "E", "BEw": "E", "BF": "F", "BFt": "F", "BFr": "F"}


class Instruction(NamedTuple):
    """What a device does next. AR and OS have neither stage nor micro-batch (-1)."""

    op: str
    stage: int = -1
    micro: int = -1

    def __str__(self) -> str:
        if self.micro < 0:
            return self.op
        return f"{self.op}({self.micro})" if self.stage < 0 else f"{self.op}{self.stage}({self.micro})"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Instructions of all devices.

    Attributes:
        stages: P, parts the model is cut into.
        energy_device, force_device: device of each stage's FE and BE, and of its FF and BF.
        recompute: FF runs FE again first, for lack of its activations.
    """

    name: str
    stages: int
    micro_batches: int
    devices: tuple[tuple[Instruction, ...], ...]
    energy_device: tuple[int, ...]
    force_device: tuple[int, ...]
    recompute: bool = False

    def virtual_device(self, virtual: int) -> int:
        """Device of a virtual stage."""
        p = self.stages
        return self.energy_device[virtual] if virtual < p else self.force_device[2 * p - 1 - virtual]

    @property
    def split(self) -> bool:
        """Whether BF and BE are run in their two parts."""
        return any(instruction.op == "BFt" for instruction in self.devices[self.force_device[0]])

    def __iter__(self) -> Iterator[tuple[int, int, Instruction]]:
        """(device, position, instruction), device by device."""
        for device, instructions in enumerate(self.devices):
            for position, instruction in enumerate(instructions):
                yield device, position, instruction

    def compute(self) -> tuple[tuple[Instruction, ...], ...]:
        """Per device, the computations only."""
        return tuple(tuple(i for i in device if i.op in COMPUTE) for device in self.devices)

    def replace(self, **changes) -> "Schedule":
        return dataclasses.replace(self, **changes)


def virtual_stage(op: str, stage: int, stages: int) -> int:
    """Virtual stage that an instruction belongs to: energy s, force 2P - 1 - s."""
    energy = op in ("FE", "BE", "BEh", "BEw", "SAE", "RAE", "SGE", "RGE")
    return stage if energy else 2 * stages - 1 - stage


def peer(op: str, stage: int, stages: int) -> int:
    """Virtual stage at the other end of a transfer."""
    here = virtual_stage(op, stage, stages)
    forward = op[1] == "A"
    return here + (1 if forward == (op[0] == "S") else -1)


def stage_of(virtual: int, stages: int) -> tuple[int, str]:
    """(stage, "E" or "F") of a virtual stage."""
    return (virtual, "E") if virtual < stages else (2 * stages - 1 - virtual, "F")


def folded(stages: int) -> tuple[int, ...]:
    """Placement with energy and force of a stage on one device: device s has stage s."""
    return tuple(range(stages))


# Text: one line a device, for people; the header holds the rest.

PATTERN = re.compile(r"([A-Za-z]+)(?:(\d+))?(?:\((\d+)(?:-(\d+))?\))?")


def to_text(schedule: Schedule) -> str:
    """Compact notation: `D0: LM(0) FE(0-3) FF(0) ...`; the stage is written where it is not the device's own.

    Runs of one operation over consecutive micro-batches are written as a range.
    """
    sizes = f"stages={schedule.stages} microbatches={schedule.micro_batches} recompute={int(schedule.recompute)}"
    places = f"energy={_list(schedule.energy_device)} force={_list(schedule.force_device)}"
    head = f"# {schedule.name.replace(' ', '_')} {sizes} {places}"
    lines = [head]
    for device, instructions in enumerate(schedule.devices):
        words: list[str] = []
        for op, stage, first, last in _runs(instructions):
            where = "" if stage in (device, -1) else str(stage)
            micro = "" if first < 0 else f"({first})" if first == last else f"({first}-{last})"
            words.append(f"{op}{where}{micro}")
        lines.append(f"D{device}: {' '.join(words)}")
    return "\n".join(lines) + "\n"


def _list(values: Iterable[int]) -> str:
    return ",".join(map(str, values))


def _runs(instructions: Iterable[Instruction]) -> Iterator[tuple[str, int, int, int]]:
    run: list | None = None
    for op, stage, micro in instructions:
        if run is not None and (op, stage) == (run[0], run[1]) and micro >= 0 and micro == run[3] + 1:
            run[3] = micro
            continue
        if run is not None:
            yield tuple(run)
        run = [op, stage, micro, micro]
    if run is not None:
        yield tuple(run)


def from_text(text: str) -> Schedule:
    """The schedule that `to_text` wrote, or a person did.

    Raises:
        ScheduleError: names line and word.
    """
    head, *lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    if not head.startswith("#"):
        raise ScheduleError("the first line must be a header such as '# name stages=4 microbatches=8'")
    name, *settings = head.lstrip("# ").split()
    values = dict(word.split("=", 1) for word in settings if "=" in word)
    try:
        stages, micro = int(values["stages"]), int(values["microbatches"])
        own = _list(folded(stages))
        energy, force = (tuple(map(int, values.get(key, own).split(","))) for key in ("energy", "force"))
        recompute = bool(int(values.get("recompute", "0")))
    except (KeyError, ValueError) as error:
        raise ScheduleError(f"line 1: bad header {head!r} ({error})") from error
    devices = []
    for number, line in enumerate(lines, 2):
        label, colon, words = line.partition(":")
        if not colon or label != f"D{len(devices)}":
            raise ScheduleError(f"line {number}: expected 'D{len(devices)}:', found {line[:20]!r}")
        devices.append(tuple(_parse(words, len(devices), number)))
    return Schedule(name, stages, micro, tuple(devices), energy, force, recompute)


def _parse(words: str, device: int, line: int) -> Iterator[Instruction]:
    for word in words.split():
        match = PATTERN.fullmatch(word)
        if match is None or match.group(1) not in OPS:
            raise ScheduleError(f"line {line}: {word!r} is no instruction; allowed: {', '.join(OPS)}, as in FE(0-3)")
        op, stage, first, last = match.groups()
        if first is None:
            yield Instruction(op)
            continue
        for micro in range(int(first), int(last or first) + 1):
            yield Instruction(op, -1 if op in CONTROL else device if stage is None else int(stage), micro)


def to_csv(schedule: Schedule) -> str:
    """Columns device, position, op, stage, micro; a comment line with the rest first."""
    head = to_text(schedule.replace(devices=())).strip()
    rows = [f"{device},{position},{op},{stage},{micro}" for device, position, (op, stage, micro) in schedule]
    return "\n".join([head, "device,position,op,stage,micro", *rows]) + "\n"


def from_csv(text: str) -> Schedule:
    """The schedule that `to_csv` wrote.

    Raises:
        ScheduleError: names the line.
    """
    head, columns, *rows = text.splitlines() or ["", ""]
    empty = from_text(head)
    if columns != "device,position,op,stage,micro":
        raise ScheduleError(f"line 2: expected the column names, found {columns!r}")
    devices: dict[int, list[Instruction]] = {}
    for number, row in enumerate(rows, 3):
        try:
            device, position, op, stage, micro = row.split(",")
            place = devices.setdefault(int(device), [])
            if op not in OPS or int(position) != len(place):
                raise ValueError(f"operation {op!r} at position {position}")
            place.append(Instruction(op, int(stage), int(micro)))
        except ValueError as error:
            raise ScheduleError(f"line {number}: {row!r}: {error}") from error
    count = max(devices, default=-1) + 1
    return empty.replace(devices=tuple(tuple(devices.get(device, ())) for device in range(count)))
