"""The paper's passes 0 to 6 (JanusPipe, sections 4.1 and 4.2), each a pure function.

0-3 make SymFold: a first-order 1F1B list on 2P virtual stages, its operations renamed to those of the
four phases, folded so that energy and force of a stage share a device, transfers within a device
dropped. 4-6 make WaveK: micro-batches in units of k, each a forward wave and a backward wave, with the
boundaries inside and between units overlapped.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from janus_jax.schedule.instructions import COMPUTE, Instruction, Schedule, folded, stage_of
from janus_jax.schedule.lowering import computations, lower

Order = tuple[tuple[Instruction, ...], ...]
"""Computations of each device."""


def pass_0_first_order(stages: int, micro_batches: int) -> Schedule:
    """1F1B on 2P virtual stages, one a device: LM or RA, FW, SA; RG, BW, SG."""
    virtual = 2 * stages
    lists = []
    for v in range(virtual):
        warm_up = min(micro_batches, virtual - v)
        order = [("FW", m) for m in range(warm_up)]
        for m in range(micro_batches):
            order.append(("BW", m))
            if warm_up + m < micro_batches:
                order.append(("FW", warm_up + m))
        instructions: list[Instruction] = []
        for op, m in order:
            if op == "FW":
                before, after = ("RA" if v else "LM"), ("SA" if v < virtual - 1 else None)
            else:
                before, after = ("RG" if v < virtual - 1 else None), ("SG" if v else None)
            instructions += [Instruction(o, -1 if o == "LM" else v, m) for o in (before, op, after) if o is not None]
        lists.append((*instructions, Instruction("AR"), Instruction("OS")))
    place = tuple(range(virtual))
    return Schedule("first order", virtual, micro_batches, tuple(lists), place, place)


def pass_1_remap(first_order: Schedule) -> Schedule:
    """Operations of the first half of the virtual stages become those of energy, of the second half those of forces."""
    stages = first_order.stages // 2
    lists = []
    for v, instructions in enumerate(first_order.devices):
        stage, kind = stage_of(v, stages)
        names = {"FW": f"F{kind}", "BW": f"B{kind}", "SA": f"SA{kind}", "RA": f"RA{kind}", "SG": f"SG{kind}",
                 "RG": f"RG{kind}"}  # fmt: skip
        lists.append(tuple(i if i.op not in names else Instruction(names[i.op], stage, i.micro) for i in instructions))
    force = tuple(2 * stages - 1 - s for s in range(stages))
    return Schedule("remapped", stages, first_order.micro_batches, tuple(lists), folded(stages), force)


def pass_2_fold(remapped: Schedule) -> Schedule:
    """Virtual stages s and 2P - 1 - s are merged onto device s, which does one thing at a time.

    The order is that of Figure 3. Device d starts with P - d FE, then FF and FE take turns until 2P - 1 FE
    are done; from then on each round is BF, BE of the micro-batch P - 1 - d rounds earlier, FF, FE.
    """
    stages, n = remapped.stages, remapped.micro_batches
    groups: dict[tuple[str, int, int], list[Instruction]] = {}
    for instructions in remapped.devices:
        before, latest = [], []
        for instruction in instructions[:-2]:  # AR and OS come last
            if instruction.op[0] == "S":
                latest.append(instruction)
                continue
            before.append(instruction)
            if instruction.op in COMPUTE:
                groups[instruction.op, instruction.stage, instruction.micro] = latest = before
                before = []
    ends = (Instruction("AR"), Instruction("OS"))
    lists = []
    for device in range(stages):
        ordered = (groups[op, device, m] for op, m in _folded_order(device, stages, n))
        lists.append((*(instruction for group in ordered for instruction in group), *ends))
    return remapped.replace(name="folded", devices=tuple(lists), force_device=folded(stages))


def _folded_order(device: int, stages: int, micro_batches: int) -> Iterator[tuple[str, int]]:
    """(phase, micro-batch) of a device after folding."""
    count = {"FE": 0, "FF": 0, "BF": 0, "BE": 0}

    def some(op: str, number: int = 1) -> Iterator[tuple[str, int]]:
        for _ in range(number):
            if count[op] < micro_batches:
                yield op, count[op]
                count[op] += 1

    yield from some("FE", stages - device)
    for _ in range(max(1, stages - 1 + device)):
        yield from some("FF")
        yield from some("FE")
    lag = stages - 1 - device
    for turn in range(micro_batches + lag):
        yield from some("BF")
        if turn >= lag:
            yield from some("BE")
        yield from some("FF")
        yield from some("FE")


def pass_3_prune(folded_schedule: Schedule) -> Schedule:
    """Transfers within a device go; the others take their place in one global order. This is SymFold."""
    return lower(folded_schedule.replace(name="symfold", devices=folded_schedule.compute()))


class Wave(NamedTuple):
    """The computations of one unit of micro-batches: FE and FF, then BF and BE."""

    micro_batches: tuple[int, ...]
    forward: Order
    backward: Order


def pass_4_decompose(symfold: Schedule, k: int) -> tuple[Wave, ...]:
    """Units of k micro-batches (the last may be smaller), each split into WaveK-F and WaveK-B.

    Device d keeps P - d micro-batches under way: it starts with that many FE, then FF and FE (BF and BE)
    take turns, which in steady state leaves no gap.
    """
    n, stages = symfold.micro_batches, symfold.stages
    waves = []
    for first in range(0, n, k):
        unit = tuple(range(first, min(first + k, n)))
        waves.append(Wave(unit, _wave(unit, stages, "FE", "FF"), _wave(unit, stages, "BF", "BE")))
    return tuple(waves)


def _wave(unit: Sequence[int], stages: int, first: str, second: str) -> Order:
    lists = []
    for device in range(stages):
        ahead = min(len(unit), stages - device)
        order = [Instruction(first, device, m) for m in unit[:ahead]]
        for index, m in enumerate(unit):
            order.append(Instruction(second, device, m))
            if ahead + index < len(unit):
                order.append(Instruction(first, device, unit[ahead + index]))
        lists.append(tuple(order))
    return tuple(lists)


def pass_5_overlap(wave: Wave) -> Order:
    """The last FF of WaveK-F go into the gaps between the first BF of WaveK-B."""
    return tuple(_interleave(*lists) for lists in zip(wave.forward, wave.backward, strict=True))


def pass_6_compose(units: Sequence[Order], symfold: Schedule, k: int) -> Schedule:
    """Units one after the other, the last BE of one going into the gaps between the first FE of the next."""
    joined = units[0]
    for unit in units[1:]:
        joined = tuple(_interleave(*lists) for lists in zip(joined, unit, strict=True))
    place = folded(symfold.stages)
    return lower(computations(f"wavek k={k}", joined, symfold.micro_batches, place, place))


def _interleave(before: Sequence[Instruction], after: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """`before`, with its trailing run of one operation taking turns with the leading run of `after`.

    The first of the trailing run goes alone: its results start what the next wave waits for.
    """
    trailing = _run(before[::-1])
    leading = _run(after)
    tail, head = list(before[len(before) - trailing :]), list(after[:leading])
    turns = min(trailing - 1, leading)
    mixed = [tail[0]]
    for index in range(turns):
        mixed += [head[index], tail[1 + index]]
    rest = [*tail[1 + turns :], *head[turns:]]
    return (*before[: len(before) - trailing], *mixed, *rest, *after[leading:])


def _run(instructions: Sequence[Instruction]) -> int:
    """Length of the run of one operation at the start."""
    count = 0
    while count < len(instructions) and instructions[count].op == instructions[0].op:
        count += 1
    return count


def symfold(stages: int, micro_batches: int) -> Schedule:
    """Passes 0 to 3."""
    return pass_3_prune(pass_2_fold(pass_1_remap(pass_0_first_order(stages, micro_batches))))


def wavek(stages: int, micro_batches: int, k: int) -> Schedule:
    """Passes 0 to 6 with unit size k, at most the number of micro-batches."""
    k = min(k, micro_batches)
    base = symfold(stages, micro_batches)
    return pass_6_compose([pass_5_overlap(wave) for wave in pass_4_decompose(base, k)], base, k)
