"""jax-md's integrators in eV, Å, amu, on padded arrays: energies kept, right degrees of freedom, noise by atom.

Time is in Å (amu / eV)^(1/2) inside, as in jax-md and ASE. Rows of padding and fixed atoms have an infinite mass and
no force, so the integrators leave them alone.

nve, nvt and minimize are jax-md's own functions. Langevin is made of jax-md's steps, because the noise of an atom
must not depend on its row; npt of its chains, because jax-md counts rows as atoms (`md.npt`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from janus_jax.typing import pytree
from md import energies, npt
from md.ensembles import FEMTOSECOND, EnsembleConfig
from md.potential import Evaluation

Evaluate = Callable[..., Evaluation]


@pytree
class Motion:
    """A state of motion and what the potential says of it."""

    state: Any
    """jax-md's: position, momentum, force, mass [rows, 3 or 1], and those of thermostat and barostat."""
    cell: Any
    """[3, 3], Å."""
    energy: Any
    """Potential, eV; not a number in a minimisation, where jax-md does not let it out."""
    virial: Any
    closest: Any
    """Å, the shortest pair."""
    heat: Any
    """eV that Langevin's noise and friction, and removals of the centre's motion, have put in."""
    step: Any


class Integrator:
    """Steps of one ensemble.

    Args:
        evaluate: (positions, cell, system) -> Evaluation.
        moving, fixed: number of atoms that move, and whether some do not.
    """

    def __init__(self, ensemble: EnsembleConfig, evaluate: Evaluate, moving: int, fixed: bool):
        self.ensemble, self.evaluate = ensemble, evaluate
        self.degrees = ensemble.degrees(moving, fixed)
        self.still = ensemble.still_every(fixed)
        self.dt = ensemble.timestep_fs * FEMTOSECOND

    def start(self, positions, momenta, first: Evaluation, masses, cell, key) -> Motion:
        """Motion from known momenta and forces."""
        forces = self._on_moving(first.forces, masses)
        kT = self.ensemble.first_kT
        if self.ensemble.name == "npt":
            state = npt.start(self.ensemble, positions, momenta, forces, masses, cell, self.degrees, kT)
        else:
            init, _ = self._jax_md(lambda positions, forces: forces)
            options: dict[str, Any] = {"nve": {"kT": kT}, "minimize": {}}.get(self.ensemble.name, {})
            if self.ensemble.name == "minimize":
                state = init(positions, mass=masses, forces=forces)
            else:
                state = init(key, positions, mass=masses, momenta=momenta, forces=forces, **options)
            if self.ensemble.name == "nvt":  # jax-md counts every row
                state = state.set(chain=state.chain.set(degrees_of_freedom=self.degrees))
        zero = jnp.zeros((), positions.dtype)
        motion = Motion(state, cell, first.energy, first.virial, first.closest, zero, jnp.zeros((), int))
        return jax.tree.map(partial(_real, dtype=positions.dtype), motion)

    def _jax_md(self, force: Callable) -> tuple[Callable, Callable]:
        from jax_md import minimize, simulate

        kT = self.ensemble.first_kT
        if self.ensemble.name == "minimize":
            return minimize.fire_descent(force, shift, dt_start=self.dt, dt_max=10 * self.dt)
        kinds: dict[str, Any] = {
            "nve": simulate.nve,
            "nvt": partial(simulate.nvt_nose_hoover, kT=kT, tau=self.ensemble.tau_fs * FEMTOSECOND),
            "langevin": partial(simulate.nvt_langevin, kT=kT),
        }
        return kinds[self.ensemble.name](force, shift, dt=self.dt)

    @staticmethod
    def _on_moving(forces, masses):
        return jnp.where(jnp.isfinite(masses), forces, 0)

    def step(self, motion: Motion, ids, system) -> Motion:
        """One step further."""
        state, cell = motion.state, motion.cell
        kT, seen = self.ensemble.kT(motion.step + 1).astype(state.position.dtype), []

        def force(positions, cell=cell, **_):
            seen.append(self.evaluate(positions, cell, system))
            return self._on_moving(seen[-1].forces, state.mass)

        heat = motion.heat
        if self.ensemble.name == "npt":
            pressure = self.ensemble.pressure(motion.step + 1).astype(cell.dtype)
            state, cell = npt.step(self.ensemble, self.degrees, state, motion.virial, force, seen, kT, pressure)
        elif self.ensemble.name == "langevin":
            state, given = self._langevin(force, state, ids, kT)
            heat = heat + given
        elif self.ensemble.name == "minimize":
            state = self._jax_md(force)[1](state)
            seen.clear()  # made inside a jit of jax-md's, so it cannot leave it
        else:  # what jax-md has under its jit: energies must come out of it
            apply = self._jax_md(force)[1]
            options = {"kT": kT} if self.ensemble.name == "nvt" else {}
            state = getattr(apply, "__wrapped__", apply)(state, **options)
        if self.still:
            now, before = (motion.step + 1) % self.still == 0, state
            still = jax.lax.cond(now, lambda p: p - drift(p, before.mass), lambda p: p, state.momentum)
            state = state.set(momentum=still)
            taken = energies.kinetic(still, state.mass) - energies.kinetic(before.momentum, before.mass)
            heat = heat + jnp.where(now, taken, 0)
        unknown = jnp.full_like(motion.energy, jnp.nan)
        new = seen[-1] if seen else Evaluation(unknown, state.force, motion.virial, motion.closest)
        after = Motion(state, cell, new.energy, new.virial, new.closest, heat, motion.step + 1)
        return jax.tree.map(partial(_real, dtype=motion.cell.dtype), after)

    def _langevin(self, force, state, ids, kT):
        """BAOAB of jax-md's primitives; the noise of an atom depends on its id and the step, not on its row."""
        from jax_md import simulate

        key, now = jax.random.split(state.rng)
        state = simulate.momentum_step(state, self.dt / 2)
        state = simulate.position_step(state, shift, self.dt / 2)
        keep = jnp.exp(-self.ensemble.friction_per_ps / (1000 * FEMTOSECOND) * self.dt)
        before = energies.kinetic(state.momentum, state.mass)
        spread = jnp.sqrt(kT * (1 - keep * keep) * jnp.where(jnp.isfinite(state.mass), state.mass, 0))
        state = state.set(momentum=keep * state.momentum + spread * normal(now, ids, kT.dtype), rng=key)
        given = energies.kinetic(state.momentum, state.mass) - before
        state = simulate.position_step(state, shift, self.dt / 2)
        state = state.set(force=force(state.position))
        return simulate.momentum_step(state, self.dt / 2), given

    def conserved(self, motion: Motion) -> jax.Array:
        """eV; constant in exact dynamics at constant temperature and pressure. The energy itself in nve."""
        state, kT = motion.state, self.ensemble.kT(motion.step)
        total = motion.energy + energies.kinetic(state.momentum, state.mass) - motion.heat
        if self.ensemble.name == "nvt":
            total += energies.chain(state.chain, kT)
        if self.ensemble.name == "npt":
            total += npt.energy(state, kT, self.ensemble.pressure(motion.step), motion.cell)
        return total


def shift(positions, moves, **_):
    """Positions are not wrapped while the lists hold."""
    return positions + moves


def _real(leaf, dtype):
    """jax-md has some of its real numbers in 32 bits."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def drift(momenta, masses) -> jax.Array:
    """Momenta [rows, 3] of the motion of the centre of mass of all moving atoms."""
    mass = jnp.where(jnp.isfinite(masses), masses, 0)
    return mass * (momenta.sum(0) / jnp.maximum(mass.sum(), 1e-30))[None]


def normal(key, ids, dtype) -> jax.Array:
    """Standard normal numbers [rows, 3] that depend on the id of the atom only."""
    return jax.vmap(lambda id_: jax.random.normal(jax.random.fold_in(key, id_), (3,), dtype))(ids)


def momenta(key, ids, masses, moving, kT, degrees: int, still: bool) -> jax.Array:
    """Maxwell-Boltzmann momenta [rows, 3], exactly at the temperature.

    Args:
        masses: [rows, 1]; moving: [rows, 1] bool, false for padding and fixed atoms.
        kT: eV; degrees: of freedom; still: whether the centre of mass is at rest.
    """
    mass = jnp.where(moving, masses, 0)
    p = jnp.sqrt(mass) * normal(key, ids, masses.dtype)
    if still:
        p = p - drift(p, jnp.where(moving, masses, jnp.inf))
    kinetic = 0.5 * jnp.where(moving, p * p / masses, 0).sum()
    return p * jnp.sqrt(0.5 * degrees * kT / jnp.maximum(kinetic, 1e-30))
