"""Rotations, spherical harmonics and grids in the real e3nn basis (reference/models.md section 0).

Coefficient (l, m) has index l^2 + l + m; the polar axis is y, and l = 1 is ordered (x, y, z), so
that the l = 1 Wigner matrix of a rotation is the rotation itself. Constants are float64 numpy,
made once per lmax; functions on arrays are pure and keep the dtype of their input.

An *edge frame* is a rotation that takes the edge's direction to +y. In it, coefficients are held in
*m-major order*: m = 0, then for each m > 0 the +m and the -m parts; inside each part l ascends.
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from janus_jax.typing import Array, Float
from partition.cell import once


@lru_cache
def coupling(l: int) -> np.ndarray:
    """Isometry from degree l-1 times degree 1 to degree l: array [2l-1, 3, 2l+1]."""
    import e3nn_jax

    return np.asarray(e3nn_jax.clebsch_gordan(l - 1, 1, l)) * np.sqrt(2 * l + 1)


@lru_cache
def degrees(lmax: int) -> np.ndarray:
    """Degree l of every coefficient."""
    return np.repeat(np.arange(lmax + 1), 2 * np.arange(lmax + 1) + 1)


@lru_cache
def m_major(lmax: int, mmax: int) -> tuple[np.ndarray, ...]:
    """For m = 0..mmax, the indices of coefficients (l, +m), then (l, -m); for m = 0 just (l, 0)."""
    parts = []
    for m in range(mmax + 1):
        l = np.arange(m, lmax + 1)
        parts.append(l * l + l if m == 0 else np.concatenate([l * l + l + m, l * l + l - m]))
    return tuple(parts)


def rotation_to_y(unit: Float[Array, "edges 3"]) -> Float[Array, "edges 3 3"]:
    """Rotation R with R u = +y, smooth everywhere but across y = 0 (two charts, no angles)."""
    below = once(unit[:, 1:2] < 0)  # rounding decides it for edges in the plane, so for all phases and uses at once
    flip = jnp.where(below, -1.0, 1.0).astype(unit.dtype)
    # Chart B is chart A seen through F = diag(1, -1, -1): R = R_A(F u) F. Both share one formula,
    # so the unused chart is never evaluated and cannot put NaN into a gradient.
    x, y, z = unit[:, 0], unit[:, 1] * flip[:, 0], unit[:, 2] * flip[:, 0]
    a = 1.0 / (1.0 + y)
    rows = [[1.0 - a * x * x, -x, -a * x * z], [x, y, z], [-a * x * z, -z, 1.0 - a * z * z]]
    chart = jnp.stack([jnp.stack(row, -1) for row in rows], -2)
    column_signs = jnp.concatenate([jnp.ones_like(flip), flip, flip], -1)
    return chart * column_signs[:, None, :]


def wigner(rotation: Float[Array, "edges 3 3"], lmax: int) -> list[Float[Array, "edges m m"]]:
    """Wigner matrices D^0..D^lmax of rotations, by coupling D^(l-1) with D^1; no angles, no poles."""
    edges, dtype = len(rotation), rotation.dtype
    blocks = [jnp.ones((edges, 1, 1), dtype), rotation][: lmax + 1]
    for l in range(2, lmax + 1):
        c = jnp.asarray(coupling(l).reshape(-1, 2 * l + 1), dtype)
        product = jnp.einsum("eac,ebd->eabcd", blocks[-1], rotation).reshape(edges, len(c), len(c))
        blocks.append(jnp.einsum("pm,epq,qn->emn", c, product, c))
    return blocks


def edge_frame(unit: Float[Array, "edges 3"], lmax: int, mmax: int) -> Float[Array, "edges rows coefficients"]:
    """Matrices from coefficients to m-major edge-frame coefficients with |m| <= mmax.

    Rows of |m| > mmax are left out; the transpose is the way back.
    """
    blocks = wigner(rotation_to_y(unit), lmax)
    size = (lmax + 1) ** 2
    full = jnp.concatenate(
        [jnp.pad(d, ((0, 0), (0, 0), (l * l, size - (l + 1) ** 2))) for l, d in enumerate(blocks)], 1
    )
    return full[:, np.concatenate(m_major(lmax, mmax))]


def spherical_harmonics(points: np.ndarray, lmax: int) -> np.ndarray:
    """Integral-normalised real harmonics [..., (lmax+1)^2] of unit vectors, float64."""
    degree = [np.ones((*points.shape[:-1], 1))]
    for l in range(1, lmax + 1):
        y = np.einsum("...a,...b,abm->...m", degree[-1], points, coupling(l))
        degree.append(y / np.linalg.norm(y, axis=-1, keepdims=True))
    scale = [np.sqrt((2 * l + 1) / (4 * np.pi)) for l in range(lmax + 1)]
    return np.concatenate([s * y for s, y in zip(scale, degree, strict=True)], -1)


@lru_cache
def sphere_grid(lmax: int, mmax: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices to and from values on a latitude-longitude grid: two arrays [points, kept].

    Kept coefficients are those with |m| <= mmax in (l, m) order; where degrees lose members
    (l > mmax) both matrices are scaled by sqrt((2l+1)/(2 mmax+1)), as the public model does.
    The grid has 2(lmax+1) latitudes and 2 mmax + 1 longitudes (2 lmax + 3 if mmax = lmax).
    """
    lat, long = 2 * (lmax + 1), 2 * mmax + (3 if mmax == lmax else 1)
    beta = (np.arange(lat) + 0.5) * np.pi / lat
    alpha = np.arange(long) * 2 * np.pi / long
    b, a = np.meshgrid(beta, alpha, indexing="ij")
    points = np.stack([np.sin(b) * np.sin(a), np.cos(b), np.sin(b) * np.cos(a)], -1).reshape(-1, 3)
    odd = 2 * np.arange(lmax + 1) + 1  # weights exact for the polynomials in cos(beta) that occur
    weight = np.sin(beta) * (np.sin(np.outer(beta, odd)) / odd).sum(-1)
    weight *= 4 * np.pi / (weight.sum() * long)
    l = degrees(lmax)
    m = np.arange(len(l)) - l * l - l
    kept = np.abs(m) <= mmax
    y = spherical_harmonics(points, lmax)[:, kept] * np.where(l > mmax, np.sqrt((2 * l + 1) / (2 * mmax + 1)), 1)[kept]
    return y, y * np.repeat(weight, long)[:, None]
