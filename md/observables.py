"""Pair distributions and displacements, counted on the devices; only histograms and sums reach the host.

g_ab(r) = V / (N_a N_b) * pairs_ab(r) / (4 pi r^2 dr), pairs being ordered; the displacement of a kind of atom is the
mean of |x - x0|^2 over its atoms, without that of the centre of mass.
"""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from janus_jax.errors import ConfigError
from md.layout import AXIS, gathered
from md.programs import unwrapped
from partition import builder, topology

if TYPE_CHECKING:
    from md.engine import Engine


class Sampler:
    """Accumulates pair distributions and displacements of an engine.

    Args:
        reach: Å; up to the model's cutoff the lists of the force are used, beyond it own ones are built per sample.
        bins: of the distributions.
    """

    def __init__(self, engine: "Engine", numbers: np.ndarray, reach: float | None = None, bins: int = 100):
        cutoff = engine.build.settings.cutoffs[0]
        self.engine, self.bins, self.reach = engine, bins, float(reach or cutoff)
        self.kinds, self.counts = np.unique(numbers, return_counts=True)
        self.pairs = np.zeros((len(self.kinds), len(self.kinds), bins), np.int64)
        self.inverse_volumes, self.frames = 0.0, 0
        self.displacements: list[list[float]] = []
        self.build = None
        if self.reach > cutoff:
            lists = topology.Settings((self.reach,), 0.0, engine.build.settings.pbc, engine.build.settings.transport)
            capacity = builder.estimate(engine.start, engine.cut, lists, engine.rows)
            self.build = builder.Builder(engine.mesh, lists, capacity, engine.cut.shape)
        ranks, all_ = PartitionSpec(AXIS), PartitionSpec()
        self._count = jax.jit(
            jax.shard_map(
                self._histogram,
                mesh=engine.mesh,
                in_specs=(ranks, all_, ranks, ranks),
                out_specs=ranks,
                check_vma=False,
            )
        )
        self._moved = jax.jit(self._squares)

    def _kind(self, numbers):
        return jnp.searchsorted(jnp.asarray(self.kinds, numbers.dtype), numbers)

    def _histogram(self, positions, cell, built, numbers):
        """Ordered pairs [1, kinds, kinds, bins] of one rank's atoms, kind of the centre first."""
        one = builder.unstacked(built)
        plan, kinds = one.plans[0], len(self.kinds)
        points, crossed, kind = topology.exchange_halo(
            (*topology.settled(one, positions, cell), self._kind(numbers).astype(jnp.int32)), plan
        )
        total = jnp.zeros(kinds * kinds * self.bins, jnp.int32)
        for edges in (plan.local, plan.remote):
            on = topology.active(edges, points, cell, self.reach, crossed)
            r = jnp.sqrt(topology.lengths_squared(edges, points, cell, crossed))
            place = jnp.clip((r * (self.bins / self.reach)).astype(jnp.int32), 0, self.bins - 1)
            place += (kind[edges.dst] * kinds + kind[edges.src]) * self.bins
            total = total.at[jnp.where(on, place, len(total))].add(1, mode="drop")
        return total.reshape(1, kinds, kinds, self.bins)

    def _squares(self, positions, turns, origin, origin_cell, ids, masses, numbers, cell):
        """Sum of squared displacements of each kind; the growth of the cell is none."""
        there = unwrapped(positions, turns, cell)
        real = (ids >= 0)[:, None]
        moved = jnp.where(real, there - origin @ jnp.linalg.inv(origin_cell) @ cell, 0)
        mass = jnp.where(jnp.isfinite(masses), masses, 0)
        fixed = (real & ~jnp.isfinite(masses)).any()  # then nothing drifts
        center = jnp.where(fixed, 0, (mass * moved).sum(0) / jnp.maximum(mass.sum(), 1e-30))
        square = jnp.where(real, (moved - center[None]) ** 2, 0).sum(1)
        return jnp.zeros(len(self.kinds), square.dtype).at[self._kind(numbers)].add(square)

    def sample(self) -> None:
        """Count the present state."""
        engine = self.engine
        motion = engine.motion
        positions, cell = motion.state.position, motion.cell
        built = engine.system.topology if self.build is None else self.build(positions, engine.ids, np.asarray(cell))
        volume = abs(np.linalg.det(np.asarray(cell, float)))
        if volume and all(engine.build.settings.pbc):
            self.pairs += gathered(self._count(positions, cell, built, engine.numbers)).sum(0, dtype=np.int64)
            self.inverse_volumes += 1 / volume
            self.frames += 1
        sums = self._moved(
            positions,
            engine.turns,
            engine.origin,
            engine.origin_cell,
            engine.ids,
            motion.state.mass,
            engine.numbers,
            cell,
        )
        time_ps = engine.step * engine.ensemble.timestep_fs / 1000
        self.displacements.append([time_ps, *(np.asarray(sums, float) / self.counts).tolist()])

    def distribution(self) -> tuple[np.ndarray, np.ndarray]:
        """Middles of the bins [bins] and g [kinds, kinds, bins]; not a number without samples or volume."""
        width = self.reach / self.bins
        edges = width * np.arange(self.bins + 1)
        shells = 4 / 3 * np.pi * np.diff(edges**3)
        density = self.inverse_volumes / max(self.frames, 1)
        others = self.counts[None] - np.eye(len(self.kinds))  # an atom is not its own neighbour
        ideal = self.frames * density * self.counts[:, None, None] * np.maximum(others, 1)[..., None] * shells
        g = np.where(ideal > 0, self.pairs / np.where(ideal > 0, ideal, 1), np.nan)
        return edges[:-1] + width / 2, g

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "reach": self.reach, "bins": self.bins, "pairs": self.pairs.tolist(),
            "inverse_volumes": self.inverse_volumes, "frames": self.frames,
            "displacements": self.displacements,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on counting.

        Raises:
            ConfigError: the counts have another range or other bins.
        """
        if (state["reach"], state["bins"]) != (self.reach, self.bins):
            raise ConfigError(
                f"rdf_angstrom {self.reach:g} and rdf_bins {self.bins}: the checkpoint has {state['reach']:g} and "
                f"{state['bins']}; keep them, or start a new run from final.extxyz"
            )
        self.pairs = np.array(state["pairs"], np.int64).reshape(self.pairs.shape)
        self.inverse_volumes, self.frames = state["inverse_volumes"], state["frames"]
        self.displacements = state["displacements"]
