"""Rotations, Wigner matrices and edge frames against their defining properties and e3nn-jax."""

import e3nn_jax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from janus_jax.models import so3
from janus_jax.testing import quick_jit, random_rotation, rel_error

POLES = [[0.0, 1.0, 0.0], [0.0, -1.0, 0.0]]
EQUATOR = [[1.0, 0.0, 0.0], [0.6, 0.0, -0.8], [0.0, -0.0, 1.0]]


def directions() -> jax.Array:
    """Unit vectors: the poles, the equator where the charts meet, beside both, and random ones."""
    beside = [[1e-9, 1.0, 0.0], [0.0, -1.0, 1e-7], [0.6, 1e-9, 0.8], [0.6, -1e-9, 0.8]]
    v = np.concatenate([POLES, EQUATOR, beside, np.random.default_rng(0).normal(size=(6, 3))])
    return jnp.asarray(v / np.linalg.norm(v, axis=1, keepdims=True))


def rotations(count: int) -> jax.Array:
    return jnp.asarray(np.stack([random_rotation(seed) for seed in range(count)]))


def test_edge_rotation_takes_the_edge_to_y():
    u = directions()
    r = so3.rotation_to_y(u)
    assert rel_error(jnp.einsum("eij,ej->ei", r, u), np.tile([0.0, 1.0, 0.0], (len(u), 1))) < 1e-14
    assert rel_error(jnp.einsum("eij,ekj->eik", r, r), np.tile(np.eye(3), (len(u), 1, 1))) < 1e-14
    assert rel_error(np.linalg.det(r), np.ones(len(u))) < 1e-14


def test_wigner_is_an_orthogonal_representation():
    first, second = rotations(4), rotations(8)[4:]
    of_first, of_second = so3.wigner(first, 4), so3.wigner(second, 4)
    of_product = so3.wigner(first @ second, 4)
    assert [d.shape[1] for d in of_first] == [1, 3, 5, 7, 9]
    for l, (a, b, ab) in enumerate(zip(of_first, of_second, of_product, strict=True)):
        assert rel_error(a @ a.swapaxes(1, 2), np.tile(np.eye(2 * l + 1), (4, 1, 1))) < 1e-13
        assert rel_error(a @ b, ab) < 1e-13


def test_wigner_equals_e3nn():
    r = rotations(3)
    expected = quick_jit(lambda r: [e3nn_jax.Irrep(l, 1).D_from_matrix(r) for l in range(5)])(r)
    for ours, theirs in zip(so3.wigner(r, 4), expected, strict=True):
        assert rel_error(ours, theirs) < 1e-12


def test_harmonics_equal_e3nn_and_turn_with_wigner():
    points, turn = np.asarray(directions()), random_rotation(9)
    y = so3.spherical_harmonics(points, 4)
    assert rel_error(y, e3nn_jax.sh(list(range(5)), jnp.asarray(points), True, "integral")) < 1e-12
    blocks = so3.wigner(jnp.asarray(turn)[None], 4)
    turned = [y[:, l * l : (l + 1) ** 2] @ np.asarray(d[0]).T for l, d in enumerate(blocks)]
    assert rel_error(np.concatenate(turned, 1), so3.spherical_harmonics(points @ turn.T, 4)) < 1e-12


@pytest.mark.parametrize(("lmax", "mmax"), [(2, 2), (3, 1), (4, 2)])
def test_edge_frame_keeps_only_m_zero_of_the_edges_harmonics(lmax, mmax):
    u = directions()
    frame = so3.edge_frame(u, lmax, mmax)
    rows = (lmax + 1) + sum(2 * (lmax + 1 - m) for m in range(1, mmax + 1))
    assert frame.shape == (len(u), rows, (lmax + 1) ** 2)
    in_frame = np.einsum("emi,ei->em", frame, so3.spherical_harmonics(np.asarray(u), lmax))
    expected = np.zeros((len(u), rows))
    expected[:, : lmax + 1] = np.sqrt((2 * np.arange(lmax + 1) + 1) / (4 * np.pi))
    assert rel_error(in_frame, expected) < 1e-12
    assert rel_error(frame @ frame.swapaxes(1, 2), np.tile(np.eye(rows), (len(u), 1, 1))) < 1e-12


def test_rows_are_m_major():
    assert [part.tolist() for part in so3.m_major(2, 2)] == [[0, 2, 6], [3, 7, 1, 5], [8, 4]]
    assert so3.degrees(2).tolist() == [0, 1, 1, 1, 2, 2, 2, 2, 2]


def test_roll_about_the_edge_mixes_only_plus_and_minus_m():
    """What the SO(2) convolution relies on, for the order of the m-major rows."""
    angle = 0.7
    c, s = np.cos(angle), np.sin(angle)
    roll = jnp.asarray([[[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]]])
    for l, d in enumerate(so3.wigner(roll, 4)):
        m = np.arange(-l, l + 1)
        expected = np.diag(np.cos(m * angle)) + np.fliplr(np.diag(-np.sin(m * angle)))
        assert rel_error(d[0], expected) < 1e-12


def test_derivatives_at_poles_and_equator():
    """First and second ones are finite everywhere, and at the poles equal to differences."""

    def mix(v):
        frame = so3.edge_frame((v / jnp.sqrt((v * v).sum()))[None], 3, 3)
        return jnp.vdot(jnp.asarray(np.random.default_rng(3).normal(size=frame.shape)), frame)

    first = quick_jit(jax.vmap(jax.grad(mix)))
    second = quick_jit(jax.vmap(jax.jacfwd(jax.grad(mix))))
    points = jnp.asarray(POLES + EQUATOR)
    assert np.isfinite(first(points)).all()
    assert np.isfinite(second(points)).all()
    h, axes = 1e-5, np.eye(3)
    poles = np.array(POLES)
    # Row (pole, axis) of one batch of points at distance h to either side.
    ahead, behind = ((poles[:, None] + sign * h * axes[None]).reshape(-1, 3) for sign in (1, -1))
    value = quick_jit(jax.vmap(mix))
    numeric = (value(jnp.asarray(ahead)) - value(jnp.asarray(behind))) / (2 * h)
    assert rel_error(first(jnp.asarray(poles)), numeric.reshape(2, 3)) < 1e-7
    numeric = (first(jnp.asarray(ahead)) - first(jnp.asarray(behind))) / (2 * h)
    assert rel_error(second(jnp.asarray(poles)), numeric.reshape(2, 3, 3)) < 1e-7
