"""Compiled functions of an engine: potential, epochs of steps, readings, wrapping, new owners, hashes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from janus_jax.models.potential import Potential
from janus_jax.typing import pytree
from md import energies
from md.ensembles import KELVIN
from md.integrators import Integrator, Motion
from md.layout import AXIS
from md.potential import Evaluation, apart, evaluate_rank, merged
from partition import builder, distributed, topology
from partition.cell import once, wrap
from partition.layout import Cut
from partition.topology import Topology

GOOD, STALE, BROKEN, CLOSE, HOT, CONVERGED = range(6)
"""Why an epoch ended: not early; a pair may be missing; not finite; atoms too close; too hot; forces small enough."""


@pytree
class System:
    """What the force of a step needs besides positions: data of compiled code."""

    topology: Any
    edges: Any
    numbers: Any
    structure: Any
    """charge, spin, dataset."""
    weights: Any
    """Of the model."""


class Programs:
    """Compiled functions of one engine.

    Args:
        limits: (shortest distance, Å; highest temperature, K) beyond which a run is stopped.
        rows: of a rank.
        overlap: messages of owned sources apart from the others, so that exchanges can hide behind them.
    """

    def __init__(
        self,
        model: Potential,
        integrator: Integrator | None,
        mesh: Mesh,
        pbc,
        made: Cut,
        *,
        limits: tuple[float, float],
        rows: int,
        overlap: bool,
    ):
        self.graphdef, _ = nnx.split(model)
        self.mesh, self.pbc, self.made, self.rows, self.overlap = mesh, np.array(pbc), made, rows, overlap
        ranks, all_ = PartitionSpec(AXIS), PartitionSpec()
        system = System(ranks, ranks, ranks, all_, all_)
        evaluation = Evaluation(all_, ranks, all_, all_)
        self.evaluate = jax.jit(self._sharded((ranks, all_, system), evaluation)(self._evaluate))
        self.merge = jax.jit(self._sharded((ranks,), (ranks, all_))(self._merge))
        self.wrap = jax.jit(self._wrap)
        self.unwrapped = jax.jit(unwrapped)
        self.digest = jax.jit(self._sharded((ranks, all_, ranks), all_)(self._digest))
        self._stale = self._sharded((ranks, all_, ranks), all_)(self._is_stale)
        self._move = self._sharded((ranks, ranks, all_), (ranks, ranks, all_))(self._new_owners)
        self.recut = jax.jit(self._recut, out_shardings=NamedSharding(mesh, ranks))
        if integrator is not None:
            self.integrator, self.limits = integrator, limits
            self.start = jax.jit(_standard(integrator.start))
            self.epoch = jax.jit(_standard(self._epoch))
            self.read = jax.jit(self._read)
            self.attempt = jax.jit(_standard(integrator.step))
            self.closest = jax.jit(self._sharded((ranks, all_, system), all_)(self._closest))

    def _sharded(self, inputs, outputs):
        return partial(jax.shard_map, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

    def _evaluate(self, positions, cell, system: System) -> Evaluation:
        return evaluate_rank(
            nnx.merge(self.graphdef, system.weights),
            builder.unstacked(system.topology),
            builder.unstacked(system.edges),
            system.numbers,
            system.structure,
            positions,
            cell,
            overlap=self.overlap,
        )

    def _merge(self, built: Topology):
        """Edges of the force, and all rows of halos."""
        plan = builder.unstacked(built).plans[0]
        edges = apart(plan) if self.overlap else merged(plan)
        return builder.stacked(edges), jax.lax.psum(plan.halo_mask.sum(dtype=jnp.int32), AXIS)

    def _wrap(self, positions, turns, cell):
        inside, more = wrap(positions, cell, self.pbc)
        return inside, turns + more

    def _digest(self, positions, cell, built: Topology):
        return topology.digest(builder.unstacked(built), positions, cell)

    def _is_stale(self, positions, cell, built: Topology):
        """Of each rank [K], whether it may miss a pair."""
        return jax.lax.all_gather(topology.stale(builder.unstacked(built), positions, cell), AXIS)

    def _epoch(self, motion: Motion, ids, system: System, limit):
        """Up to `limit` steps: (motion, steps done, why it ended, ranks whose lists were too old [K])."""

        def body(carry):
            motion, done, _, _ = carry
            new = self.integrator.step(motion, ids, system)
            stale = self._stale(new.state.position, new.cell, system.topology)
            why = once(self._judge(new, stale.any()))  # what ends the loop also chooses the state
            keep = (why == GOOD) | (why == CONVERGED)
            motion = jax.tree.map(lambda old, new: jnp.where(keep, new, old), motion, new)
            return motion, done + keep, why, stale

        def go_on(carry):
            return (carry[1] < limit) & (carry[2] == GOOD)

        nobody = jnp.zeros(self.mesh.size, bool)
        return jax.lax.while_loop(go_on, body, (motion, jnp.int32(0), jnp.int32(GOOD), nobody))

    def _judge(self, motion: Motion, stale):
        """GOOD, or why not: of several reasons the one that says most."""
        state, (closest, hottest) = motion.state, self.limits
        finite = (
            jnp.isfinite(state.force).all() & jnp.isfinite(state.position).all() & jnp.isfinite(motion.virial).all()
        )
        hot = energies.kinetic(state.momentum, state.mass) > 0.5 * self.integrator.degrees * KELVIN * hottest
        why = jnp.int32(GOOD)
        if self.integrator.ensemble.name == "minimize":
            largest = (state.force**2).sum(1).max()
            why = jnp.where(largest <= self.integrator.ensemble.force_tolerance**2, CONVERGED, why)
        else:
            why = jnp.where(hot, HOT, why)
            why = jnp.where(motion.closest < closest, CLOSE, why)  # minimisations may start from anything
            finite &= jnp.isfinite(motion.energy)
        why = jnp.where(stale, STALE, why)
        return jnp.where(finite, why, BROKEN)

    def _read(self, motion: Motion) -> dict[str, jax.Array]:
        """Kinetic energy, its tensor twice, conserved quantity, largest force, volume."""
        state = motion.state
        return {
            "kinetic": energies.kinetic(state.momentum, state.mass),
            "flux": state.momentum.T @ (state.momentum / state.mass),
            "conserved": self.integrator.conserved(motion),
            "force": jnp.sqrt((state.force**2).sum(1).max()),
            "volume": jnp.abs(jnp.linalg.det(motion.cell)),
        }

    def _closest(self, positions, cell, system: System):
        """(distance, id, id) of the closest pair."""
        one, edges = builder.unstacked(system.topology), builder.unstacked(system.edges)
        points, crossed, ids = topology.exchange_halo((*topology.settled(one, positions, cell), one.ids), one.plans[0])
        squares = jnp.where(edges.mask, topology.lengths_squared(edges, points, cell, crossed), jnp.inf)
        at = jnp.argmin(squares)
        mine = (jnp.sqrt(squares[at]), ids[edges.src[at]], ids[edges.dst[at]])
        lengths, sources, centres = (jax.lax.all_gather(value, AXIS) for value in mine)
        first = jnp.argmin(lengths)
        return lengths[first], sources[first], centres[first]

    def _new_owners(self, per_atom, ids, cell):
        return distributed.recut(
            per_atom, per_atom["position"], ids, cell, pbc=self.pbc, method=self.made.method, shape=self.made.shape,
            total=self.made.atoms, rows=self.rows, axis=AXIS,
        )  # fmt: skip

    def _recut(self, per_atom: dict[str, jax.Array], ids, cell):
        """Per-atom arrays and ids at their new owners."""
        moved, ids, _ = self._move(per_atom, ids, cell)
        padding = ids < 0
        moved["mass"] = jnp.where(padding[:, None], jnp.inf, moved["mass"])
        moved["numbers"] = jnp.where(padding, per_atom["numbers"].max(), moved["numbers"])
        return moved, ids


def unwrapped(positions, turns, cell):
    """Positions [rows, 3] with the cells [rows, 3] they have crossed."""
    return positions + turns.astype(cell.dtype) @ cell


def _standard(function):
    """jax-md mixes types, which JAX's strict promotion refuses."""

    def call(*args):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args)

    return call
