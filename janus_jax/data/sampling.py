"""Sample periodic liquid water with xTB: how the built-in set `water` was made.

Each run is a Langevin trajectory of a few molecules in a cubic cell, integrated with two time
steps (r-RESPA; Tuckerman, Berne, Martyna 1992): the cheap `inner_method` every step, and the
difference of `method` to it every `inner_steps` steps. So configurations follow the Boltzmann
distribution of `method` at a fraction of its cost. Hydrogen gets a larger mass, which changes
the dynamics but not that distribution, and allows a longer step.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import as_completed
from itertools import product

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.velocitydistribution import thermalize_momenta
from ase.optimize import FIRE
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from janus_jax.data.xtb import calculator, pool


class WaterRun(BaseModel):
    """One trajectory of `molecules` H2O in a cubic cell."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    molecules: PositiveInt
    density_g_cm3: PositiveFloat
    temperature_kelvin: PositiveFloat


class SamplingConfig(BaseModel):
    """What to sample and how; see the module docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    method: str = "gfn2-xtb"
    inner_method: str = "gfn1-xtb"
    inner_step_fs: PositiveFloat = 1.25
    inner_steps: PositiveInt = 4
    hydrogen_mass_amu: PositiveFloat = 3.0
    friction_per_fs: PositiveFloat = 0.02
    equilibration_steps: PositiveInt = 300
    steps_per_frame: PositiveInt = 5
    frames_per_run: PositiveInt = 20
    seed: int = 0
    runs: tuple[WaterRun, ...]


def water_box(run: WaterRun, rng: np.random.Generator) -> Atoms:
    """Randomly oriented molecules on random sites of a cubic grid."""
    mass = molecule("H2O").get_masses().sum() * units._amu * 1e3 * run.molecules
    side = (mass / run.density_g_cm3 * 1e24) ** (1 / 3)
    grid = int(np.ceil(run.molecules ** (1 / 3)))
    sites = (np.array(list(product(range(grid), repeat=3))) + 0.5) * side / grid
    box = Atoms(cell=[side] * 3, pbc=True)
    for site in rng.permutation(sites)[: run.molecules]:
        water = molecule("H2O")
        water.rotate(rng.uniform(0, 360), rng.normal(size=3))
        water.translate(site - water.get_center_of_mass())
        box += water
    return box


def _langevin_kick(atoms: Atoms, kelvin: float, damping: float, rng: np.random.Generator) -> None:
    """Exact Ornstein-Uhlenbeck step of the momenta; damping = exp(-friction * time)."""
    mass = atoms.get_masses()[:, None]
    noise = np.sqrt((1 - damping**2) * mass * units.kB * kelvin) * rng.normal(size=(len(atoms), 3))
    atoms.set_momenta(damping * atoms.get_momenta() + noise)


def _verlet(atoms: Atoms, forces: np.ndarray, step: float) -> np.ndarray:
    """One velocity-Verlet step with the attached calculator; returns the new forces."""
    mass = atoms.get_masses()[:, None]
    half = atoms.get_momenta() + 0.5 * step * forces
    atoms.positions += step * half / mass
    forces = atoms.get_forces()
    atoms.set_momenta(half + 0.5 * step * forces)
    return forces


def sample_run(config: SamplingConfig, index: int) -> list[Atoms]:
    """Frames of run `index`, labelled with energy, forces and stress of `config.method`."""
    run = config.runs[index]
    rng = np.random.default_rng([config.seed, index])
    atoms = water_box(run, rng)
    atoms.arrays["masses"] = np.where(atoms.numbers == 1, config.hydrogen_mass_amu, atoms.get_masses())
    atoms.calc = calculator(config.inner_method)
    FIRE(atoms, logfile=None).run(fmax=2.0, steps=40)  # pyright: ignore[reportArgumentType]
    thermalize_momenta(atoms, run.temperature_kelvin, rng=rng)

    step = config.inner_step_fs * units.fs
    friction = config.friction_per_fs * config.inner_step_fs
    forces = atoms.get_forces()
    for _ in range(config.equilibration_steps):
        forces = _verlet(atoms, forces, step)
        _langevin_kick(atoms, run.temperature_kelvin, np.exp(-friction), rng)

    accurate = atoms.copy()
    accurate.calc = calculator(config.method)
    slow = accurate.get_forces() - forces
    outer = config.inner_steps * step
    frames = []
    for count in range(1, config.frames_per_run * config.steps_per_frame + 1):
        atoms.set_momenta(atoms.get_momenta() + 0.5 * outer * slow)
        for _ in range(config.inner_steps):
            forces = _verlet(atoms, forces, step)
        accurate.positions = atoms.positions
        slow = accurate.get_forces() - forces
        atoms.set_momenta(atoms.get_momenta() + 0.5 * outer * slow)
        _langevin_kick(atoms, run.temperature_kelvin, np.exp(-friction * config.inner_steps), rng)
        if count % config.steps_per_frame == 0:
            frames.append(_labelled(accurate, index, run))
    return frames


def _labelled(atoms: Atoms, index: int, run: WaterRun) -> Atoms:
    frame = Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=True)
    frame.info = {
        "trajectory": index,
        "temperature_kelvin": run.temperature_kelvin,
        "density_g_cm3": run.density_g_cm3,
    }
    labels = {
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces().copy(),
        "stress": atoms.get_stress().copy(),
    }
    frame.calc = SinglePointCalculator(frame, **labels)
    return frame


def sample(config: SamplingConfig, workers: int = 1) -> Iterator[list[Atoms]]:
    """Yield each run's frames as it finishes (any order; `info["trajectory"]` tells which)."""
    with pool(workers) as executor:
        futures = [executor.submit(sample_run, config, index) for index in range(len(config.runs))]
        for future in as_completed(futures):
            yield future.result()
