"""Observables of a state, and the row of a table they make."""

import csv
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from md.ensembles import GIGAPASCAL, KELVIN

if TYPE_CHECKING:
    from md.engine import Engine

AMU_PER_ANGSTROM3 = 1.66053906660
"""g/cm^3."""
THERMO = "thermo.csv"
COLUMNS = (
    "step", "time_fs", "potential_ev", "kinetic_ev", "total_ev", "conserved_ev", "temperature_kelvin", "pressure_gpa",
    "volume_angstrom3", "density_g_per_cm3", "closest_angstrom", "largest_force_ev_per_angstrom",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Reading:
    """Observables of a state: eV, K, Å; stress in eV/Å^3 with its kinetic part."""

    step: int
    potential_ev: float
    kinetic_ev: float
    conserved_ev: float
    temperature_kelvin: float
    stress: np.ndarray
    volume: float
    closest_angstrom: float
    largest_force: float

    @property
    def pressure_gpa(self) -> float:
        """Not a number without a volume."""
        return -float(np.trace(self.stress)) / 3 / GIGAPASCAL

    @staticmethod
    def of_row(values: list[Any], references_ev: float) -> "Reading":
        """The inverse of `row`, but for the shear of the stress."""
        row = dict(zip(COLUMNS, map(float, values), strict=True))
        return Reading(
            step=int(row["step"]),
            potential_ev=row["potential_ev"] - references_ev,
            kinetic_ev=row["kinetic_ev"],
            conserved_ev=row["conserved_ev"] - references_ev,
            temperature_kelvin=row["temperature_kelvin"],
            stress=-row["pressure_gpa"] * GIGAPASCAL * np.eye(3),
            volume=row["volume_angstrom3"],
            closest_angstrom=row["closest_angstrom"],
            largest_force=row["largest_force_ev_per_angstrom"],
        )

    def row(self, timestep_fs: float, references_ev: float, mass_amu: float) -> list[Any]:
        """The values of `COLUMNS`; energies include the reference energies of the atoms."""
        potential = self.potential_ev + references_ev
        density = AMU_PER_ANGSTROM3 * mass_amu / self.volume if self.volume else float("nan")
        return [
            self.step, self.step * timestep_fs, potential, self.kinetic_ev, potential + self.kinetic_ev,
            self.conserved_ev + references_ev, self.temperature_kelvin, self.pressure_gpa, self.volume, density,
            self.closest_angstrom, self.largest_force,
        ]  # fmt: skip


def of(engine: "Engine") -> Reading:
    """Observables of an engine's present state."""
    motion = engine.motion
    if engine.ensemble.name == "minimize":
        now = engine.programs.evaluate(motion.state.position, motion.cell, engine.system)
        motion = dataclasses.replace(motion, energy=now.energy, virial=now.virial, closest=now.closest)
    values = {key: np.asarray(value) for key, value in engine.programs.read(motion).items()}
    volume = float(values["volume"]) if all(engine.build.settings.pbc) else engine.volume
    kinetic = float(values["kinetic"])
    stress = (np.asarray(motion.virial) - values["flux"]) / volume if volume else np.full((3, 3), np.nan)
    return Reading(
        step=engine.step,
        potential_ev=float(motion.energy),
        kinetic_ev=kinetic,
        conserved_ev=float(values["conserved"]),
        temperature_kelvin=2 * kinetic / (engine.degrees * KELVIN) if engine.degrees else 0.0,
        stress=stress,
        volume=volume,
        closest_angstrom=float(motion.closest),
        largest_force=float(values["force"]),
    )


def columns(rows: list[list[Any]]) -> dict[str, np.ndarray]:
    """Values by the names of `COLUMNS`, from rows of them."""
    return dict(zip(COLUMNS, np.array(rows, float).reshape(-1, len(COLUMNS)).T, strict=True))


def read_thermo(folder: Path) -> dict[str, np.ndarray]:
    """Columns of the thermo.csv in a folder."""
    with (folder / THERMO).open() as file:
        return columns(list(csv.reader(file))[1:])
