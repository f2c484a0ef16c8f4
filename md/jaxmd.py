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
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential, structure_energies
from janus_jax.prediction import check_elements
from janus_jax.typing import pytree
from md import layout
from md.layout import AXIS, mesh_of
from md.potential import merged, rank_graph
from partition import builder, cut, topology
from partition.capacity import Capacity
from partition.cell import heights, images, working_cell
from partition.plan import exchange_halo

SPARE = 1.25
"""Room in arrays beyond what the first lists need."""
SHRINK = 1.2
"""A box may become smaller by so much before lists must be allocated anew."""
PERIODIC = np.ones(3, bool)
RANKS, ALL = PartitionSpec(AXIS), PartitionSpec()


def cell_of(box: Any) -> jax.Array:
    """Cell vectors as rows, Å, of a box as in jax-md: a length, three lengths, or a matrix of columns."""
    box = jnp.asarray(box)
    return jnp.eye(3, dtype=box.dtype) * box if box.ndim == 0 else jnp.diag(box) if box.ndim == 1 else box.T


@pytree
class Neighbors:
    """Lists of neighbours with a skin, as jax-md's: data of compiled code."""

    topology: Any
    edges: Any
    images: Any
    image_mask: Any
    did_buffer_overflow: Any
    """Bool: the arrays were too short (or the box has shrunk much), so the lists are not complete: allocate anew."""
    update_fn: Any

    def update(self, positions: jax.Array, box: Any = None, **_: Any) -> "Neighbors":
        """Lists for these positions: the same ones while no pair can be missing, else new ones."""
        return _update(positions, self, box)

    @property
    def reference_position(self) -> jax.Array:
        """Wrapped positions [atoms, 3] of the last build."""
        return self.topology.reference.reshape(-1, 3)


@jax.jit
def _update(positions, neighbors: Neighbors, box) -> Neighbors:
    return neighbors.update_fn(positions, neighbors, box)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Update:
    """The compiled part of `Neighbors.update`."""

    mesh: Mesh
    settings: topology.Settings
    capacity: Capacity
    box: tuple[tuple[float, ...], ...]

    def __call__(self, positions, neighbors: Neighbors, box) -> Neighbors:
        cell = cell_of(jnp.asarray(np.array(self.box).T if box is None else box, positions.dtype))
        sharded = partial(jax.shard_map, mesh=self.mesh, check_vma=False)

        @partial(sharded, in_specs=(RANKS, RANKS, ALL), out_specs=ALL)
        def is_stale(positions, built, cell):
            one = topology.stale(builder.unstacked(built), positions, cell)
            return jax.lax.psum(one.astype(jnp.int32), AXIS) > 0

        @partial(sharded, in_specs=(RANKS, RANKS, ALL, ALL, ALL), out_specs=(RANKS, RANKS, ALL))
        def again(positions, ids, cell, turns, used):
            built, need = topology.build(positions, ids.reshape(-1), cell, turns, used, self.settings, self.capacity)
            return builder.stacked(built), builder.stacked(merged(built.plans[0])), need

        def rebuild(_):
            built, edges, need = again(positions, neighbors.topology.ids, cell, neighbors.images, neighbors.image_mask)
            short = need.outside.any() | (need.far > 0)
            for field in dataclasses.fields(Capacity):
                have = jnp.asarray(getattr(self.capacity, field.name), jnp.int32)
                short |= (getattr(need, field.name).astype(jnp.int32) > have).any()
            now, first = (heights(c) for c in (cell, jnp.asarray(self.box, cell.dtype)))
            return built, edges, neighbors.did_buffer_overflow | short | (now * SHRINK < first).any()

        def keep(_):
            return neighbors.topology, neighbors.edges, neighbors.did_buffer_overflow

        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            built, edges, overflow = jax.lax.cond(
                is_stale(positions, neighbors.topology, cell), rebuild, keep, None
            )  # fmt: skip
        return dataclasses.replace(neighbors, topology=built, edges=edges, did_buffer_overflow=overflow)


class NeighborFns:
    """`allocate` and `update` of lists, and the layout of arrays on devices; see `neighbor_fn`."""

    def __init__(self, model: Potential, box: Any, devices: int, dr_threshold: float, method: str):
        self.model, self.box, self.devices, self.skin, self.method = model, box, devices, dr_threshold, method
        self.mesh, self.cut = mesh_of(devices), None

    def scatter(self, positions: Any, *others: Any) -> Any:
        """Arrays [atoms, ...] in the order of their owners, on the devices; positions [atoms, 3] come first.

        Raises:
            DynamicsError: the atoms cannot be shared out evenly.
        """
        if len(positions) % self.devices:
            raise DynamicsError(
                f"{len(positions)} atoms on {self.devices} devices: jax-md takes every row for an atom, so give a "
                "number of devices that divides the atoms, or use md.simulation.Simulation"
            )
        start = cut.atoms(np.asarray(positions, float), np.asarray(cell_of(self.box), float), PERIODIC)
        self.cut = cut.cut(start, self.devices, self.method, cutoff=self.model.cutoff + self.skin)
        place = NamedSharding(self.mesh, RANKS)
        placed = tuple(jax.device_put(jnp.asarray(a)[self.cut.order], place) for a in (positions, *others))
        return placed if others else placed[0]

    def gather(self, array: Any) -> np.ndarray:
        """The inverse of `scatter`, on the host."""
        values = np.asarray(array)
        if self.cut is None:
            return values
        result = np.empty_like(values)
        result[self.cut.order] = values
        return result

    def allocate(self, positions: jax.Array, box: Any = None, **_: Any) -> Neighbors:
        """Lists for these positions, with arrays as long as they need; not under jit.

        Raises:
            DynamicsError: on several devices, positions that do not come from `scatter`.
        """
        if self.devices > 1 and (self.cut is None or self.cut.atoms != len(positions)):
            raise DynamicsError("on several devices, first lay out the atoms: R, masses = neighbors.scatter(R, masses)")
        cell = np.asarray(cell_of(self.box if box is None else box), float)
        host = np.asarray(positions, float)
        order = np.arange(len(host)) if self.cut is None else self.cut.order
        start = cut.atoms(host[np.argsort(order)], cell, PERIODIC)
        made = self.cut or cut.cut(start, 1, "hilbert", cutoff=self.model.cutoff)
        placed = layout.around(self.model, start, made, len(host) // self.devices, self.skin, (True, True, True))
        build = builder.Builder(self.mesh, placed.lists, placed.room, made.shape)
        lists = placed.lists
        turns = images(working_cell(cell, PERIODIC), PERIODIC, SHRINK * lists.reach, lists.transport.spread)
        if len(turns) > build.capacity.images:
            build.capacity = dataclasses.replace(build.capacity, images=len(turns))
        place = NamedSharding(self.mesh, RANKS)
        ids = jax.device_put(np.asarray(order, np.int32), place)
        build(jax.device_put(positions, place), ids, cell)
        assert build.need is not None
        more = jax.tree.map(lambda n: (SPARE * np.asarray(n)).astype(np.int64), build.need)
        build.fit(dataclasses.replace(more, outside=build.need.outside))  # as jax-md's capacity_multiplier
        built = build(jax.device_put(positions, place), ids, cell)
        everywhere = NamedSharding(self.mesh, ALL)
        padded = np.zeros((build.capacity.images, 3), np.int32)
        padded[: len(turns)] = turns
        edges = jax.jit(
            jax.shard_map(
                lambda one: builder.stacked(merged(builder.unstacked(one).plans[0])),
                mesh=self.mesh, in_specs=RANKS, out_specs=RANKS, check_vma=False,
            )
        )(built)  # fmt: skip
        box_rows = tuple(tuple(row) for row in cell.tolist())
        return Neighbors(
            topology=built,
            edges=edges,
            images=jax.device_put(padded, everywhere),
            image_mask=jax.device_put(np.arange(len(padded)) < len(turns), everywhere),
            did_buffer_overflow=jax.device_put(np.zeros((), bool), everywhere),
            update_fn=Update(self.mesh, build.settings, build.capacity, box_rows),
        )

    def update(self, positions: jax.Array, neighbors: Neighbors, **options: Any) -> Neighbors:
        """As `Neighbors.update`."""
        return neighbors.update(positions, **options)


def neighbor_fn(
    model: Potential, box: Any, *, devices: int = 1, dr_threshold: float = 0.5, cut: str = "auto"
) -> NeighborFns:
    """Lists for a model in jax-md's style, periodic along all axes.

    Args:
        box: as in jax-md, Å; positions are real (not fractional), wrapped or not.
        dr_threshold: skin, Å: lists hold until an atom has moved by half of it.
        cut: of atoms among devices, as for `partition.cut.cut`.

    Raises:
        DynamicsError: JAX has fewer devices.
    """
    return NeighborFns(model, box, devices, dr_threshold, cut)


def energy_fn(model: Potential, box: Any, numbers: Any, *, devices: int = 1) -> Callable[..., jax.Array]:
    """Energy (eV, without reference energies) of positions, for jax-md's integrators and `quantity` functions.

    The function takes `(positions, neighbor, box=None, perturbation=None)`; with `perturbation` (a number or [3, 3],
    1 or the identity where nothing is deformed) its derivative is the virial, as in jax-md. Derivatives by position
    are forces on the owned atoms, on any number of devices.

    Args:
        numbers: atomic numbers [atoms], in the order of the positions before `scatter`.

    Raises:
        UnknownElementError: the model does not know one of them.
    """
    check_elements(model, np.asarray(numbers))
    by_id, (graphdef, weights) = jnp.asarray(numbers, jnp.int32), nnx.split(model)
    mesh, first = mesh_of(devices), box
    none: dict[str, Any] = {name: jnp.int32(0) for name in ("charge", "spin", "dataset")}

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(RANKS, RANKS, RANKS, ALL, ALL, ALL), out_specs=RANKS, check_vma=False)
    def rank_energy(positions, built, edges, cell, strain, weights):
        one = builder.unstacked(built)
        held = jax.lax.stop_gradient(positions)
        own = by_id[one.ids]
        graph, _ = rank_graph(one, builder.unstacked(edges), own, none, held, cell, model.cutoff, None)
        plan = one.plans[0]

        def exchange(owned):
            return exchange_halo(owned, plan)

        moved = graph.positions + (positions - held)  # wrapped, with the derivative of the positions
        return structure_energies(nnx.merge(graphdef, weights), graph, moved, strain[None], exchange)

    def energy(positions: jax.Array, neighbor: Neighbors, box: Any = None, perturbation: Any = None, **_: Any):
        cell = cell_of(jnp.asarray(first if box is None else box, positions.dtype))
        unit = jnp.eye(3, dtype=positions.dtype)
        strain = 0 * unit
        if perturbation is not None:
            given = jnp.asarray(perturbation, positions.dtype)
            strain = (unit * given if given.ndim == 0 else given) - unit
        return rank_energy(positions, neighbor.topology, neighbor.edges, cell, strain, weights).sum()

    return energy
