"""What a suspicion about the frames of a source is."""

import dataclasses

import numpy as np

from janus_jax.data.sources import Source
from janus_jax.errors import listed

SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Finding:
    """One kind of suspicion: what is wrong in general, and in each frame."""

    text: str
    reasons: dict[int, str]
    """By frame."""
    grave: bool = True
    """Worth a warning in training."""

    def sentence(self, source: Source) -> str:
        """For a log: how many frames, and the names of the first few."""
        names = listed([source.name(frame) for frame in self.reasons], SHOWN)
        return f"{len(self.reasons)} of {len(source)} frames: {self.text} ({names})"


def groups(values: np.ndarray, chosen: np.ndarray) -> list[np.ndarray]:
    """Chosen frames by value, ascending in each group."""
    if not len(chosen):
        return []
    ordered = chosen[np.argsort(values[chosen], kind="stable")]
    return np.split(ordered, np.flatnonzero(np.diff(values[ordered])) + 1)
