"""The structures a model does worst on: kept as structures, and drawn."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io import read, write

from janus_jax.data.dataset import Dataset
from janus_jax.train.evaluate import Evaluation
from janus_jax.units import MEV_PER_EV

COUNT = 6


def save(evaluation: Evaluation, data: Dataset, path: Path) -> None:
    """Write the COUNT structures with the largest force errors, worst first, with predictions and names."""
    errors = evaluation.force_errors()
    order = np.argsort(-np.nan_to_num(errors, nan=-1), kind="stable")[:COUNT]
    starts = np.concatenate([[0], np.cumsum(evaluation.atoms)])
    frames = []
    for index in order:
        if not np.isfinite(errors[index]):
            continue
        source, rows = data.frame(int(index)), slice(starts[index], starts[index + 1])
        frame = Atoms(source.numbers, source.positions, cell=source.cell, pbc=source.pbc)
        frame.info = {
            "name": data.name(int(index)),
            "config_type": data.config_type(int(index)) or "(none)",
            "force_rmse_meV_per_angstrom": MEV_PER_EV * float(errors[index]),
            "energy_error_meV_per_atom": MEV_PER_EV * float(evaluation.differences()["energy"][index]),
        }
        frame.new_array("force_error", evaluation.differences()["forces"][rows])
        frames.append(frame)
    if frames:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, frames, format="extxyz")


def load(path: Path) -> list[Atoms]:
    """What `save` wrote; empty if nothing was."""
    return read(path, index=":", format="extxyz") if path.exists() else []  # pyright: ignore[reportReturnType]


class Colors:
    """One scale of colours for the force errors of all atoms of some structures; atoms without a label are grey."""

    def __init__(self, frames: Sequence[Atoms]):
        every = np.concatenate([_errors(frame) for frame in frames] or [np.zeros(0)])
        self.largest = float(every.max(initial=0, where=np.isfinite(every)))

    def mappable(self):
        """For matplotlib's colour bar."""
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        return ScalarMappable(Normalize(0, max(self.largest, 1e-9)), "YlOrRd")

    def of(self, frame: Atoms) -> np.ndarray:
        """Red, green and blue of each atom [atoms, 3]."""
        errors = _errors(frame)
        colors = self.mappable().to_rgba(np.nan_to_num(errors, posinf=self.largest))[:, :3]
        return np.where(np.isnan(errors)[:, None], 0.8, colors)


def _errors(frame: Atoms) -> np.ndarray:
    """Lengths of the force errors, meV/Å [atoms]."""
    return MEV_PER_EV * np.linalg.norm(frame.arrays["force_error"], axis=1)


def draw(axis, frame: Atoms, colors: Colors) -> None:
    """A picture of a structure, its atoms coloured by their force errors."""
    from ase.visualize.plot import plot_atoms

    plot_atoms(frame, axis, radii=0.6, colors=colors.of(frame), rotation="-80x,15y,0z")
    axis.set_axis_off()
