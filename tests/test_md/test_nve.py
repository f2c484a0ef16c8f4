"""Constant-energy dynamics and its drift."""

import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT

from md import nve


def test_velocity_verlet_keeps_the_energy_and_reports_it(tmp_path):
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.05, seed=0)
    dynamics = nve.run(atoms, EMT(), temperature_kelvin=300.0, timestep_fs=1.0, steps=40)
    assert len(dynamics.time_fs) == len(dynamics.potential) == 41
    assert dynamics.time_fs[-1] == 40
    total = dynamics.potential + dynamics.kinetic
    assert np.ptp(total) < 0.05 * np.ptp(dynamics.potential)
    figures = dynamics.figures()
    assert figures["atoms"] == 4
    assert figures["picoseconds"] == 0.04
    nve.plot(dynamics, tmp_path / "plots" / "nve.png")
    assert (tmp_path / "plots" / "nve.png").stat().st_size > 5000


def test_drift_is_the_slope_per_atom_and_picosecond():
    time = np.linspace(0, 500, 51)
    dynamics = nve.Dynamics(2, time, 0.003 * time / 500, np.full(51, 0.1), 1.0)
    np.testing.assert_allclose(dynamics.drift(), 3.0 / 0.5 / 2)
