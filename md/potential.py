"""Energy, forces and virial of a potential whose atoms are divided among ranks.

Each rank evaluates the model on its own atoms; layers see the halo through the plan's exchange, and the
gradient of a rank's own energy runs back through it, so that forces are those of the whole system. Energies
and virials are summed after differentiation: summing inside would multiply forces by the number of ranks.

Source: Tessera, section 2.2; DESIGN.md section 3.
"""

import jax
import jax.numpy as jnp

from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Potential, structure_energies
from janus_jax.typing import Array, Float, Int
from partition.plan import Plan, exchange_halo
from partition.search import Edges
from partition.topology import Topology, active, continuous, settled


def merged(plan: Plan) -> Edges:
    """Local and remote edges in one list sorted by destination, padding last."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), plan.local, plan.remote)
    order = jnp.argsort(jnp.where(both.mask, both.dst, jnp.iinfo(jnp.int32).max), stable=True)
    return jax.tree.map(lambda leaf: leaf[order], both)


def rank_graph(
    topology: Topology,
    edges: Edges,
    numbers: Int[Array, "atoms"],
    structure: dict[str, Array],
    positions: Float[Array, "atoms 3"],
    near: Float[Array, "atoms 3"],
    cell: Float[Array, "3 3"],
    cutoff: float,
) -> AtomGraph:
    """The graph of one rank: the edges within the cutoff, sources counted through the halo."""
    points, crossed = exchange_halo(settled(topology, positions, cell), topology.plans[0])
    return AtomGraph(
        positions=near,
        numbers=numbers,
        atom_structure=jnp.zeros(len(near), jnp.int32),
        atom_mask=topology.ids >= 0,
        src=edges.src,
        dst=edges.dst,
        image=edges.image,
        edge_mask=active(edges, points, cell, cutoff, crossed),
        cell=cell[None],
        pbc=jnp.asarray(topology.settings.pbc)[None],
        structure_mask=jnp.ones(1, bool),
        charge=structure["charge"][None],
        spin=structure["spin"][None],
        dataset=structure["dataset"][None],
    )


def rank_energy_forces_virial(
    model: Potential,
    topology: Topology,
    edges: Edges,
    numbers: Int[Array, "atoms"],
    structure: dict[str, Array],
    positions: Float[Array, "atoms 3"],
    cell: Float[Array, "3 3"],
) -> tuple[Float[Array, ""], Float[Array, "atoms 3"], Float[Array, "3 3"]]:
    """Energy (eV, of all ranks), forces (eV/Å) on this rank's atoms, and virial dE/d(strain) (eV, of all ranks).

    Runs under shard_map; `positions` may be wrapped or not. `numbers` are atomic numbers, of some atom in padding;
    `structure` holds the scalars charge, spin and dataset. Reference energies are not included.
    """
    plan = topology.plans[0]
    near, _, _ = continuous(topology, positions, cell)
    graph = rank_graph(topology, edges, numbers, structure, positions, near, cell, model.cutoff)

    def own(near, strain):
        return structure_energies(model, graph, near, strain, lambda owned: exchange_halo(owned, plan))[0]

    energy, (gradient, virial) = jax.value_and_grad(own, (0, 1))(near, jnp.zeros((1, 3, 3), near.dtype))
    energy, virial = jax.lax.psum((energy, virial[0]), topology.settings.transport.axis)
    return energy, jnp.where(graph.atom_mask[:, None], -gradient, 0), virial
