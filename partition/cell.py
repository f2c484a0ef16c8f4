"""Cells: wrapping, face distances, the finite set of periodic images, and rounding that is the same everywhere.

Cell vectors are rows. A cell may be skewed, left-handed, thinner than the cutoff, periodic along any
axes. All bounds come from the face distances h_a = 1 / |b_a| (b_a: column a of the inverse), never from
the minimum image of anything, which is wrong in skewed cells.

Functions that take `x` of numpy or of JAX compute the same bits for both: XLA may fuse a product and a
sum into one rounding, numpy does not, and a pair at the cutoff would be a neighbour on one of its ranks
only. It may also make a value again beside each of its uses, and round it differently there, so that an
integer a rounding decides is one thing in one place and another in the next. `once` stops both.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from partition.errors import CellError

MOST_IMAGES = 2_000_000
BLOCK = 1 << 16  # rows that numpy treats at once, so that intermediates stay in the cache


def xp(x: Any):
    """numpy or jax.numpy, whichever `x` belongs to."""
    return jnp if isinstance(x, jax.Array) else np


def once(values):
    """Values (a pytree) that XLA makes once and rounds as written: neither fused with what follows nor made again.

    For products before their sum, and for every integer or mask that a rounding decides and that is used twice.
    """
    return jax.lax.optimization_barrier(values) if isinstance(jax.tree.leaves(values)[0], jax.Array) else values


def combine(coefficients, vectors):
    """Rows of `vectors` [3, 3] weighted by `coefficients` [..., 3]: [..., 3], in one fixed order of rounding."""
    if xp(coefficients) is np:  # without [..., 3, 3] products, which do not fit for millions of atoms
        result = np.empty(np.broadcast_shapes(coefficients.shape, (3,)), coefficients.dtype)
        for axis in range(3):
            terms = [coefficients[..., k] * vectors[k, axis] for k in range(3) if vectors[k, axis] != 0]
            result[..., axis] = sum(terms[1:], terms[0]) if terms else 0
        return result
    products = once(coefficients[..., :, None] * vectors[(None,) * (coefficients.ndim - 1)])
    return products[..., 0, :] + products[..., 1, :] + products[..., 2, :]


def squared(vectors):
    """Squared lengths [...] of [..., 3], in one fixed order of rounding."""
    products = once(vectors * vectors)
    return products[..., 0] + products[..., 1] + products[..., 2]


def in_blocks(work: Callable[[slice], None], count: int) -> None:
    """`work` on slices of rows that stay in the cache, by several threads: numpy lets others run."""
    in_threads(work, [slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)])


def in_threads(work: Callable[[Any], None], items: Sequence[Any]) -> None:
    """`work` on each of the items, by threads if there are enough of them."""
    if len(items) < 2:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        list(pool.map(work, items))


def extremes(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest of rows [n, 3], n > 0 (reduceat is many times faster here than min)."""
    return np.minimum.reduceat(rows, [0])[0], np.maximum.reduceat(rows, [0])[0]


def complete_cell(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Replace missing (zero) vectors of directions without periodicity by unit vectors normal to the rest.

    Raises:
        CellError: not finite, a periodic direction without a vector, or vectors in one plane.
    """
    cell, pbc = np.asarray(cell, float), np.asarray(pbc, bool)
    if not np.isfinite(cell).all():
        raise CellError(f"the cell is not finite: {cell.tolist()}")
    lengths = np.linalg.norm(cell, axis=1)
    if (pbc & (lengths == 0)).any():
        raise CellError(f"a periodic direction has no cell vector: pbc {pbc.tolist()}, cell {cell.tolist()}")
    given = lengths > 0
    # The right singular vectors beyond the rank span what the given vectors do not.
    spare = list(np.linalg.svd(np.where(given[:, None], cell, 0))[2][given.sum() :])
    full = np.array([cell[k] if given[k] else spare.pop() for k in range(3)])
    unit = full / np.linalg.norm(full, axis=1)[:, None]
    if abs(np.linalg.det(unit)) < 1e-6:
        raise CellError(f"the cell vectors lie in one plane: {cell.tolist()}")
    return full


def working_cell(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """The cell that bounds are computed in: vectors without periodicity are replaced by normals of the others.

    Images only run along periodic vectors, so the other ones are free, and normals give the largest face
    distances. Without any periodicity it is the identity.

    Raises:
        CellError: as `complete_cell`.
    """
    cell, pbc = np.asarray(cell, float), np.asarray(pbc, bool)
    return complete_cell(np.where(pbc[:, None], cell, 0.0), pbc)


def heights(cell):
    """Distances [3] between opposite faces."""
    inverse = xp(cell).linalg.inv(cell)
    return 1 / xp(cell).sqrt((inverse * inverse).sum(0))


def wrap(positions: Any, cell: Any, pbc: Any) -> tuple[Any, Any]:
    """Fold periodic directions into the cell: wrapped positions, and w with positions = wrapped + w @ cell.

    The second pass folds what rounding left on the far face, such as -1e-50, whose image is the face itself.
    Without JAX the coordinates are checked.

    Raises:
        CellError: coordinates are not finite, or more than 2^52 cells away (numpy only; JAX gives 32 bits).
    """
    np_ = xp(positions)
    inverse = np_.linalg.inv(cell)
    mask = np_.asarray(pbc)[(None,) * (positions.ndim - 1)]

    def fold(x):
        turns = once(np_.where(mask, np_.floor(combine(x, inverse)), 0).astype(x.dtype))
        return x - combine(turns, cell), turns

    def twice(x):
        once, first = fold(x)
        if np_ is np and not first.any():
            return x, first
        wrapped, second = fold(once)
        return wrapped, first + second

    if np_ is jnp:
        wrapped, turns = twice(positions)
        return wrapped, turns.astype(jnp.int32)
    wrapped, integers = np.empty_like(positions), np.empty(positions.shape, np.int64)

    def block(rows: slice) -> None:
        if not np.isfinite(positions[rows]).all():
            raise CellError("positions are not finite")
        wrapped[rows], turns = twice(positions[rows])
        if np.abs(turns).max() >= 2**52:
            raise CellError(f"an atom is {np.abs(turns).max():.3g} cells away; wrap the positions")
        integers[rows] = turns

    in_blocks(block, len(positions))
    return wrapped, integers


def image_range(cell: np.ndarray, pbc: np.ndarray, reach: float, spread: int = 1) -> tuple[int, int, int]:
    """How many images to each side a pair of atoms within `reach` (Å) can be apart, per axis.

    |f_j + n - f_i| h <= reach with |f_j - f_i| <= spread (1: wrapped atoms), so |n| <= spread + reach / h.
    """
    counts = np.floor(spread + reach / heights(np.asarray(cell)) + 1e-6)
    x, y, z = (int(n) if periodic else 0 for n, periodic in zip(counts, np.asarray(pbc), strict=True))
    return x, y, z


def images(cell: np.ndarray, pbc: np.ndarray, reach: float, spread: int = 1) -> np.ndarray:
    """All image vectors [images, 3] that pairs of atoms can have whose fractional coordinates differ by at most
    `spread` (1: wrapped atoms), the identity first.

    Images whose cell is farther than `reach` from the cell itself are left out, by the distance of the
    boxes around the two, which matters in skewed cells.

    Raises:
        CellError: there would be more than two million (a cell very much thinner than the cutoff).
    """
    cell, pbc = np.asarray(cell, float), np.asarray(pbc, bool)
    per_axis = image_range(cell, pbc, reach, spread)
    count = int(np.prod([2 * n + 1 for n in per_axis], dtype=object))
    if count > MOST_IMAGES:
        raise CellError(
            f"the cell has {count} images within {reach:g} Å (faces {heights(cell).round(4).tolist()} Å apart); "
            "repeat it along its thin directions"
        )
    grid = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in per_axis), indexing="ij"), -1).reshape(-1, 3)
    if pbc.all():
        corners = np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1)]) @ cell
        extent = spread * (corners.max(0) - corners.min(0))
        gap = np.maximum(np.abs(grid @ cell) - extent, 0)
        grid = grid[np.sqrt((gap * gap).sum(1)) <= reach * (1 + 1e-6) + 1e-9 * np.abs(cell).max()]
    order = np.argsort(np.abs(grid).sum(1), kind="stable")
    return grid[order].astype(np.int32)


def together(positions, mask, cell, pbc):
    """Turns [n, 3] (int32) that bring wrapped positions [n, 3] into a window of one cell about their middle.

    An atom that has crossed a face of the cell so stays with the atoms it was among, and the box around them stays
    small. The middle is that of the angles 2 pi f, which does not depend on where the cell begins. Fractional
    coordinates of two groups of atoms then differ by less than two.
    """
    np_ = xp(positions)
    fractional = combine(positions, np_.linalg.inv(cell))
    angle = 2 * np.pi * fractional
    part = mask[:, None].astype(positions.dtype)
    middle = np_.arctan2((part * np_.sin(angle)).sum(0), (part * np_.cos(angle)).sum(0)) / (2 * np.pi)
    # an atom half a cell from the middle may go either way, but only one way
    return once(np_.where(np_.asarray(pbc)[None], -np_.round(fractional - middle[None]), 0).astype(np.int32))


def slack(reach, scale, dtype):
    """What a bound must exceed `reach` by before it excludes anything: rounding of coordinates of size `scale` (Å)."""
    return 1e-6 * reach + 64 * float(np.finfo(dtype).eps) * scale


def displacements(positions, src, dst, image, cell):
    """x[src] + image @ cell - x[dst]: [edges, 3]. Swapping the ends and the sign of `image` negates every bit."""
    return (positions[src] - positions[dst]) + combine(image.astype(positions.dtype), cell)
