"""jax-md's own style: `neighbor_fn` and `energy_fn` of any of our potentials for scripts with jax-md's integrators.

    neighbors = neighbor_fn(model, box)                # box as in jax-md: a number, three, or a matrix of columns
    energy = energy_fn(model, box, numbers)
    nbrs = neighbors.allocate(R)
    init, apply = simulate.nve(energy, shift, dt)
    state = init(key, R, kT, mass=masses, neighbor=nbrs)
    nbrs = nbrs.update(state.position)                 # these two may be in jit, scan or fori_loop
    state = apply(state, neighbor=nbrs)

With `devices=K` in both and `R, masses = neighbors.scatter(R, masses)` the same script runs on K devices, with atoms
in the order of their owners (`neighbors.gather` puts arrays back). The number of atoms must be a multiple of K, since
jax-md takes every row for an atom; `md.simulation` has no such limit.

What cannot be right raises, or under jit gives energies and forces that are not a number: lists that are too old for
the positions or the box, lists that did not fit, fractional positions where real ones are meant.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx
from jax.sharding import PartitionSpec

from janus_jax import system
from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential, structure_energies
from janus_jax.prediction import check_elements
from md.jaxmd_lists import Neighbors, cell_of, real
from md.jaxmd_lists import neighbor_fn as neighbor_fn
from md.layout import AXIS, mesh_of
from md.potential import rank_graph
from partition import builder, topology
from partition.plan import exchange_halo

log = logging.getLogger(__name__)

RANKS, ALL = PartitionSpec(AXIS), PartitionSpec()


def energy_fn(
    model: Potential,
    box: Any,
    numbers: Any,
    *,
    devices: int = 1,
    fractional_coordinates: bool = False,
    charge: int = 0,
    spin: int = 0,
    dataset: int = 0,
) -> Callable[..., jax.Array]:
    """Energy (eV, without reference energies) of positions, for jax-md's integrators and `quantity` functions.

    The function takes `(positions, neighbor, box=None, perturbation=None)`; with `perturbation` (a number or [3, 3],
    1 or the identity where nothing is deformed) its derivative is the virial, as in jax-md. Derivatives by position
    are forces on the owned atoms, on any number of devices, eV/Å for fractional positions too, as in jax-md. `box` is
    the present one where it changes (`simulate.npt_box(state)`); integrators at constant pressure give it themselves.

    It is not a number where `neighbor` may lack pairs: the lists are for other positions or another box, or overflowed.

    Args:
        numbers: atomic numbers [atoms], in the order of the positions before `scatter`.
        fractional_coordinates: positions are fractions of the box; as for `neighbor_fn`.
        charge, spin, dataset: of the whole system, where the model reads them.

    Raises:
        UnknownElementError: the model does not know one of them.
        StructureError: charge, spin or data set are no integers, or not the model's.
        DynamicsError: from the function: positions, numbers and lists do not belong together.
    """
    check_elements(model, np.asarray(numbers))
    given = system.of(Atoms(info={"charge": charge, "spin": spin}), dataset)
    system.check(model, **given)
    if text := system.unseen(model, given):
        log.warning("%s", text)
    by_id, (graphdef, weights) = jnp.asarray(numbers, jnp.int32), nnx.split(model)
    mesh, first = mesh_of(devices), box
    structure: dict[str, Any] = {name: jnp.int32(value) for name, value in given.items()}

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(RANKS, RANKS, RANKS, ALL, ALL, ALL), out_specs=RANKS, check_vma=False)
    def rank_energy(positions, built, edges, cell, strain, weights):
        one = builder.unstacked(built)
        held = jax.lax.stop_gradient(positions)
        own = by_id[one.ids]
        graph, _ = rank_graph(one, builder.unstacked(edges), own, structure, held, cell, model.cutoff, None)
        plan = one.plans[0]

        def exchange(owned):
            return exchange_halo(owned, plan)

        moved = graph.positions + (positions - held)  # wrapped, with the derivative of the positions
        old = jax.lax.psum(topology.stale(one, held, jax.lax.stop_gradient(cell)).astype(jnp.int32), AXIS) > 0
        total = structure_energies(nnx.merge(graphdef, weights), graph, moved, strain[None], exchange)
        return total * jnp.where(old, jnp.nan, jnp.ones((), total.dtype))  # so are its derivatives

    def fits(positions, neighbor: Neighbors) -> None:
        lists, atoms = neighbor.update_fn, neighbor.topology.ids.size
        if not positions.shape == (atoms, 3) == (len(by_id), 3):
            raise DynamicsError(f"{len(by_id)} atomic numbers, lists of {atoms} atoms, positions {positions.shape}")
        if lists.fractional != fractional_coordinates:
            raise DynamicsError(
                f"fractional_coordinates is {lists.fractional} in neighbor_fn and {fractional_coordinates} in "
                "energy_fn; give the same to both"
            )
        if lists.mesh != mesh:
            raise DynamicsError(f"lists are on {lists.mesh.size} devices, energies on {mesh.size}; give the same")
        if min(lists.settings.cutoffs) < model.cutoff:
            raise DynamicsError(f"lists reach {min(lists.settings.cutoffs):g} Å, the model {model.cutoff:g} Å")

    def energy(positions: jax.Array, neighbor: Neighbors, box: Any = None, perturbation: Any = None, **_: Any):
        fits(positions, neighbor)
        cell = cell_of(jnp.asarray(first if box is None else box, positions.dtype))
        unit = jnp.eye(3, dtype=positions.dtype)
        strain = 0 * unit
        if perturbation is not None:
            given = jnp.asarray(perturbation, positions.dtype)
            strain = (unit * given if given.ndim == 0 else given) - unit
        positions = real(positions, cell, fractional_coordinates)
        each = rank_energy(positions, neighbor.topology, neighbor.edges, cell, strain, weights)
        return each.sum() * jnp.where(neighbor.did_buffer_overflow, jnp.nan, jnp.ones((), each.dtype))

    return energy
