"""Cutting one trace into phases: every equation to the phase where its value is first needed.

Phases and what newly arrives for them (DESIGN.md, section 4; JanusPipe, section 4.1 and equation 2):

    FE   h, x         h' = f(params, h, x), or energies
    FF   ct           gh, gx = d(ct . h')/d(h, x)
    BFt  ghb, gxb     ctb = d(ghb . gh + gxb . gx)/d(ct)
    BFr  -            second-order part of the gradient, and what BE needs of it
    BEh  lam          hb = d(lam . h' + ghb . gh + gxb . gx)/dh
    BEw  -            the rest of d(the same)/d(params)
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.extend.core as jex

from janus_jax.phases.equations import Atom, Trace, is_var, upstream, variables
from janus_jax.phases.memory import Memory, minimum_cut, repeatable

PHASES = ("FE", "FF", "BFt", "BFr", "BEh", "BEw")
SIX = tuple((phase,) for phase in PHASES)
FOUR = (("FE",), ("FF",), ("BFt", "BFr"), ("BEh", "BEw"))
ENERGY = (("FE",), ("BEh", "BEw"))
FORCES = (("FE",), ("FF",), ("BFt", "BFr"))
Terms = dict[str, list[tuple[int, Atom]]]
"""(parameter index, addend) of the gradient, by phase."""

DROPPED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "keep": {},
    "rebuild_forces": {"FF": ("FF",), "BFt": ("FF",)},
    "rebuild": {"FE": ("FE",), "FF": ("FE", "FF"), "BFt": ("FE", "FF")},
}
"""By memory mode: after a phase, the phases whose values are to be made again."""


@dataclasses.dataclass(frozen=True)
class Interface:
    """Variables of a trace by their part in the phases.

    Attributes:
        params: one for each parameter leaf.
        stays: inputs that stay on the device for the whole micro-batch at no price: graph and positions.
        arrives: what arrives for FE (features), FF, BFt, BEh, beside what stays.
        delivers: results of FE, FF, BFt, BEh.
        gradient: one for each parameter leaf.
        trees: structure of what is delivered.
    """

    params: tuple[jex.Var, ...]
    stays: tuple[jex.Var, ...]
    arrives: Mapping[str, tuple[jex.Var, ...]]
    delivers: Mapping[str, tuple[Atom, ...]]
    gradient: tuple[Atom, ...]
    trees: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """What one compiled program does, for one phase or several in a row.

    Attributes:
        equations: indices into the trace, ascending; `repeated` are those among them that ran before.
        arrives, delivers: from and to other stages.
        terms: (parameter index, atom) pairs to add to the gradient.
        keeps: values computed here that later programs read.
        held: all values held afterwards: kept here or before, and inputs still needed; parameters are not among them.
    """

    phases: tuple[str, ...]
    equations: tuple[int, ...]
    repeated: frozenset[int]
    arrives: tuple[jex.Var, ...]
    delivers: tuple[Atom, ...]
    terms: tuple[tuple[int, Atom], ...]
    keeps: tuple[jex.Var, ...]
    held: tuple[jex.Var, ...]

    def reads(self, trace: Trace) -> list[jex.Var]:
        """Variables that must be given, in a fixed order."""
        made = {v for i in self.equations for v in trace.equations[i].outvars}
        atoms = [*(a for i in self.equations for a in trace.equations[i].invars), *self.delivers]
        atoms += [atom for _, atom in self.terms]
        return [v for v in dict.fromkeys(variables(atoms)) if v not in made and v not in trace.consts]


def cut(trace: Trace, face: Interface, memory: Memory, groups: Sequence[tuple[str, ...]] = SIX) -> list[Program]:
    """The programs of a stage, one for each group of phases."""
    waits = _waiting(trace, face.arrives.get("BEh", ()))
    terms = _terms(trace, face, waits)
    first = _first_needed(trace, face, terms, waits)
    return _Cutter(trace, face, memory, groups, first, terms).programs()


def _waiting(trace: Trace, late: Iterable[jex.Var]) -> set[jex.Var]:
    """Variables that depend on late ones."""
    waits = set(late)
    for eqn in trace.equations:
        if any(u in waits for u in variables(eqn.invars)):
            waits |= set(eqn.outvars)
    return waits


def _terms(trace: Trace, face: Interface, waits: set[jex.Var]) -> Terms:
    """The gradient as sums of what does not wait for dL/dh' (BFr) and of what does (BEw).

    Both are added to one running total, so no phase stores a gradient for another.
    """
    terms: Terms = {"BFr": [], "BEw": []}
    for k, atom in enumerate(face.gradient):
        for term in _addends(trace, atom, waits):
            terms["BEw" if is_var(term) and term in waits else "BFr"].append((k, term))
    return terms


def _addends(trace: Trace, atom: Atom, waits: set[jex.Var]) -> Iterator[Atom]:
    """What a sum is made of, as far as its parts wait for different things."""
    eqn = trace.equations[trace.producer[atom]] if is_var(atom) and atom in waits and atom in trace.producer else None
    if eqn is None or eqn.primitive.name not in ("add_any", "add"):
        yield atom
    else:
        for part in eqn.invars:
            yield from _addends(trace, part, waits)


def _first_needed(
    trace: Trace, face: Interface, terms: Mapping[str, list[tuple[int, Atom]]], waits: set[jex.Var]
) -> dict[int, str]:
    """Phase of each equation that any result needs."""
    wanted = {phase: list(face.delivers.get(phase, ())) for phase in PHASES}
    for phase, pairs in terms.items():
        wanted[phase] += [atom for _, atom in pairs]
    where: dict[int, str] = {}
    for phase in PHASES:
        where |= dict.fromkeys(upstream(trace, wanted[phase], where), phase)
    for index, phase in where.items():
        if phase in ("BEh", "BEw") and not waits & set(trace.equations[index].outvars):
            where[index] = "BFr"
    return where


class _Cutter:
    """Goes through the groups in time, with what is held at each cut."""

    def __init__(self, trace: Trace, face: Interface, memory: Memory, groups, first, terms):
        self.trace, self.face, self.memory, self.groups, self.terms = trace, face, memory, groups, terms
        self.first = first
        self.primary = [sorted(i for i, p in first.items() if p in group) for group in groups]
        constant = set(face.params) | set(trace.consts)
        for eqn in trace.equations:
            if not eqn.effects and all(v in constant for v in variables(eqn.invars)):
                constant |= set(eqn.outvars)
        self.free = set(face.params) | set(face.stays) | set(trace.consts)
        self.cheap = repeatable(trace, memory, constant)
        self.cheap_late = repeatable(trace, memory.model_copy(update={"names": ()}), constant)

    def programs(self) -> list[Program]:
        programs: list[Program] = []
        held: set[jex.Var] = set()
        for k, group in enumerate(self.groups):
            programs.append(self._program(k, group, held, {i for p in programs for i in p.equations}))
            held = set(programs[-1].held)
        stays: set[jex.Var] = set()  # inputs that stay are dropped after their last reader
        for k in reversed(range(len(programs))):
            programs[k] = dataclasses.replace(programs[k], held=self._sorted({*programs[k].held, *stays}))
            stays |= set(self.face.stays) & set(programs[k].reads(self.trace))
        return programs

    def _program(self, k: int, group: tuple[str, ...], held: set[jex.Var], done: set[int]) -> Program:
        trace, face = self.trace, self.face
        arrives = tuple(v for phase in group for v in face.arrives.get(phase, ()))
        at_hand = held | self.free | set(arrives)
        delivers = tuple(atom for phase in group for atom in face.delivers.get(phase, ()))
        terms = tuple(pair for phase in group for pair in self.terms.get(phase, ()))
        run = set(self.primary[k])
        goals = [a for i in run for a in trace.equations[i].invars]
        goals += [*delivers, *(atom for _, atom in terms)]
        run |= upstream(trace, goals, run, at_hand)
        later = self._read_later(k)
        if "BFr" in group:  # what BE needs and would have to make again, made while nobody waits
            run |= upstream(trace, self._dear(later, run, at_hand), run, at_hand)
        computed = {v for i in run for v in trace.equations[i].outvars}
        keep = self._kept(group[-1], later, at_hand, computed) - self.free
        program = Program(
            group, tuple(sorted(run)), frozenset(run & done), arrives, delivers, terms,
            self._sorted(keep & computed), self._sorted(keep),
        )  # fmt: skip
        assert at_hand.issuperset(program.reads(trace)), "an input is read after it was dropped"
        return program

    def _sorted(self, values: Iterable[jex.Var]) -> tuple[jex.Var, ...]:
        return tuple(sorted(values, key=self.trace.number.__getitem__))

    def _read_later(self, k: int) -> set[jex.Var]:
        """What programs after number k read of values that may exist by then."""
        trace, face = self.trace, self.face
        later = [i for primary in self.primary[k + 1 :] for i in primary]
        made = {v for i in later for v in trace.equations[i].outvars}
        atoms = [a for i in later for a in trace.equations[i].invars]
        for group in self.groups[k + 1 :]:
            for phase in group:
                atoms += [*face.delivers.get(phase, ()), *(atom for _, atom in self.terms.get(phase, ()))]
                made |= set(face.arrives.get(phase, ()))
        return {v for v in variables(atoms) if v not in made}

    def _dear(self, later: set[jex.Var], run: set[int], at_hand: set[jex.Var]) -> list[jex.Var]:
        """What later programs need, is not at hand, and is not cheap to make."""
        dear, seen, stack = [], set(), list(later)
        while stack:
            v = stack.pop()
            index = self.trace.producer.get(v)
            if v in seen or v in at_hand or index is None or index in run:
                continue
            seen.add(v)
            if self.cheap_late(index):
                stack += variables(self.trace.equations[index].invars)
            else:
                dear.append(v)
        return dear

    def _kept(self, phase: str, later: set[jex.Var], at_hand: set[jex.Var], computed: set[jex.Var]) -> set[jex.Var]:
        """What to hold after a program that ends with `phase`."""
        cheap = self.cheap if phase in ("FE", "FF") else self.cheap_late
        dropped = DROPPED["rebuild" if self.memory.names and phase == "BFt" else self.memory.mode].get(phase, ())
        if phase in ("FE", "FF") and dropped:
            computed = set()

        def repeat(index: int) -> bool:
            made = self.trace.equations[index].outvars
            return cheap(index) or (self.first.get(index) in dropped and computed.isdisjoint(made))

        return minimum_cut(self.trace, later, at_hand | computed, self.free, repeat)
