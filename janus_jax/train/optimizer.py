"""Muon or Adam with a learning-rate schedule, clipping and frozen parts, all from optax.

Muon orthogonalizes the momentum of every weight matrix (a stack of matrices, one a degree, for the
equivariant linear maps); embeddings, norms, biases and the last layer are left to AdamW, as its authors
advise. On the water set it reaches the force error of AdamW in half of the steps.

The default schedule is linear warm-up and cosine decay, as eSEN and UMA are trained (reference/models.md
section B.4). Any other of optax's schedules can be named.
"""

import inspect
from collections.abc import Hashable, Sequence
from fnmatch import fnmatch
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from optax import contrib
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, model_validator

from janus_jax.configuration import Section
from janus_jax.errors import ConfigError, UnknownNameError
from janus_jax.models.convert import name_of

SCHEDULES = (
    "constant_schedule",
    "cosine_decay_schedule",
    "cosine_onecycle_schedule",
    "exponential_decay",
    "linear_onecycle_schedule",
    "linear_schedule",
    "piecewise_constant_schedule",
    "polynomial_schedule",
    "warmup_constant_schedule",
    "warmup_cosine_decay_schedule",
    "warmup_exponential_decay_schedule",
)


MUON_RMS = 0.2
"""Size of a Muon update, to that of Adam's (Liu et al. 2025, Muon is scalable for LLM training)."""


class OptimizerConfig(Section):
    """Method and learning rate."""

    method: Literal["muon", "adamw", "amsgrad"] = "muon"
    learning_rate: PositiveFloat = 0.01
    """Peak, or initial value, of the schedule; with adamw, 0.02 diverges."""
    weight_decay: NonNegativeFloat = 1e-3
    schedule: str = "warmup_cosine"
    """warmup_cosine (the three keys below), or the name of an optax schedule."""
    schedule_arguments: dict[str, Any] = Field(default_factory=dict)
    """Arguments of that optax function; its peak or initial value is learning_rate."""
    warmup_steps: NonNegativeInt = 50
    warmup_factor: float = Field(default=0.2, ge=0, le=1)
    """Warm-up starts at this part of learning_rate."""
    final_factor: float = Field(default=0.01, ge=0, le=1)
    """The cosine ends at this part of learning_rate."""
    clip_norm: PositiveFloat = 100.0
    """Largest global norm of the gradient."""
    ema_decay: float = Field(default=0.995, ge=0, lt=1)
    """Of the moving average of the parameters, which validates and is shipped."""
    freeze: tuple[str, ...] = ()
    """Parameters that do not change: names with * and ?, such as blocks.0.*."""

    @model_validator(mode="after")
    def _check_schedule(self):
        schedule(self, 1000)
        return self


def schedule(config: "OptimizerConfig", steps: int) -> optax.Schedule:
    """Learning rate as a function of the steps done.

    Raises:
        UnknownNameError: optax has no such schedule.
        ConfigError: its arguments do not fit; says which it takes.
    """
    peak = config.learning_rate
    if config.schedule == "warmup_cosine":
        rate = optax.warmup_cosine_decay_schedule(
            init_value=config.warmup_factor * peak,
            peak_value=peak,
            warmup_steps=config.warmup_steps,
            decay_steps=max(steps, config.warmup_steps + 1),
            end_value=config.final_factor * peak,
        )
    else:
        rate = _optax_schedule(config)

    def of(count):
        # In 64 bits where there are any: programs that round this differently would part by 1e-8.
        with jax.numpy_dtype_promotion("standard"):  # optax mixes integers, booleans and floats
            return jnp.asarray(rate(jnp.asarray(count, float)))

    return of


def _optax_schedule(config: OptimizerConfig) -> optax.Schedule:
    if config.schedule not in SCHEDULES:
        raise UnknownNameError("optimizer.schedule", config.schedule, ["warmup_cosine", *SCHEDULES])
    make = getattr(optax.schedules, config.schedule)
    takes = inspect.signature(make).parameters
    arguments = dict(config.schedule_arguments)
    value = next(name for name in ("peak_value", "init_value", "value") if name in takes)
    arguments.setdefault(value, config.learning_rate)
    if "peak_value" in takes and "init_value" in takes:
        arguments.setdefault("init_value", config.warmup_factor * config.learning_rate)
    if "boundaries_and_scales" in arguments:  # YAML keys may be strings
        arguments["boundaries_and_scales"] = {int(k): float(v) for k, v in arguments["boundaries_and_scales"].items()}
    try:
        inspect.signature(make).bind(**arguments)
        with jax.numpy_dtype_promotion("standard"):
            rate = make(**arguments)
            rate(0)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer.schedule_arguments: optax.{config.schedule}: {error}; it takes {', '.join(takes)}."
        ) from error
    return rate


def name_of_leaf(path) -> str:
    """Name of a parameter from its path in a pytree."""
    keys = [getattr(key, "key", getattr(key, "name", None)) for key in path]
    return name_of(tuple(key for key in keys if key not in (None, "value")))


def decays(params: nnx.State) -> nnx.State:
    """True where weight decay applies: all but biases and the parameters of norms."""

    def rule(path, leaf):
        name = name_of_leaf(path)
        return not ("bias" in name or "affine" in name or leaf.ndim < 2)

    return jax.tree_util.tree_map_with_path(rule, params)


def frozen(params: nnx.State, patterns: Sequence[str]) -> nnx.State:
    """True for the parameters that one of the patterns names.

    Raises:
        UnknownNameError: a pattern names none.
    """
    names = [name_of_leaf(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in names):
            raise UnknownNameError("parameters in optimizer.freeze", pattern, names)
    return frozen_among(params, patterns)


def frozen_among(params: nnx.State, patterns: Sequence[str]) -> nnx.State:
    """True for those parameters that one of the patterns names; these may be a part of the model's."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: any(fnmatch(name_of_leaf(path), pattern) for pattern in patterns), params
    )


def _matrix_axes(path, leaf) -> contrib.MuonDimensionNumbers | None:
    name = name_of_leaf(path)
    plain = leaf.ndim < 2 or leaf.shape[0] == 1 or "embedding.weight" in name or "norm" in name
    return None if plain else contrib.MuonDimensionNumbers(leaf.ndim - 1, leaf.ndim - 2)


def matrices(params: nnx.State) -> nnx.State:
    """Which axes of a parameter Muon takes as rows and columns; None where it is no weight matrix."""
    return jax.tree_util.tree_map_with_path(_matrix_axes, params)


def _is_matrix(params: nnx.State) -> nnx.State:
    def rule(path, leaf):
        return "rest" if _matrix_axes(path, leaf) is None else "matrix"

    return jax.tree_util.tree_map_with_path(rule, params)


def _method(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    decay = config.weight_decay
    if config.method == "muon":
        methods: dict[Hashable, optax.GradientTransformation] = {
            "matrix": contrib.muon(
                rate,
                weight_decay=decay,
                consistent_rms=MUON_RMS,
                muon_weight_dimension_numbers=cast(Any, matrices),
            ),
            "rest": optax.adamw(rate, weight_decay=decay, mask=decays, nesterov=True),
        }
        return optax.transforms.partition(methods, _is_matrix)
    if config.method == "amsgrad":
        steps = [optax.scale_by_amsgrad(), optax.add_decayed_weights(decay, mask=decays)]
        return optax.chain(*steps, optax.scale_by_learning_rate(rate))
    return optax.adamw(rate, weight_decay=decay, mask=decays)


def squared_norm(gradient: nnx.State, config: OptimizerConfig) -> jax.Array:
    """Of the gradient of what is trained: these are added over pipeline stages, and the root is the global norm."""
    held = jax.tree.leaves(frozen_among(gradient, config.freeze))
    squares = [jnp.sum(g * g) for g, h in zip(jax.tree.leaves(gradient), held, strict=True) if not h]
    return sum(squares[1:], squares[0]) if squares else jnp.zeros(())


def clip(gradient: nnx.State, norm: jax.Array, config: OptimizerConfig) -> nnx.State:
    """The gradient scaled to `clip_norm` if the global norm is larger."""
    return jax.tree.map(lambda g: jnp.where(norm < config.clip_norm, g, g / norm * config.clip_norm), gradient)


def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """The method, for clipped gradients; frozen parameters take no part."""
    # identity: checkpoints of format 2 have the state of a clip here
    method = optax.chain(optax.identity(), _method(config, schedule(config, steps)))
    if not config.freeze:
        return method

    def labels(params):
        return jax.tree.map(lambda held: "held" if held else "trained", frozen_among(params, config.freeze))

    return optax.transforms.partition({"trained": method, "held": optax.set_to_zero()}, labels)
