"""Statistics of ensembles with stated errors, lists that change nothing, compilations."""

import jax
import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.constraints import FixAtoms

from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.testing import ARGON, LennardJones, ManyBody

MODEL = LennardJones(**ARGON, cutoff=6.5)


def argon(cells: int = 3):
    return bulk("Ar", "fcc", a=5.4, cubic=True) * (cells, cells, cells)


def error_of_mean(values: np.ndarray) -> float:
    """From means of ten blocks, so that correlated samples do not make it too small."""
    blocks = np.array([block.mean() for block in np.array_split(values, 10)])
    return float(blocks.std(ddof=1) / np.sqrt(10))


@pytest.mark.parametrize(("name", "fixed"), [("nvt", 0), ("langevin", 0), ("langevin", 20)])
def test_kinetic_energies_have_the_canonical_distribution(name, fixed):
    """Mean and spread of K over 10 ps; with fixed atoms the others still have kT/2 a degree of freedom."""
    kelvin, atoms = 120.0, argon()
    atoms.set_constraint(FixAtoms(range(fixed)))
    config = EnsembleConfig(
        name=name, temperature_kelvin=kelvin, timestep_fs=5.0, friction_per_ps=4.0, tau_fs=200.0
    )  # fmt: skip
    engine = Engine(MODEL, atoms, config, skin_angstrom=1.0, interval=30)
    engine.run(300)
    samples = []
    for _ in range(200):
        engine.run(10)
        samples.append(engine.read().kinetic_ev)
    kT, degrees = units.kB * kelvin, 3 * (len(atoms) - fixed) - (3 if name == "nvt" else 0)
    assert engine.degrees == degrees
    values = np.array(samples)
    assert abs(values.mean() - degrees * kT / 2) < 4 * max(error_of_mean(values), 0.002 * degrees * kT / 2)
    spread = values.std() / (np.sqrt(degrees / 2) * kT)  # its error: 1 / sqrt(2 * independent samples), about 50 here
    assert 0.6 < spread < 1.5


def test_lists_change_neither_pairs_nor_forces_over_200_steps():
    """Interval 1 against 10 on other devices, hot, with atoms crossing the cell: the same pairs at each step."""
    atoms = argon(2)
    model = ManyBody(4.5, **ARGON, cutoff=5.0)
    config = EnsembleConfig(temperature_kelvin=600.0, timestep_fs=2.0)
    every = Engine(model, atoms, config, interval=1, skin_angstrom=0.4, repartition=1000)
    kept = Engine(model, atoms, config, devices=3, cut="hilbert", interval=10, skin_angstrom=0.3, repartition=35)
    for step in range(200):
        every.run(1)
        kept.run(1)
        np.testing.assert_array_equal(kept.digest(), every.digest(), err_msg=f"step {step + 1}")
    assert np.abs(kept.forces() - every.forces()).max() < 1e-6
    assert np.abs(np.asarray(kept.turns)).max() >= 1
    assert every.rebuilds["interval"] == 200
    assert kept.rebuilds["displacement"] > 0
    assert kept.rebuilds["interval"] + kept.rebuilds["repartition"] > 5
    assert sum(kept.rebuilds.values()) < 100


def test_lists_with_a_skin_drift_no_more_than_lists_of_every_step():
    config = EnsembleConfig(temperature_kelvin=80.0, timestep_fs=4.0)
    drifts = []
    for interval in (1, 20):
        engine = Engine(MODEL, argon(), config, interval=interval, skin_angstrom=0.6)
        totals = [engine.read().conserved_ev]
        for _ in range(10):
            engine.run(20)
            totals.append(engine.read().conserved_ev)
        drifts.append(np.polyfit(np.arange(11) * 0.08, totals, 1)[0] / len(argon()))
    assert abs(drifts[0] - drifts[1]) < 1e-10  # eV/atom/ps
    assert abs(drifts[1]) < 1e-5


def test_nothing_compiles_after_the_first_epochs():
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: (
            compiled.append(event) if "backend_compile" in event or "cache_retrieval" in event else None
        )
    )
    engine = Engine(MODEL, argon(), EnsembleConfig(name="nvt", temperature_kelvin=90.0, timestep_fs=4.0), devices=4,
                    repartition=25, skin_angstrom=0.6)  # fmt: skip
    engine.run(20)  # two epochs; the first new cut is later
    engine.read()
    before, names = len(compiled), list(engine.build.compiled)
    assert before > 0
    engine.run(330)
    engine.read()
    if engine.build.compiled == names:  # else a named growth of capacities has made new variants
        assert len(compiled) == before
    assert len(engine.build.compiled) <= 6
    assert engine.rebuilds["repartition"] == 14
