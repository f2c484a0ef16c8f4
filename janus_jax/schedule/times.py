"""How long phases take: numbers for the simulator, the paper's measurements, and ours.

The paper's Table 5 does not split BF and BE, and how much of BF is BFt decides how small the bubble of `split` can
get. So every figure names the shares it stands on: those measured on our phases, or BFt = FE, which a
forward-over-reverse derivative of an energy would take at best.
"""

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from janus_jax.errors import ScheduleError, UnknownNameError

PAPER = {
    "UMA-1.2B": {"FE": 1.0, "FF": 1.43, "BE": 1.66, "BF": 3.12},
    "UMA-2.3B": {"FE": 1.0, "FF": 1.49, "BE": 1.68, "BF": 3.27},
    "eSEN-100M": {"FE": 1.0, "FF": 1.60, "BE": 1.61, "BF": 3.32},
    "eSEN-220M": {"FE": 1.0, "FF": 2.31, "BE": 2.58, "BF": 4.76},
}
"""Table 5 of the JanusPipe paper, FE = 1."""

OURS = {"FE": 1.0, "FF": 1.52, "BF": 2.70, "BE": 2.20}
MEASURED = {"BFt": 0.51, "BEh": 0.50}
"""Our eSEN stage with the default memory, FE = 1, and the shares of BFt in BF and of BEh in BE
(benchmarks/results/phases.json)."""

FOUR = ("FE", "FF", "BF", "BE")
WHOLE = {"BF": ("BFt", "BFr"), "BE": ("BEh", "BEw")}


@dataclasses.dataclass(frozen=True)
class PhaseTimes:
    """Time of each phase for each stage and micro-batch.

    Attributes:
        phases: FE, FF, BF, BE in any unit.
        parts: BFt as a part of time, BEh as a part of time, in the same unit; BFr and BEw are the rest.
            By default the shares measured on our phases.
        stage, micro: factors [stages], [micro-batches] for uneven stages and graphs; None: 1.
        table: measured time of each (operation, stage), in place of phases, parts and stage factors.
    """

    phases: Mapping[str, float]
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    stage: tuple[float, ...] | None = None
    micro: tuple[float, ...] | None = None
    table: Mapping[tuple[str, int], float] | None = None

    def __post_init__(self):
        for op in self.phases:
            if op not in FOUR:
                raise UnknownNameError("phase in times", op, FOUR)
        missing = [op for op in FOUR if op not in self.phases]
        if missing:
            raise ScheduleError(f"times: {', '.join(missing)} missing; give all of {', '.join(FOUR)}")
        for op in self.parts:
            if op not in ("BFt", "BEh"):
                raise UnknownNameError("part in split", op, ("BFt", "BEh"))
        values = [*self.phases.values(), *self.parts.values(), *(self.stage or ()), *(self.micro or ())]
        if not all(np.isfinite(value) and value > 0 for value in values):
            given = ", ".join(f"{name}={value:g}" for name, value in {**self.phases, **self.parts}.items())
            raise ScheduleError(f"times must be positive numbers, got {given}")
        for part, whole in (("BFt", "BF"), ("BEh", "BE")):
            if part in self.parts and self.parts[part] >= self.phases[whole]:
                given = f"{part}={self.parts[part]:g}, {whole}={self.phases[whole]:g}"
                raise ScheduleError(f"split: {part} is a part of {whole} and must be shorter; got {given}")

    @cached_property
    def costs(self) -> dict[str, float]:
        """Time by operation, parts included, for factors of 1."""
        fe, bf, be = (self.phases[op] for op in ("FE", "BF", "BE"))
        tangent = self.parts.get("BFt", MEASURED["BFt"] * bf)
        first = self.parts.get("BEh", MEASURED["BEh"] * be)
        return {**self.phases, "FE*": fe, "BFt": tangent, "BFr": bf - tangent, "BEh": first, "BEw": be - first}

    @property
    def shares(self) -> str:
        """The parts of BF and BE that these times assume, to be shown beside what follows from them."""
        parts = (("BFt", "BF"), ("BEh", "BE"))
        return ", ".join(f"{part} {100 * self.costs[part] / self.costs[op]:.0f} % of {op}" for part, op in parts)

    def bft_is_fe(self) -> "PhaseTimes":
        """The same whole phases with BFt = FE (at most half of BF), and BEh 0.55 of BE."""
        parts = {"BFt": min(self.phases["FE"], 0.5 * self.phases["BF"]), "BEh": 0.55 * self.phases["BE"]}
        return dataclasses.replace(self, parts=parts)

    def as_measured(self) -> "PhaseTimes":
        """The same whole phases with the shares of our phases."""
        return dataclasses.replace(self, parts={})

    def of(self, op: str, stage: int, micro: int) -> float:
        """Time of one computation."""
        if self.table is not None:
            return self._measured(op, stage) * (1.0 if self.micro is None else self.micro[micro])
        factor = (1.0 if self.stage is None else self.stage[stage]) * (1.0 if self.micro is None else self.micro[micro])
        return self.costs[op] * factor

    def _measured(self, op: str, stage: int) -> float:
        assert self.table is not None
        if (op, stage) in self.table:
            return self.table[op, stage]
        if op in WHOLE:
            return sum(self.table[part, stage] for part in WHOLE[op])
        return self.table[op.rstrip("*"), stage]

    @staticmethod
    def measured(table: Mapping[tuple[str, int], float]) -> "PhaseTimes":
        """From measured times of (operation, stage), whole phases or their parts."""
        count = 1 + max(stage for _, stage in table)
        bare = PhaseTimes(dict.fromkeys(FOUR, 1.0), table=table)
        mean = {op: sum(bare._measured(op, s) for s in range(count)) / count for op in FOUR}
        parts = {
            part: sum(table[part, s] for s in range(count)) / count for part in ("BFt", "BEh") if (part, 0) in table
        }
        return PhaseTimes(mean, parts, table=table)

    def total(self, stages: int, micro_batches: int, *, recompute: bool = False) -> float:
        """Time of all computations of a step."""
        if self.table is not None:
            ops = (*FOUR, "FE*") if recompute else FOUR
            factors = self.micro or (1.0,) * micro_batches
            return sum(factors) * sum(self._measured(op, s) for op in ops for s in range(stages))
        stage = sum(self.stage) if self.stage is not None else stages
        micro = sum(self.micro) if self.micro is not None else micro_batches
        return stage * micro * (sum(self.phases.values()) + recompute * self.phases["FE"])

    def check(self, stages: int, micro_batches: int) -> None:
        """Raises ScheduleError if the factors are not for this many stages and micro-batches."""
        for name, factors, count in (("stage", self.stage, stages), ("micro-batch", self.micro, micro_batches)):
            if factors is not None and len(factors) != count:
                raise ScheduleError(f"times: {len(factors)} {name} factors for {count}")


def paper(model: str) -> PhaseTimes:
    """Table 5's times of one model, with BFt = FE; the paper does not split BF and BE.

    Raises:
        UnknownNameError: not one of its four models.
    """
    if model not in PAPER:
        raise UnknownNameError("model of Table 5", model, PAPER)
    return PhaseTimes(PAPER[model]).bft_is_fe()


TYPICAL = PhaseTimes(OURS)
"""Our own, used where no times are given."""
UNIT = PhaseTimes(dict.fromkeys(FOUR, 1.0))
