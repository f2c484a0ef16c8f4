"""The ASE calculator: results, skin, growth, errors."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from flax import nnx

from janus_jax import bundle
from janus_jax.calculator import JanusCalculator
from janus_jax.errors import StructureError, UnknownElementError
from janus_jax.models import convert
from janus_jax.models.esen import Esen, EsenConfig

CONFIG = EsenConfig(cutoff_angstrom=4.0, num_layers=1, channels=8, hidden_channels=8, edge_channels=8, num_basis=6)
REFERENCES = ((1, -3.0), (8, -7.0), (11, -2.0), (17, -4.0))


@pytest.fixture(scope="module")
def model():
    return convert.cast(Esen(CONFIG, rngs=nnx.Rngs(0), references=REFERENCES), np.float64)


def salt():
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    atoms.rattle(0.1, seed=1)
    return atoms


def results(model, atoms, **options):
    fresh = atoms.copy()
    fresh.calc = JanusCalculator(model, **options)
    return fresh.get_potential_energy(), fresh.get_forces(), fresh.get_stress()


def test_energies_include_references_and_derivatives_are_of_the_energy(model):
    atoms = salt()
    atoms.calc = JanusCalculator(model)
    assert atoms.get_potential_energy() == atoms.get_potential_energy(force_consistent=True)
    bare = convert.load_state(Esen(CONFIG, rngs=nnx.Rngs(0)), convert.save_state(model))
    np.testing.assert_allclose(atoms.get_potential_energy() - results(bare, atoms)[0], 4 * (-2.0 - 4.0), rtol=1e-12)
    step, moved = 1e-4, atoms.copy()
    energies = []
    for sign in (1, -1):
        moved.positions = atoms.positions.copy()
        moved.positions[3, 1] += sign * step
        energies.append(results(model, moved)[0])
    np.testing.assert_allclose(atoms.get_forces()[3, 1], -(energies[0] - energies[1]) / (2 * step), atol=1e-7)
    energies = []
    for sign in (1, -1):
        moved = atoms.copy()
        strain = np.eye(3)
        strain[0, 1] = strain[1, 0] = sign * step / 2
        moved.set_cell(atoms.cell.array @ strain, scale_atoms=True)
        energies.append(results(model, moved)[0])
    derivative = (energies[0] - energies[1]) / (2 * step) / atoms.get_volume()
    np.testing.assert_allclose(atoms.get_stress()[5], derivative, atol=1e-7)  # Voigt xy


@pytest.mark.parametrize("deform", [False, True])
def test_a_kept_list_gives_what_a_fresh_one_does(model, deform):
    """A walk with drifting and jumping atoms, wrapped at times, and a changing cell."""
    rng = np.random.default_rng(0)
    atoms = salt()
    atoms.calc = JanusCalculator(model, skin=0.6)
    for step in range(25):
        atoms.positions += 0.03 * rng.normal(size=atoms.positions.shape) + [0.05, 0, 0]
        if step % 10 == 9:
            atoms.wrap()
        if deform:
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + 0.004 * rng.normal(size=(3, 3))), scale_atoms=True)
        energy, forces, stress = results(model, atoms)
        np.testing.assert_allclose(atoms.get_potential_energy(), energy, rtol=1e-11)
        np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-10)
        np.testing.assert_allclose(atoms.get_stress(), stress, atol=1e-11)
    assert 1 < atoms.calc.rebuilds < 25


def test_buffers_grow_instead_of_failing_and_few_sizes_are_compiled(model):
    atoms = bulk("NaCl", "rocksalt", a=7.5, cubic=True)
    atoms.rattle(0.05, seed=0)
    calculator = JanusCalculator(model)
    atoms.calc = calculator
    for a in np.linspace(7.5, 4.6, 12):
        atoms.set_cell([a] * 3, scale_atoms=True)
        np.testing.assert_allclose(atoms.get_potential_energy(), results(model, atoms)[0], rtol=1e-11)
    assert 2 <= len(calculator.compiled_capacities) <= 8


def test_another_structure_or_charge_is_not_mistaken_for_the_last_one(model):
    calculator = JanusCalculator(model)
    for atoms in (salt(), molecule("H2O"), salt()[[1, 0, 2, 3]], salt()):
        atoms.calc = calculator
        np.testing.assert_allclose(
            atoms.get_potential_energy(), JanusCalculator(model).get_potential_energy(atoms), rtol=1e-12
        )


def test_molecules_have_forces_but_no_stress(model):
    atoms = molecule("H2O")
    atoms.calc = JanusCalculator(model)
    assert np.abs(atoms.get_forces().sum(0)).max() < 1e-12
    with pytest.raises(PropertyNotImplementedError, match="three vectors"):
        atoms.get_stress()


def test_isolated_atom_and_empty_structure(model):
    atom = Atoms("O", [[100.0, -50.0, 3.0]])
    atom.calc = JanusCalculator(model)
    assert np.isfinite(atom.get_potential_energy())
    assert np.abs(atom.get_forces()).max() == 0
    nothing = Atoms()
    nothing.calc = JanusCalculator(model)
    assert nothing.get_potential_energy() == 0
    assert nothing.get_forces().shape == (0, 3)


def test_unknown_elements_and_impossible_structures_are_refused_by_name(model):
    gold = Atoms("AuO", [[0, 0, 0], [0, 0, 2]])
    gold.calc = JanusCalculator(model)
    with pytest.raises(UnknownElementError, match="does not know Au; it knows H, O, Na, Cl"):
        gold.get_potential_energy()
    twice = Atoms("OO", [[0, 0, 0], [0, 0, 0]])
    twice.calc = JanusCalculator(model)
    with pytest.raises(StructureError, match="atoms 0 and 1 coincide"):
        twice.get_potential_energy()
    lost = Atoms("OO", [[0, 0, 0], [0, 0, np.nan]])
    lost.calc = JanusCalculator(model)
    with pytest.raises(StructureError, match="finite"):
        lost.get_potential_energy()


def test_loads_model_files(model, tmp_path):
    bundle.save(tmp_path / "m.janus", model)
    np.testing.assert_allclose(results(tmp_path / "m.janus", salt())[0], results(model, salt())[0], rtol=1e-14)
