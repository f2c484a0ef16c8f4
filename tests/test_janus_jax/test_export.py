"""Models in other forms give the same numbers."""

import jax
import numpy as np
import pytest
from jax import export as jax_export

from janus_jax import bundle
from janus_jax.data.batching import pad
from janus_jax.data.neighbors import from_atoms
from janus_jax.data.sources import open_source
from janus_jax.errors import ConfigError, ModelFileError, UnknownNameError
from janus_jax.export import export
from janus_jax.graph import Capacity
from janus_jax.models import convert
from janus_jax.models.potential import energy_forces_stress
from janus_jax.testing import random_esen


@pytest.fixture
def stored(tmp_path):
    model = random_esen(dtype=np.float32, num_layers=1)
    bundle.save(tmp_path / "m.janus", model, {"note": 1}, "hash")
    return model, tmp_path / "m.janus"


def test_another_precision_and_plain_weights(stored, tmp_path):
    model, path = stored
    export(path, tmp_path / "new" / "d.janus", precision="float64")
    assert bundle.load(tmp_path / "new" / "d.janus").dtype == np.float64
    header = bundle.describe(tmp_path / "new" / "d.janus")
    assert (header["precision"], header["data_hash"], header["summary"]["note"]) == ("float64", "hash", 1)
    export(path, tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as archive:
        weights = convert.save_state(model)
        assert set(archive.files) == set(weights)
        for name in archive.files:
            np.testing.assert_array_equal(archive[name], weights[name])


def test_the_exported_program_equals_the_model(stored, tmp_path):
    model, path = stored
    capacity = Capacity(48, 3000, 1)
    export(path, tmp_path / "p.stablehlo", capacity=(capacity.atoms, capacity.edges))
    program = jax_export.deserialize(bytearray((tmp_path / "p.stablehlo").read_bytes()))
    graph = pad([from_atoms(open_source("water:test")[0], model.cutoff)], capacity, np.float32)
    names = [name for name in type(graph).__dataclass_fields__ if name not in ("targets", "own_edges")]
    arrays = {name: getattr(graph, name) for name in names}
    result, expected = program.call(arrays), jax.jit(energy_forces_stress)(model, graph)
    for name, value in result.items():
        np.testing.assert_allclose(value, getattr(expected, name), rtol=1e-5, atol=1e-5)
    assert set(program.platforms) == {"cpu", "cuda"}


def test_what_cannot_be_exported_is_said(stored, tmp_path):
    _, path = stored
    with pytest.raises(UnknownNameError, match="suffix '.onnx'"):
        export(path, tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match="exists already"):
        export(path, path)
    with pytest.raises(ConfigError, match="in the checkpoints of a run folder"):
        export(path, tmp_path / "raw.janus", weights="raw")
    with pytest.raises(ModelFileError, match="no such file"):
        export(tmp_path / "none.janus", tmp_path / "x.janus")
