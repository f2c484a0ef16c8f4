"""AdamW with warm-up, cosine decay and clipping, as eSEN and UMA are trained (models.md section B.4)."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from janus_jax.models.convert import name_of


class OptimizerConfig(BaseModel):
    """Learning rate over a run: from `warmup_factor` of it up, then a cosine down to `final_factor`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    learning_rate: PositiveFloat = 8e-3
    weight_decay: NonNegativeFloat = 1e-3
    warmup_steps: NonNegativeInt = 50
    warmup_factor: float = Field(default=0.2, ge=0, le=1)
    final_factor: float = Field(default=0.01, ge=0, le=1)
    clip_norm: PositiveFloat = 100.0
    ema_decay: float = Field(default=0.995, ge=0, lt=1)


def schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Learning rate as a function of the steps done."""
    peak = config.learning_rate
    rate = optax.warmup_cosine_decay_schedule(
        init_value=config.warmup_factor * peak,
        peak_value=peak,
        warmup_steps=config.warmup_steps,
        decay_steps=max(steps, config.warmup_steps + 1),
        end_value=config.final_factor * peak,
    )
    return lambda count: jnp.asarray(rate(jnp.asarray(count, jnp.float32)))  # optax mixes integers and floats


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


def make(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(schedule(config, steps), weight_decay=config.weight_decay, mask=decays),
    )
