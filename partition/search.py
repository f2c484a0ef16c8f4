"""Exact neighbours of one rank's atoms with static shapes, under jit and shard_map (levels 2 and 3).

Queries and candidates are bisected into compact chunks and blocks. For each chunk the blocks near its box are
chosen, then the atoms of these blocks near its box, then pairs by distance. All bounds are those of `boxes`.
Every list has a fixed length; what was needed is returned beside it.
"""

import dataclasses

import jax
import jax.numpy as jnp

from partition import boxes
from partition.capacity import Leaf
from partition.cell import combine, heights, once, squared
from partition.chunks import bisect_padded

TARGET = 64  # rows of a chunk; blocks of candidates have half as many


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Edges:
    """Directed edges [E], sorted by destination: r = x[src] + image @ cell - x[dst]. Padding comes last."""

    src: Leaf
    dst: Leaf
    image: Leaf
    mask: Leaf


def compact(mask: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
    """Positions of True in a flat mask: [length] int32, -1 where there are fewer, and how many there are."""
    mask = once(mask)  # counted and placed by the same decisions
    place = jnp.cumsum(mask, dtype=jnp.int32)
    at = jnp.where(mask, place - 1, length)
    rows = jnp.full(length, -1, jnp.int32).at[at].set(jnp.arange(len(mask), dtype=jnp.int32), mode="drop")
    return rows, place[-1] if len(mask) else jnp.int32(0)


def near_box(points, mask, images, used, box, inverse, cell, height, reach) -> jax.Array:
    """[images, points]: whether an image of a point may be within `reach` of something in the box."""
    everything = boxes.around(boxes.points(points, inverse), mask)

    def one(image):
        turn = image.astype(points.dtype)

        def look(_):
            moved = points + combine(turn, cell)[None]
            return boxes.point_bound(boxes.points(moved, inverse), box[None], height) <= reach

        near = boxes.bound(boxes.shifted(everything, turn, cell), box, height) <= reach + reach * 1e-3
        return jax.lax.cond(near, look, lambda _: jnp.zeros(len(points), bool), None)

    return jax.lax.map(one, images) & mask[None] & used[:, None]


def chunked(points, mask, target: int):
    """Rows of points in chunks [chunks, size] of a power of two of compact runs, -1 for padding."""
    count = len(points)
    chunks = 1
    while count > target * chunks:
        chunks *= 2
    size = -(-count // chunks)
    padded = chunks * size - count
    rows = bisect_padded(jnp.pad(points, ((0, padded), (0, 0))), jnp.pad(mask, (0, padded)), size).reshape(chunks, size)
    return jnp.where((rows < count) & jnp.pad(mask, (0, padded))[rows], rows, -1)


def search(
    queries, query_mask, others, other_mask, images, image_mask, cell, cutoff, reach, *, capacity, local, remote
):
    """Edges to queries from images of queries and of others.

    Args:
        queries, query_mask: [n, 3], [n]: the rank's own atoms, wrapped.
        others, other_mask: [m, 3], [m]: received atoms, wrapped.
        images, image_mask: [I, 3] int32, [I].
        cell: [3, 3]; cutoff: Å (with the skin); reach: cutoff and `cell.slack`, for bounds.
        capacity: (candidates, blocks, chunk, degree).
        local, remote: how many edges from queries and from others are kept; one list for each length and for each
            `cutoff` [lengths].

    Returns:
        (local edges of each cutoff, remote ones, needs): `src` counts queries, or others; needs are candidates,
        blocks, chunk, degree (int32), local and remote edges [lengths].
    """
    candidates_cap, blocks_cap, chunk_cap, degree_cap = capacity
    count = len(queries)
    points, point_mask = jnp.concatenate([queries, others]), jnp.concatenate([query_mask, other_mask])
    inverse = jnp.linalg.inv(cell)
    height = heights(cell)
    box = boxes.around(boxes.points(queries, inverse), query_mask)
    near = near_box(points, point_mask, images, image_mask, box, inverse, cell, height, reach)
    flat, candidates_need = compact(near.reshape(-1), candidates_cap)
    exists = flat >= 0
    point, image = flat % len(points), flat // len(points)
    shift = combine(images.astype(points.dtype), cell)
    place = jnp.where(exists[:, None], points[point] + shift[image], 0)

    blocks = chunked(place, exists, TARGET // 2)
    block_points = boxes.points(place, inverse)
    block_boxes = boxes.around(block_points[blocks], blocks >= 0)
    chunks = chunked(queries, query_mask, TARGET)
    chunk_boxes = boxes.around(boxes.points(queries, inverse)[chunks], chunks >= 0)
    widest = cutoff.max()

    def one(chunk):
        rows, box = chunk
        chosen, blocks_need = compact(boxes.bound(box[None], block_boxes, height) <= reach, blocks_cap)
        members = jnp.where(chosen[:, None] >= 0, blocks[chosen], -1).reshape(-1)
        close = (boxes.point_bound(block_points[members], box[None], height) <= reach) & (members >= 0)
        kept, chunk_need = compact(close, chunk_cap)
        column = jnp.where(kept >= 0, members[kept], -1)
        j, s = point[column], image[column]
        vectors = (points[j][None] - queries[rows][:, None]) + shift[s][None]
        distance = squared(vectors)
        pair = (distance < widest * widest) & (rows >= 0)[:, None] & (column >= 0)[None]
        pair = once(pair & ((j[None] != rows[:, None]) | (images[s] != 0).any(-1)[None]))
        at = jnp.where(pair, jnp.cumsum(pair, 1, dtype=jnp.int32) - 1, degree_cap)
        line = jnp.broadcast_to(jnp.arange(len(rows), dtype=jnp.int32)[:, None], at.shape)
        values = jnp.broadcast_to(column[None], at.shape)
        table = jnp.full((len(rows), degree_cap), -1, jnp.int32).at[line, at].set(values, mode="drop")
        return table, pair.sum(1, dtype=jnp.int32), blocks_need, chunk_need

    tables, degrees, blocks_need, chunk_need = jax.lax.map(one, (chunks, chunk_boxes))
    order = jnp.where(chunks >= 0, chunks, count).reshape(-1)
    table = jnp.full((count, degree_cap), -1, jnp.int32)
    table = table.at[order].set(tables.reshape(-1, degree_cap), mode="drop")
    i = jnp.arange(count, dtype=jnp.int32)[:, None]
    j, s = point[table], image[table]
    distance = squared((points[j] - queries[i]) + shift[s])

    def edges(pairs, first: int, length: int) -> tuple[Edges, jax.Array]:
        at, need = compact(pairs.reshape(-1), length)
        mask = at >= 0
        kept = Edges(
            jnp.where(mask, j.reshape(-1)[at] - first, 0),
            jnp.where(mask, at // degree_cap, count - 1).astype(jnp.int32),
            jnp.where(mask[:, None], images[s.reshape(-1)[at]], 0),
            mask,
        )
        return kept, need

    lists: tuple[list[Edges], list[Edges]] = ([], [])
    needs: tuple[list[jax.Array], list[jax.Array]] = ([], [])
    for k, lengths in enumerate(zip(local, remote, strict=True)):
        inside = (table >= 0) & (distance < cutoff[k] * cutoff[k])
        for part, (mine, first) in enumerate(((j < count, 0), (j >= count, count))):
            if part and not len(others):
                kept, need = no_edges(lengths[part], count), jnp.int32(0)
            else:
                kept, need = edges(inside & mine, first, lengths[part])
            lists[part].append(kept)
            needs[part].append(need)
    found = (candidates_need, blocks_need.max(), chunk_need.max(), degrees.max(), *map(jnp.stack, needs))
    return *lists, found


def no_edges(length: int, owned: int) -> Edges:
    """Padding alone."""
    zeros = jnp.zeros(length, jnp.int32)
    return Edges(zeros, zeros + owned - 1, jnp.zeros((length, 3), jnp.int32), zeros > 0)
