"""Constant pressure: isotropic Nose-Hoover chains on atoms and cell, from jax-md's chains and state.

The step is that of `jax_md.simulate.npt_nose_hoover` (equal to it in the tests) with three differences: atoms are
counted, not rows; fixed atoms and a still centre of mass are not degrees of freedom; and the pressure at the start
of a step is known from the one before, so a step evaluates the potential once. jax-md has no flexible cell.

Source: Martyna, Tobias, Klein 1994; Tuckerman et al., J. Phys. A 39, 5629 (2006).
"""

from typing import Any

import jax
import jax.numpy as jnp

from md import energies
from md.ensembles import FEMTOSECOND, EnsembleConfig


def _chains(ensemble: EnsembleConfig):
    """(barostat, thermostat) functions."""
    from jax_md import simulate

    def chain(tau_fs: float):
        return simulate.nose_hoover_chain(
            ensemble.timestep_fs * FEMTOSECOND, **simulate.default_nhc_kwargs(tau_fs * FEMTOSECOND, {})
        )

    return chain(ensemble.barostat_tau_fs), chain(ensemble.tau_fs)


def _mass(ensemble: EnsembleConfig, degrees: int, kT):
    """Of the cell: (degrees + 3) kT tau^2."""
    return (degrees + 3) * kT * (ensemble.barostat_tau_fs * FEMTOSECOND) ** 2


def start(ensemble: EnsembleConfig, positions, momenta, forces, masses, cell, degrees: int, kT: float):
    """jax-md's `NPTNoseHooverState` at rest in this cell."""
    from jax_md import simulate

    barostat, thermostat = _chains(ensemble)
    zero = jnp.zeros((), positions.dtype)
    kinetic = energies.kinetic(momenta, masses)
    state: Any = simulate.NPTNoseHooverState
    return state(
        position=positions,
        momentum=momenta,
        force=forces,
        mass=masses,
        reference_box=cell,
        box_position=zero,
        box_momentum=zero,
        box_mass=zero + _mass(ensemble, degrees, kT),
        barostat=barostat.initialize(1, zero, kT),
        thermostat=thermostat.initialize(degrees, kinetic, kT),
    )


def step(ensemble: EnsembleConfig, degrees: int, state, virial, force, seen: list, kT, pressure):
    """One step: (state, cell).

    Args:
        virial: dE/d(strain) [3, 3] of the state, eV.
        force: (positions, cell) -> forces; what it evaluates is added to `seen`.
    """
    dt = ensemble.timestep_fs * FEMTOSECOND
    barostat, thermostat = _chains(ensemble)
    bath, heat = barostat.update_mass(state.barostat, kT), thermostat.update_mass(state.thermostat, kT)
    mass = jnp.asarray(_mass(ensemble, degrees, kT), kT.dtype)
    alpha = 1 + 3 / degrees

    def pull(momenta, volume, virial):
        """Force on the logarithm of the cell's length."""
        return alpha * 2 * energies.kinetic(momenta, state.mass) - jnp.trace(virial) - 3 * pressure * volume

    def cell_at(position):
        return jnp.exp(position) * state.reference_box

    def kick(momenta, forces, speed):
        x = alpha * speed * dt / 2
        return momenta * jnp.exp(-x) + dt / 2 * forces * _sinh(x / 2) * jnp.exp(-x / 2)

    box_momentum, bath = barostat.half_step(state.box_momentum, bath, kT)
    momenta, heat = thermostat.half_step(state.momentum, heat, kT)

    volume = jnp.abs(jnp.linalg.det(cell_at(state.box_position)))
    box_momentum += dt / 2 * pull(momenta, volume, virial)
    speed = box_momentum / mass
    momenta = kick(momenta, state.force, speed)
    box_position = state.box_position + speed * dt
    x = speed * dt
    moving = jnp.isfinite(state.mass)  # fixed atoms keep their place in the cell, which grows from the origin
    positions = state.position * jnp.exp(x)
    positions += jnp.where(moving, dt * momenta / state.mass, 0) * jnp.exp(x / 2) * _sinh(x / 2)

    cell = cell_at(box_position)
    forces = force(positions, cell)
    momenta = kick(momenta, forces, speed)
    box_momentum += dt / 2 * pull(momenta, jnp.abs(jnp.linalg.det(cell)), seen[-1].virial)

    heat = heat.set(kinetic_energy=energies.kinetic(momenta, state.mass))
    bath = bath.set(kinetic_energy=0.5 * box_momentum**2 / mass)
    momenta, heat = thermostat.half_step(momenta, heat, kT)
    box_momentum, bath = barostat.half_step(box_momentum, bath, kT)
    state = state.set(
        position=positions, momentum=momenta, force=forces, box_position=box_position, box_momentum=box_momentum,
        box_mass=mass, thermostat=heat, barostat=bath,
    )  # fmt: skip
    return state, cell


def _sinh(x):
    """sinh(x) / x near 0."""
    square = x * x
    return 1 + square / 6 * (1 + square / 20 * (1 + square / 42 * (1 + square / 72)))


def energy(state, kT, pressure, cell) -> jax.Array:
    """What the conserved quantity has besides the energy of the atoms, eV."""
    bath = state.barostat
    chains = energies.chain(state.thermostat, kT) + energies.chain(bath, kT)
    volume = jnp.abs(jnp.linalg.det(cell))
    return chains + state.box_momentum**2 / (2 * state.box_mass) + pressure * volume
