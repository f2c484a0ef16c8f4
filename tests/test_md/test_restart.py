"""Runs that are stopped or lost go on as if nothing had happened: the same bits, the same files."""

import os
import shutil
import signal

import h5py
import numpy as np
import pytest
from ase.build import bulk

from janus_jax.errors import CheckpointError, ConfigError, DynamicsError
from janus_jax.train.interruption import Interruption
from md.ensembles import EnsembleConfig
from md.simulation import Simulation
from md.testing import ARGON, LennardJones

OPTIONS = {
    "skin_angstrom": 0.4, "interval": 7, "repartition": 40, "thermo": 3, "frames": 9, "sample": 9,
    "formats": ("extxyz", "h5md"),
}  # fmt: skip
STEPS = 75


def model() -> LennardJones:
    return LennardJones(**ARGON, cutoff=6.5)


@pytest.fixture
def argon():
    return bulk("Ar", "fcc", a=5.3, cubic=True) * (3, 3, 3)


EVERY = os.environ.get("JANUS_JAX_EVERY") == "1"


@pytest.mark.parametrize("name", ["langevin", "npt", "nvt", "nve"] if EVERY else ["npt"])
def test_a_run_stopped_by_a_signal_goes_on_bit_for_bit(argon, tmp_path, name):
    config = EnsembleConfig(name=name, temperature_kelvin=150.0, timestep_fs=2.0)
    whole = Simulation(model(), argon, config, folder=tmp_path / "whole", devices=4, **OPTIONS)
    whole.run(STEPS)
    at = int(np.random.default_rng().integers(3, STEPS - 6))
    first = Simulation(model(), argon, config, folder=tmp_path / "parts", devices=4, **OPTIONS)
    with Interruption() as interruption:

        def send(reading):
            if reading.step >= at:
                os.kill(os.getpid(), signal.SIGTERM)

        assert first.run(STEPS, send, interruption.reason) == "SIGTERM"
    again = Simulation(model(), None, config, folder=tmp_path / "parts", resume=True, devices=4, **OPTIONS)
    assert again.engine.step == first.engine.step < STEPS, at
    again.run(STEPS - again.engine.step)
    for values in ("positions", "momenta", "forces"):
        np.testing.assert_array_equal(getattr(again.engine, values)(), getattr(whole.engine, values)())
    for file in ("thermo.csv", "trajectory.extxyz"):
        assert (tmp_path / "parts" / file).read_text() == (tmp_path / "whole" / file).read_text()
    with (
        h5py.File(tmp_path / "parts" / "trajectory.h5md") as mine,
        h5py.File(tmp_path / "whole" / "trajectory.h5md") as other,
    ):
        for path in ("position", "velocity", "box/edges"):
            np.testing.assert_array_equal(
                mine["particles/atoms"][path]["value"][:], other["particles/atoms"][path]["value"][:]
            )
        np.testing.assert_array_equal(mine["particles/atoms/position/step"], np.arange(0, STEPS, 9))
    np.testing.assert_array_equal(again.sampler.pairs, whole.sampler.pairs)
    assert again.engine.rebuilds == whole.engine.rebuilds


def test_what_was_written_after_the_last_checkpoint_is_made_again_on_other_devices(argon, tmp_path):
    config = EnsembleConfig(name="nvt", temperature_kelvin=150.0, timestep_fs=2.0)
    whole = Simulation(model(), argon, config, folder=tmp_path, devices=2, checkpoint=30, **OPTIONS)
    whole.run(STEPS)
    shutil.rmtree(tmp_path / "checkpoints" / str(STEPS))  # as if killed: the last one is that of step 60
    thermo = (tmp_path / "thermo.csv").read_text()
    again = Simulation(model(), None, config, folder=tmp_path, resume=True, devices=3, **OPTIONS)
    assert again.engine.step == 60
    assert again.engine.rebuilds["resumed"] == 1
    again.run(STEPS - 60)
    np.testing.assert_allclose(again.engine.positions(), whole.engine.positions(), atol=1e-11)
    rows = [[float(value) for value in line.split(",")] for line in (tmp_path / "thermo.csv").read_text().split()[1:]]
    before = [[float(value) for value in line.split(",")] for line in thermo.split()[1:]]
    np.testing.assert_allclose(rows, before, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(again.sampler.displacements, whole.sampler.displacements, rtol=1e-9, atol=1e-12)


def test_an_unreadable_checkpoint_is_moved_aside_and_made_again(argon, tmp_path):
    config = EnsembleConfig(timestep_fs=2.0)
    options = {"skin_angstrom": 0.8, "frames": 0, "checkpoint": 10}
    Simulation(model(), argon, config, folder=tmp_path, **options).run(20)
    for path in (tmp_path / "checkpoints" / "20").rglob("*"):
        if path.is_file():
            path.write_bytes(b"broken")
    again = Simulation(model(), None, config, folder=tmp_path, resume=True, **options)
    assert again.engine.step == 10
    assert (tmp_path / "checkpoints" / "20.unreadable").exists()
    assert [reading.step for reading in again.readings] == [0, 10]
    again.run(10)
    assert Simulation(model(), None, config, folder=tmp_path, resume=True, **options).engine.step == 20
    with pytest.raises(ConfigError, match="rdf_bins 7: the checkpoint has 6.5 and 100"):
        Simulation(model(), None, config, folder=tmp_path, resume=True, rdf_bins=7, **options)


def test_what_cannot_be_resumed_is_said(argon, tmp_path):
    config = EnsembleConfig(timestep_fs=2.0)
    with pytest.raises(CheckpointError, match="nothing to go on from"):
        Simulation(model(), argon, config, folder=tmp_path / "empty", resume=True)
    Simulation(model(), argon, config, folder=tmp_path / "run", skin_angstrom=0.8).run(10)
    (tmp_path / "run" / "thermo.csv").write_text("step\n")
    with pytest.raises(DynamicsError, match=r"has \d+ bytes, but the checkpoint was made after"):
        Simulation(model(), None, config, folder=tmp_path / "run", resume=True, skin_angstrom=0.8)
