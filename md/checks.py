"""What is refused before the first step, and what stops a run: with the step, the atoms and what to do."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms

from janus_jax import system
from janus_jax.data.neighbors import COINCIDENT_ANGSTROM
from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential
from md import layout, programs
from md.config import EngineConfig
from md.ensembles import FEMTOSECOND, EnsembleConfig
from md.potential import Evaluation

if TYPE_CHECKING:
    from md.engine import Engine


MOST = 10
"""Atoms named in a message."""


def moving(atoms: Atoms) -> np.ndarray:
    """Which atoms [N] no constraint fixes.

    Raises:
        DynamicsError: a constraint other than `FixAtoms`.
    """
    free = np.ones(len(atoms), bool)
    for constraint in atoms.constraints:
        if not isinstance(constraint, FixAtoms):
            raise DynamicsError(f"the structure has a {type(constraint).__name__}; only FixAtoms is known here")
        free[constraint.index] = False
    return free


def before(
    model: Potential, atoms: Atoms, ensemble: EnsembleConfig, settings: EngineConfig, moving: np.ndarray
) -> None:
    """What can be known before anything is compiled.

    Raises:
        StructureError: a charge, spin or data set outside the model's embeddings.
        DynamicsError: more devices than JAX has, no cell for a pressure, nothing that moves, a number
            that is none, masses that are not positive, a timestep that the velocities make too long for the skin.
    """
    devices = settings.devices
    layout.mesh_of(devices)
    if jax.process_count() > 1 and devices != len(jax.devices()):
        raise DynamicsError(f"{devices} devices; with several processes it must be all {len(jax.devices())}")
    if ensemble.name == "npt" and not (atoms.pbc.all() and atoms.cell.volume > 0):
        raise DynamicsError(f"npt needs a cell with three periodic axes; this one has pbc {atoms.pbc.tolist()}")
    if not moving.any():
        raise DynamicsError("all atoms are fixed; there is nothing to move")
    fixed = not moving.all()
    if ensemble.name != "minimize" and ensemble.degrees(int(moving.sum()), fixed) < 1:
        raise DynamicsError("one atom whose centre is held still has no motion; set still_center to 0")
    if fixed and ensemble.still_center:
        raise DynamicsError(f"still_center is {ensemble.still_center}, but fixed atoms hold the centre; leave it out")
    system.check(model, **system.of(atoms, settings.dataset))
    if not np.isfinite(atoms.positions).all():
        raise DynamicsError(f"atom {int(np.argmax(~np.isfinite(atoms.positions).all(1)))} is nowhere: not a number")
    if not np.isfinite(atoms.cell.array).all():
        raise DynamicsError("the cell has numbers that are not finite")
    masses = atoms.get_masses()
    if (bad := np.flatnonzero(~((masses > 0) & np.isfinite(masses)))).size:
        shown = ", ".join(f"{masses[k]:g}" for k in bad[:MOST])
        raise DynamicsError(f"masses must be positive numbers of amu: {_named(bad)} have {shown}")
    if atoms.has("momenta") and (bad := np.flatnonzero(~np.isfinite(atoms.get_momenta()).all(1))).size:
        raise DynamicsError(f"momenta of {_named(bad)} are not finite; without momenta, new ones are drawn")
    if atoms.has("momenta") and ensemble.name != "minimize":
        speeds = np.linalg.norm(atoms.get_velocities(), axis=1) * moving
        fastest = int(np.argmax(speeds))
        way = float(speeds[fastest]) * ensemble.timestep_fs * FEMTOSECOND
        if way > settings.skin_angstrom / 2:
            raise DynamicsError(
                f"atom {fastest} moves {way:.3g} Å in a step of {ensemble.timestep_fs:g} fs, more than half the skin "
                f"of {settings.skin_angstrom:g} Å: use a shorter timestep_fs or a larger skin_angstrom"
            )


def begun(engine: "Engine", first: Evaluation) -> None:
    """What the first energy and forces show.

    Raises:
        DynamicsError: atoms on one place, or an energy, virial or forces that are not finite.
    """
    if not float(first.closest) >= COINCIDENT_ANGSTROM:
        state = engine.motion.state
        length, source, centre = engine.programs.closest(state.position, engine.motion.cell, engine.system)
        raise DynamicsError(
            f"atoms {int(source)} and {int(centre)} are {float(length):.1e} Å apart, so that their forces have no "
            "direction: remove one, or move it"
        )
    wrong = [name for name in ("energy", "virial") if not np.isfinite(np.asarray(getattr(first, name))).all()]
    if wrong or not np.isfinite(float(jnp.abs(first.forces).sum())):
        bad = np.flatnonzero(~np.isfinite(engine.by_id(first.forces)).all(1))
        wrong += [f"forces on {_named(bad)}"] if len(bad) else []
        raise DynamicsError(f"not finite at the start: {', '.join(wrong)}; look at these atoms and at the model")


def _named(atoms: np.ndarray) -> str:
    """The first of some atoms, and how many there are."""
    more = ", ..." if len(atoms) > MOST else ""
    return f"{len(atoms)} atoms ({', '.join(map(str, atoms[:MOST].tolist()))}{more})"


def stop(engine: "Engine", why: int) -> None:
    """End a run at the last good state with what is wrong in the next one.

    Raises:
        DynamicsError: always.
    """
    timestep = engine.ensemble.timestep_fs * FEMTOSECOND
    forces = np.linalg.norm(engine.forces(), axis=1)
    mass = engine.by_id(engine.motion.state.mass)
    speeds = np.linalg.norm(engine.momenta() / mass, axis=1)
    fastest, pulled = int(np.argmax(speeds)), int(np.argmax(np.nan_to_num(forces, nan=np.inf)))
    state = (
        f"in the last good state atom {fastest} goes {speeds[fastest] * timestep:.3g} Å a step and atom {pulled} "
        f"has a force of {forces[pulled]:.3g} eV/Å"
    )
    where = f"step {engine.step + 1} of {engine.ensemble.timestep_fs:g} fs"
    if engine.ensemble.name == "minimize":
        where = f"step {engine.step + 1} of FIRE"
    if why == programs.STALE:
        cell = " (or changes the cell so much)" if engine.ensemble.name == "npt" else ""
        raise DynamicsError(
            f"{where} moves an atom{cell} by more than half the skin of {engine.settings.skin_angstrom:g} Å; {state}: "
            "use a shorter timestep_fs or a larger skin_angstrom, or look whether atoms are too close"
        )
    after = engine.programs.attempt(engine.motion, engine.ids, engine.system)
    if why == programs.BROKEN:
        finite = np.isfinite(engine.by_id(after.state.force)).all(1) & np.isfinite(
            engine.by_id(after.state.position)
        ).all(1)
        atoms = np.flatnonzero(~finite)
        shown = ", ".join(map(str, atoms[:10].tolist())) + (", ..." if len(atoms) > 10 else "")
        shown = f"{len(atoms)} atoms: {shown}" if len(atoms) else "the energy or the virial"
        raise DynamicsError(
            f"{where} gives numbers that are not finite ({shown}); {state}. Look at these atoms "
            "in the last good state, or use a shorter timestep_fs"
        )
    length, source, centre = engine.programs.closest(after.state.position, after.cell, engine.system)
    pair = f"atoms {int(source)} and {int(centre)} are {float(length):.3f} Å apart"
    if why == programs.CLOSE:
        raise DynamicsError(
            f"after {where} {pair}, closer than closest_angstrom {engine.settings.closest_angstrom:g}; {state}. The "
            "potential is hardly meant for this: look at the start, or use a shorter timestep_fs"
        )
    raise DynamicsError(
        f"after {where} the system is hotter than hottest_kelvin {engine.settings.hottest_kelvin:g}; {pair}; {state}. "
        "Use a shorter timestep_fs, or look at the start"
    )
