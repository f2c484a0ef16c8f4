"""Labels from tblite, and the sampler of the built-in set."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from janus_jax.data import sampling, xtb
from janus_jax.errors import UnknownNameError


def test_labels_are_in_our_units_and_signs():
    atoms = Atoms("OH2", molecule("H2O").positions, cell=[4, 4.1, 4.2], pbc=True)
    labelled = xtb.label(atoms, "gfn1-xtb")
    step = 1e-3

    def energy(change):
        moved = atoms.copy()
        change(moved)
        return xtb.label(moved, "gfn1-xtb").get_potential_energy()

    def move(sign):
        def change(a):
            a.positions[1, 1] += sign * step

        return change

    def strain(sign):
        def change(a):
            matrix = np.eye(3)
            matrix[2, 2] += sign * step
            a.set_cell(a.cell.array @ matrix, scale_atoms=True)

        return change

    slope = (energy(move(1)) - energy(move(-1))) / (2 * step)
    np.testing.assert_allclose(labelled.get_forces()[1, 1], -slope, atol=1e-3)
    slope = (energy(strain(1)) - energy(strain(-1))) / (2 * step) / atoms.get_volume()
    np.testing.assert_allclose(labelled.get_stress()[2], slope, atol=1e-4)
    assert -170 < labelled.get_potential_energy() < -100


def test_molecules_get_no_stress_and_charges_count():
    water = molecule("H2O")
    assert "stress" not in xtb.label(water, "gfn2-xtb").calc.results
    water.info["charge"] = 1
    water.info["spin"] = 2
    assert (
        xtb.label(water, "gfn2-xtb").get_potential_energy()
        > xtb.label(molecule("H2O"), "gfn2-xtb").get_potential_energy() + 5
    )


def test_built_in_references_are_those_of_the_method():
    from janus_jax.data.sources import builtin

    stored = builtin.isolated_atom_energies("water")
    assert xtb.isolated_atom_energies(["O", "H"], "gfn2-xtb") == pytest.approx(stored, abs=1e-6)


def test_unknown_methods_are_named():
    with pytest.raises(UnknownNameError, match="'gfn3-xtb'; allowed: gfn1-xtb, gfn2-xtb"):
        xtb.calculator("gfn3-xtb")


def test_sampler_gives_labelled_frames_of_the_asked_density_and_is_reproducible():
    config = sampling.SamplingConfig(
        method="gfn1-xtb", equilibration_steps=2, steps_per_frame=1, inner_steps=1, frames_per_run=2,
        runs=[{"molecules": 2, "density_g_cm3": 0.9, "temperature_kelvin": 300}],
    )  # fmt: skip
    frames = sampling.sample_run(config, 0)
    assert len(frames) == 2
    assert frames[0].info["trajectory"] == 0
    grams = frames[0].get_masses().sum() / 6.02214076e23
    np.testing.assert_allclose(grams / (frames[0].get_volume() * 1e-24), 0.9, rtol=1e-6)
    fresh = xtb.label(frames[1], "gfn1-xtb")
    np.testing.assert_allclose(frames[1].get_forces(), fresh.get_forces(), atol=1e-3)
    again = sampling.sample_run(config, 0)[1].positions  # tblite sums in threads: equal to rounding
    np.testing.assert_allclose(again, frames[1].positions, atol=1e-8)
    assert np.abs(frames[1].positions - frames[0].positions).max() > 1e-3
