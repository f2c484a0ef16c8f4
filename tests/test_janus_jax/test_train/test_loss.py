"""The loss against plain numpy, and its independence of the grouping into micro-batches."""

import itertools

import jax
import numpy as np
import pytest
from flax import nnx

from janus_jax.data import batching
from janus_jax.data.sources import read_frames
from janus_jax.graph import LabelCounts
from janus_jax.models import convert
from janus_jax.models.esen import Esen, EsenConfig
from janus_jax.models.potential import Prediction
from janus_jax.testing import dataset
from janus_jax.train import optimizer
from janus_jax.train.evaluate import Evaluation
from janus_jax.train.loss import LossConfig, loss
from janus_jax.train.state import Trainer

pytestmark = pytest.mark.core

CONFIG = EsenConfig(cutoff_angstrom=3.0, num_layers=1, channels=8, hidden_channels=8, edge_channels=8, num_basis=6)


@pytest.fixture(scope="module")
def graphs():
    return list(dataset(read_frames("water:train")[:5], CONFIG.cutoff_angstrom, {1: -13.0, 8: -100.0}))


def mask_some(graph, *, energy=True, forces=True, stress=True):
    t = graph.targets
    masks = {"energy_mask": t.energy_mask & energy, "forces_mask": t.forces_mask & forces}
    return graph.replace(targets=t.replace(**masks, stress_mask=t.stress_mask & stress))


def total_need(graphs):
    return sum((batching.need(g) for g in graphs), start=batching.Capacity(0, 0, 0))


def test_terms_equal_numpy_with_missing_labels_and_padding(graphs):
    graphs = [
        mask_some(graphs[0], energy=False),
        mask_some(graphs[1], forces=False),
        mask_some(graphs[2], stress=False),
    ]
    need = total_need(graphs)
    batch = batching.pad(graphs, batching.Capacity(need.atoms + 5, need.edges + 3, 5), np.float64)
    rng = np.random.default_rng(0)
    p = Prediction(
        rng.normal(size=5), rng.normal(size=(need.atoms + 5, 3)), np.zeros((5, 3, 3)), rng.normal(size=(5, 3, 3))
    )
    terms = loss(p, batch, LabelCounts.of(graphs, np.float64), LossConfig(energy=3, forces=5, stress=7))

    sizes = [len(g.numbers) for g in graphs]
    energies = [abs(p.energy[k] - graphs[k].targets.energy[0]) / sizes[k] for k in (1, 2)]
    start = np.cumsum([0, *sizes])
    rows = np.concatenate([np.arange(start[k], start[k + 1]) for k in (0, 2)])
    labels = np.concatenate([graphs[0].targets.forces, graphs[2].targets.forces])
    forces = np.linalg.norm(p.forces[rows] - labels, axis=1).mean()
    stress = np.mean([np.abs(p.stress[k] - graphs[k].targets.stress[0]) for k in (0, 1)])
    np.testing.assert_allclose(terms.energy_per_atom, np.mean(energies), rtol=1e-13)
    np.testing.assert_allclose(terms.forces, np.abs(p.forces[rows] - labels).mean(), rtol=1e-13)
    np.testing.assert_allclose(terms.stress, stress, rtol=1e-13)
    np.testing.assert_allclose(terms.total, 3 * np.mean(energies) + 5 * forces + 7 * stress, rtol=1e-13)


def test_gradient_of_a_batch_is_the_same_for_every_grouping(graphs):
    model = convert.cast(Esen(CONFIG, rngs=nnx.Rngs(0)), np.float64)
    trainer = Trainer(model, optimizer.OptimizerConfig(), 10, LossConfig())
    state = trainer.init(model)
    graphs = [mask_some(graphs[0], energy=False), *graphs[1:4], mask_some(graphs[4], forces=False)]
    need = total_need(graphs)
    counts = LabelCounts.of(graphs, np.float64)

    def gradient(groups):
        parts = [trainer.gradient(state, batching.pad(g, need, np.float64), counts) for g in groups]
        return jax.tree.map(lambda *x: np.asarray(sum(x)), *[p[0] for p in parts]), sum(
            float(p[1].total) for p in parts
        )

    whole, value = gradient([graphs])
    for groups in ([graphs[:2], graphs[2:]], [[g] for g in reversed(graphs)], [graphs[1::2], graphs[::2]]):
        split, split_value = gradient(groups)
        np.testing.assert_allclose(split_value, value, rtol=1e-12)
        for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12 * max(1.0, np.abs(a).max()))
    assert trainer.compilations() == 1  # one capacity, one program


def test_exact_predictions_have_zero_loss_and_finite_gradient(graphs):
    batch = batching.pad(graphs[:1], total_need(graphs[:1]), np.float64)
    t = batch.targets
    perfect = Prediction(t.energy, t.forces, np.zeros((1, 3, 3)), t.stress)
    counts = LabelCounts.of(graphs[:1], np.float64)
    value, gradient = jax.value_and_grad(lambda p: loss(p, batch, counts, LossConfig()).total)(perfect)
    assert float(value) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("absent", list(itertools.combinations(["energy", "forces", "stress"], 2)))
def test_a_batch_without_some_labels_is_no_division_by_zero(graphs, absent):
    graph = mask_some(graphs[0], **dict.fromkeys(absent, False))
    batch = batching.pad([graph], batching.need(graph), np.float64)
    zero = Prediction(np.zeros(1), np.zeros_like(batch.positions), np.zeros((1, 3, 3)), np.zeros((1, 3, 3)))
    value = float(loss(zero, batch, LabelCounts.of([graph], np.float64), LossConfig()).total)
    assert np.isfinite(value)
    assert value > 0


def huber(x, delta):
    return np.where(np.abs(x) <= delta, 0.5 * x**2, delta * (np.abs(x) - 0.5 * delta))


@pytest.mark.parametrize(
    ("kind", "of"),
    [("mae", np.abs), ("mse", np.square), ("huber", lambda x: huber(x, 0.3))],
)
def test_every_kind_of_error_with_weights_equals_numpy_and_the_evaluation(graphs, kind, of):
    weights = [2.0, 0.5, 0.0]
    graphs = [g.replace(targets=g.targets.replace(weight=np.array([w]))) for g, w in zip(graphs, weights, strict=False)]
    need, n = total_need(graphs), 3
    batch = batching.pad(graphs, batching.Capacity(need.atoms + 2, need.edges, 4), np.float64)
    rng = np.random.default_rng(1)
    shape = (batch.positions.shape, (4, 3, 3))
    p = Prediction(rng.normal(size=4), rng.normal(size=shape[0]), np.zeros((4, 3, 3)), rng.normal(size=shape[1]))
    kinds = {"energy_error": kind, "forces_error": kind, "stress_error": kind, "huber_delta": 0.3}
    config = LossConfig(energy=3, forces=5, stress=7, **kinds)
    value = loss(p, batch, LabelCounts.of(graphs, np.float64), config).total

    sizes = np.array([len(g.numbers) for g in graphs])
    label = {
        name: np.concatenate([getattr(g.targets, name) for g in graphs]) for name in ("energy", "forces", "stress")
    }
    errors = {
        "energy": of((p.energy[:n] - label["energy"]) / sizes),
        "forces": of(p.forces[: sizes.sum()] - label["forces"]).mean(1),
        "stress": of(p.stress[:n] - label["stress"]).mean((1, 2)),
    }
    per_row = {"energy": np.array(weights), "forces": np.repeat(weights, sizes), "stress": np.array(weights)}
    means = {name: (per_row[name] * e).sum() / per_row[name].sum() for name, e in errors.items()}
    expected = 3 * means["energy"] + 5 * means["forces"] + 7 * means["stress"]
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    rows = slice(sizes.sum())
    evaluation = Evaluation(
        sizes, np.concatenate([g.numbers for g in graphs]), np.array(weights), p.energy[:n], label["energy"],
        p.forces[rows], label["forces"], p.stress[:n], label["stress"],
    )  # fmt: skip
    np.testing.assert_allclose(evaluation.loss(config), expected, rtol=1e-13)


def test_of_a_stress_whose_trace_alone_is_known_the_trace_counts(graphs):
    graph = graphs[0]
    targets = graph.targets.replace(stress=2.0 * np.eye(3)[None], stress_trace=np.ones(1, bool))
    batch = batching.pad([graph.replace(targets=targets)], batching.need(graph), np.float64)
    stress = np.array([[[1.0, 9, 9], [9, 5, 9], [9, 9, 6]]])  # the mean of the diagonal is 4
    p = Prediction(np.zeros(1), np.zeros_like(batch.positions), np.zeros((1, 3, 3)), stress)
    config = LossConfig(energy=0, forces=0, stress=3)
    terms = loss(p, batch, LabelCounts.of([graph], np.float64), config)
    assert (float(terms.stress), float(terms.total)) == pytest.approx((2.0, 6.0))
    label = np.where(np.eye(3, dtype=bool), 2.0, np.nan)[None]
    zero = np.zeros((len(graph.numbers), 3))
    evaluation = Evaluation(
        np.array([len(graph.numbers)]), graph.numbers, np.ones(1), np.zeros(1), np.zeros(1), zero, zero, stress, label
    )
    assert evaluation.loss(config) == pytest.approx(6.0)
    assert evaluation.metrics()["stress_rmse_meV_per_angstrom3"] == pytest.approx(2000.0)
