"""Structures with labels from files ASE can read, and from the built-in sets.

A source is a path, or the name of a built-in set with an optional split: `water`, `water:train`,
`water:validation`, `water:test` (splits by trajectory).

Labels are taken from the frame's calculator results if it has any (ASE's extxyz reader puts
`energy`, `forces`, `stress` there), else from `info` and `arrays` under the keys given. Missing
labels are masked; NaN or infinite ones are errors that name the frame.
"""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read
from ase.stress import voigt_6_to_full_3x3_stress
from pydantic import BaseModel, ConfigDict

from janus_jax.data.neighbors import from_atoms
from janus_jax.errors import DataError, StructureError, UnknownNameError
from janus_jax.graph import AtomGraph, Targets

HERE = Path(__file__).parent
BUILT_IN = {"water": HERE / "water.extxyz"}
SPLITS = ("train", "validation", "test")


class LabelKeys(BaseModel):
    """Names of labels in `atoms.info` (energy, stress) and `atoms.arrays` (forces)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    energy: str = "energy"
    forces: str = "forces"
    stress: str = "stress"


def split_of(frame: Atoms) -> str:
    """Split of a built-in frame: whole trajectories, so that no test frame has a training neighbour in time."""
    trajectory = int(frame.info["trajectory"])
    if trajectory % 5 == 4:
        return "test"
    return "validation" if trajectory % 10 == 2 else "train"


def built_in_references(name: str) -> dict[str, float]:
    """Energies of isolated atoms in the built-in set's method, eV by symbol."""
    return json.loads(BUILT_IN[name].with_suffix(".json").read_text())["isolated_atom_energies_eV"]


def read_frames(source: str | Path) -> list[Atoms]:
    """All frames of a source.

    Raises:
        DataError: the file is missing, empty, or cannot be read.
        UnknownNameError: a built-in set has no such split.
    """
    name, _, split = str(source).partition(":")
    if name in BUILT_IN and not Path(source).exists():
        if split and split not in SPLITS:
            raise UnknownNameError(f"split of {name}", split, SPLITS)
        frames = _read(BUILT_IN[name])
        return [frame for frame in frames if split_of(frame) == split] if split else frames
    path = Path(source)
    if not path.exists():
        raise DataError(f"{path}: no such file; built-in sets are: {', '.join(BUILT_IN)}.")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty.")
    frames = _read(path)
    if not frames:
        raise DataError(f"{path}: the file holds no structure.")
    return frames


def _read(path: Path) -> list[Atoms]:
    try:
        return read(path, index=":")  # type: ignore[return-value]
    except Exception as error:
        raise DataError(f"{path}: ASE cannot read it ({type(error).__name__}: {error}).") from error


def labels(frame: Atoms, keys: LabelKeys) -> dict[str, np.ndarray | None]:
    """energy (), forces [atoms, 3], stress [3, 3] of a frame in eV and Å; None where missing."""
    results = frame.calc.results if frame.calc is not None else {}
    found = {
        "energy": results.get(keys.energy, frame.info.get(keys.energy)),
        "forces": results.get(keys.forces, frame.arrays.get(keys.forces)),
        "stress": results.get(keys.stress, frame.info.get(keys.stress)),
    }
    arrays = {name: None if value is None else np.asarray(value, np.float64) for name, value in found.items()}
    shapes = {"energy": [()], "forces": [(len(frame), 3)], "stress": [(6,), (9,), (3, 3)]}
    for name, value in arrays.items():
        if value is None:
            continue
        if value.shape not in shapes[name]:
            raise DataError(f"{name} has shape {value.shape}; allowed: {shapes[name]}")
        if not np.isfinite(value).all():
            raise DataError(f"{name} is not finite")
    stress = arrays["stress"]
    if stress is not None:
        arrays["stress"] = voigt_6_to_full_3x3_stress(stress) if stress.shape == (6,) else stress.reshape(3, 3)
    return arrays


def check_labels(source: str | Path, frames: list[Atoms], keys: LabelKeys) -> None:
    """Raises DataError, with source and frame, if a label has a wrong shape or is not finite."""
    for index, frame in enumerate(frames):
        with _named(source, index):
            labels(frame, keys)


@contextmanager
def _named(source: str | Path, index: int):
    """Adds source and frame number to errors about a frame."""
    try:
        yield
    except (StructureError, DataError) as error:
        raise DataError(f"{source}, frame {index}: {error}.") from error


def labelled_graph(
    frame: Atoms, cutoff: float, references: dict[int, float], keys: LabelKeys, dataset: int = 0
) -> AtomGraph:
    """Graph of a frame with its targets; reference energies are subtracted here, in float64."""
    graph = from_atoms(frame, cutoff, dataset)
    found, n = labels(frame, keys), len(frame)

    def value(name, shape):
        label = found[name]
        return np.zeros(shape) if label is None else label.reshape(shape)

    offset = sum(references.get(int(number), 0.0) for number in frame.numbers)
    targets = Targets(
        energy=value("energy", (1,)) - offset * (found["energy"] is not None),
        energy_mask=np.array([found["energy"] is not None]),
        forces=value("forces", (n, 3)),
        forces_mask=np.full(n, found["forces"] is not None),
        stress=value("stress", (1, 3, 3)),
        stress_mask=np.array([found["stress"] is not None]),
    )
    return graph.replace(targets=targets)


def load_graphs(
    source: str | Path, frames: list[Atoms], cutoff: float, references: dict[int, float], keys: LabelKeys | None = None
) -> list[AtomGraph]:
    """Graphs of all frames of a source.

    Raises:
        DataError: a frame cannot be used; names source, frame number and reason.
    """
    graphs = []
    for index, frame in enumerate(frames):
        with _named(source, index):
            graphs.append(labelled_graph(frame, cutoff, references, keys or LabelKeys()))
    return graphs
