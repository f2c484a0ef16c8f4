"""A new run: first lists, forces and momenta of an engine."""

import logging
import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms

from janus_jax.runtime import multihost
from md import checks, integrators
from md.ensembles import KELVIN

if TYPE_CHECKING:
    from md.engine import Engine

log = logging.getLogger(__name__)


def begin(engine: "Engine", atoms: Atoms, moving: np.ndarray, masses: jax.Array) -> None:
    """Set an engine to its start: the momenta of `atoms`, or drawn ones.

    Args:
        moving: [N], which atoms are not fixed; masses: [K rows, 1], infinite where nothing moves.

    Raises:
        DynamicsError: as `checks.begun`.
    """
    place, dtype = engine.place, engine.dtype
    positions = place.by_owner(engine.start.positions.astype(dtype))
    engine.origin = place.by_owner(atoms.positions.astype(dtype))
    cell = place.everywhere(engine.start.cell.astype(dtype))
    engine.origin_cell = cell
    engine.system = engine.prepare(positions, cell)
    engine.halo_after_cut = engine.halo_rows
    key = place.everywhere(jax.random.key(engine.settings.seed))
    if engine.ensemble.name == "minimize":
        momenta = positions * 0
    elif atoms.has("momenta"):
        given = np.where(moving[:, None], atoms.get_momenta(), 0)  # ASE's unit is ours
        if multihost.primary():
            say_temperature(given, atoms.get_masses(), engine.degrees, engine.ensemble.first_kT)
        momenta = place.by_owner(given.astype(dtype))
        if engine.programs.integrator.still:
            momenta = momenta - integrators.drift(momenta, masses)
    else:
        momenta = _drawn(engine, key, masses)
    first = engine.programs.evaluate(positions, cell, engine.system)
    engine.motion = engine.programs.start(positions, momenta, first, masses, cell, key)
    checks.begun(engine, first)


def say_temperature(momenta: np.ndarray, masses: np.ndarray, degrees: int, kT: float) -> None:
    """Warn if momenta [N, 3] of a structure are not of the temperature asked for, which is kT (eV).

    Args:
        masses: [N], amu; degrees: of freedom.
    """
    own = float((momenta**2 / masses[:, None]).sum()) / max(degrees, 1)
    if degrees and abs(own - kT) > 4 * kT * math.sqrt(2 / degrees):  # four standard deviations
        log.warning(
            "velocities are those of the structure, of %.0f K; ensemble.temperature_kelvin is %.0f K, of which new "
            "ones would be drawn for a structure without",
            own / KELVIN,
            kT / KELVIN,
        )


def _drawn(engine: "Engine", key: jax.Array, masses: jax.Array) -> jax.Array:
    """Momenta [K rows, 3] of the first temperature; the centre at rest where its motion is not counted."""
    still = engine.degrees < 3 * engine.atoms and not engine.fixed

    @jax.jit
    def draw(key, ids, masses):
        moving = jnp.isfinite(masses) & (ids >= 0)[:, None]
        return integrators.momenta(key, ids, masses, moving, engine.ensemble.first_kT, engine.degrees, still)

    return draw(key, engine.ids, masses)
