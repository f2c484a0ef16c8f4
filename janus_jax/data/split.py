"""Splits by fraction that stay what they are when data are appended or moved between files.

Each structure gets a number in [0, 1) from the seed and a hash of its content (or of the group it
belongs to); the number alone decides. So equal structures, and frames of one trajectory where
`data.keys.split` names it, never end up on both sides.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


def assign(groups: np.ndarray, fractions: Sequence[float], seed: int) -> np.ndarray:
    """Part of each structure: 0 for the first fraction, 1 for the second, ...; what is left over gets the last.

    Sizes follow the fractions on average. A part with a positive fraction that would stay empty gets
    the group nearest to its range, which is the one case where appended data can move a structure.

    Args:
        groups: hashes [structures], uint64.
        fractions: of all parts, adding up to at most 1.
    """
    places = uniform(groups, seed)
    ends = np.cumsum(fractions)
    part = np.minimum(np.searchsorted(ends, places, side="right"), len(fractions) - 1)
    for k, fraction in enumerate(fractions):
        if fraction > 0 and len(part) >= len(fractions) and not (part == k).any():
            counts = np.bincount(part, minlength=len(fractions))
            middle = ends[k] - fraction / 2
            order = np.argsort(np.abs(places - middle), kind="stable")
            nearest = next((i for i in order if counts[part[i]] > (groups == groups[i]).sum()), None)
            if nearest is not None:
                part[groups == groups[nearest]] = k
    return part


class Deviation(NamedTuple):
    """What is to be said of a part that has not the size asked for."""

    text: str
    grave: bool
    """Empty, or not between half and twice of what was asked for."""


def deviation(fraction: float, count: int, groups: np.ndarray) -> Deviation | None:
    """What to say of a part of `count` structures that was to be a fraction of all; None if it is that.

    Args:
        groups: hashes of all structures [structures], uint64.
    """
    asked, kept = fraction * len(groups), len(np.unique(groups))
    if abs(count - asked) < 1:
        return None
    why = f"they are {kept} groups that stay together" if kept < len(groups) else "each goes by a hash of its content"
    text = f"{count} of {len(groups)} structures, where {fraction:g} of them ({asked:.3g}) was asked for: {why}"
    return Deviation(text, not (count and asked / 2 <= count <= 2 * asked))


def uniform(groups: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) for each hash: splitmix64 of hash and seed."""
    with np.errstate(over="ignore"):
        x = np.asarray(groups, np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
