"""A run with its files: readings in thermo.csv, frames in trajectory.extxyz, the last state in final.extxyz.

Frames are gathered on the host, so this is for systems whose positions fit there.
"""

import csv
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.units import GPa

from janus_jax.errors import ConfigError
from janus_jax.models.potential import Potential
from janus_jax.units import MEV_PER_EV
from md.engine import Engine, Reading
from md.ensembles import EnsembleConfig

COLUMNS = ("step", "time_fs", "potential_ev", "kinetic_ev", "total_ev", "temperature_kelvin", "pressure_gpa")


class Simulation:
    """Dynamics of one system from ASE's `Atoms`, and back.

    Args:
        model, atoms, ensemble, options: as for `Engine`.
        folder: where files go; without it nothing is written. Must not hold an earlier run.
        thermo, frames: steps between readings, and between frames.

    Raises:
        ConfigError: intervals that are not positive, or a folder with a run in it.
    """

    def __init__(
        self,
        model: Potential,
        atoms: Atoms,
        ensemble: EnsembleConfig | None = None,
        *,
        folder: str | Path | None = None,
        thermo: int = 10,
        frames: int = 100,
        **options: Any,
    ):
        if thermo < 1 or frames < 1:
            raise ConfigError(f"readings every {thermo} and frames every {frames} steps; both must be positive")
        self.folder = None if folder is None else Path(folder)
        if self.folder and (self.folder / "thermo.csv").exists():
            raise ConfigError(f"{self.folder} holds a run already; give another folder")
        self.engine = Engine(model, atoms, ensemble or EnsembleConfig(), **options)
        self.thermo, self.frames = thermo, frames
        self.start, self.readings = atoms.copy(), []
        table = dict(model.references)
        self.references = math.fsum(table.get(int(number), 0.0) for number in atoms.numbers)
        self.seconds, self.timed = 0.0, 0  # without the first steps, which compile
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "thermo.csv").open("w", newline="") as file:
                csv.writer(file).writerow(COLUMNS)
        self._read()
        self._write("trajectory.extxyz")

    def run(self, steps: int, progress: Callable[[Reading], None] | None = None) -> None:
        """Go on by `steps` steps. On an error the last good state is in final.extxyz."""
        engine, end = self.engine, self.engine.step + steps
        try:
            while engine.step < end:
                until = min(self.thermo - engine.step % self.thermo, self.frames - engine.step % self.frames)
                first, began = engine.step, time.perf_counter()
                engine.run(min(until, end - engine.step))
                if first:
                    self.seconds += time.perf_counter() - began
                    self.timed += engine.step - first
                if engine.step % self.thermo == 0:
                    self._read()
                    if progress:
                        progress(self.readings[-1])
                if engine.step % self.frames == 0:
                    self._write("trajectory.extxyz")
        finally:
            self._write("final.extxyz", append=False)

    def _read(self) -> None:
        reading = self.engine.read()
        self.readings.append(reading)
        if self.folder:
            with (self.folder / "thermo.csv").open("a", newline="") as file:
                csv.writer(file).writerow(self.row(reading))

    def row(self, reading: Reading) -> list[Any]:
        """The values of `COLUMNS`; energies include the reference energies of the atoms."""
        potential = reading.potential_ev + self.references
        pressure = -float(np.trace(reading.stress)) / 3 / GPa
        now = reading.step * self.engine.ensemble.timestep_fs
        total = potential + reading.kinetic_ev
        return [reading.step, now, potential, reading.kinetic_ev, total, reading.temperature_kelvin, pressure]

    def atoms(self) -> Atoms:
        """The current state: unwrapped positions and momenta."""
        now = self.start.copy()
        now.positions = self.engine.positions()
        now.set_momenta(self.engine.momenta())
        now.info["step"] = self.engine.step
        return now

    def _write(self, name: str, append: bool = True) -> None:
        if self.folder:
            ase.io.write(self.folder / name, self.atoms(), format="extxyz", append=append)

    def drift(self) -> float:
        """Slope of a straight line through the total energy, meV/atom/ps (of use in NVE)."""
        if len(self.readings) < 2:
            return math.nan
        total = np.array([reading.potential_ev + reading.kinetic_ev for reading in self.readings])
        time_ps = np.array([reading.step for reading in self.readings]) * self.engine.ensemble.timestep_fs / 1000
        return float(np.polyfit(time_ps, total - total[0], 1)[0] * MEV_PER_EV / self.engine.atoms)

    def figures(self) -> dict[str, Any]:
        """What the command prints."""
        engine, last = self.engine, self.readings[-1]
        rate = self.timed / self.seconds if self.seconds else math.nan
        return {
            "atoms": engine.atoms,
            "devices": engine.cut.ranks,
            "cut": engine.cut.method,
            "steps": engine.step,
            "temperature_kelvin": last.temperature_kelvin,
            "mean_temperature_kelvin": float(np.mean([reading.temperature_kelvin for reading in self.readings])),
            "total_ev": last.potential_ev + last.kinetic_ev + self.references,
            "drift_meV_per_atom_per_ps": self.drift(),
            "steps_per_s": rate,
            "ns_per_day": rate * engine.ensemble.timestep_fs * 86400e-6,
            "rebuilds": dict(engine.rebuilds),
            "compiled": list(engine.build.compiled),
            "folder": None if self.folder is None else str(self.folder),
        }
