"""Neighbour lists against a brute-force search, wrapping, and refused structures."""

import numpy as np
import pytest
from ase import Atoms
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_jax.data.neighbors import complete_cell, from_atoms, neighbor_list, wrap
from janus_jax.errors import StructureError
from janus_jax.models.potential import edge_vectors
from janus_jax.testing import brute_force_edges, crystal, edge_rows, molecule, slab

PERIODIC, OPEN = np.ones(3, bool), np.zeros(3, bool)


@st.composite
def structures(draw):
    """Positions, cell, pbc, cutoff: skewed, left-handed, thin cells, vectors missing, atoms outside."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pbc = np.array(draw(st.tuples(st.booleans(), st.booleans(), st.booleans())))
    lengths = np.array(draw(st.tuples(*[st.sampled_from([1.3, 2.7, 4.0, 9.0])] * 3)))
    cell = np.diag(lengths) @ (np.eye(3) + draw(st.sampled_from([0.0, 0.2, 0.45])) * rng.uniform(-1, 1, (3, 3)))
    if draw(st.booleans()):
        cell = cell[[1, 0, 2]]
    if draw(st.booleans()):
        cell[~pbc] = 0
    box = np.where(np.linalg.norm(cell, axis=1, keepdims=True) > 0, cell, 3.0 * np.eye(3))
    spread = draw(st.sampled_from([1.0, 3.0]))  # 3: also outside the cell
    positions = spread * (rng.uniform(size=(draw(st.integers(1, 5)), 3)) - 0.3) @ box
    return positions, cell, pbc, draw(st.sampled_from([1.13, 2.59, 4.17]))


def assert_exact(positions, cell, pbc, cutoff):
    src, dst, image = neighbor_list(positions, cell, pbc, cutoff)
    expected, _ = brute_force_edges(positions, cell, pbc, cutoff)
    # Equal rows in equal order: sorted by centre, then source, then image.
    np.testing.assert_array_equal(np.column_stack([src, dst, image]), expected)
    assert {a.dtype for a in (src, dst, image)} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(edge_rows(dst, src, -image), expected)
    return expected


@given(structures())
@settings(max_examples=150, derandomize=True, deadline=None, database=None)
def test_equals_brute_force_and_is_symmetric(structure):
    assert_exact(*structure)


@pytest.mark.parametrize("pbc", list(np.ndindex(2, 2, 2)))
def test_every_kind_of_periodicity(pbc):
    cell = np.array([[2.6, 0.2, -0.1], [1.4, 2.8, 0.3], [-1.0, 0.9, 3.9]])
    positions = np.random.default_rng(4).uniform(-1, 2, (4, 3)) @ cell
    pbc = np.array(pbc, bool)
    found = assert_exact(positions, cell, pbc, 4.2)
    self_images = found[found[:, 0] == found[:, 1]]
    assert len(self_images) > 0 or not pbc.any()
    assert (found[:, 2:][:, ~pbc] == 0).all()


@pytest.mark.parametrize("length", [1e3, 1e5, 1e6])
def test_huge_vacuum(length):
    positions = np.array([[0.0, 0, 0], [1.0, 1, 0], [0, 0, length - 1.0]])
    assert len(assert_exact(positions, np.diag([3.0, 3.2, length]), PERIODIC, 3.5)) > 10


def test_one_atom_and_Atoms():
    one = np.zeros((1, 3))
    assert len(assert_exact(one, 2.0 * np.eye(3), PERIODIC, 2.1)) == 6
    for cell, pbc in ((np.zeros((3, 3)), OPEN), (9.0 * np.eye(3), PERIODIC)):
        assert len(assert_exact(one, cell, pbc, 2.1)) == 0
        src, dst, image = neighbor_list(one[:0], cell, pbc, 2.1)
        assert (src.shape, dst.shape, image.shape) == ((0,), (0,), (0, 3))
        assert len(from_atoms(Atoms(cell=cell, pbc=pbc), 2.1).numbers) == 0


@given(structures())
@settings(max_examples=50, derandomize=True, deadline=None, database=None)
def test_wrapping_keeps_edge_vectors(structure):
    positions, cell, pbc, cutoff = structure
    wrapped = wrap(positions, cell, pbc)
    fractional = wrapped @ np.linalg.inv(complete_cell(cell, pbc))
    assert (fractional[:, pbc] > -1e-9).all()
    assert (fractional[:, pbc] < 1 + 1e-9).all()
    assert np.abs(fractional[:, ~pbc].mean(0)).max(initial=0) < 1e-9
    found = []
    for x in (positions, wrapped):
        src, dst, image = neighbor_list(x, cell, pbc, cutoff)
        vectors = x[src] + image @ cell - x[dst]
        rows = np.column_stack([dst, src, np.round(vectors, 7) + 0.0])
        found.append(np.column_stack([dst, src, vectors])[np.lexsort(rows.T[::-1])])
    np.testing.assert_allclose(found[0], found[1], atol=1e-10)


@pytest.mark.parametrize("structure", [molecule, crystal, slab])
def test_float32_vectors_keep_their_digits_far_from_the_origin(structure):
    far = structure()
    far.positions += [2e5, -3e5, 1e5]
    graph = from_atoms(far, 3.5)
    strain, single = np.zeros((1, 3, 3)), graph.replace(cell=graph.cell.astype(np.float32))
    exact = edge_vectors(graph, graph.positions, strain, 3.5)
    coarse = edge_vectors(single, graph.positions.astype(np.float32), strain.astype(np.float32), 3.5)
    assert len(exact) > 10
    assert np.linalg.norm(exact, axis=1).max() <= 3.5
    assert np.abs(np.asarray(exact) - np.asarray(coarse)).max() < 2e-6


def test_graph_carries_what_the_atoms_say():
    graph = from_atoms(slab(), 3.5, dataset=3)
    assert graph.numbers.tolist() == [12, 8, 8, 12]
    assert graph.pbc.tolist() == [[True, True, False]]
    assert (graph.charge[0], graph.spin[0], graph.dataset[0]) == (0, 0, 3)
    assert (graph.cell[0] == slab().cell.array).all()
    ion = from_atoms(molecule(), 3.5)
    assert (ion.charge[0], ion.spin[0]) == (-1, 2)
    assert (np.diff(graph.dst) >= 0).all()
    assert graph.atom_mask.all()
    assert graph.edge_mask.all()


def test_periodic_direction_without_vector_is_refused():
    with pytest.raises(StructureError, match="no cell vector"):
        neighbor_list(np.zeros((1, 3)), np.diag([3.0, 3.0, 0.0]), PERIODIC, 2.0)


def test_flat_cell_is_refused():
    with pytest.raises(StructureError, match="one plane"):
        neighbor_list(np.zeros((1, 3)), np.array([[1.0, 0, 0], [0, 1, 0], [1, 1, 0]]), PERIODIC, 2.0)


@pytest.mark.parametrize("image", [[0, 0, 0], [0, 1, 0]])
def test_coincident_atoms_are_refused(image):
    positions = np.array([[0.5, 0.1, 0.2], [2.5, 2.0, 2.0], [0.5, 0.1, 0.20005]]) + np.outer([0, 0, 1], image) * 3.0
    with pytest.raises(StructureError, match=r"atoms (0 and 2|2 and 0) coincide"):
        neighbor_list(positions, 3.0 * np.eye(3), PERIODIC, 2.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_input_is_refused(value):
    atoms = molecule()
    atoms.positions[1, 2] = value
    with pytest.raises(StructureError, match="not finite"):
        from_atoms(atoms, 3.5)
    with pytest.raises(StructureError, match="not finite"):
        neighbor_list(atoms.positions, np.eye(3), OPEN, 3.5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_cell_is_refused(value):
    cell = 5 * np.eye(3)
    cell[0, 0] = value
    with pytest.raises(StructureError, match="not finite"):
        neighbor_list(molecule().positions, cell, PERIODIC, 3.5)
    with pytest.raises(StructureError):
        from_atoms(Atoms("O", cell=cell, pbc=True), 3.5)
