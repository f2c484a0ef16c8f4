"""Symmetries of the energy: rotation, translation, permutation, repetition, batching; and its cutoff."""

import numpy as np
import pytest
from ase import Atoms

from janus_jax.data.batching import need, to_device
from janus_jax.data.neighbors import from_atoms
from janus_jax.testing import (
    CAPACITY,
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
)

CUTOFF = 3.5
STRUCTURES = [molecule, crystal, slab]


def all_three() -> list[Atoms]:
    return [structure() for structure in STRUCTURES]


def assert_close(out, expected, tolerance=1e-10):
    for name in ("energy", "forces", "virial", "stress"):
        assert rel_error(getattr(out, name), getattr(expected, name)) < tolerance, name


def assert_turned(out, before, rotation):
    assert rel_error(out.energy, before.energy) < 1e-10
    assert rel_error(out.forces, before.forces @ rotation.T) < 1e-10
    assert rel_error(out.stress, rotation @ before.stress @ rotation.T) < 1e-10
    assert rel_error(out.virial, rotation @ before.virial @ rotation.T) < 1e-10


@pytest.mark.parametrize("name", ["gate", "lmax1", "lmax3_mmax1", "lmax4_mmax2"])
def test_rotation(name):
    model, rotation = variant(name), random_rotation(5)
    assert np.linalg.det(rotation) > 0
    before = evaluate(model, *all_three())
    assert_turned(evaluate(model, *[rotated(a, rotation) for a in all_three()]), before, rotation)


def test_rotation_of_grid_activations_about_y_by_a_step_of_the_grid():
    """The only rotations a grid on the sphere maps to itself; lmax = mmax = 2 has 7 longitudes."""
    angle = 2 * np.pi / 7
    c, s = np.cos(angle), np.sin(angle)
    rotation = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
    model = variant("s2")
    assert_turned(
        evaluate(model, *[rotated(a, rotation) for a in all_three()]), evaluate(model, *all_three()), rotation
    )


@pytest.mark.parametrize("name", ["gate", "s2"])
def test_translation_by_a_large_vector(name):
    moved = all_three()
    for atoms in moved:
        atoms.positions += [1234.5, -777.7, 4321.0]
    assert_close(evaluate(variant(name), *moved), evaluate(variant(name), *all_three()), 1e-9)


@pytest.mark.parametrize("name", ["gate", "s2"])
def test_permutation(name):
    order = [4, 2, 0, 5, 1, 3]
    out, before = evaluate(variant(name), molecule()[order]), evaluate(variant(name), molecule())
    assert rel_error(out.energy, before.energy) < 1e-12
    assert rel_error(out.forces, before.forces[order]) < 1e-10
    assert rel_error(out.virial, before.virial) < 1e-10


@pytest.mark.parametrize("name", ["gate", "s2"])
def test_supercell(name):
    large = crystal().repeat((2, 2, 2))
    assert len(large) == CAPACITY.atoms  # the padded edges hang on a real atom
    out, single = evaluate(variant(name), large), evaluate(variant(name), crystal())
    assert rel_error(out.energy, 8 * single.energy) < 1e-11
    assert rel_error(out.forces, np.tile(single.forces, (8, 1))) < 1e-10
    assert rel_error(out.stress, single.stress) < 1e-10


@pytest.mark.parametrize("name", ["gate", "s2"])
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_a_batch_equals_single_structures(name, order):
    batch = [STRUCTURES[k]() for k in order]
    out, singles = evaluate(variant(name), *batch), [evaluate(variant(name), a) for a in batch]
    for field in ("energy", "forces", "virial", "stress"):
        parts = [getattr(s, field) for s in singles]
        assert rel_error(getattr(out, field), np.concatenate(parts)) < 1e-11, field


def test_padding_changes_nothing():
    graph = to_device(from_atoms(slab(), CUTOFF))
    assert_close(evaluate(variant("gate"), slab()), predict(variant("gate"), graph), 1e-12)


@pytest.mark.parametrize("name", ["gate", "s2"])
def test_edges_beyond_the_cutoff_contribute_nothing(name):
    """A list made for cutoff and skin gives what the list made for the cutoff gives."""
    graph, wider = padded(molecule(), slab()), padded(molecule(), slab(), cutoff=CUTOFF + 0.9)
    assert need(wider).edges > need(graph).edges + 20
    assert_close(predict(variant(name), wider), predict(variant(name), graph), 1e-12)


def test_charge_spin_dataset_and_elements_matter():
    energies = []
    for changes in ({}, {"charge": 0}, {"spin": 0}, {"dataset": 0}):
        atoms = molecule()
        atoms.info |= changes
        energies.append(evaluate(variant("gate"), atoms).energy[0])
    swapped = molecule()
    swapped.numbers = swapped.numbers[::-1]
    energies.append(evaluate(variant("gate"), swapped).energy[0])
    assert len(np.unique(np.round(energies, 6))) == 5


@pytest.mark.parametrize("name", ["gate", "s2"])
def test_interaction_fades_with_the_third_power_at_the_cutoff(name):
    """The envelope is 35 t^3 + ... in t = 1 - r / cutoff: half of t, 1/8 of the energy, 1/4 of the force."""
    direction = np.array([0.36, 0.48, 0.8])
    far, near, nearer = [
        Atoms("SiO", [np.zeros(3), r * direction]) for r in (CUTOFF + 1e-9, CUTOFF - 0.01, CUTOFF - 0.005)
    ]
    out = evaluate(variant(name), far, near, nearer)
    assert (out.forces[:2] == 0).all()
    interaction = out.energy[1:] - out.energy[0]
    assert abs(interaction[0]) > 1e-8
    assert interaction[0] / interaction[1] == pytest.approx(8, rel=0.02)
    strength = np.abs(out.forces).max(1)
    assert strength[2] / strength[4] == pytest.approx(4, rel=0.02)
    assert rel_error(out.forces[[2, 4]], -out.forces[[3, 5]]) < 1e-10
