"""Ensembles: jax-md's integrators in eV, Å, amu, with the right degrees of freedom and noise by atom.

Time is in Å (amu / eV)^(1/2) inside, as in jax-md and ASE. Rows of padding and fixed atoms have an infinite
mass and no momentum, so the integrators leave them alone; they only must not count as degrees of freedom.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from ase import units
from pydantic import Field, PositiveFloat

from janus_jax.configuration import Section

KELVIN = units.kB
FEMTOSECOND = units.fs


class EnsembleConfig(Section):
    """What is kept constant, and how."""

    name: Literal["nve", "nvt", "langevin"] = "nve"
    """nvt: Nose-Hoover chain."""
    temperature_kelvin: PositiveFloat = 300.0
    """Of the first velocities, and of the thermostat."""
    tau_fs: PositiveFloat = 100.0
    """Period of the Nose-Hoover chain."""
    friction_per_ps: PositiveFloat = 1.0
    """Of Langevin dynamics."""
    timestep_fs: PositiveFloat = Field(default=0.5, le=10.0)


def integrator(ensemble: EnsembleConfig, force: Callable) -> tuple[Callable, Callable]:
    """(start, step) of jax-md for `force(positions, **system)`.

    start(positions, momenta, forces, masses, degrees, key) -> state, with forces already known;
    step(state, ids, **system) -> state, where `system` are keyword arguments of the force.
    """
    from jax_md import simulate

    timestep = ensemble.timestep_fs * FEMTOSECOND
    kT = ensemble.temperature_kelvin * KELVIN

    def shift(positions, moves, **_):
        return positions + moves

    def known(positions, forces):
        return forces

    kinds: dict[str, Any] = {
        "nve": simulate.nve,
        "nvt": partial(simulate.nvt_nose_hoover, kT=kT, tau=ensemble.tau_fs * FEMTOSECOND),
        "langevin": partial(simulate.nvt_langevin, kT=kT),
    }
    init, _ = kinds[ensemble.name](known, shift, dt=timestep)
    _, apply = kinds[ensemble.name](force, shift, dt=timestep)
    gamma = ensemble.friction_per_ps / (1000 * FEMTOSECOND)

    def step(state, ids, **system):
        if ensemble.name == "langevin":
            return _langevin(simulate, force, shift, state, ids, timestep, kT, gamma, system)
        return apply(state, **system)

    def start(positions, momenta, forces, masses, degrees: int, key):
        options: dict[str, Any] = {"kT": kT} if ensemble.name == "nve" else {}
        state = init(key, positions, mass=masses, momenta=momenta, forces=forces, **options)
        if ensemble.name == "nvt":  # jax-md counts every row
            state = state.set(chain=state.chain.set(degrees_of_freedom=degrees))
        return state

    return start, step


def _langevin(simulate, force, shift, state, ids, timestep, kT, gamma, system):
    """BAOAB of jax-md's primitives; the noise of an atom depends on its id and the step, not on its row."""
    key, now = jax.random.split(state.rng)
    state = simulate.momentum_step(state, timestep / 2)
    state = simulate.position_step(state, shift, timestep / 2)
    keep = jnp.exp(-gamma * timestep)
    noise = normal(now, ids, state.momentum.dtype)
    moving = jnp.isfinite(state.mass)
    spread = jnp.sqrt(kT * (1 - keep * keep) * jnp.where(moving, state.mass, 0))
    state = state.set(momentum=keep * state.momentum + spread * noise, rng=key)
    state = simulate.position_step(state, shift, timestep / 2)
    state = state.set(force=force(state.position, **system))
    return simulate.momentum_step(state, timestep / 2)


def normal(key, ids, dtype) -> jax.Array:
    """Standard normal numbers [rows, 3] that depend on the id of the atom only."""
    return jax.vmap(lambda id_: jax.random.normal(jax.random.fold_in(key, id_), (3,), dtype))(ids)


def momenta(key, ids, masses, moving, temperature_kelvin: float, degrees: int) -> jax.Array:
    """Maxwell-Boltzmann momenta [rows, 3]: centre of mass at rest if nothing is fixed, exactly at the temperature.

    Args:
        masses: [rows, 1]; moving: [rows, 1] bool, false for padding and fixed atoms.
        degrees: of freedom.
    """
    mass = jnp.where(moving, masses, 0)
    p = jnp.sqrt(mass) * normal(key, ids, masses.dtype)
    drift = jnp.where(degrees < 3 * moving.sum(), p.sum(0) / mass.sum(), 0)
    p = p - mass * drift[None]
    kinetic = 0.5 * jnp.where(moving, p * p / masses, 0).sum()
    return p * jnp.sqrt(0.5 * degrees * KELVIN * temperature_kelvin / kinetic)
