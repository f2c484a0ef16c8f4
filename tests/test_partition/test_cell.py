"""Cells: completion, wrapping, face distances, sets of images, and arithmetic that numpy and JAX round alike."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partition import cell as cells
from partition.errors import CellError
from partition.testing import CATEGORIES, make_cell

PBC = list(itertools.product([False, True], repeat=3))
TRICLINIC = np.array([[5.0, 0.3, -0.2], [2.6, 4.5, 0.1], [-1.9, 1.2, 6.0]])


def random_cells(count, shapes=CATEGORIES["shape"], sizes=("usual", "small", "thin")):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield make_cell(rng, rng.choice(shapes), rng.choice(sizes), rng.choice(CATEGORIES["orientation"]))


def on_device(function, *arrays):
    return jax.tree.map(np.asarray, jax.jit(function)(*map(jnp.asarray, arrays)))


@pytest.mark.parametrize("pbc", PBC)
def test_working_cell_keeps_periodic_vectors_and_stands_the_others_on_them(pbc):
    pbc = np.array(pbc)
    for given in (TRICLINIC, np.where(pbc[:, None], TRICLINIC, 0)):
        full = cells.working_cell(given, pbc)
        assert (full[pbc] == TRICLINIC[pbc]).all()
        products = full @ full.T
        np.testing.assert_allclose(products[~pbc], np.eye(3)[~pbc], atol=1e-12)
    if not pbc.any():
        assert (np.abs(full) == np.abs(full).round()).all()


def test_complete_cell_keeps_every_vector_that_is_given():
    given = TRICLINIC * [[1], [0], [1]]
    full = cells.complete_cell(given, np.array([True, False, False]))
    assert (full[[0, 2]] == TRICLINIC[[0, 2]]).all()
    np.testing.assert_allclose(full @ full[1], [0, 1, 0], atol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([[np.nan], [1], [1]], r"not finite: \[\[nan"),
        ([[1], [0], [1]], r"no cell vector: pbc \[True, True, True\], cell \[\[5.0, .*\[0.0, 0.0, 0.0\]"),
    ],
)
def test_cells_without_meaning_are_refused(change, message):
    with pytest.raises(CellError, match=message):
        cells.working_cell(TRICLINIC * change, np.ones(3, bool))


def test_vectors_in_one_plane_are_refused():
    flat = TRICLINIC.copy()
    flat[2] = flat[0] - 2 * flat[1] + [0, 0, 1e-9]
    with pytest.raises(CellError, match="in one plane"):
        cells.working_cell(flat, np.ones(3, bool))
    cells.working_cell(flat, np.array([True, True, False]))


def test_heights_are_the_volume_over_the_area_of_a_face():
    for cell in random_cells(30):
        areas = [np.linalg.norm(np.cross(cell[(k + 1) % 3], cell[(k + 2) % 3])) for k in range(3)]
        np.testing.assert_allclose(cells.heights(cell), abs(np.linalg.det(cell)) / areas, rtol=1e-10)


@pytest.mark.parametrize("pbc", PBC)
def test_wrapped_atoms_are_in_the_cell_and_turns_lead_back(pbc):
    pbc = np.array(pbc)
    rng = np.random.default_rng(1)
    for cell in random_cells(10):
        cell = cells.working_cell(cell, pbc)
        positions = rng.uniform(-40, 40, (50, 3)) @ cell
        wrapped, turns = cells.wrap(positions, cell, pbc)
        np.testing.assert_allclose(wrapped + turns @ cell, positions, atol=1e-12 * np.abs(positions).max())
        fractional = wrapped @ np.linalg.inv(cell)
        assert (fractional[:, pbc] > -1e-12).all()
        assert (fractional[:, pbc] < 1 + 1e-12).all()
        assert not turns[:, ~pbc].any()


def test_atoms_just_below_a_face_are_put_on_it():
    below = np.array([[-1e-50, 0.0, 5.0], [-1e-17, -0.0, 5.0 - 2**-50]])
    wrapped, turns = cells.wrap(below, np.eye(3) * 5, np.ones(3, bool))
    assert (wrapped == [[0, 0, 0], [0, 0, 5 - 2**-50]]).all()
    assert (turns == [[0, 0, 1], [0, 0, 0]]).all()


def test_positions_without_meaning_are_refused():
    for bad, message in ((np.inf, "not finite"), (np.nan, "not finite"), (2.0**54, r"an atom is 4\.5e\+15 cells away")):
        with pytest.raises(CellError, match=message):
            cells.wrap(np.array([[1.0, bad, 1.0]]), np.eye(3) * 4.0, np.ones(3, bool))


def test_rows_in_blocks_are_the_rows_at_once(monkeypatch):
    positions = np.random.default_rng(2).normal(size=(1003, 3)) * 20
    whole = cells.wrap(positions, TRICLINIC, np.ones(3, bool))
    monkeypatch.setattr(cells, "BLOCK", 10)
    blocks = cells.wrap(positions, TRICLINIC, np.ones(3, bool))
    assert all((a == b).all() for a, b in zip(whole, blocks, strict=True))
    assert (np.array(cells.extremes(positions)) == [positions.min(0), positions.max(0)]).all()


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, True), (False, False, False)])
def test_images_hold_all_that_atoms_within_reach_can_have(pbc):
    pbc, rng = np.array(pbc), np.random.default_rng(3)
    for cell in random_cells(12, sizes=("usual",)):
        cell = cells.working_cell(cell, pbc)
        reach = float(rng.uniform(0.5, 1.2) * cells.heights(cell).max())
        found = cells.images(cell, pbc, reach)
        assert not found[0].any()
        assert not found[:, ~pbc].any()
        known = set(map(tuple, found.tolist()))
        assert len(known) == len(found)
        assert {tuple(-k for k in image) for image in known} == known

        more = np.array(cells.image_range(cell, pbc, reach)) + pbc
        grid = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in more), indexing="ij"), -1).reshape(-1, 3)
        ends = rng.choice([0.0, 1.0, 0.5], (400, 2, 3), p=[0.45, 0.45, 0.1]) @ cell
        distance = np.linalg.norm((ends[:, 1] - ends[:, 0])[:, None] + grid @ cell, axis=-1)
        needed = set(map(tuple, grid[(distance < reach).any(0)].tolist()))
        assert needed <= known


def test_a_pair_across_the_whole_cell_has_an_image_one_farther_than_the_cutoff_spans():
    assert cells.image_range(np.diag([3.0, 4.0, 5.0]), np.ones(3, bool), 6.0) == (3, 2, 2)
    assert cells.image_range(np.diag([3.0, 4.0, 5.0]), np.array([True, False, True]), 6.0) == (3, 0, 2)


def test_too_many_images_are_refused_with_the_size_of_the_cell():
    with pytest.raises(CellError, match=r"images within 9 Å \(faces \[0\.01, 0\.01, 3\.0\] Å apart\); repeat it"):
        cells.images(np.diag([0.01, 0.01, 3.0]), np.ones(3, bool), 9.0)


def test_numpy_and_jax_round_alike():
    rng = np.random.default_rng(4)
    for cell in random_cells(5, sizes=("usual",)):
        vectors = rng.normal(size=(5000, 3)) * 10.0 ** rng.integers(-3, 4, (5000, 1))
        assert (cells.combine(vectors, cell) == on_device(cells.combine, vectors, cell)).all()
        assert (cells.squared(vectors) == on_device(cells.squared, vectors)).all()
        pbc = np.array([True, False, True])
        host = cells.wrap(vectors, cell, pbc)
        device = on_device(lambda x, c, pbc=pbc: cells.wrap(x, c, pbc), vectors, cell)
        assert all((a == b).all() for a, b in zip(host, device, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_displacements_seen_from_the_other_end_are_negative_bit_by_bit(dtype):
    rng = np.random.default_rng(5)
    positions = rng.uniform(0, 5, (100, 3)).astype(dtype)
    src, dst = rng.integers(0, 100, (2, 5000)).astype(np.int32)
    image = rng.integers(-3, 4, (5000, 3)).astype(np.int32)
    arrays = positions, src, dst, image, TRICLINIC.astype(dtype)
    vectors = cells.displacements(*arrays)
    assert vectors.dtype == dtype
    assert (vectors == -cells.displacements(positions, dst, src, -image, arrays[-1])).all()
    assert (vectors == on_device(cells.displacements, *arrays)).all()
    exact = positions.astype(float)[src] - positions.astype(float)[dst] + image @ TRICLINIC
    np.testing.assert_allclose(vectors, exact, atol=200 * np.finfo(dtype).eps)
