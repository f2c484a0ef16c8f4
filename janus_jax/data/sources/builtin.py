"""Data sets that come with the package: `water`, `water:train`, `water:validation`, `water:test`.

Splits are by trajectory, so that no test frame has a training frame near it in time.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from janus_jax.data.sources.base import Source, Subset
from janus_jax.errors import UnknownNameError

SETS = {"water": Path(__file__).parents[1] / "water.extxyz"}
SPLITS = ("train", "validation", "test")
FRAMES_PER_TRAJECTORY = 20


def is_name(spec: str) -> bool:
    return spec.partition(":")[0] in SETS


def open_set(spec: str, reader: Callable[[Path], Source]) -> Source:
    """The set, or one split of it.

    Raises:
        UnknownNameError: there is no such split.
    """
    name, _, split = spec.partition(":")
    source = reader(SETS[name])
    if not split:
        return source
    if split not in SPLITS:
        raise UnknownNameError(f"split of {name}", split, SPLITS)
    of = split_of(np.arange(len(source)) // FRAMES_PER_TRAJECTORY)
    return Subset(source, np.flatnonzero(of == SPLITS.index(split)))


def split_of(trajectory: np.ndarray) -> np.ndarray:
    """Index into SPLITS of trajectories by number."""
    return np.where(trajectory % 5 == 4, 2, np.where(trajectory % 10 == 2, 1, 0))


def isolated_atom_energies(name: str) -> dict[str, float]:
    """Energies of isolated atoms in the set's method, eV by symbol."""
    return json.loads(SETS[name].with_suffix(".json").read_text())["isolated_atom_energies_eV"]
