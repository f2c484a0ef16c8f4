"""Unusual structures: no neighbours, tiny, thin, partly periodic and left-handed cells, special directions."""

import jax
import numpy as np
import pytest
from ase import Atoms

from janus_jax.data.batching import to_device
from janus_jax.data.neighbors import from_atoms
from janus_jax.testing import (
    crystal,
    evaluate,
    molecule,
    padded,
    predict,
    random_rotation,
    rel_error,
    rotated,
    slab,
    variant,
    weighted_gradient,
)


def run(*atoms: Atoms):
    return evaluate(variant("gate"), *atoms)


def finite(tree) -> bool:
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def gradient_is_finite(*atoms: Atoms) -> bool:
    """Parameter gradients of everything predicted, second derivatives included."""
    graph = padded(*atoms)
    weights = jax.tree.map(np.ones_like, predict(variant("gate"), graph))
    return finite(weighted_gradient(variant("gate"), graph, weights))


def test_isolated_atoms_do_not_interact():
    one, two = Atoms("O"), Atoms("OO", [[0, 0, 0], [0, 0, 50.0]])
    out = run(one, two)
    assert finite(out)
    assert out.energy[0] != 0
    assert out.energy[1] == pytest.approx(2 * out.energy[0], rel=1e-13)
    assert (out.forces == 0).all()
    assert (out.virial == 0).all()
    assert (out.stress == 0).all()


def test_graph_without_edges_and_without_padding():
    out = predict(variant("gate"), to_device(from_atoms(Atoms("O"), 3.5)))
    assert rel_error(out.energy, run(Atoms("O")).energy) < 1e-13
    assert rel_error(out.forces, np.zeros((1, 3))) == 0


def test_structure_without_atoms():
    out = run(Atoms(cell=np.eye(3) * 5, pbc=True), Atoms("O"))
    assert out.energy[0] == 0
    assert rel_error(out.energy[1], run(Atoms("O")).energy[0]) < 1e-13


def test_one_atom_in_a_cell_smaller_than_the_cutoff():
    atoms = Atoms("Fe", cell=[[2.3, 0.1, 0.0], [0.4, 2.5, -0.2], [0.7, 0.2, 2.6]], pbc=True)
    out, large = run(atoms), run(atoms.repeat((2, 2, 1)))
    assert rel_error(out.forces, np.zeros((1, 3))) < 1e-12
    assert rel_error(large.energy, 4 * out.energy) < 1e-12
    assert rel_error(large.stress, out.stress) < 1e-11


def test_cell_much_thinner_than_the_cutoff():
    atoms = Atoms(
        "SiO", [[0.2, 0.1, 0.3], [0.9, 1.8, 2.4]], cell=[[1.1, 0, 0.1], [0.3, 4.0, 0], [0, 0.5, 4.4]], pbc=True
    )
    assert np.abs(from_atoms(atoms, 3.5).image[:, 0]).max() == 3
    out, large = run(atoms), run(atoms.repeat((3, 1, 1)))
    assert rel_error(large.energy, 3 * out.energy) < 1e-12
    assert rel_error(large.forces, np.tile(out.forces, (3, 1))) < 1e-11
    assert rel_error(large.stress, out.stress) < 1e-11


@pytest.mark.parametrize(
    "periodic", [(True, True, False), (False, True, False), (False, False, True), (False, False, False)]
)
def test_open_directions_equal_a_vacuum_and_need_no_cell_vector(periodic):
    cell, positions = np.diag([3.0, 3.3, 2.9]), [[0.1, 0.2, 0.3], [1.6, 1.9, 1.4]]
    bare, vacuum = (
        np.where(np.array(periodic)[:, None], cell, 0),
        np.where(np.array(periodic)[:, None], cell, 40 * np.eye(3)),
    )
    given = [Atoms("MgO", positions, cell=c, pbc=p) for c, p in ((bare, periodic), (vacuum, True))]
    out, expected = run(given[0]), run(given[1])
    assert rel_error(out.energy, expected.energy) < 1e-12
    assert rel_error(out.forces, expected.forces) < 1e-11
    assert rel_error(out.virial, expected.virial) < 1e-11
    assert rel_error(out.stress, np.zeros((1, 3, 3))) == 0  # no volume


@pytest.mark.parametrize("structure", [crystal, slab])
def test_left_handed_cell_equals_its_right_handed_twin(structure):
    left = structure()
    left.cell, left.pbc = left.cell.array[[1, 0, 2]], left.pbc[[1, 0, 2]]
    assert np.linalg.det(left.cell.array) < 0 < np.linalg.det(structure().cell.array)
    out, expected = run(left), run(structure())
    for field in ("energy", "forces", "virial", "stress"):
        assert rel_error(getattr(out, field), getattr(expected, field)) < 1e-11, field


@pytest.mark.parametrize("structure", [crystal, slab])
def test_unwrapped_coordinates_equal_wrapped_ones(structure):
    loose = structure()
    cells = np.random.default_rng(0).integers(-5, 6, (len(loose), 3)) * loose.pbc
    loose.positions += cells @ loose.cell.array
    out, expected = run(loose), run(structure())
    for field in ("energy", "forces", "virial", "stress"):
        assert rel_error(getattr(out, field), getattr(expected, field)) < 1e-10, field


def test_edges_exactly_along_the_polar_axis():
    """Edges along +y and -y (and, turned, in the plane y = 0 where the charts of the frame meet)."""
    along_y = Atoms("OSiO", [[0, -1.5, 0], [0, 0, 0], [0, 1.7, 0]])
    vectors = np.diff(from_atoms(along_y, 3.5).positions, axis=0)
    assert (vectors[:, [0, 2]] == 0).all()
    quarter, generic = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]]), random_rotation(3)
    out = run(along_y)
    turned = [run(rotated(along_y, r)) for r in (quarter, generic)]
    assert np.abs(out.forces[:, 1]).min() > 1e-3
    for r, other in zip((quarter, generic), turned, strict=True):
        assert rel_error(other.energy, out.energy) < 1e-12
        assert rel_error(other.forces, out.forces @ r.T) < 1e-11
        assert rel_error(other.virial, r @ out.virial @ r.T) < 1e-11
    assert gradient_is_finite(along_y, rotated(along_y, quarter))


def test_two_atoms_almost_on_top_of_each_other():
    close = Atoms("SiO", [[0, 0, 0], [0, 6e-4, 8e-4]])
    out = run(close)
    assert finite(out)
    assert np.abs(out.forces).max() > 0
    assert gradient_is_finite(close)


def test_gradients_with_isolated_atoms_and_padding_are_finite():
    assert gradient_is_finite(Atoms("O"))
    assert gradient_is_finite(molecule(), Atoms("O"))
