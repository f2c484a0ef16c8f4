"""Our schedule: six phases under a cap on the micro-batches a device may hold at once.

Splitting BF and BE leaves little on the way from device to device (FE, FF, BFt, BEh); the rest (BFr, BEw)
fills gaps (DESIGN.md, sections 4 and 5). An order is found by list scheduling: whenever a device is free it
starts the ready phase of highest priority. Several rules are tried, then local search changes priorities
of single phases a fixed number of times. The search never looks at a clock, so that equal arguments give equal
schedules on every machine, busy or idle, and in all processes of a run.
"""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from janus_jax.errors import ScheduleError
from janus_jax.schedule.instructions import Schedule, folded
from janus_jax.schedule.lowering import computations, lower
from janus_jax.schedule.times import TYPICAL, PhaseTimes

OPS = ("FE", "FF", "BFt", "BFr", "BEh", "BEw")
RULES = (
    ("BEh", "BFt", "BFr", "FF", "FE", "BEw"),
    ("BFt", "BEh", "FF", "FE", "BFr", "BEw"),
    ("BEh", "BFt", "FF", "BFr", "FE", "BEw"),
    ("FF", "BFt", "BEh", "FE", "BFr", "BEw"),
    ("BEh", "FF", "BFt", "FE", "BFr", "BEw"),
    ("BFt", "BEh", "FF", "BFr", "FE", "BEw"),
    ("BEh", "BFt", "FF", "FE", "BEw", "BFr"),
)
"""Most urgent first."""
STARTS = 3
"""Rules that local search starts from."""


@dataclasses.dataclass(frozen=True)
class Found:
    """An order and how good it is."""

    makespan: float
    order: tuple[tuple[tuple[str, int, int], ...], ...]


class Problem:
    """Durations and dependencies as flat arrays, for many quick evaluations.

    Phase number of (op, device, micro): (op * stages + device) * micro_batches + micro.
    """

    def __init__(self, stages: int, micro_batches: int, cap: int, times: PhaseTimes):
        self.p, self.n, self.cap = stages, micro_batches, cap
        self.time = [times.of(op, s, m) for op in OPS for s in range(stages) for m in range(micro_batches)]
        self.count = len(self.time)
        self.before: list[list[int]] = [[] for _ in range(self.count)]
        self.after: list[list[int]] = [[] for _ in range(self.count)]
        for op in range(len(OPS)):
            for s in range(stages):
                for m in range(micro_batches):
                    here = self.number(op, s, m)
                    for other in self._needs(op, s, m):
                        self.before[here].append(other)
                        self.after[other].append(here)
        self.tail = self._tails()

    def number(self, op: int, stage: int, micro: int) -> int:
        return (op * self.p + stage) * self.n + micro

    def name(self, number: int) -> tuple[str, int, int]:
        rest, micro = divmod(number, self.n)
        op, stage = divmod(rest, self.p)
        return OPS[op], stage, micro

    def _needs(self, op: int, s: int, m: int) -> list[int]:
        fe, ff, bft, bfr, beh, bew = range(6)
        last = self.p - 1
        return {
            fe: [self.number(fe, s - 1, m)] if s else [],
            ff: [self.number(fe, s, m), *([self.number(ff, s + 1, m)] if s < last else [])],
            bft: [self.number(ff, s, m), *([self.number(bft, s - 1, m)] if s else [])],
            bfr: [self.number(bft, s, m)],
            beh: [self.number(bfr, s, m), *([self.number(beh, s + 1, m)] if s < last else [])],
            bew: [self.number(beh, s, m)],
        }[op]

    def _tails(self) -> list[float]:
        """Longest path from the start of each phase to the end of the step."""
        tail = list(self.time)
        waiting = [len(after) for after in self.after]
        stack = [k for k, count in enumerate(waiting) if not count]
        while stack:
            k = stack.pop()
            tail[k] = self.time[k] + max((tail[a] for a in self.after[k]), default=0.0)
            for b in self.before[k]:
                waiting[b] -= 1
                if not waiting[b]:
                    stack.append(b)
        return tail

    def run(self, priority: Sequence[float], limit: float = np.inf) -> tuple[float, list[int]]:
        """List scheduling: (makespan, phases in the order of their starts); stops early beyond `limit`."""
        p, n, cap, time_of, after = self.p, self.n, self.cap, self.time, self.after
        missing = [len(before) for before in self.before]
        ready: list[list[tuple[float, int]]] = [[] for _ in range(p)]
        blocked: list[list[tuple[float, int]]] = [[] for _ in range(p)]
        held, free, idle = [0] * p, [0.0] * p, [True] * p
        for k in range(n):  # FE on device 0
            heapq.heappush(ready[0], (priority[k], k))
        events: list[tuple[float, int]] = []
        order: list[int] = []
        now, entering, leaving = 0.0, p * n, 5 * p * n
        touched = [0]
        while True:
            for device in touched:
                if not idle[device]:
                    continue
                queue = ready[device]
                while queue:
                    item = heapq.heappop(queue)
                    k = item[1]
                    if k < entering and held[device] >= cap:
                        blocked[device].append(item)
                        continue
                    held[device] += k < entering
                    idle[device] = False
                    free[device] = now + time_of[k]
                    order.append(k)
                    heapq.heappush(events, (free[device], k))
                    break
            if not events:
                break
            now = events[0][0]
            if now > limit:
                return np.inf, order
            touched = []
            while events and events[0][0] <= now + 1e-9:
                _, k = heapq.heappop(events)
                device = (k // n) % p
                idle[device] = True
                touched.append(device)
                if k >= leaving:
                    held[device] -= 1
                    for item in blocked[device]:
                        heapq.heappush(ready[device], item)
                    blocked[device].clear()
                for a in after[k]:
                    missing[a] -= 1
                    if not missing[a]:
                        to = (a // n) % p
                        heapq.heappush(ready[to], (priority[a], a))
                        touched.append(to)
        return now, order


def lower_bound(stages: int, micro_batches: int, times: PhaseTimes, cap: int | None = None) -> float:
    """No schedule of the six phases on these devices is shorter.

    The largest of: the longest chain of one micro-batch; for each device, the time until work can reach
    it, all its work, and the time its last results need to pass on; and, under a cap, the time device 0 must
    sit out until the first forces (and then the first BEh) come back, for it can hold no more than `cap`
    micro-batches meanwhile.
    """
    n = micro_batches
    cap = min(cap or n, n)

    def of(op: str, stage: int, micro: int) -> float:
        return times.of(op, stage, micro)

    stages_, micros = range(stages), range(n)
    chain = max(
        sum(of(op, s, m) for op in ("FE", "FF", "BFt", "BEh") for s in stages_)
        + of("BFr", stages - 1, m) + of("BEw", 0, m)
        for m in micros
    )  # fmt: skip
    bound = chain
    for device in stages_:
        work = sum(of(op, device, m) for op in OPS for m in micros)
        head = min(sum(of("FE", s, m) for s in range(device)) for m in micros)
        bound = max(bound, head + work)
    work = sum(of(op, 0, m) for op in OPS for m in micros)

    def largest(ops: Sequence[str]) -> float:
        return sum(sorted((sum(of(op, 0, m) for op in ops) for m in micros), reverse=True)[:cap])

    forces = min(sum(of("FE", s, m) for s in stages_) + sum(of("FF", s, m) for s in range(1, stages)) for m in micros)
    first = min(
        sum(of(op, s, m) for op in ("FE", "FF", "BFt") for s in stages_) + of("BFr", stages - 1, m)
        + sum(of("BEh", s, m) for s in range(1, stages))
        for m in micros
    )  # fmt: skip
    bound = max(bound, forces + work - largest(["FE"]))
    return max(bound, first + work - largest(["FE", "FF", "BFt", "BFr"]))


def effort(stages: int, micro_batches: int) -> int:
    """Trials of local search by default: a million phases placed, about two seconds; less if small."""
    return min(4000, 10 + 1_000_000 // (len(OPS) * stages * micro_batches))


def split(
    stages: int,
    micro_batches: int,
    cap: int | None = None,
    times: PhaseTimes = TYPICAL,
    *,
    trials: int | None = None,
    seed: int = 0,
) -> Schedule:
    """The best order found for six phases, with at most `cap` micro-batches on a device (None: 2P).

    Args:
        trials: of local search, after one of each rule; None: `effort`.

    Raises:
        ScheduleError: the cap is below 1, or trials below 0.
    """
    cap = 2 * stages if cap is None else cap
    if cap < 1:
        raise ScheduleError(f"cap is {cap}; a device must hold at least 1 micro-batch")
    trials = effort(stages, micro_batches) if trials is None else trials
    if trials < 0:
        raise ScheduleError(f"trials is {trials}; it must be at least 0")
    times.check(stages, micro_batches)
    problem, bound = Problem(stages, micro_batches, cap, times), lower_bound(stages, micro_batches, times, cap)
    found = search(problem, bound, trials=trials, seed=seed)
    place = folded(stages)
    return lower(computations(f"split cap={cap}", found.order, micro_batches, place, place), times)


def search(problem: Problem, bound: float, *, trials: int, seed: int) -> Found:
    """Rules, then local search: half of the trials shared out to the best rules, the rest from the best of those."""
    rng = np.random.default_rng(seed)
    tried = [Tried(*problem.run(priority), np.array(priority)) for priority in _rules(problem)]
    best = sorted(tried, key=lambda one: one.makespan)[:STARTS]
    share = trials // (2 * STARTS)
    best = [_climb(problem, one, bound, share, rng) for one in best]
    found = _climb(problem, min(best, key=lambda one: one.makespan), bound, trials - share * STARTS, rng)
    lists: list[list[tuple[str, int, int]]] = [[] for _ in range(problem.p)]
    for k in found.order:
        lists[(k // problem.n) % problem.p].append(problem.name(k))
    return Found(found.makespan, tuple(tuple(device) for device in lists))


class Tried(NamedTuple):
    """Priorities of phases, and what they lead to."""

    makespan: float
    order: list[int]
    priority: np.ndarray


def _climb(problem: Problem, best: Tried, bound: float, trials: int, rng: np.random.Generator) -> Tried:
    """The best of so many neighbours, each of the best so far."""
    for _ in range(trials):
        if best.makespan <= bound * (1 + 1e-9):
            break
        candidate = _changed(problem, best.priority, rng)
        makespan, order = problem.run(candidate.tolist(), limit=best.makespan + 1e-9)
        if makespan <= best.makespan:
            best = Tried(makespan, order, candidate)
    return best


def _rules(problem: Problem):
    """Priorities (small first): fixed orders of phases with earlier micro-batches first, and the longest way to go."""
    for rule in RULES:
        rank = [rule.index(op) for op in OPS]
        yield [float(rank[k // (problem.p * problem.n)] * problem.n + k % problem.n) for k in range(problem.count)]
    for weight in (0.0, 0.25, 0.5, 1.0):
        yield [weight * (k % problem.n) * problem.time[0] * 2 - problem.tail[k] for k in range(problem.count)]


def _changed(problem: Problem, priority: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A neighbour: phases of one kind moved, single phases jittered, or two kinds swapped on a device."""
    result = priority.copy()
    scale = priority.std() or 1.0
    grid = result.reshape(len(OPS), problem.p, problem.n)
    kind = rng.integers(4)
    if kind == 0:
        op, device = rng.integers(len(OPS)), rng.integers(problem.p)
        low = rng.integers(problem.n)
        grid[op, device, low:] += scale * rng.normal() * 0.5
    elif kind == 1:
        some = rng.random(problem.count) < 4 / problem.count
        result[some] += scale * rng.normal(size=int(some.sum()))
    elif kind == 2:
        op, micro = rng.integers(len(OPS)), rng.integers(problem.n)
        grid[op, :, micro:] += scale * rng.normal() * 0.3
    else:
        device, (a, b) = rng.integers(problem.p), rng.choice(len(OPS), 2, replace=False)
        low = rng.integers(problem.n)
        high = low + 1 + rng.integers(problem.n - low)
        grid[[a, b], device, low:high] = grid[[b, a], device, low:high]
    return result
