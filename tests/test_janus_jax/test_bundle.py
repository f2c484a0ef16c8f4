"""The model file: everything comes back, and what is not one is named."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule
from flax import nnx

from janus_jax import bundle
from janus_jax.data.batching import pad
from janus_jax.data.neighbors import from_atoms
from janus_jax.errors import ModelFileError
from janus_jax.graph import Capacity
from janus_jax.models import convert
from janus_jax.models.esen import Esen, EsenConfig
from janus_jax.prediction import predict

pytestmark = pytest.mark.core

FIXTURES = Path(__file__).parents[1] / "fixtures"
CONFIG = EsenConfig(num_layers=1, channels=4, hidden_channels=4, edge_channels=4, num_basis=4, charge_spin="sinusoidal")


@pytest.fixture
def model():
    return Esen(CONFIG, rngs=nnx.Rngs(3), scale=1.5, references=((1, -13.25), (8, -430.125)))


def test_round_trip(model, tmp_path):
    bundle.save(tmp_path / bundle.MODEL_FILE, model, {"note": "å"})
    loaded = bundle.load(tmp_path)  # a run folder
    assert (loaded.config, loaded.scale, loaded.references) == (model.config, model.scale, model.references)
    stored, original = convert.save_state(loaded), convert.save_state(model)
    assert stored.keys() == original.keys()
    assert "charge_embedding.W" in stored
    for name, array in original.items():
        np.testing.assert_array_equal(stored[name], array)
        assert stored[name].dtype == array.dtype == np.float32
    assert bundle.load(tmp_path, np.float64).dtype == np.float64
    header = bundle.describe(tmp_path / bundle.MODEL_FILE)
    assert header["summary"] == {"note": "å"}
    assert header["references_eV"] == {"1": -13.25, "8": -430.125}
    assert nnx.split(loaded)[0] == nnx.split(model)[0]  # same programs are reused


def test_what_is_not_a_model_file_is_named(model, tmp_path):
    with pytest.raises(ModelFileError, match="nowhere: no such file"):
        bundle.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="no model.janus in this folder"):
        bundle.load(tmp_path)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ModelFileError, match="text: not a janus-jax model file"):
        bundle.load(tmp_path / "text")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ModelFileError, match="other.npz: not a janus-jax model file"):
        bundle.load(tmp_path / "other.npz")


def test_a_damaged_file_and_one_of_the_future_are_refused(model, tmp_path):
    path = tmp_path / "m.janus"
    bundle.save(path, model)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match="damaged"):
        bundle.load(path)
    header = {"format": bundle.FORMAT + 1, "model": {"name": "esen"}}
    with open(path, "wb") as file:
        np.savez(file, **{bundle.HEADER: np.array(json.dumps(header))})
    with pytest.raises(ModelFileError, match="newer version"):
        bundle.load(path)


@pytest.mark.parametrize("version", range(1, bundle.FORMAT + 1))
def test_a_model_file_of_every_format_loads_without_its_training_configuration(version, tmp_path):
    with tarfile.open(FIXTURES / f"run_format{version}.tar.gz") as archive:
        archive.extract("run/model.janus", tmp_path, filter="data")
    path = tmp_path / "run" / "model.janus"
    with np.load(path) as archive:
        assert json.loads(str(archive[bundle.HEADER]))["format"] == version
    header = bundle.describe(path)
    assert (header["format"], header["elements"], header["cutoff_angstrom"]) == (bundle.FORMAT, ["H", "O"], 3.0)
    result = predict(bundle.load(path), pad([from_atoms(molecule("H2O"), 3.0)], Capacity(4, 8, 1)))
    assert np.isfinite(result.energy[0])
    assert header["summary"]["test"]["structures"] == 3


def test_migrations_are_complete():
    assert set(bundle.MIGRATIONS) == set(range(1, bundle.FORMAT))


def test_float64_weights_are_not_cut_to_float32_in_silence(model, tmp_path):
    bundle.save(tmp_path / "d.janus", convert.cast(model, np.float64))
    assert bundle.describe(tmp_path / "d.janus")["precision"] == "float64"
    code = f"from janus_jax import load; load({str(tmp_path / 'd.janus')!r})"
    off = {**os.environ, "JAX_ENABLE_X64": "0"}
    outcome = subprocess.run([sys.executable, "-c", code], env=off, capture_output=True, text=True)
    assert "float64 needs JAX's 64-bit mode" in outcome.stderr
    command = [sys.executable, "-m", "janus_jax.cli.main", "model", "export", str(tmp_path / "d.janus")]
    subprocess.run([*command, str(tmp_path / "e.janus")], env=off, check=True, capture_output=True)
    stored = convert.save_state(bundle.load(tmp_path / "e.janus"))
    for name, array in convert.save_state(convert.cast(model, np.float64)).items():
        np.testing.assert_array_equal(stored[name], array)
