"""Schedule, decay rules, clipping and moving average."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from janus_jax.models.esen import Esen, EsenConfig
from janus_jax.train import optimizer
from janus_jax.train.loss import LossConfig
from janus_jax.train.optimizer import OptimizerConfig
from janus_jax.train.state import Trainer

MODEL = EsenConfig(num_layers=1, channels=4, hidden_channels=4, edge_channels=4, num_basis=4, charge_spin="sinusoidal")


def test_schedule_warms_up_and_ends_at_the_final_factor():
    config = OptimizerConfig(learning_rate=1e-2, warmup_steps=10, warmup_factor=0.2, final_factor=0.01)
    rate = optimizer.schedule(config, 100)
    np.testing.assert_allclose(rate(0), 2e-3, rtol=1e-6)
    np.testing.assert_allclose(rate(5), 6e-3, rtol=1e-6)
    np.testing.assert_allclose(rate(10), 1e-2, rtol=1e-6)
    np.testing.assert_allclose(rate(55), 1e-2 * (0.01 + 0.99 * 0.5), rtol=1e-6)
    np.testing.assert_allclose(rate(100), 1e-4, rtol=1e-5)


def test_weights_and_tables_decay_but_biases_and_norms_do_not():
    params = nnx.state(Esen(MODEL, rngs=nnx.Rngs(0)), nnx.Param)
    rule = {optimizer.name_of_leaf(path): leaf for path, leaf in jax.tree.leaves_with_path(optimizer.decays(params))}
    assert rule["sphere_embedding.weight"]
    assert rule["blocks.0.edge_wise.so2_conv_1.fc_m0.weight"]
    assert rule["blocks.0.atom_wise.so3_linear_1.weight"]
    assert rule["head.energy_block.4.weight"]
    for name in (
        "blocks.0.norm_1.affine_weight", "norm.affine_bias", "blocks.0.edge_wise.so2_conv_1.rad_func.net.1.weight",
        "head.energy_block.0.bias", "blocks.0.atom_wise.so3_linear_1.bias",
    ):  # fmt: skip
        assert not rule[name], name


def update_once(gradient_scale, ema_decay=0.9, **changes):
    model = Esen(MODEL, rngs=nnx.Rngs(0))
    trainer = Trainer(model, OptimizerConfig(ema_decay=ema_decay, **changes), 10, LossConfig())
    state = trainer.init(model)
    gradient = jax.tree.map(lambda x: gradient_scale * jnp.ones_like(x), state.params)
    return trainer, state, *trainer.update(state, gradient)


def test_update_is_optax_adamw_behind_a_clip():
    _trainer, state, new, report = update_once(100.0, method="adamw", clip_norm=1.0, weight_decay=0.1)
    gradient = jax.tree.map(lambda x: 100.0 * jnp.ones_like(x), state.params)
    norm = float(optax.tree.norm(gradient))
    np.testing.assert_allclose(report.gradient_norm, norm, rtol=1e-5)
    clipped = jax.tree.map(lambda g: g / norm, gradient)
    config = OptimizerConfig(clip_norm=1.0, weight_decay=0.1)
    reference = optax.adamw(optimizer.schedule(config, 10), weight_decay=0.1, mask=optimizer.decays)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = reference.update(clipped, reference.init(state.params), state.params)
    for a, b in zip(
        jax.tree.leaves(optax.apply_updates(state.params, updates)), jax.tree.leaves(new.params), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_average_follows_the_parameters_and_fixed_variables_stay():
    _trainer, state, new, _ = update_once(1.0, ema_decay=0.9)
    decay = 2 / 11  # (1 + n) / (10 + n) at n = 1, below 0.9
    for old, fresh, mean in zip(*map(jax.tree.leaves, (state.ema, new.params, new.ema)), strict=True):
        np.testing.assert_allclose(mean, decay * old + (1 - decay) * fresh, rtol=1e-5, atol=1e-7)
    assert jax.tree.leaves(new.fixed), "sinusoidal frequencies are not parameters"
    for a, b in zip(jax.tree.leaves(state.fixed), jax.tree.leaves(new.fixed), strict=True):
        np.testing.assert_array_equal(a, b)
    assert int(new.step) == 1


def test_a_gradient_that_is_not_finite_changes_nothing():
    _, state, new, report = update_once(np.nan)
    assert not bool(report.finite)
    assert int(new.step) == int(state.step) + 1  # a skipped step counts
    for part in ("params", "ema", "optimizer"):
        for a, b in zip(*(jax.tree.leaves(getattr(s, part)) for s in (state, new)), strict=True):
            np.testing.assert_array_equal(a, b)


OPTAX = {
    "constant_schedule": {},
    "cosine_decay_schedule": {"decay_steps": 90, "alpha": 0.1},
    "cosine_onecycle_schedule": {"transition_steps": 90},
    "exponential_decay": {"transition_steps": 10, "decay_rate": 0.7},
    "linear_onecycle_schedule": {"transition_steps": 90},
    "linear_schedule": {"end_value": 0.001, "transition_steps": 50},
    "piecewise_constant_schedule": {"boundaries_and_scales": {30: 0.1, 60: 0.1}},
    "polynomial_schedule": {"end_value": 0.001, "power": 2, "transition_steps": 50},
    "warmup_constant_schedule": {"warmup_steps": 20},
    "warmup_cosine_decay_schedule": {"warmup_steps": 20, "decay_steps": 90},
    "warmup_exponential_decay_schedule": {"warmup_steps": 20, "transition_steps": 10, "decay_rate": 0.7},
}


@pytest.mark.parametrize("name", optimizer.SCHEDULES)
def test_every_named_schedule_is_optax_own(name):
    arguments = OPTAX[name]
    config = OptimizerConfig(learning_rate=0.02, warmup_factor=0.2, schedule=name, schedule_arguments=arguments)
    rate = optimizer.schedule(config, 100)
    make = getattr(optax, name, None) or getattr(optax.schedules, name)
    value = {
        "constant_schedule": {"value": 0.02},
        **{k: {"peak_value": 0.02} for k in ("cosine_onecycle_schedule", "linear_onecycle_schedule")},
        **{k: {"init_value": 0.004, "peak_value": 0.02} for k in OPTAX if k.startswith("warmup")},
    }.get(name, {"init_value": 0.02})
    reference = make(**value, **arguments)
    with jax.numpy_dtype_promotion("standard"):
        for step in (0, 1, 19, 20, 31, 60, 99):
            np.testing.assert_allclose(rate(step), reference(step), rtol=1e-5, err_msg=str(step))


def test_the_default_schedule_is_optax_warmup_cosine():
    config = OptimizerConfig(learning_rate=0.02, warmup_steps=7, warmup_factor=0.3, final_factor=0.05)
    reference = optax.warmup_cosine_decay_schedule(0.006, 0.02, 7, 40, 0.001)
    with jax.numpy_dtype_promotion("standard"):
        for step in range(0, 50, 3):
            np.testing.assert_allclose(optimizer.schedule(config, 40)(step), reference(step), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("cosine", {}, "Unknown optimizer.schedule 'cosine'; allowed: .*warmup_cosine"),
        (
            "exponential_decay",
            {"rate": 1},
            "optimizer.schedule_arguments: optax.exponential_decay: .*it takes init_value",
        ),
        ("linear_schedule", {}, "end_value"),
    ],
)
def test_schedules_that_do_not_exist_or_fit_are_named(name, arguments, words):
    with pytest.raises(ValueError, match=words):
        OptimizerConfig(schedule=name, schedule_arguments=arguments)


def test_average_is_optax_ema_once_it_is_old_enough():
    model = Esen(MODEL, rngs=nnx.Rngs(0))
    trainer = Trainer(model, OptimizerConfig(ema_decay=0.6), 10, LossConfig())
    state = trainer.init(model)
    average = optax.ema(0.6, debias=False)
    memory = None
    for step in range(20):
        state, _ = trainer.update(state, jax.tree.map(lambda x, k=step: jnp.sin(x + k), state.params))
        if step == 12:  # (1 + n) / (10 + n) has passed 0.6
            memory = average.init(state.params)._replace(ema=state.ema)
        elif step > 12:
            expected, memory = average.update(state.params, memory)
            for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(state.ema), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_frozen_parameters_stay_and_take_no_part_in_clipping():
    _, state, new, _ = update_once(
        100.0, method="adamw", clip_norm=1.0, weight_decay=0.5, freeze=("blocks.*", "head.*")
    )
    names = {optimizer.name_of_leaf(path): leaf for path, leaf in jax.tree.leaves_with_path(state.params)}
    after = {optimizer.name_of_leaf(path): leaf for path, leaf in jax.tree.leaves_with_path(new.params)}
    held = {name for name in names if name.startswith(("blocks.", "head."))}
    for name, leaf in names.items():
        assert (leaf == after[name]).all() == (name in held), name
    rest = [100.0 * np.ones_like(leaf) for name, leaf in names.items() if name not in held]
    config = OptimizerConfig(clip_norm=1.0, weight_decay=0.5)
    free = {name: leaf for name, leaf in names.items() if name not in held}
    gradient = dict(zip(free, rest, strict=True))
    mask = {name: not ("bias" in name or "affine" in name or leaf.ndim < 2) for name, leaf in free.items()}
    reference = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optimizer.schedule(config, 10), weight_decay=0.5, mask=mask)
    )
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = reference.update(gradient, reference.init(free), free)
    for name, leaf in optax.apply_updates(free, updates).items():
        np.testing.assert_allclose(leaf, after[name], rtol=1e-5, atol=1e-7)


def named(tree):
    return {optimizer.name_of_leaf(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def test_muon_takes_the_weight_matrices_and_adamw_the_rest():
    _, state, new, _ = update_once(1e-3, method="muon", learning_rate=0.01, weight_decay=0.1)
    before, after = named(state.params), named(new.params)
    config = OptimizerConfig(learning_rate=0.01, weight_decay=0.1)
    reference = optax.contrib.muon(optimizer.schedule(config, 10), weight_decay=0.1, consistent_rms=0.2)

    def alone(matrix):
        with jax.numpy_dtype_promotion("standard"):
            gradient = {"w": 1e-3 * jnp.ones_like(matrix)}
            update, _ = reference.update(gradient, reference.init({"w": matrix}), {"w": matrix})
        return matrix + update["w"]

    plain, stack = "blocks.0.edge_wise.so2_conv_1.fc_m0.weight", "blocks.0.atom_wise.so3_linear_1.weight"
    np.testing.assert_allclose(after[plain], alone(before[plain].T).T, rtol=1e-4, atol=1e-6)
    for degree in range(before[stack].shape[0]):
        np.testing.assert_allclose(after[stack][degree], alone(before[stack][degree].T).T, rtol=1e-4, atol=1e-6)
    rest = ("sphere_embedding.weight", "head.energy_block.4.weight", "norm.affine_weight", "head.energy_block.0.bias")
    adam = optax.adamw(optimizer.schedule(config, 10), weight_decay=0.1, mask=optimizer.decays, nesterov=True)
    with jax.numpy_dtype_promotion("standard"):
        gradient = jax.tree.map(lambda x: 1e-3 * jnp.ones_like(x), state.params)
        updates, _ = adam.update(gradient, adam.init(state.params), state.params)
    other = named(optax.apply_updates(state.params, updates))
    for name in rest:
        np.testing.assert_allclose(after[name], other[name], rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("method", ["muon", "adamw", "amsgrad"])
def test_every_method_descends_and_freezes(method):
    _, state, new, report = update_once(1.0, method=method, weight_decay=0, freeze=("head.*",))
    before, after = named(state.params), named(new.params)
    assert bool(report.finite)
    for name, leaf in before.items():
        assert (leaf == after[name]).all() if name.startswith("head.") else (after[name] <= leaf).all(), name
