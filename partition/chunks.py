"""Recursive bisection of points into compact chunks of equal count (level 2 of the search).

Each level divides every run at its median along its longest extent. Source: Tessera, section 3.3, Figure 4.
"""

import jax.numpy as jnp
import numpy as np


def bisect(positions: np.ndarray, chunks: int) -> tuple[np.ndarray, np.ndarray]:
    """Order of points [n] and starts [chunks + 1] of `chunks` runs (a power of two); counts differ by one at most."""
    order, starts = np.arange(len(positions)), np.array([0, len(positions)])
    while len(starts) - 1 < chunks:
        middle = (starts[:-1] + starts[1:]) // 2
        for start, half, stop in zip(starts[:-1], middle, starts[1:], strict=True):
            if stop - start > 1:
                run = positions[order[start:stop]]
                axis = np.argmax(run.max(0) - run.min(0))
                order[start:stop] = order[start:stop][np.argpartition(run[:, axis], half - start)]
        starts = np.sort(np.concatenate([starts, middle]))
    return order, starts


def bisect_padded(positions, mask, size: int):
    """The same with static shapes, under jit: rows [n] of points [n, 3], in chunks of `size`.

    n / size must be a power of two. Rows without a point (mask False) go to the end of their run, so
    that the first chunks are full.
    """
    rows = jnp.arange(len(positions), dtype=jnp.int32)[None]  # [runs, rows of a run]
    while rows.shape[1] > size:
        run, used = positions[rows], mask[rows]
        low = jnp.where(used[..., None], run, jnp.inf).min(1)
        high = jnp.where(used[..., None], run, -jnp.inf).max(1)
        axis = jnp.argmax(high - low, 1)
        key = jnp.take_along_axis(run, axis[:, None, None], 2)[..., 0]
        order = jnp.argsort(jnp.where(used, key, jnp.inf), axis=1)
        rows = jnp.take_along_axis(rows, order, 1).reshape(2 * len(rows), -1)
    return rows.reshape(-1)
