"""Energy, forces and virial of a potential whose atoms are divided among ranks.

Each rank evaluates the model on its own atoms; layers see the halo through the plan's exchange, and the
gradient of a rank's own energy runs back through it, so that forces are those of the whole system. Energies
and virials are summed after differentiation: summing inside would multiply forces by the number of ranks.

Source: Tessera, section 2.2; DESIGN.md section 3.
"""

from typing import Any

import jax
import jax.numpy as jnp

from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Potential, structure_energies
from janus_jax.typing import Array, Float, Int, pytree
from partition.plan import Plan, exchange_halo
from partition.search import Edges
from partition.topology import Topology, across, active, lengths_squared, settled


@pytree
class Evaluation:
    """What a potential says of a configuration."""

    energy: Any
    """eV, of all ranks, without reference energies."""
    forces: Any
    """[rows, 3], eV/Å, of this rank's rows."""
    virial: Any
    """[3, 3], dE/d(strain), eV, of all ranks."""
    closest: Any
    """Å, the shortest pair of all ranks; infinite without pairs."""


def apart(plan: Plan) -> Edges:
    """Local edges, then remote ones, each sorted by destination: the exchange can hide behind the first."""
    if not len(plan.send) and plan.transport.kind != "all_gather":
        return plan.local
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b]), plan.local, plan.remote)


def merged(plan: Plan) -> Edges:
    """Local and remote edges in one list sorted by destination, padding last: one program for both."""
    both = apart(plan)
    order = jnp.argsort(jnp.where(both.mask, both.dst, jnp.iinfo(jnp.int32).max), stable=True)
    return jax.tree.map(lambda leaf: leaf[order], both)


def rank_graph(
    topology: Topology,
    edges: Edges,
    numbers: Int[Array, "atoms"],
    structure: dict[str, Array],
    positions: Float[Array, "atoms 3"],
    cell: Float[Array, "3 3"],
    cutoff: float,
    own_edges: int | None,
) -> tuple[AtomGraph, Float[Array, ""]]:
    """The graph of one rank, of wrapped positions and edges within the cutoff, and its shortest one (Å)."""
    wrapped, crossings = settled(topology, positions, cell)
    points, crossed = exchange_halo((wrapped, crossings), topology.plans[0])
    on = active(edges, points, cell, cutoff, crossed)
    squares = lengths_squared(edges, points, cell, crossed)
    graph = AtomGraph(
        positions=wrapped,
        numbers=numbers,
        atom_structure=jnp.zeros(len(wrapped), jnp.int32),
        atom_mask=topology.ids >= 0,
        src=edges.src,
        dst=edges.dst,
        image=across(edges, crossed),
        edge_mask=on,
        cell=cell[None],
        pbc=jnp.asarray(topology.settings.pbc)[None],
        structure_mask=jnp.ones(1, bool),
        charge=structure["charge"][None],
        spin=structure["spin"][None],
        dataset=structure["dataset"][None],
        own_edges=own_edges,
    )
    return graph, jnp.sqrt(jnp.where(on, squares, jnp.inf).min(initial=jnp.inf))


def evaluate_rank(
    model: Potential,
    topology: Topology,
    edges: Edges,
    numbers: Int[Array, "atoms"],
    structure: dict[str, Array],
    positions: Float[Array, "atoms 3"],
    cell: Float[Array, "3 3"],
    *,
    overlap: bool = False,
) -> Evaluation:
    """The potential on this rank's atoms; runs under shard_map.

    Args:
        edges: of `merged`, or of `apart` where `overlap` is set: then the exchange of each layer can hide behind
            messages of owned sources.
        numbers: atomic numbers, of some atom in padding.
        structure: scalars charge, spin, dataset.
        positions: Å, wrapped or not.
    """
    plan = topology.plans[0]
    own_edges = len(plan.local.src) if overlap and len(edges.src) > len(plan.local.src) else None
    graph, closest = rank_graph(topology, edges, numbers, structure, positions, cell, model.cutoff, own_edges)

    def own(wrapped, strain):
        return structure_energies(model, graph, wrapped, strain, lambda owned: exchange_halo(owned, plan))[0]

    unstrained = jnp.zeros((1, 3, 3), positions.dtype)
    energy, (gradient, virial) = jax.value_and_grad(own, (0, 1))(graph.positions, unstrained)
    energy, virial = jax.lax.psum((energy, virial[0]), topology.settings.transport.axis)
    closest = jax.lax.pmin(closest, topology.settings.transport.axis)
    return Evaluation(energy, jnp.where(graph.atom_mask[:, None], -gradient, 0), virial, closest)
