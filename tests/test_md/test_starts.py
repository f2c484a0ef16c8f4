"""Starts that cannot be run name their atoms and leave no files; a start at rest."""

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk

from janus_jax.errors import DynamicsError
from janus_jax.lock import LOCK
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.simulation import Simulation
from md.testing import ARGON, LennardJones

MODEL = LennardJones(**ARGON, cutoff=6.5)


@pytest.fixture
def argon():
    atoms = bulk("Ar", "fcc", a=5.3, cubic=True) * (2, 1, 1)
    atoms.rattle(0.05, seed=3)
    return atoms


@pytest.mark.parametrize("name", ["nve", "minimize"])
def test_coincident_atoms_are_named_and_nothing_is_saved(argon, tmp_path, name):
    argon.positions[6] = argon.positions[1] - argon.cell.array[1]  # through the boundary
    with pytest.raises(DynamicsError, match=r"atoms (1 and 6|6 and 1) are \d\.\de[-+]\d+ Å apart"):
        Simulation(MODEL, argon, EnsembleConfig(name=name), folder=tmp_path / "run")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file() and path.name != LOCK]


def test_forces_that_are_not_numbers_at_the_start_are_said(argon):
    broken = LennardJones(np.nan, 3.4, cutoff=6.5)
    with pytest.raises(DynamicsError, match=r"not finite at the start: energy, virial, forces on 8 atoms \(0, 1, 2"):
        Engine(broken, argon)


def test_masses_and_momenta_that_cannot_be_are_named(argon):
    masses, momenta = argon.get_masses(), np.zeros((8, 3))
    masses[[2, 5]], momenta[4, 1] = (0.0, -1.0), np.nan
    argon.set_momenta(momenta)
    with pytest.raises(DynamicsError, match=r"momenta of 1 atoms \(4\) are not finite"):
        Engine(MODEL, argon)
    argon.set_masses(masses)
    with pytest.raises(DynamicsError, match=r"masses must be positive .*: 2 atoms \(2, 5\) have 0, -1"):
        Engine(MODEL, argon)
    flat = Atoms("Ar2", [[0, 0, 0], [0, 0, 3]], cell=[[9, 0, 0], [0, np.nan, 0], [0, 0, 9]], pbc=[True, False, True])
    with pytest.raises(DynamicsError, match="cell has numbers that are not finite"):
        Engine(MODEL, flat)


def test_no_temperature_is_a_start_at_rest(argon):
    engine = Engine(MODEL, argon, EnsembleConfig(temperature_kelvin=0.0))
    assert np.abs(engine.momenta()).max() == 0
    start = engine.read().potential_ev
    engine.run(20)
    now = engine.read()
    assert now.kinetic_ev > 1e-6
    assert now.potential_ev + now.kinetic_ev == pytest.approx(start, abs=1e-6)
    for name in ("nvt", "npt"):
        with pytest.raises(ValueError, match=f"the thermostat of {name} has none at 0 K; nve, langevin and minimize"):
            EnsembleConfig(name=name, temperature_kelvin=0.0)
