"""Files of a run: thermo.csv and trajectories that only grow, and that a restart cuts back to its checkpoint."""

import csv
import io
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.units import fs

from janus_jax import storage
from janus_jax.errors import DynamicsError
from md.config import OutputConfig
from md.h5md import H5mdWriter
from md.reading import COLUMNS, THERMO

EXTXYZ, H5MD, FINAL = "trajectory.extxyz", "trajectory.h5md", "final.extxyz"


class Files:
    """What process 0 writes below a folder.

    Args:
        start: the structure, for what does not change.
        sizes: of a checkpoint, to go on from; empty for a new run, or one of whose files the checkpoint knows nothing.
    """

    def __init__(self, folder: Path, output: OutputConfig, start: Atoms, sizes: dict[str, int]):
        self.folder, self.output = folder, output
        folder.mkdir(parents=True, exist_ok=True)
        self.h5md = None
        for name in () if sizes else (THERMO, EXTXYZ, H5MD):
            (folder / name).unlink(missing_ok=True)
        if output.frames and "h5md" in output.formats:
            self.h5md = H5mdWriter(folder / H5MD, start.numbers, start.get_masses(), start.pbc)
        if not sizes:
            with (folder / THERMO).open("w", newline="") as file:
                csv.writer(file).writerow(COLUMNS)
        else:
            self._cut_back(sizes)

    def sizes(self) -> dict[str, int]:
        """How long the files are: bytes, or frames of H5MD."""
        sizes = {name: path.stat().st_size for name in (THERMO, EXTXYZ) if (path := self.folder / name).exists()}
        return sizes | ({H5MD: self.h5md.frames()} if self.h5md else {})

    def _cut_back(self, sizes: dict[str, int]) -> None:
        """Drop what was written after the checkpoint: those steps are made again."""
        for name in (THERMO, EXTXYZ):
            path, size = self.folder / name, sizes.get(name, 0)
            have = path.stat().st_size if path.exists() else 0
            if have < size:
                raise DynamicsError(f"{path} has {have} bytes, but the checkpoint was made after {size}")
            if path.exists():
                with path.open("r+b") as file:
                    file.truncate(size)
        if self.h5md:
            self.h5md.truncate(sizes.get(H5MD, 0))

    def row(self, values: list[Any]) -> None:
        with (self.folder / THERMO).open("a", newline="") as file:
            csv.writer(file).writerow(values)

    def frame(self, atoms: Atoms, step: int, time_fs: float, energy: float, forces: np.ndarray) -> None:
        """A frame in each of the formats."""
        if "extxyz" in self.output.formats:
            frame = self._labelled(atoms, energy, forces if "forces" in self.output.fields else None)
            if "velocities" not in self.output.fields:
                frame.arrays.pop("momenta", None)
            ase.io.write(self.folder / EXTXYZ, frame, format="extxyz", append=True)
        if self.h5md:
            arrays = {"position": atoms.positions, "edges": atoms.cell.array}
            if "velocities" in self.output.fields:
                arrays["velocity"] = atoms.get_velocities() * fs
            if "forces" in self.output.fields:
                arrays["force"] = forces
            kinetic = float(atoms.get_kinetic_energy())
            self.h5md.append(step, time_fs, arrays, {"potential_energy": energy, "kinetic_energy": kinetic})

    def final(self, atoms: Atoms, energy: float, forces: np.ndarray) -> None:
        """The last state, with everything."""
        text = io.StringIO()
        ase.io.write(text, self._labelled(atoms, energy, forces), format="extxyz")
        storage.write_text(self.folder / FINAL, text.getvalue())

    @staticmethod
    def _labelled(atoms: Atoms, energy: float, forces: np.ndarray | None) -> Atoms:
        frame = atoms.copy()
        known = {"energy": energy} | ({} if forces is None else {"forces": forces})
        frame.calc = SinglePointCalculator(frame, **known)
        return frame
