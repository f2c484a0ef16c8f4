"""Dynamics of a sharded system: compiled epochs between rebuilds, repartition, and the decision to rebuild.

All per-atom arrays are [K rows, ...], sharded by owner; jax-md's integrators run on them unchanged, and only the
force is in shard_map. An epoch is one compiled loop of steps. After each step the displacements are tested; a
step after which a pair could have been missed is dropped and made again from its start after a rebuild, so no
result ever comes from an incomplete list. All ranks decide alike: the test is reduced over them.

Source: Tessera, section 3.5 and Algorithm 1; DESIGN.md section 8.
"""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential
from janus_jax.prediction import check_elements
from md import ensembles
from md.ensembles import EnsembleConfig
from md.programs import AXIS, Programs, System
from partition import builder, cut, topology
from partition.capacity import bucket


@dataclasses.dataclass(frozen=True)
class Reading:
    """Observables of a state: eV, K, eV/Å^3."""

    step: int
    potential_ev: float
    kinetic_ev: float
    temperature_kelvin: float
    stress: np.ndarray


class Engine:
    """A system on K devices.

    Args:
        model: a potential.
        atoms: start; velocities are drawn unless it has some.
        devices: how many of JAX's devices.
        method: cut, as for `partition.cut.cut`.
        skin: Å; interval: most steps between rebuilds; repartition: steps between new cuts.
        fixed: [N] bool, atoms that do not move.
        seed: of velocities and noise.

    Raises:
        UnknownElementError: the model was not made for one of the elements.
        DynamicsError: more devices than JAX has, or intervals that are not positive; later, a step that moves an
            atom by more than half the skin.
        CellError: as `partition.cut.atoms`.
    """

    def __init__(
        self,
        model: Potential,
        atoms: Atoms,
        ensemble: EnsembleConfig,
        *,
        devices: int = 1,
        method: str = "auto",
        skin: float = 0.5,
        interval: int = 10,
        repartition: int = 100,
        fixed: np.ndarray | None = None,
        seed: int = 0,
    ):
        check_elements(model, atoms.numbers)
        if not 1 <= devices <= len(jax.devices()):
            raise DynamicsError(f"{devices} devices; JAX has {len(jax.devices())} here")
        if interval < 1 or repartition < 1 or skin < 0:
            raise DynamicsError(f"interval {interval}, repartition {repartition}, skin {skin}: must be positive")
        self.ensemble, self.interval, self.repartition = ensemble, interval, repartition
        self.atoms, self.mesh = len(atoms), Mesh(np.array(jax.devices()[:devices]), (AXIS,))
        dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]
        moving = np.ones(len(atoms), bool) if fixed is None else ~np.asarray(fixed, bool)
        self.degrees = 3 * int(moving.sum()) - (3 if moving.all() else 0)
        start = cut.atoms(atoms.positions, atoms.cell.array, atoms.pbc)
        made = cut.cut(start, devices, method, cutoff=model.cutoff + skin)
        self.cut, self.rows = made, bucket(made.rows)
        pbc = (bool(atoms.pbc[0]), bool(atoms.pbc[1]), bool(atoms.pbc[2]))
        transport = builder.transport_for(start, made, model.cutoff + skin, AXIS)
        settings = topology.Settings((float(model.cutoff),), skin, pbc, transport)
        self.build = builder.Builder(
            self.mesh, settings, builder.estimate(start, made, settings, self.rows), made.shape
        )
        self.cell = start.cell
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())
        self._sharded = NamedSharding(self.mesh, PartitionSpec(AXIS))
        self.ids = self._put(made.table(self.rows).astype(np.int32))
        self.numbers = self._put(made.scatter(atoms.numbers.astype(np.int32), self.rows, int(atoms.numbers[0])))
        masses = np.where(moving, atoms.get_masses(), np.inf)[:, None]
        self.masses = self._put(made.scatter(masses, self.rows, np.inf).astype(dtype))
        self.turns = self._put(made.scatter(start.turns.astype(np.int32), self.rows))
        positions = self._put(made.scatter(start.positions, self.rows).astype(dtype))
        self.weights = jax.device_put(nnx.split(model)[1], self._everywhere)
        self._programs = Programs(model, ensemble, self.mesh, pbc, made, self.atoms, self.rows)
        self.structure = {key: jnp.int32(atoms.info.get(key) or 0) for key in ("charge", "spin")} | {
            "dataset": jnp.int32(0)
        }
        key = jax.random.key(seed)
        if atoms.has("momenta"):
            momenta = np.where(moving[:, None], atoms.get_momenta(), 0)  # ASE's unit is ours
            momenta = self._put(made.scatter(momenta, self.rows).astype(dtype))
        else:
            momenta = self._programs.momenta(key, self.ids, self.masses, self.degrees)
        self.system = self._system(positions)
        forces = self._programs.evaluate(positions, self.system)[1]
        self.state = self._programs.start(positions, momenta, forces, self.masses, self.degrees, key)
        self.step = self.since_build = 0
        self.rebuilds: collections.Counter[str] = collections.Counter()

    def _put(self, padded: np.ndarray) -> jax.Array:
        return jax.device_put(padded.reshape(-1, *padded.shape[2:]), self._sharded)

    def _system(self, positions) -> System:
        built = self.build(positions, self.ids, self.cell)
        cell = jax.device_put(self.cell.astype(positions.dtype), self._everywhere)
        return System(built, self._programs.merge(built), self.numbers, self.structure, cell, self.weights)

    def run(self, steps: int) -> None:
        """Go on by `steps` steps, rebuilding as needed."""
        end = self.step + steps
        while self.step < end:
            until_cut = self.repartition - self.step % self.repartition
            limit = min(end - self.step, self.interval - self.since_build, until_cut)
            self.state, done, stale = self._programs.epoch(self.state, self.ids, self.system, limit)
            self.step += int(done)
            if stale and self.since_build + int(done) == 0:
                self._stop()
            self.since_build += int(done)
            if stale:
                self._rebuild("displacement")
            elif self.step % self.repartition == 0:
                self._recut()
            elif self.since_build >= self.interval:
                self._rebuild("interval")

    def _stop(self) -> None:
        """A step right after a build that moves an atom by more than half the skin: nothing could be trusted then."""
        speeds = np.linalg.norm(self.momenta() / self._by_id(self.masses), axis=1)
        forces = np.linalg.norm(self.forces(), axis=1)
        fastest, pulled = int(np.argmax(speeds)), int(np.argmax(np.nan_to_num(forces, nan=np.inf)))
        timestep = self.ensemble.timestep_fs * ensembles.FEMTOSECOND
        raise DynamicsError(
            f"step {self.step + 1} of {self.ensemble.timestep_fs:g} fs moves an atom by more than half the skin of "
            f"{self.build.settings.skin:g} Å (atom {fastest} has {speeds[fastest] * timestep:.3g} Å a step, "
            f"atom {pulled} a force of {forces[pulled]:.3g} eV/Å): use a shorter timestep_fs or a larger skin, "
            "or look whether atoms are too close"
        )

    def momenta(self) -> np.ndarray:
        """Momenta [N, 3] by atom id, in ASE's units (gathered)."""
        return self._by_id(self.state.momentum)

    def _rebuild(self, why: str) -> None:
        """Wrap positions, keeping count, and find the neighbours anew."""
        positions, self.turns = self._programs.wrap(self.state.position, self.turns, self.system.cell)
        self.state = self.state.set(position=positions)
        self.system = self._system(positions)
        self.since_build = 0
        self.rebuilds[why] += 1

    def _recut(self) -> None:
        """Give atoms to the ranks anew, then rebuild."""
        if self.cut.ranks > 1:
            per_atom = {name: getattr(self.state, name) for name in ("position", "momentum", "force", "mass")}
            per_atom |= {"numbers": self.numbers, "turns": self.turns}
            moved, self.ids = self._programs.recut(per_atom, self.ids, self.system.cell)
            self.numbers, self.turns = moved.pop("numbers"), moved.pop("turns")
            self.state = self.state.set(**moved)
        self._rebuild("repartition")

    def evaluate(self) -> tuple[float, float, np.ndarray]:
        """Potential and kinetic energy (eV) and virial dE/d(strain) [3, 3] (eV) of the current state."""
        energy, _, virial = self._programs.evaluate(self.state.position, self.system)
        kinetic, _ = self._programs.kinetic(self.state)
        return float(energy), float(kinetic), np.asarray(virial)

    def read(self) -> Reading:
        """Observables now; the stress has its kinetic part."""
        energy, _, virial = self._programs.evaluate(self.state.position, self.system)
        kinetic, momentum_flux = self._programs.kinetic(self.state)
        volume = abs(np.linalg.det(self.cell))
        temperature = 2 * kinetic / (self.degrees * ensembles.KELVIN) if self.degrees else 0.0
        stress = np.asarray(virial - momentum_flux) / volume
        return Reading(self.step, float(energy), float(kinetic), float(temperature), stress)

    def forces(self) -> np.ndarray:
        """Forces [N, 3] of the current state, by atom id (gathered: for tests and small systems)."""
        return self._by_id(self.state.force)

    def positions(self) -> np.ndarray:
        """Unwrapped positions [N, 3] by atom id (gathered)."""
        return self._by_id(self.state.position) + self._by_id(self.turns) @ self.cell

    def _by_id(self, rows: jax.Array) -> np.ndarray:
        ids, values = np.asarray(self.ids), np.asarray(rows)
        result = np.empty((self.atoms, *values.shape[1:]), values.dtype)
        result[ids[ids >= 0]] = values[ids >= 0]
        return result

    def digest(self) -> np.ndarray:
        """Hash of the active edges of the current positions: see `partition.topology.digest`."""
        return np.asarray(self._programs.digest(self.state.position, self.system))
