"""Pair distributions and displacements against plain loops over all pairs; the same on any devices."""

import numpy as np
import pytest
from ase import Atoms
from ase.neighborlist import neighbor_list

from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.observables import Sampler
from md.testing import LennardJones


def mixture() -> Atoms:
    """Two kinds on a distorted lattice in a skewed cell."""
    grid = np.stack(np.meshgrid(*[np.arange(4)] * 3, indexing="ij"), -1).reshape(-1, 3)
    cell = np.array([[15.0, 0, 0], [2.0, 14.0, 0], [1.0, -2.0, 16.0]])
    atoms = Atoms([18] * 40 + [36] * 24, cell=cell, pbc=True)
    atoms.set_scaled_positions(grid / 4)
    atoms.rattle(0.3, seed=2)
    return atoms


@pytest.mark.parametrize(("reach", "devices"), [(None, 1), (None, 3), (7.3, 3)])
def test_pair_distributions_count_all_pairs(reach, devices):
    atoms = mixture()
    model = LennardJones(0.01, 3.2, cutoff=5.0, numbers=(18, 36))
    engine = Engine(model, atoms, EnsembleConfig(timestep_fs=1.0), devices=devices)
    sampler = Sampler(engine, atoms.numbers, reach, bins=25)
    sampler.sample()
    r = reach or 5.0
    first, second, distance = neighbor_list("ijd", atoms, r)
    expected = np.zeros((2, 2, 25), int)
    kind = (atoms.numbers == 36).astype(int)
    np.add.at(expected, (kind[first], kind[second], (distance / r * 25).astype(int)), 1)
    np.testing.assert_array_equal(sampler.pairs, expected)
    middles, g = sampler.distribution()
    assert middles[0] == pytest.approx(r / 50)
    shell = 4 / 3 * np.pi * (r**3 - (24 / 25 * r) ** 3)
    assert g[0, 1, -1] == pytest.approx(expected[0, 1, -1] * atoms.cell.volume / (40 * 24 * shell))
    assert g[1, 1, -1] == pytest.approx(expected[1, 1, -1] * atoms.cell.volume / (24 * 23 * shell))


def test_displacements_are_unwrapped_and_without_the_drift_of_the_whole():
    atoms = mixture()
    model = LennardJones(0.01, 3.2, cutoff=5.0, numbers=(18, 36))
    velocities = np.where((atoms.numbers == 36)[:, None], [0.05, 0, 0], [-0.02, 0.03, 0])
    atoms.set_velocities(velocities)
    config = EnsembleConfig(timestep_fs=2.0, still_center=0)
    engine = Engine(model, atoms, config, devices=3, repartition=20, interval=5)
    sampler = Sampler(engine, atoms.numbers)
    sampler.sample()
    for _ in range(5):
        engine.run(25)
        sampler.sample()
    assert np.abs(np.asarray(engine.turns)).max() >= 1  # some have crossed the cell
    moved = engine.positions() - atoms.positions
    mass = atoms.get_masses()
    moved -= (mass[:, None] * moved).sum(0) / mass.sum()
    square = (moved**2).sum(1)
    expected = [square[:40].mean(), square[40:].mean()]
    np.testing.assert_allclose(sampler.displacements[-1], [0.25, *expected], rtol=1e-9)
    assert max(sampler.displacements[0]) < 1e-25


def test_without_a_volume_there_is_no_distribution():
    atoms = mixture()
    atoms.pbc = False
    engine = Engine(LennardJones(0.01, 3.2, cutoff=5.0, numbers=(18, 36)), atoms, EnsembleConfig())
    sampler = Sampler(engine, atoms.numbers)
    sampler.sample()
    assert sampler.frames == 0
    assert np.isnan(sampler.distribution()[1]).all()
