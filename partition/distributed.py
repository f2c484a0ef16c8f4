"""The cuts as K ranks make them together, without any of them ever holding all atoms (under shard_map).

The bounds between ranks are found bit by bit: every rank counts its atoms below a trial value and the counts
are summed, so each level of a cut costs as many small sums as its keys have bits, whatever N is. A key is
(code, id): ties are broken by id as on the host, so the cut is the host's, if coordinates round alike.
Then every atom goes to its new rank through an all-to-all in rounds of fixed size, until all have arrived.

The paper sorts on rank 0 and names it a limit (section 4.6).
"""

import jax
import jax.numpy as jnp
import numpy as np

from partition import curves
from partition.cell import combine, heights, once, wrap
from partition.errors import PartitionError, checked


def spread(positions, mask, cell, pbc, axis: str):
    """Fractional coordinates [n, 3] of the occupied range of all ranks, and the range's width in the cell [3]."""
    wrapped, _ = wrap(jnp.where(mask[:, None], positions, 0), cell, pbc)
    fractional = combine(wrapped, jnp.linalg.inv(cell))
    low = jax.lax.pmin(jnp.where(mask[:, None], fractional, jnp.inf).min(0), axis)
    high = jax.lax.pmax(jnp.where(mask[:, None], fractional, -jnp.inf).max(0), axis)
    span = jnp.where(high > low, high - low, 1)
    return (fractional - low[None]) / span[None], jnp.where(high > low, span, 0)


def bounds(words, group, mask, weights, targets, axis: str):
    """Values that divide sorted keys of all ranks at given weights.

    Args:
        words: key of each row as 32-bit words, the most significant first: list of [n] uint32.
        group: [n] int32, which group a row belongs to; every group is divided for itself.
        mask: [n]; weights: [n] cost of each row (ones for counts).
        targets: [groups, bounds] weight below each bound.

    Returns:
        words of the bounds [groups, bounds] each: the largest value with no more than the target below it, which
        is the key of the first row of the next part.
    """
    found = [jnp.zeros(targets.shape, jnp.uint32) for _ in words]
    order = jnp.lexsort([*reversed(words), jnp.where(mask, group, targets.shape[0])])
    total = jnp.concatenate([jnp.zeros(1, weights.dtype), jnp.cumsum(jnp.where(mask, weights, 0)[order])])
    keys = [jnp.where(mask, group, targets.shape[0]).astype(jnp.uint32)[order], *(word[order] for word in words)]
    groups = jnp.broadcast_to(jnp.arange(targets.shape[0], dtype=jnp.uint32)[:, None], targets.shape)
    base = total[_first(keys, [groups, *(jnp.zeros_like(groups) for _ in words)])]

    def below(trial):
        """Weight of all ranks' rows of each group below each trial key."""
        return jax.lax.psum(total[_first(keys, [groups, *trial])] - base, axis)

    for k in range(len(words)):

        def bit(step, word, k=k):
            trial = word | jnp.uint32(1) << (31 - step).astype(jnp.uint32)
            keep = below([*found[:k], trial, *(jnp.zeros_like(trial) for _ in found[k + 1 :])]) <= targets
            return jnp.where(keep, trial, word)

        found[k] = jax.lax.fori_loop(0, 32, bit, found[k])
    return found


def _first(keys, values):
    """How many rows of lexicographically sorted keys (words [n] each) are below values (words [...] each)."""
    low = jnp.zeros(values[0].shape, jnp.int32)
    high = jnp.full(values[0].shape, len(keys[0]), jnp.int32)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) // 2
        less, equal = jnp.zeros(low.shape, bool), jnp.ones(low.shape, bool)
        for key, value in zip(keys, values, strict=True):
            at = key[jnp.minimum(middle, len(key) - 1)]
            less, equal = less | equal & (at < value), equal & (at == value)
        open_ = low < high
        return jnp.where(open_ & less, middle + 1, low), jnp.where(open_ & ~less, middle, high)

    return jax.lax.fori_loop(0, len(keys[0]).bit_length() + 1, halve, (low, high))[0]


def ranks_of(levels, ids, mask, total: int, ranks: int, axis: str, weights=None) -> jax.Array:
    """New rank of each row [n], by nested levels of (words of the key, parts); K is the product of the parts.

    With counts the bounds are those of the host: rank r ends at floor((r + 1) N / K).
    """
    checked("atoms", total)
    group = jnp.zeros(len(ids), jnp.int32)
    below, groups = ranks, 1
    cost = jnp.ones(len(ids), jnp.int32) if weights is None else weights
    for words, parts in levels:
        if parts == 1:
            continue
        below //= parts
        key = [*words, ids.astype(jnp.uint32)]
        if weights is None:
            ends = np.array([[(g * parts + p) * below * total // ranks for p in range(parts)] for g in range(groups)])
            targets = jnp.asarray(ends[:, 1:] - ends[:, :1], jnp.int32)
        else:
            whole = jnp.zeros(groups, cost.dtype).at[group].add(jnp.where(mask, cost, 0))
            share = jnp.arange(1, parts, dtype=cost.dtype) / parts
            targets = jax.lax.psum(whole, axis)[:, None] * share[None]
        found = bounds(key, group, mask, cost, targets, axis)
        mine = [word[group] for word in found]  # [n, parts - 1]
        less, equal = jnp.zeros(mine[0].shape, bool), jnp.ones(mine[0].shape, bool)
        for word, bound in zip(key, mine, strict=True):
            less, equal = less | equal & (bound < word[:, None]), equal & (bound == word[:, None])
        # the bound is the first key of the next part
        group = group * parts + (less | equal).sum(1, dtype=jnp.int32)
        groups *= parts
    return group


def _weighted(levels, ids, mask, total, ranks, axis, weights, rows) -> jax.Array:
    """`ranks_of` with equal weights, as far as no rank gets more than `rows`: see `cut._weighted`."""
    mean = jax.lax.psum(jnp.where(mask, weights, 0).sum(), axis) / total
    mean = jnp.where(mean > 0, mean, jnp.ones_like(mean))

    def attempt(share):
        owner = ranks_of(levels, ids, mask, total, ranks, axis, weights + share * mean)
        counts = jax.lax.psum(jnp.zeros(ranks, jnp.int32).at[owner].add(mask.astype(jnp.int32)), axis)
        return owner, counts.max()

    def more(state):
        share, (_, largest) = state
        return (largest > rows) & (share < 2.0**20)

    def double(state):
        share = jnp.maximum(2 * state[0], 2.0**-6)
        return share, attempt(share)

    start = jnp.zeros((), weights.dtype)
    return jax.lax.while_loop(more, double, (start, attempt(start)))[1][0]


def keys(fractional, lengths, method: str, shape: tuple[int, int, int], total: int):
    """Levels of a cut, for `ranks_of`, and the words of the Hilbert code that orders the rows of a rank."""
    bits = curves.bits_for(total)
    order = list(curves.hilbert(once(curves.quantize(fractional, bits)), bits))
    if method == "hilbert":
        return [(order, int(np.prod(shape)))], order
    if method == "morton":
        cells = once(curves.quantize(fractional * (lengths / jnp.maximum(lengths.max(), 1e-30))[None], bits))
        return [(list(curves.morton(cells, bits)), int(np.prod(shape)))], order
    if method != "grid":
        raise PartitionError(f"unknown cut {method!r}; allowed: grid, hilbert, morton")
    most = 2.0**32 - (1 if fractional.dtype == jnp.float64 else 256)  # the largest that the type has below 2^32
    scaled = once(jnp.clip(jnp.floor(fractional * 2.0**32), 0, most).astype(jnp.uint32))
    return [([scaled[:, k]], shape[k]) for k in range(3)], order


def migrate(arrays, owner, order, ids, rows: int, ranks: int, axis: str, share: int = 64):
    """Send every row to its owner; rows of the result are in the order of their keys, padding (id -1) last.

    Args:
        arrays: pytree of [n, ...]; owner: [n] int32, new rank; order: words [n] of the key within a rank.
        ids: [n] int32, -1 for padding.
        rows: rows of the result, no fewer than any rank gets.
        share: rows that go from a rank to another one in a round.

    Returns:
        (arrays [rows, ...], ids [rows], lost): lost is how many rows found no room, over all ranks.
    """
    leaves, treedef = jax.tree.flatten((arrays, list(order), ids))
    waiting = ids >= 0
    start = [jnp.zeros((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves[:-1]]
    start.append(jnp.full(rows, -1, jnp.int32))

    def more(state):
        waiting = state[0]
        return jax.lax.psum(waiting.sum(dtype=jnp.int32), axis) > 0

    def round_(state):
        waiting, have, kept, lost = state
        target = jnp.where(waiting, owner, ranks)
        line = jnp.argsort(target, stable=True)
        place = jnp.arange(len(ids), dtype=jnp.int32) - jnp.searchsorted(target[line], target[line]).astype(jnp.int32)
        going = (target[line] < ranks) & (place < share)
        slot = jnp.where(going, target[line] * share + place, ranks * share)
        source = jnp.full(ranks * share, -1, jnp.int32).at[slot].set(line.astype(jnp.int32), mode="drop")

        def move(leaf):
            parts = leaf[source].reshape(ranks, share, *leaf.shape[1:])
            return jax.lax.all_to_all(parts, axis, 0, 0).reshape(ranks * share, *leaf.shape[1:])

        real = jax.lax.all_to_all((source >= 0).reshape(ranks, share), axis, 0, 0).reshape(-1)
        at = jnp.where(real, have + jnp.cumsum(real, dtype=jnp.int32) - 1, rows)
        kept = [old.at[at].set(move(leaf), mode="drop") for old, leaf in zip(kept, leaves, strict=True)]
        count = have + real.sum(dtype=jnp.int32)
        sent = jnp.zeros(len(ids), bool).at[line].set(going)
        return waiting & ~sent, jnp.minimum(count, rows), kept, lost + jnp.maximum(count - rows, 0)

    zero = jnp.int32(0)
    _, _, kept, lost = jax.lax.while_loop(more, round_, (waiting, zero, start, zero))
    _, words, new_ids = treedef.unflatten(kept)
    line = jnp.lexsort([new_ids, *reversed(words), new_ids < 0])
    arrays, _, new_ids = treedef.unflatten([leaf[line] for leaf in kept])
    return arrays, new_ids, jax.lax.psum(lost, axis)


def recut(arrays, positions, ids, cell, *, pbc, method, shape, total: int, rows: int, axis: str, weights=None):
    """A new cut of sharded atoms: arrays, ids of the rows of this rank afterwards, and how many found no room (0).

    Args:
        arrays: pytree of [n, ...] that goes with the atoms (put the positions in it).
        positions: [n, 3]; ids: [n] int32, -1 for padding; cell: [3, 3] `cell.working_cell`.
        pbc, method, shape, total, rows, axis: static; `shape` from `cut.factors`, (K, 1, 1) for curves.
        weights: [n] cost of each atom, to balance as far as `rows` allow; without it counts are exact.
    """
    mask, ranks = ids >= 0, int(np.prod(shape))
    fractional, span = spread(positions, mask, cell, np.array(pbc), axis)
    lengths = span * heights(cell)
    levels, order = keys(fractional, lengths, method, shape, total)
    if weights is None or rows < total / ranks + 1:
        owner = ranks_of(levels, ids, mask, total, ranks, axis)
    else:
        owner = _weighted(levels, ids, mask, total, ranks, axis, weights, rows)
    return migrate(arrays, owner, order, ids, rows, ranks, axis)
