"""Compiled functions of an engine: forces, epochs of steps, wrapping, new owners, hashes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

from janus_jax.models.potential import Potential
from janus_jax.typing import pytree
from md import ensembles
from md.ensembles import EnsembleConfig
from md.potential import merged, rank_energy_forces_virial
from partition import builder, distributed, topology
from partition.cell import wrap
from partition.layout import Cut

AXIS = "ranks"


@pytree
class System:
    """What the force of a step needs besides positions: data of compiled code."""

    topology: Any
    edges: Any
    numbers: Any
    structure: Any
    """charge, spin, dataset."""
    cell: Any
    weights: Any
    """Of the model."""


class Programs:
    """Compiled functions of one engine."""

    def __init__(self, model: Potential, ensemble: EnsembleConfig, mesh: Mesh, pbc, made: Cut, atoms: int, rows: int):
        graphdef, _ = nnx.split(model)
        ranks, all_ = PartitionSpec(AXIS), PartitionSpec()
        system = System(ranks, ranks, ranks, all_, all_, all_)

        def sharded(inputs, outputs):
            return partial(jax.shard_map, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)

        @jax.jit
        @sharded((ranks, system), (all_, ranks, all_))
        def evaluate(positions, system):
            one = builder.unstacked(system.topology)
            with_weights = nnx.merge(graphdef, system.weights)
            edges = builder.unstacked(system.edges)
            return rank_energy_forces_virial(
                with_weights, one, edges, system.numbers, system.structure, positions, system.cell
            )

        def force(positions, system):
            return evaluate(positions, system)[1]

        @sharded((ranks, system), all_)
        def is_stale(positions, system):
            one = builder.unstacked(system.topology)
            return jax.lax.psum(topology.stale(one, positions, system.cell).astype(jnp.int32), AXIS) > 0

        start, step = ensembles.integrator(ensemble, force)

        def epoch(state, ids, system, limit):
            def body(carry):
                state, done, _ = carry
                new = step(state, ids, system=system)
                stale = is_stale(new.position, system)
                state = jax.tree.map(lambda old, new: jnp.where(stale, old, new), state, new)
                return state, done + ~stale, stale

            def go_on(carry):
                return (carry[1] < limit) & ~carry[2]

            return jax.lax.while_loop(go_on, body, (state, jnp.int32(0), jnp.zeros((), bool)))

        self.epoch = jax.jit(_standard(epoch))
        self.start = _standard(start)
        self.evaluate = evaluate

        @jax.jit
        def kinetic(state):
            """Kinetic energy, and its tensor twice."""
            velocity = state.momentum / state.mass
            return 0.5 * (state.momentum * velocity).sum(), state.momentum.T @ velocity

        self.kinetic = kinetic

        @jax.jit
        @sharded((ranks,), ranks)
        def merge(built):
            return builder.stacked(merged(builder.unstacked(built).plans[0]))

        self.merge = merge

        @jax.jit
        def wrapped(positions, turns, cell):
            inside, more = wrap(positions, cell, np.array(pbc))
            return inside, turns + more

        self.wrap = wrapped

        @jax.jit
        @sharded((ranks, ranks, all_), (ranks, ranks, all_))
        def recut(per_atom, ids, cell):
            return distributed.recut(
                per_atom, per_atom["position"], ids, cell, pbc=pbc, method=made.method, shape=made.shape,
                total=atoms, rows=rows, axis=AXIS,
            )  # fmt: skip

        def recut_and_pad(per_atom, ids, cell):
            moved, ids, _ = recut(per_atom, ids, cell)
            padding = (ids < 0)[:, None]
            moved["mass"] = jnp.where(padding, jnp.inf, moved["mass"])
            moved["numbers"] = jnp.where(ids < 0, per_atom["numbers"].max(), moved["numbers"])
            return moved, ids

        self.recut = recut_and_pad

        @jax.jit
        @sharded((ranks, system), all_)
        def digest(positions, system):
            return topology.digest(builder.unstacked(system.topology), positions, system.cell)

        self.digest = digest

        @partial(jax.jit, static_argnames="degrees")
        def momenta(key, ids, masses, degrees):
            moving = jnp.isfinite(masses) & (ids >= 0)[:, None]
            return ensembles.momenta(key, ids, masses, moving, ensemble.temperature_kelvin, degrees)

        self.momenta = momenta


def _standard(function):
    """jax-md mixes types, which JAX's strict promotion refuses."""

    def call(*args):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args)

    return call
