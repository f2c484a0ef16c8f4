"""Every layout, schedule and memory mode does what one device does."""

import dataclasses
import itertools
import os

import jax
import numpy as np
import pytest

from janus_jax.phases.memory import Memory
from janus_jax.schedule import NAMES, make
from tests.test_janus_jax.test_runtime.conftest import pipeline, reference, worst

LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2)]
MODES = ("keep", "rebuild_forces", "rebuild")
ALIKE = (("split",), ("symfold", "wavek"), ("gpipe_2nd", "1f1b_2nd"), ("hanayo_2nd",))
"""Schedules that run the same programs."""
ALL = list(itertools.product(LAYOUTS, ALIKE, MODES))
SOME = [
    (layout, alike, mode)
    for (j, layout), (k, alike), (i, mode) in itertools.product(*map(enumerate, (LAYOUTS, ALIKE, MODES)))
    if (i == (j + k) % 3 and (j + k) % 2 == 0) or (layout == (2, 2) and alike == ("split",))
]
CASES = ALL if os.environ.get("JANUS_JAX_EVERY") else SOME
"""Each layout with half of the schedules, each schedule with half of the layouts, and each mode with most of both;
JANUS_JAX_EVERY=1 runs all 48 combinations."""


def check(trainer, one, tolerance):
    """The gradient, the loss and the state after a step."""
    state = trainer.init(one.model)
    done = trainer.executor.run(trainer.stage_params(state), trainer.batch(*one.batches[0]))
    gradients, _ = trainer.reduced(done)
    assert not done.held
    assert not done.inbox
    assert not done.outbox
    assert not done.stash
    assert not done.loaded
    exact = jax.tree.map(lambda *a: sum(a), *[
        one.trainer.gradient(one.states[0], graph, one.batches[0][1])[0] for graph in one.batches[0][0]
    ])  # fmt: skip
    for group, gradient in zip(trainer.groups, gradients.values(), strict=True):
        assert worst(gradient, group.part(exact)) < tolerance
    state, terms, report = trainer.step(state, *one.batches[0])
    assert worst(terms, one.terms[0]) < tolerance
    assert worst(report, one.reports[0]) < tolerance
    return state


@pytest.mark.parametrize(("layout", "alike", "mode"), CASES, ids=str)
def test_a_step_is_that_of_one_device(one, layout, alike, mode):
    trainer = pipeline(one.model, *layout, alike[0], memory=mode)
    for name in alike:
        other = trainer.with_schedule(make(name, layout[0], 4 // layout[1]))
        state = check(other, one, 1e-10)
        assert worst(state, one.states[1]) < 1e-9  # Adam divides by the gradient's size


@pytest.fixture(scope="module")
def five():
    """Five blocks, six micro-batches; of three data ranks the second gets padding alone."""
    return reference(np.float64, 1, micro_batches=6, blocks=5, empty=(1, 4))


@pytest.mark.parametrize(("layout", "blocks", "name", "mode"), [
    ((5, 1), (), "split", "keep"),
    ((3, 2), (1, 3, 1), "1f1b_2nd", "rebuild"),
    ((2, 3), (4, 1), "wavek", "rebuild_forces"),
], ids=str)  # fmt: skip
def test_odd_layouts_are_those_of_one_device(five, layout, blocks, name, mode):
    trainer = pipeline(five.model, *layout, name, 6, memory=mode, blocks=blocks or None)
    if layout[1] == 3:
        assert not any(graph.structure_mask[1].any() for graph in trainer.batch(*five.batches[0]).micro_batches)
    assert worst(check(trainer, five, 1e-12), five.states[1]) < 1e-10


def test_all_schedules_are_there():
    assert {name for alike in ALIKE for name in alike} == set(NAMES)
    assert set(MODES) == set(Memory.model_fields["mode"].annotation.__args__)


@pytest.mark.parametrize(("pipe", "data", "name"), [(2, 2, "split"), (4, 1, "hanayo_2nd"), (4, 2, "wavek")])
def test_single_precision(pipe, data, name):
    one = reference(np.float32, 1)
    check(pipeline(one.model, pipe, data, name), one, 1e-5)


@pytest.mark.parametrize("shard", [False, True], ids=["whole", "shard_optimizer"])
def test_a_hundred_steps(shard):
    one = reference(np.float64, 1)
    trainer = pipeline(one.model, 2, 2, "split", shard=shard)
    state, expected = trainer.init(one.model), one.states[0]
    batch = one.batches[0]
    for _ in range(100):
        state, _, _ = trainer.step(state, *batch)
        expected, _, _ = one.trainer.step(expected, *batch)
    assert int(state.step) == 100
    assert worst(state, expected) < 1e-8
    compiled = trainer.compilations()
    trainer.step(state, *batch)
    assert trainer.compilations() == compiled == 2
    if shard:
        leaves = jax.tree.leaves((state.ema, state.optimizer))
        assert any("data" in leaf.sharding.spec for leaf in leaves)


def test_averaged_parameters_predict_where_they_are(one):
    trainer = pipeline(one.model, 2, 2, "split", shard=True)
    state, _, _ = trainer.step(trainer.init(one.model), *one.batches[0])
    graphs = [graph for graph, _ in zip(one.batches[0][0] * 2, range(5), strict=False)]
    found = trainer.predictor(state).many(graphs[:4]), trainer.predictor(state).many(graphs[4:])
    expected = one.trainer.predictor(one.states[1]).many(graphs)
    assert worst([*found[0], *found[1]], expected) < 1e-9
    assert worst(nnx_state(trainer.model(state)), nnx_state(one.trainer.model(one.states[1]))) < 1e-9


def nnx_state(model):
    from flax import nnx

    return nnx.state(model)


def test_a_state_moves_between_layouts(one):
    a, b = pipeline(one.model, 2, 2, "split", shard=True), pipeline(one.model, 4, 1, "1f1b_2nd")
    state, _, _ = a.step(a.init(one.model), *one.batches[0])
    state, _, _ = b.step(b.place(jax.tree.map(np.asarray, state)), *one.batches[1])
    assert worst(state, one.states[2]) < 1e-9


def test_a_gradient_that_is_not_finite_changes_only_the_step(one):
    trainer = pipeline(one.model, 2, 1, "split")
    graphs, counts = one.batches[0]
    targets = graphs[2].targets
    bad = graphs[2].replace(targets=targets.replace(forces=np.full_like(targets.forces, np.nan)))
    before = trainer.init(one.model)
    state, _, report = trainer.step(before, [*graphs[:2], bad, graphs[3]], counts)
    assert not bool(report.finite)
    assert int(state.step) == 1
    assert worst(dataclasses.replace(state, step=before.step), before) == 0


def test_frozen_parameters_take_no_part(one):
    from tests.test_janus_jax.test_runtime import conftest

    config = conftest.ADAM.model_copy(update={"freeze": ("blocks.1.*", "source")})
    single = conftest.Trainer(one.model, config, 100, conftest.LOSS)
    grid = conftest.PipelineTrainer(
        one.model, config, 100, conftest.LOSS, conftest.MeshConfig(pipe=2), conftest.PipelineConfig(), 4,
        compiler_options=conftest.OPTIONS,
    )  # fmt: skip
    expected, _, report = single.step(single.init(one.model), *one.batches[0])
    state, _, found = grid.step(grid.init(one.model), *one.batches[0])
    assert worst(state, expected) < 1e-9
    assert worst(found, report) < 1e-10
