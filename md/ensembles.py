"""What is kept constant, and at which values: temperature and pressure may change along a run."""

import itertools
from typing import Literal

import jax
import jax.numpy as jnp
from ase import units
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, field_validator, model_validator

from janus_jax.configuration import Section

KELVIN = units.kB
FEMTOSECOND = units.fs
GIGAPASCAL = units.GPa

Points = tuple[tuple[float, float], ...]


class EnsembleConfig(Section):
    """What is kept constant, and how."""

    name: Literal["nve", "nvt", "langevin", "npt", "minimize"] = "nve"
    """nvt: Nose-Hoover chain; npt: isotropic, with chains on atoms and cell; minimize: FIRE."""
    temperature_kelvin: NonNegativeFloat | Points = 300.0
    """Of first velocities (0: a start at rest) and of the thermostat; or points [[ps, K], ...] with lines between."""
    pressure_gpa: float | Points = 0.0
    """Of npt; or points [[ps, GPa], ...]."""
    timestep_fs: PositiveFloat = Field(default=0.5, le=10.0)
    tau_fs: PositiveFloat = 100.0
    """Period of the Nose-Hoover chain."""
    barostat_tau_fs: PositiveFloat = 1000.0
    """Period of the cell in npt."""
    friction_per_ps: PositiveFloat = 1.0
    """Of Langevin dynamics."""
    still_center: NonNegativeInt | None = None
    """Steps between removals of the motion of the centre of mass; 0: never. By default every 100 steps, but never in
    Langevin dynamics, nor where atoms are fixed."""
    force_tolerance: PositiveFloat = 0.01
    """minimize stops when no force is larger, eV/Å."""

    @field_validator("temperature_kelvin", "pressure_gpa")
    @classmethod
    def _ordered(cls, value):
        if isinstance(value, tuple) and (not value or any(b[0] <= a[0] for a, b in itertools.pairwise(value))):
            raise ValueError("points are [ps, value], at least one, in ascending time")
        return value

    @model_validator(mode="after")
    def _positive(self):
        given = self.temperature_kelvin
        lowest = min(value for _, value in given) if isinstance(given, tuple) else given
        if isinstance(given, tuple) and lowest <= 0:
            raise ValueError("temperature_kelvin: all temperatures must be positive")
        if lowest == 0 and self.name in ("nvt", "npt"):
            raise ValueError(
                f"temperature_kelvin: the thermostat of {self.name} has none at 0 K; nve, langevin and minimize can "
                "start at rest"
            )
        return self

    def still_every(self, fixed: bool) -> int:
        """Steps between removals of the centre's motion; 0: never."""
        if self.still_center is None:
            return 0 if fixed or self.name in ("langevin", "minimize") else 100
        return self.still_center

    def degrees(self, moving: int, fixed: bool) -> int:
        """Degrees of freedom of `moving` atoms: less three where the centre of mass is kept still."""
        return 3 * moving - (3 if self.still_every(fixed) and not fixed else 0)

    def kT(self, step) -> jax.Array:
        """eV, at a step."""
        return KELVIN * self._at(self.temperature_kelvin, step)

    def pressure(self, step) -> jax.Array:
        """eV/Å^3, at a step."""
        return GIGAPASCAL * self._at(self.pressure_gpa, step)

    def _at(self, value: float | Points, step) -> jax.Array:
        if not isinstance(value, tuple):
            return jnp.asarray(value, float)
        times, values = (jnp.array(column, float) for column in zip(*value, strict=True))
        return jnp.interp(jnp.asarray(step, times.dtype) * (self.timestep_fs / 1000), times, values)

    @property
    def first_kT(self) -> float:
        """eV, at the start."""
        value = self.temperature_kelvin
        return KELVIN * (value[0][1] if isinstance(value, tuple) else value)

    @property
    def ramped(self) -> bool:
        """Whether temperature or pressure change, so that nothing is conserved."""
        return isinstance(self.temperature_kelvin, tuple) or isinstance(self.pressure_gpa, tuple)
