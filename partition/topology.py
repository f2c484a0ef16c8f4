"""The neighbour graph of a sharded system: a superset that stays valid for many steps, and when it does not.

At a build every rank finds all pairs within cutoff + skin. Until an atom has moved by more than half the skin
(less if the cell has shrunk) the pairs within the cutoff are among them: an active pair is one of the superset
with r < cutoff, by the same arithmetic at every step, so that any rebuild interval gives the same active pairs
bit for bit.

Coordinates may be wrapped or not. A topology keeps the wrapped positions of the build; `continuous` brings
later positions to the images next to them, so the images of the edges stay as they are; `settled` gives what
does not depend on the build.

Everything here runs under shard_map, on one rank's rows; cells are `cell.working_cell`.
Source: Tessera, section 3.3 (cache exactness); the deformation of the cell is ours.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from partition import boxes
from partition.capacity import Capacity, Leaf, Need
from partition.cell import combine, displacements, heights, once, slack, squared, together, wrap
from partition.plan import Plan, Ragged, exchange_halo
from partition.search import Edges, compact, near_box, search
from partition.transport import Transport


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is compiled in: cutoffs and skin (Å), periodic axes, how rows travel."""

    cutoffs: tuple[float, ...]
    skin: float
    pbc: tuple[bool, bool, bool]
    transport: Transport

    @property
    def reach(self) -> float:
        """The largest cutoff with the skin."""
        return max(self.cutoffs) + self.skin


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Topology:
    """One rank's part of the neighbour graph.

    Attributes:
        ids: [n] int32, -1 for padding.
        reference: [n, 3] wrapped positions of the build.
        cell: [3, 3] of the build.
        plans: a `Plan` for each cutoff.
    """

    ids: Leaf
    reference: Leaf
    cell: Leaf
    plans: Leaf
    settings: Settings = dataclasses.field(metadata={"static": True})


def build(positions, ids, cell, images, image_mask, settings: Settings, capacity: Capacity) -> tuple[Topology, Need]:
    """Find all pairs within cutoff + skin and plan their exchange.

    Args:
        positions: [n, 3] owned atoms, wrapped or not; ids: [n] int32, -1 for padding.
        cell: [3, 3]; images, image_mask: [I, 3] int32 and [I], from `cell.images(cell, pbc, settings.reach, spread)`
            with a `Transport.spread`.

    Returns:
        The topology, right if the need (the same on all ranks) fits the capacity.
    """
    transport, axis = settings.transport, settings.transport.axis
    mask, pbc = ids >= 0, np.array(settings.pbc)
    wrapped, turns = wrap(jnp.where(mask[:, None], positions, 0), cell, pbc)
    # atoms that have crossed a face of the cell stay among their rank's, so that its box stays small
    moved = together(wrapped, mask, cell, pbc) if transport.ranks > 1 else jnp.zeros(wrapped.shape, jnp.int32)
    near = wrapped + combine(moved.astype(cell.dtype), cell)
    scale = jax.lax.pmax(
        jnp.abs(near).max(initial=0) + jnp.abs(cell).max() * (1 + jnp.abs(images).max()).astype(cell.dtype), axis
    )
    spare = slack(settings.reach, scale, wrapped.dtype)
    cutoffs = jnp.asarray(settings.cutoffs, wrapped.dtype) + settings.skin + spare
    reach = settings.reach + 2 * spare

    sent, (others, other_moved), other_mask, sent_need, outside = _candidates(
        near, moved, mask, cell, images, image_mask, reach, transport, capacity
    )
    local, remote, found = search(
        near, mask, others, other_mask, images, image_mask, cell, cutoffs, reach,
        capacity=(capacity.near, capacity.blocks, capacity.chunk, capacity.degree),
        local=capacity.local, remote=capacity.remote,
    )  # fmt: skip

    local, remote = (
        [dataclasses.replace(e, image=jnp.where(e.mask[:, None], e.image + of[e.src] - moved[e.dst], 0)) for e in lists]
        for of, lists in ((moved, local), (other_moved if len(others) else moved, remote))
    )  # images between wrapped positions
    plans, halo_needs = [], []
    for k in range(len(settings.cutoffs)):
        plan, need = _plan(len(ids), sent, other_mask, local[k], remote[k], transport, capacity.sent, capacity.halo[k])
        plans.append(plan)
        halo_needs.append(need)
    need = Need(
        sent=sent_need,
        images=jnp.int32(len(images)),
        near=found[0],
        blocks=found[1],
        chunk=found[2],
        degree=found[3],
        local=found[4],
        remote=found[5],
        halo=jnp.stack(halo_needs),
        outside=jnp.zeros((), jnp.int32),
        far=((turns >= 2**30) | (turns <= -(2**30)) | ~jnp.isfinite(wrapped)).any().astype(jnp.int32),
    )
    need = jax.tree.map(lambda count: jax.lax.pmax(count, axis), need)
    need = dataclasses.replace(need, outside=jax.lax.all_gather(outside, axis))
    return Topology(ids, wrapped, cell, tuple(plans), settings), need


def _candidates(positions, turns, mask, cell, images, image_mask, reach, transport, capacity):
    """Send each rank the atoms near its box.

    Returns:
        (rows sent, (positions, turns) received, mask of these, need, unserved requests).
    """
    inverse = jnp.linalg.inv(cell)
    height = heights(cell)
    mine = boxes.around(boxes.points(positions, inverse), mask)
    everyone = jax.lax.all_gather(mine, transport.axis)
    me = transport.rank()
    if transport.kind == "all_gather":
        gathered = jax.lax.all_gather((positions, turns), transport.axis, tiled=True)
        masks = jax.lax.all_gather(jnp.where(mask, me, -1), transport.axis, tiled=True)
        unserved = jnp.zeros(transport.ranks, bool)
        return jnp.zeros(0, jnp.int32), gathered, (masks >= 0) & (masks != me), jnp.zeros(0, jnp.int32), unserved

    moved = boxes.shifted(mine[None], images.astype(positions.dtype), cell)
    asked = (boxes.bound(everyone[:, None], moved[None], height) <= reach) & image_mask[None]
    targets = jnp.asarray(transport.targets())[me]
    served = jnp.zeros(transport.ranks, bool).at[targets].set(True).at[me].set(True)

    def rows_for(target):
        near = near_box(positions, mask, images, image_mask, everyone[target], inverse, cell, height, reach)
        return compact(near.any(0) & (target != me), max(capacity.sent))

    if not transport.slots:
        empty = jnp.zeros(0, jnp.int32)
        return empty, (positions[:0], turns[:0]), mask[:0], empty, asked.any(1) & ~served
    rows, counts = jax.lax.map(rows_for, targets)
    sent = jnp.concatenate([rows[slot, :length] for slot, length in enumerate(capacity.sent)])
    real = sent[:, None] >= 0
    received = tuple(transport.send(jnp.where(real, values[sent], 0), capacity.sent) for values in (positions, turns))
    exists = transport.send((sent >= 0).astype(jnp.int32), capacity.sent) > 0
    return sent, received, exists, counts, asked.any(1) & ~served


def _plan(owned, sent, other_mask, local: Edges, remote: Edges, transport, lengths, halo_lengths):
    """Keep of the candidates what edges use: the plan, and how long its slots had to be."""
    if transport.kind == "all_gather":
        remote = dataclasses.replace(remote, src=jnp.where(remote.mask, remote.src + owned, 0))
        none = jnp.zeros(0, jnp.int32)
        return Plan(none, none > 0, other_mask, local, remote, None, transport, ()), none
    if not lengths:
        none = jnp.zeros(0, jnp.int32)
        return Plan(none, none > 0, none > 0, local, remote, None, transport, ()), none
    used = jnp.zeros(len(other_mask), bool).at[remote.src].max(remote.mask)
    asked = transport.back(used.astype(jnp.int32), lengths) > 0
    if transport.kind == "ragged":
        return _ragged_plan(owned, sent, used, asked, local, remote, transport, halo_lengths)
    starts, halo_starts = np.cumsum([0, *lengths]), np.cumsum([0, *halo_lengths])
    place, send, real, counts = [], [], [], []
    for slot, length in enumerate(halo_lengths):  # both ends keep the order of the candidates
        slice_ = slice(starts[slot], starts[slot + 1])
        place.append(jnp.cumsum(used[slice_], dtype=jnp.int32) - 1 + int(halo_starts[slot]))
        chosen, _ = compact(asked[slice_], length)
        send.append(jnp.where(chosen >= 0, sent[slice_][chosen], -1))
        counts.append(used[slice_].sum(dtype=jnp.int32))
        real.append(jnp.arange(length, dtype=jnp.int32) < counts[-1])
    rows = jnp.concatenate(send)
    src = jnp.where(remote.mask, owned + jnp.concatenate(place)[remote.src], 0)
    remote = dataclasses.replace(remote, src=src)
    plan = Plan(jnp.maximum(rows, 0), rows >= 0, jnp.concatenate(real), local, remote, None, transport, halo_lengths)
    return plan, jnp.stack(counts)


def _ragged_plan(owned, sent, used, asked, local, remote, transport, halo_lengths):
    """A plan whose halo has no padding between ranks."""
    (length,) = halo_lengths

    def swap(counts):
        return jax.lax.all_to_all(counts[:, None], transport.axis, 0, 0)[:, 0]

    sizes = [mask.reshape(transport.ranks, -1).sum(1, dtype=jnp.int32) for mask in (asked, used)]
    starts = [jnp.cumsum(size, dtype=jnp.int32) - size for size in sizes]
    ragged = (
        Ragged(starts[0], sizes[0], swap(starts[1]), sizes[1]),
        Ragged(starts[1], sizes[1], swap(starts[0]), sizes[0]),
    )
    chosen, count = compact(asked, length)
    place = jnp.cumsum(used, dtype=jnp.int32) - 1
    remote = dataclasses.replace(remote, src=jnp.where(remote.mask, owned + place[remote.src], 0))
    received = sizes[1].sum(dtype=jnp.int32)
    real = jnp.arange(length, dtype=jnp.int32) < received
    send = jnp.where(chosen >= 0, sent[chosen], 0)
    plan = Plan(send, chosen >= 0, real, local, remote, ragged, transport, halo_lengths)
    return plan, jnp.maximum(count, received)[None]


def continuous(topology: Topology, positions, cell):
    """Positions at the images next to those of the build, the turns [n, 3] taken out, and moves against it.

    The build's positions follow the cell: their fractional coordinates stay.
    """
    fractional = combine(topology.reference, jnp.linalg.inv(topology.cell))
    start = combine(fractional, cell)
    away = combine(positions - start, jnp.linalg.inv(cell))
    turns = once(jnp.where(jnp.asarray(topology.settings.pbc)[None], jnp.round(away), 0))
    near = positions - combine(turns, cell)
    return near, turns.astype(jnp.int32), near - start


def stale(topology: Topology, positions, cell) -> jax.Array:
    """Whether a pair within a cutoff may be missing on this rank; reduce it with `any` over the ranks.

    With F the deformation since the build and s its smallest singular value, a pair that was beyond cutoff + skin
    is now beyond s (cutoff + skin) less what both atoms moved on top of it. s^2 >= 1 - |F F^T - 1|, whatever
    rotation is in F.
    """
    settings = topology.settings
    _, _, moves = continuous(topology, positions, cell)
    deformation = combine(jnp.linalg.inv(topology.cell), cell)
    strain = combine(deformation, deformation.T) - jnp.eye(3, dtype=cell.dtype)
    smallest = jnp.sqrt(jnp.maximum(1 - jnp.sqrt((strain * strain).sum()), 0))
    allowed = jnp.stack([(smallest * (c + settings.skin) - c) / 2 for c in settings.cutoffs]).min()
    inside = squared(moves) <= jnp.maximum(allowed, 0) ** 2  # false for what is not a number
    return (~inside & (topology.ids >= 0)).any() | ~(allowed >= 0)


def settled(topology: Topology, positions, cell):
    """Positions wrapped into the cell, and the cells [n, 3] each atom has crossed since the build.

    Both depend on the positions alone, not on the build, so a pair exactly at the cutoff is decided alike
    whenever the graph was built.
    """
    wrapped, turns = wrap(positions, cell, np.array(topology.settings.pbc))
    return wrapped, turns - continuous(topology, positions, cell)[1]


def active(edges: Edges, points, cell, cutoff: float, crossed=None) -> jax.Array:
    """Which edges [E] are shorter than the cutoff.

    Args:
        points: [n + h, 3] positions with their halo, of `continuous`, or of `settled` together with
        crossed: [n + h, 3] of `settled`, with its halo.
    """
    return edges.mask & (lengths_squared(edges, points, cell, crossed) < jnp.asarray(cutoff, points.dtype) ** 2)


def lengths_squared(edges: Edges, points, cell, crossed=None) -> jax.Array:
    """Squared lengths [E] of edges, Å^2; arguments as for `active`."""
    image = edges.image if crossed is None else across(edges, crossed)
    return squared(displacements(points, edges.src, edges.dst, image, cell))


def across(edges: Edges, crossed) -> jax.Array:
    """Images [E, 3] between wrapped atoms that have crossed cells [n + h, 3] since the build."""
    return edges.image + crossed[edges.src] - crossed[edges.dst]


def current_images(topology: Topology, edges: Edges, plan: Plan, turns) -> jax.Array:
    """Images [E, 3] of edges after atoms were wrapped: `turns` [n, 3] of `continuous` at these positions."""
    return across(edges, exchange_halo(-turns, plan))


def digest(topology: Topology, positions, cell) -> jax.Array:
    """A hash [cutoffs, 2] (uint32) of all active edges, the same whatever the ranks, their order or the last build.

    Edges count with the ids of their atoms and the image between their wrapped positions.
    """
    settings = topology.settings
    state = (*settled(topology, positions, cell), topology.ids)
    sums = []
    for plan, cutoff in zip(topology.plans, settings.cutoffs, strict=True):
        points, crossed, ids = exchange_halo(state, plan)
        for edges in (plan.local, plan.remote):
            image = across(edges, crossed)
            words = [ids[edges.dst], ids[edges.src], *(image[:, k] for k in range(3))]
            on = active(edges, points, cell, cutoff, crossed)
            sums.append(jnp.stack([jnp.where(on, _mix(words, seed), 0).sum(dtype=jnp.uint32) for seed in (1, 2)]))
    sums = jnp.stack(sums).reshape(len(topology.plans), 2, 2).sum(1, dtype=jnp.uint32)
    return jax.lax.psum(sums, settings.transport.axis)


def _mix(words, seed: int) -> jax.Array:
    """A well-mixed 32-bit number of several (the steps of MurmurHash3)."""
    state = jnp.full(words[0].shape, seed * 0x9E3779B1 % 2**32, jnp.uint32)
    for word in words:
        word = word.astype(jnp.uint32) * np.uint32(0xCC9E2D51)
        state ^= (word << np.uint32(15) | word >> np.uint32(17)) * np.uint32(0x1B873593)
        state = (state << np.uint32(13) | state >> np.uint32(19)) * np.uint32(5) + np.uint32(0xE6546B64)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> np.uint32(shift)) * np.uint32(factor)
    return state ^ state >> np.uint32(16)
