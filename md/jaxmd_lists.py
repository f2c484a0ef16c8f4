"""Lists of neighbours in jax-md's style, on one or several devices: see `md.jaxmd`."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential
from janus_jax.typing import pytree
from md import layout
from md.layout import AXIS, mesh_of
from md.potential import merged
from partition import builder, cut, topology
from partition.capacity import Capacity
from partition.cell import heights, images, working_cell

SPARE = 1.25
"""Room in arrays beyond what the first lists need."""
SHRINK = 1.2
"""A box may become smaller by so much before lists must be allocated anew."""
EARLY = 0.5
"""Lists are made anew when so much of the skin is used: the step that follows moves atoms before energies are asked."""
CROWD = 4
"""So many atoms within 1 Å are no structure, but fractional coordinates."""
PERIODIC = np.ones(3, bool)
RANKS, ALL = PartitionSpec(AXIS), PartitionSpec()


def cell_of(box: Any) -> jax.Array:
    """Cell vectors as rows, Å, of a box as in jax-md: a length, three lengths, or a matrix of columns."""
    box = jnp.asarray(box)
    return jnp.eye(3, dtype=box.dtype) * box if box.ndim == 0 else jnp.diag(box) if box.ndim == 1 else box.T


def real(positions: Any, cell: Any, fractional: bool) -> Any:
    """Positions in Å. As with jax-md's `space.transform`, derivatives by fractional ones are those by real ones."""
    if not fractional:
        return positions
    held = jax.lax.stop_gradient(positions)
    return held @ cell + (positions - held)


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
        """Lists for these positions: the same ones while half of the skin is left for the next step, else new ones."""
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
    fractional: bool

    def __call__(self, positions, neighbors: Neighbors, box) -> Neighbors:
        cell = cell_of(jnp.asarray(np.array(self.box).T if box is None else box, positions.dtype))
        positions = real(positions, cell, self.fractional)
        sharded = partial(jax.shard_map, mesh=self.mesh, check_vma=False)

        @partial(sharded, in_specs=(RANKS, RANKS, ALL), out_specs=ALL)
        def is_stale(positions, built, cell):
            held = builder.unstacked(built)
            early = dataclasses.replace(held.settings, skin=EARLY * held.settings.skin)
            one = topology.stale(dataclasses.replace(held, settings=early), positions, cell)
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

    def __init__(self, model: Potential, box: Any, devices: int, dr_threshold: float, method: str, fractional: bool):
        if not dr_threshold > 0:
            raise DynamicsError(f"dr_threshold is {dr_threshold}; lists need a skin, such as 0.5 (Å)")
        self.model, self.box, self.devices, self.skin, self.method = model, box, devices, dr_threshold, method
        self.fractional = fractional
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
        cell = np.asarray(cell_of(self.box), float)
        start = cut.atoms(self._host(positions, cell), cell, PERIODIC)
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
        host = self._host(positions, cell)
        positions = real(jnp.asarray(positions), jnp.asarray(cell, positions.dtype), self.fractional)
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
            update_fn=Update(self.mesh, build.settings, build.capacity, box_rows, self.fractional),
        )

    def _host(self, positions: Any, cell: np.ndarray) -> np.ndarray:
        """Positions [atoms, 3] on the host, Å.

        Raises:
            DynamicsError: they look like the other kind of coordinates.
        """
        host = np.asarray(positions, float)
        low, high = (float(f(host)) for f in (np.min, np.max)) if host.size else (0.0, 0.0)
        if self.fractional and (low < -1 or high > 2):
            raise DynamicsError(
                f"positions from {low:.3g} to {high:.3g} are no fractional coordinates: divide them by the box, or "
                "leave fractional_coordinates out"
            )
        if not self.fractional and len(host) >= CROWD and low >= 0 and high <= 1 and heights(cell).min() > 2:
            raise DynamicsError(
                f"all {len(host)} atoms are within 1 Å of the origin of a box {heights(cell).min():.3g} Å wide: if "
                "positions are fractional, give fractional_coordinates=True to neighbor_fn and energy_fn"
            )
        return host @ cell if self.fractional else host

    def update(self, positions: jax.Array, neighbors: Neighbors, **options: Any) -> Neighbors:
        """As `Neighbors.update`."""
        return neighbors.update(positions, **options)


def neighbor_fn(
    model: Potential,
    box: Any,
    *,
    devices: int = 1,
    dr_threshold: float = 0.5,
    cut: str = "auto",
    fractional_coordinates: bool = False,
) -> NeighborFns:
    """Lists for a model in jax-md's style, periodic along all axes.

    Args:
        box: as in jax-md, Å; positions are wrapped or not.
        dr_threshold: skin, Å: lists hold until an atom has moved by half of it, and `update` makes them anew at a
            quarter, so that a step may move atoms by another quarter.
        cut: of atoms among devices, as for `partition.cut.cut`.
        fractional_coordinates: positions are fractions of the box instead of Å, as in jax-md; give the same to
            `energy_fn`.

    Raises:
        DynamicsError: JAX has fewer devices, or no skin; later, positions that look like the other kind.
    """
    return NeighborFns(model, box, devices, dr_threshold, cut, fractional_coordinates)
