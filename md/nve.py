"""A short constant-energy run with an ASE calculator, and the drift of its total energy."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import Calculator
from ase.md.velocitydistribution import Stationary, thermalize_momenta
from ase.md.verlet import VelocityVerlet

from janus_jax import plotting
from janus_jax.units import MEV_PER_EV


@dataclasses.dataclass(frozen=True)
class Dynamics:
    """Energies along a trajectory: time (fs), potential and kinetic energy (eV), each [steps + 1]."""

    atoms: int
    time_fs: np.ndarray
    potential: np.ndarray
    kinetic: np.ndarray
    steps_per_s: float

    @property
    def temperature_kelvin(self) -> np.ndarray:
        """From 3N - 3 degrees of freedom: the centre of mass is at rest."""
        return 2 * self.kinetic / ((3 * self.atoms - 3) * units.kB)

    def drift(self) -> float:
        """Slope of the straight line through the total energy, meV/atom/ps."""
        total = self.potential + self.kinetic
        return float(np.polyfit(self.time_fs / 1000, total - total[0], 1)[0] * MEV_PER_EV / self.atoms)

    def figures(self) -> dict[str, Any]:
        total = self.potential + self.kinetic
        return {
            "atoms": self.atoms,
            "picoseconds": float(self.time_fs[-1] / 1000),
            "mean_temperature_kelvin": float(self.temperature_kelvin.mean()),
            "drift_meV_per_atom_per_ps": self.drift(),
            "total_energy_std_meV_per_atom": float(total.std() * MEV_PER_EV / self.atoms),
            "steps_per_s": round(self.steps_per_s, 1),
        }


def run(
    start: Atoms, calculator: Calculator, *, temperature_kelvin: float, timestep_fs: float, steps: int, seed: int = 0
) -> Dynamics:
    """Velocity Verlet from `start` with velocities drawn at `temperature_kelvin`."""
    atoms = start.copy()
    atoms.calc = calculator
    thermalize_momenta(atoms, temperature_kelvin, rng=np.random.default_rng(seed))
    Stationary(atoms)
    rows = []
    dynamics = VelocityVerlet(atoms, timestep_fs * units.fs)
    dynamics.attach(lambda: rows.append((atoms.get_potential_energy(), atoms.get_kinetic_energy())))
    atoms.get_forces()  # compiles before the clock starts
    began = time.perf_counter()
    dynamics.run(steps)
    rate = steps / (time.perf_counter() - began)
    potential, kinetic = np.array(rows).T
    return Dynamics(len(atoms), timestep_fs * np.arange(len(rows)), potential, kinetic, rate)


def plot(dynamics: Dynamics, path: Path) -> None:
    """Energies and temperature over time, as PNG."""
    figure, (energy, temperature) = plotting.figure(2)
    picoseconds = dynamics.time_fs / 1000
    for name, values in (("potential", dynamics.potential), ("total", dynamics.potential + dynamics.kinetic)):
        energy.plot(picoseconds, MEV_PER_EV * (values - values[0]) / dynamics.atoms, label=name)
    energy.set(xlabel="time, ps", ylabel="energy change, meV/atom", title=f"drift {dynamics.drift():.4f} meV/atom/ps")
    energy.legend()
    temperature.plot(picoseconds, dynamics.temperature_kelvin)
    temperature.set(xlabel="time, ps", ylabel="temperature, K")
    plotting.save(figure, path)
