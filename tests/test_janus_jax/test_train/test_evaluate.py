"""Evaluation against predictions made one by one."""

import numpy as np
from flax import nnx

from janus_jax.data import batching
from janus_jax.data.labels import read_labels
from janus_jax.data.sources import read_frames
from janus_jax.models import convert
from janus_jax.models.esen import Esen, EsenConfig
from janus_jax.prediction import predict
from janus_jax.testing import dataset
from janus_jax.train.evaluate import Evaluation, evaluate

CONFIG = EsenConfig(cutoff_angstrom=3.0, num_layers=1, channels=8, hidden_channels=8, edge_channels=8, num_basis=6)
REFERENCES = ((1, -13.0), (8, -100.0))


def test_metrics_equal_single_predictions_and_missing_labels_are_left_out():
    frames = read_frames("water:test")[::20]
    del frames[1].calc.results["energy"]
    del frames[2].calc.results["stress"]
    model = convert.cast(Esen(CONFIG, rngs=nnx.Rngs(1), references=REFERENCES), np.float64)
    graphs = dataset(frames, model.cutoff, dict(REFERENCES))
    result = evaluate(model, graphs, batching.choose(graphs.atoms, graphs.edges, int(graphs.atoms.max()) + 30))
    starts = np.concatenate([[0], np.cumsum(graphs.atoms)])
    energy, forces, stress = [], [], []
    for k, (frame, graph) in enumerate(zip(frames, graphs, strict=True)):
        single = predict(model, batching.pad([graph], batching.need(graph), np.float64))
        np.testing.assert_allclose(result.energy[k], single.energy[0], rtol=1e-12)
        np.testing.assert_allclose(result.forces[starts[k] : starts[k + 1]], single.forces, atol=1e-12)
        labels = read_labels(frame)
        if labels.energy is not None:
            energy.append((single.energy[0] - labels.energy) / len(frame))
        forces.append(single.forces - labels.forces)
        if labels.stress is not None:
            stress.append(single.stress[0] - labels.stress)
    metrics = result.metrics()
    assert metrics["energy_labels"] == len(frames) - 1
    assert metrics["stress_labels"] == 9 * (len(frames) - 1)
    np.testing.assert_allclose(metrics["energy_mae_meV_per_atom"], 1000 * np.abs(energy).mean(), rtol=1e-9)
    np.testing.assert_allclose(
        metrics["forces_rmse_meV_per_angstrom"], 1000 * np.sqrt((np.concatenate(forces) ** 2).mean()), rtol=1e-9
    )
    np.testing.assert_allclose(metrics["stress_mae_meV_per_angstrom3"], 1000 * np.abs(stress).mean(), rtol=1e-9)


def test_predictions_that_are_not_finite_are_not_taken_for_missing_labels():
    nan, one = np.full((2, 3), np.nan), np.ones((2, 3))
    stress = np.zeros((1, 3, 3))
    energy = np.array([np.nan]), np.array([1.0])
    result = Evaluation(np.array([2]), np.array([1, 8]), np.ones(1), *energy, nan, one, stress, stress * np.nan)
    metrics = result.metrics()
    assert np.isnan(metrics["energy_mae_meV_per_atom"])
    assert np.isnan(metrics["forces_mae_meV_per_angstrom"])
    assert metrics["forces_labels"] == 6
    assert metrics["stress_mae_meV_per_angstrom3"] is None
