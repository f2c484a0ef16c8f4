"""Which labels the loss has weights for, and which the data have: training on nothing is an error.

A weight without a label, or a label without a weight, is a warning with counts: more often than not a
name was misspelt or a file format has dropped the forces.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np

from janus_jax.data.dataset import label_counts
from janus_jax.errors import ConfigError, listed
from janus_jax.train.loss import LossConfig
from janus_jax.train.splits import Part

TERMS = {"energy": "energies", "forces": "forces", "stress": "stress"}
SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Labels of one split.

    Attributes:
        known: structures with such a label and a weight above zero, by term of the loss [structures].
        structures: all of them.
    """

    known: Mapping[str, np.ndarray]
    structures: int

    @staticmethod
    def of(part: Part, weights: np.ndarray, train_on_fixed_atoms: bool) -> "Coverage":
        """Args: weights: of each frame of the source."""
        counts = label_counts(part.records, train_on_fixed_atoms)
        chosen = weights[part.indices] > 0
        return Coverage({term: (count > 0) & chosen for term, count in counts.items()}, len(part.indices))

    def number(self, term: str) -> int:
        """Structures with such a label."""
        return int(self.known[term].sum())

    def useful(self, loss: LossConfig) -> np.ndarray:
        """Structures with a label that the loss has a weight for: True where so [structures]."""
        return np.any([self.known[term] & (getattr(loss, term) > 0) for term in TERMS], axis=0)


def check(loss: LossConfig, parts: Mapping[str, Part], covered: Mapping[str, Coverage]) -> list[str]:
    """What is odd about the labels of `train` and `validation`, one sentence each.

    Raises:
        ConfigError: one of them has no label that the loss has a weight for.
    """
    for name in ("train", "validation"):
        if name in covered and not covered[name].useful(loss).any():
            there = ", ".join(
                f"{covered[name].number(term)} with {label} (loss.{term}={getattr(loss, term):g})"
                for term, label in TERMS.items()
            )
            what = "Nothing to train on" if name == "train" else "Nothing to choose a model by"
            raise ConfigError(
                f"{what}: of {covered[name].structures} structures of data.{name} there are {there}. Give a weight to "
                "a label that is there, or name the labels of your files in data.labels."
            )
    train, found = covered["train"], []
    for term, label in TERMS.items():
        weight, count = getattr(loss, term), train.number(term)
        other = covered["validation"].number(term) if "validation" in covered else None
        if weight and not count and not (term == "stress" and not np.isfinite(parts["train"].records["volume"]).any()):
            found.append(
                f"loss.{term} is {weight:g}, but none of the {train.structures} training structures has {label}"
                + _hint(term, parts["train"])
            )
        if count and not weight:
            found.append(f"{label} of {count} training structures are not trained on, since loss.{term} is 0")
        if weight and count and other == 0:
            found.append(
                f"none of the {covered['validation'].structures} validation structures has {label}, so the best model "
                f"is chosen without them ({count} training structures have them)"
            )
        if weight and not count and other:
            found.append(f"{other} validation structures have {label}, which no training structure has")
    return found


def without_label(loss: LossConfig, part: Part, covered: Coverage) -> str | None:
    """A sentence about structures that cannot teach anything; None if there are none."""
    idle = part.indices[~covered.useful(loss)]
    if not len(idle):
        return None
    names = listed([part.source.name(int(index)) for index in idle], SHOWN)
    return f"{len(idle)} training structures have no label with a weight and are left out: {names}"


def _hint(term: str, part: Part) -> str:
    if term == "forces" and ".traj" in part.source.name(int(part.indices[0])):
        return "; a .traj file keeps only what a calculator holds, so that arrays under other names are lost"
    return "; see data.labels for their names" if term != "stress" else ""
