"""Dynamics of a sharded system: compiled epochs between rebuilds, repartition, and the decision to rebuild.

All per-atom arrays are [K rows, ...], sharded by owner; jax-md's integrators run on them unchanged, and only the
potential is in shard_map. An epoch is one compiled loop of steps. After each step the displacements are tested; a
step after which a pair could have been missed is dropped and made again from its start after a rebuild, so no
result ever comes from an incomplete list. All ranks decide alike: the test is reduced over them.

Source: Tessera, section 3.5 and Algorithm 1; DESIGN.md section 8.
"""

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from janus_jax import configuration
from janus_jax.models.potential import Potential
from janus_jax.prediction import check_elements
from md import checks, integrators, layout, programs, resume
from md.config import EngineConfig
from md.ensembles import KELVIN, EnsembleConfig
from md.integrators import Motion
from md.layout import AXIS
from md.programs import Programs, System
from md.reading import Reading
from md.restart import Saved
from partition import builder, capacity, cut

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
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())
        self._sharded = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]
        pbc = layout.periodic(atoms)
        again = saved if saved is not None and saved.about["ranks"] == settings.devices else None
        positions, cell = saved.positions() if saved and not again else (atoms.positions, atoms.cell.array)
        self.start = start = cut.atoms(positions, cell, atoms.pbc)
        placed = again.layout(model, settings, pbc) if again else layout.of(model, start, pbc, settings)
        self.cut, self.rows = placed.cut, placed.rows
        self.build = builder.Builder(self.mesh, placed.lists, placed.room, self.cut.shape)
        self.weights = jax.tree.map(self.replicated, nnx.split(model)[1])
        self.structure = {key: self.replicated(np.int32(atoms.info.get(key) or 0)) for key in ("charge", "spin")}
        self.structure["dataset"] = self.replicated(np.int32(settings.dataset))
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
        self.halo_rows = self.halo_after_cut = 0
        self.ids = self.scatter(np.arange(self.atoms, dtype=np.int32), -1)
        self.numbers = self.scatter(atoms.numbers.astype(np.int32), int(atoms.numbers[0]))
        self.turns = self.scatter(start.turns.astype(np.int32))
        masses = self.scatter(np.where(moving, atoms.get_masses(), np.inf)[:, None].astype(self.dtype), np.inf)
        if saved is None:
            self._begin(atoms, moving, masses)
        elif again:
            resume.go_on(self, again)
        else:
            resume.go_on_elsewhere(self, saved)

    def _begin(self, atoms: Atoms, moving: np.ndarray, masses: jax.Array) -> None:
        """First forces and momenta."""
        positions = self.scatter(self.start.positions.astype(self.dtype))
        self.origin = self.scatter(atoms.positions.astype(self.dtype))
        cell = self.replicated(self.start.cell.astype(self.dtype))
        self.origin_cell = cell
        self.system = self.prepare(positions, cell)
        self.halo_after_cut = self.halo_rows
        key = self.replicated(jax.random.key(self.settings.seed))
        if self.ensemble.name == "minimize":
            momenta = positions * 0
        elif atoms.has("momenta"):
            momenta = np.where(moving[:, None], atoms.get_momenta(), 0)  # ASE's unit is ours
            momenta = self.scatter(momenta.astype(self.dtype))
            if self.programs.integrator.still:
                momenta = momenta - integrators.drift(momenta, masses)
        else:
            momenta = jax.jit(self._momenta)(key, self.ids, masses)
        first = self.programs.evaluate(positions, cell, self.system)
        self.motion = self.programs.start(positions, momenta, first, masses, cell, key)

    def _evaluate(self, positions, cell, system):
        return self.programs.evaluate(positions, cell, system)

    def _momenta(self, key, ids, masses):
        moving = jnp.isfinite(masses) & (ids >= 0)[:, None]
        still = self.degrees < 3 * self.cut.atoms and not self.fixed
        return integrators.momenta(key, ids, masses, moving, self.ensemble.first_kT, self.degrees, still)

    def scatter(self, values: np.ndarray, fill: Any = 0) -> jax.Array:
        """Values of atoms [N, ...] as [K rows, ...] on the devices."""
        padded = self.cut.scatter(values, self.rows, fill)
        flat = padded.reshape(-1, *padded.shape[2:])
        return jax.make_array_from_callback(flat.shape, self._sharded, lambda index: flat[index])

    def replicated(self, value: Any) -> jax.Array:
        """A small array on all devices."""
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            numbers = self.replicated(np.asarray(jax.random.key_data(value)))
            return jax.jit(jax.random.wrap_key_data, out_shardings=self._everywhere)(numbers)
        value = np.asarray(value)
        return jax.make_array_from_callback(np.shape(value), self._everywhere, lambda index: value[index])

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
        if why != "repartition" and self.halo_rows > self.settings.halo_growth * max(self.halo_after_cut, 8):
            self._recut()

    def with_state(self, **changes: Any) -> Motion:
        """The motion with other arrays of jax-md's state."""
        return dataclasses.replace(self.motion, state=self.motion.state.set(**changes))

    def _recut(self) -> None:
        """Give atoms to the ranks anew, then rebuild."""
        if self.cut.ranks > 1:
            per_atom = {name: getattr(self.motion.state, name) for name in ROWS}
            per_atom |= {"numbers": self.numbers, "turns": self.turns, "origin": self.origin}
            moved, self.ids = self.programs.recut(per_atom, self.ids, self.motion.cell)
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
        motion = self.motion
        if self.ensemble.name == "minimize":
            now = self.programs.evaluate(motion.state.position, motion.cell, self.system)
            motion = dataclasses.replace(motion, energy=now.energy, virial=now.virial, closest=now.closest)
        values = {key: np.asarray(value) for key, value in self.programs.read(motion).items()}
        volume = float(values["volume"]) if all(self.build.settings.pbc) else self.volume
        kinetic = float(values["kinetic"])
        stress = (np.asarray(motion.virial) - values["flux"]) / volume if volume else np.full((3, 3), np.nan)
        return Reading(
            step=self.step,
            potential_ev=float(motion.energy),
            kinetic_ev=kinetic,
            conserved_ev=float(values["conserved"]),
            temperature_kelvin=2 * kinetic / (self.degrees * KELVIN) if self.degrees else 0.0,
            stress=stress,
            volume=volume,
            closest_angstrom=float(motion.closest),
            largest_force=float(values["force"]),
        )

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
