"""Dynamics of a sharded system: compiled epochs between rebuilds, repartition, and the decision to rebuild.

All per-atom arrays are [K rows, ...], sharded by owner; jax-md's integrators run on them unchanged, and only the
potential is in shard_map. An epoch is one compiled loop of steps. After each step the displacements are tested; a
step after which a pair could have been missed is dropped and made again from its start after a rebuild, so no
result ever comes from an incomplete list. All ranks decide alike: the test is reduced over them.

Source: Tessera, section 3.5 and Algorithm 1; DESIGN.md section 8.
"""

import collections
import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx

from janus_jax import configuration, system
from janus_jax.models.potential import Potential
from janus_jax.prediction import check_elements
from janus_jax.runtime import multihost
from md import begin, checks, integrators, layout, programs, reading, resume
from md.config import EngineConfig
from md.ensembles import EnsembleConfig
from md.integrators import Motion
from md.programs import Programs, System
from md.reading import Reading
from md.restart import Saved
from partition import builder, capacity, cut

log = logging.getLogger(__name__)

ROWS = ("position", "momentum", "force", "mass")


class Engine:
    """A system on K devices.

    Args:
        model: a potential.
        atoms: start; velocities are drawn unless it has some; `FixAtoms` is heeded.
        saved: a checkpoint to go on from instead; `atoms` then say only what does not change.
        options: fields of `EngineConfig`.

    Raises:
        ConfigError: a bad option.
        UnknownElementError: the model was not made for one of the elements.
        DynamicsError: what `md.checks.before` finds; later, a step that cannot be made.
        CellError: as `partition.cut.atoms`.

    Attributes:
        step: steps made; motion: state and what the potential says of it (`Motion`).
        origin_cell: the cell when origin was set.
        ids: [K rows] atom of each row, -1 for padding; numbers, turns, origin: [K rows] atomic numbers, cells crossed
            since the start, unwrapped positions from which displacements count.
        rebuilds: how many searches for neighbours, by reason; by_rank: [K, 2] of those by displacement, how many a
            rank asked for and how many others forced on it.
    """

    def __init__(
        self,
        model: Potential,
        atoms: Atoms,
        ensemble: EnsembleConfig | None = None,
        *,
        saved: Saved | None = None,
        **options: Any,
    ):
        self.settings = settings = configuration.validate(EngineConfig, options)
        self.ensemble = ensemble = ensemble or EnsembleConfig()
        check_elements(model, atoms.numbers)
        moving = checks.moving(atoms)
        checks.before(model, atoms, ensemble, settings, moving)
        self.atoms, self.fixed = len(atoms), not moving.all()
        self.volume = abs(float(atoms.cell.volume))  # where not all axes are periodic: the given one
        self.mesh = layout.mesh_of(settings.devices)
        self.dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]
        pbc = layout.periodic(atoms)
        again = saved if saved is not None and saved.about["ranks"] == settings.devices else None
        positions, cell = saved.positions() if saved and not again else (atoms.positions, atoms.cell.array)
        self.start = start = cut.atoms(positions, cell, atoms.pbc)
        placed = again.layout(model, settings, pbc) if again else layout.of(model, start, pbc, settings)
        self.cut, self.rows = placed.cut, placed.rows
        self.place = place = layout.Place(self.mesh, self.cut, self.rows)
        self.build = builder.Builder(self.mesh, placed.lists, placed.room, self.cut.shape)
        self.weights = jax.tree.map(place.everywhere, nnx.split(model)[1])
        given = system.of(atoms, settings.dataset)
        if multihost.primary() and (text := system.unseen(model, given)):
            log.warning("%s", text)
        self.structure = {name: place.everywhere(np.int32(value)) for name, value in given.items()}
        overlap = jax.default_backend() != "cpu" if settings.overlap is None else settings.overlap
        integrator = integrators.Integrator(ensemble, self._evaluate, int(moving.sum()), self.fixed)
        self.degrees = integrator.degrees
        self.programs = Programs(
            model, integrator, self.mesh, pbc, self.cut, rows=self.rows, overlap=overlap,
            limits=(settings.closest_angstrom, settings.hottest_kelvin),
        )  # fmt: skip
        self.step = self.since_build = 0
        self.rebuilds: collections.Counter[str] = collections.Counter()
        self.by_rank = np.zeros((self.cut.ranks, 2), np.int64)
        self.halo_rows, self.halo_after_cut, self._recut_compiled = 0, 0, False
        self.ids = place.by_owner(np.arange(self.atoms, dtype=np.int32), -1)
        self.numbers = place.by_owner(atoms.numbers.astype(np.int32), int(atoms.numbers[0]))
        self.turns = place.by_owner(start.turns.astype(np.int32))
        masses = place.by_owner(np.where(moving, atoms.get_masses(), np.inf)[:, None].astype(self.dtype), np.inf)
        if saved is None:
            begin.begin(self, atoms, moving, masses)
        elif again:
            resume.go_on(self, again)
        else:
            resume.go_on_elsewhere(self, saved)

    def _evaluate(self, positions, cell, system):
        return self.programs.evaluate(positions, cell, system)

    def prepare(self, positions, cell) -> System:
        """The system with the neighbours of these positions."""
        built = self.build(positions, self.ids, np.asarray(cell))
        edges, halo = self.programs.merge(built)
        self.halo_rows, self.built_from, self.build_cell = int(halo), positions, cell
        return System(built, edges, self.numbers, self.structure, self.weights)

    @property
    def cell(self) -> np.ndarray:
        """Now, [3, 3], Å."""
        return np.asarray(self.motion.cell)

    def run(self, steps: int) -> bool:
        """Go on by `steps` steps, rebuilding as needed; true if a minimisation has converged."""
        end = self.step + steps
        while self.step < end:
            until_cut = self.settings.repartition - self.step % self.settings.repartition
            limit = min(end - self.step, self.settings.interval - self.since_build, until_cut)
            motion, done, why, stale = self.programs.epoch(self.motion, self.ids, self.system, limit)
            done, why = int(done), int(why)  # waits; an interrupt until here leaves the state before the epoch
            self.motion, self.step, self.since_build = motion, self.step + done, self.since_build + done
            if why == programs.STALE and self.since_build == 0 and self._shortened():
                continue
            if why not in (programs.GOOD, programs.CONVERGED, programs.STALE) or (
                why == programs.STALE and self.since_build == 0
            ):
                checks.stop(self, why)
            if why == programs.STALE:
                self.by_rank += np.stack([stale := np.asarray(stale), ~stale], 1)
                self.rebuild("displacement")
            elif self.step % self.settings.repartition == 0:
                self._recut()
            elif self.since_build >= self.settings.interval:
                self.rebuild("interval")
            if why == programs.CONVERGED:
                return True
        return False

    def _shortened(self) -> bool:
        """Whether a minimisation has taken back a step that was too long, to make a shorter one."""
        if self.ensemble.name != "minimize":
            return False
        state = self.motion.state
        if float(state.dt) < 1e-9 * self.programs.integrator.dt:
            return False
        self.motion = self.with_state(dt=state.dt / 2, momentum=state.momentum * 0)
        return True

    def set_origin(self) -> None:
        """Count displacements from here."""
        state, cell = self.motion.state, self.motion.cell
        self.origin = self.programs.unwrapped(state.position, self.turns, cell)
        self.origin_cell = cell

    def rebuild(self, why: str) -> None:
        """Wrap positions, keeping count, and find the neighbours anew; `why` is counted."""
        state, cell = self.motion.state, self.motion.cell
        positions, self.turns = self.programs.wrap(state.position, self.turns, cell)
        self.motion = self.with_state(position=positions)
        self.system = self.prepare(positions, cell)
        self.since_build = 0
        self.rebuilds[why] += 1
        if self.cut.ranks > 1 and not self._recut_compiled:
            self._at_new_owners()  # compiled now, so that nothing is compiled after the first epochs
        if why != "repartition" and self.halo_rows > self.settings.halo_growth * max(self.halo_after_cut, 8):
            self._recut()

    def _at_new_owners(self) -> tuple[dict[str, jax.Array], jax.Array]:
        """What moves with its atom, and ids, as a new cut has them."""
        self._recut_compiled = True
        per_atom = {name: getattr(self.motion.state, name) for name in ROWS}
        per_atom |= {"numbers": self.numbers, "turns": self.turns, "origin": self.origin}
        return self.programs.recut(per_atom, self.ids, self.motion.cell)

    def with_state(self, **changes: Any) -> Motion:
        """The motion with other arrays of jax-md's state."""
        return dataclasses.replace(self.motion, state=self.motion.state.set(**changes))

    def _recut(self) -> None:
        """Give atoms to the ranks anew, then rebuild."""
        if self.cut.ranks > 1:
            moved, self.ids = self._at_new_owners()
            self.numbers, self.turns, self.origin = (moved.pop(name) for name in ("numbers", "turns", "origin"))
            self.motion = self.with_state(**moved)
        self.rebuild("repartition")
        self.halo_after_cut = self.halo_rows

    def capacity_used(self) -> dict[str, float]:
        """Part of each array of the lists that the last build needed."""
        assert self.build.need is not None
        return capacity.used(self.build.capacity, self.build.need)

    def read(self) -> Reading:
        """Observables now."""
        return reading.of(self)

    def forces(self) -> np.ndarray:
        """Forces [N, 3] of the current state, by atom id (gathered: for tests and small systems)."""
        return self.by_id(self.motion.state.force)

    def momenta(self) -> np.ndarray:
        """Momenta [N, 3] by atom id, in ASE's units (gathered)."""
        return self.by_id(self.motion.state.momentum)

    def positions(self) -> np.ndarray:
        """Unwrapped positions [N, 3] by atom id (gathered)."""
        return self.by_id(self.motion.state.position) + self.by_id(self.turns) @ self.cell

    def by_id(self, rows: jax.Array) -> np.ndarray:
        """Values [N, ...] by atom id on the host, of [K rows, ...]: for output."""
        return layout.rows_by_id(layout.gathered(self.ids), layout.gathered(rows))

    def digest(self) -> np.ndarray:
        """Hash of the active edges of the current positions: see `partition.topology.digest`."""
        return np.asarray(self.programs.digest(self.motion.state.position, self.motion.cell, self.system.topology))
