"""Everything a training run changes, as one pytree, and what changes it: the step of one device.

`Trainer` is also the reference that `janus_jax.runtime` is tested against.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from janus_jax import compilation
from janus_jax.graph import AtomGraph, LabelCounts
from janus_jax.models.potential import Potential, energy_forces_stress
from janus_jax.prediction import Predictor
from janus_jax.train import optimizer
from janus_jax.train.loss import LossConfig, LossTerms, loss
from janus_jax.train.optimizer import OptimizerConfig
from janus_jax.typing import Array, Float, Int, pytree


@pytree
class TrainState:
    """Raw and averaged parameters, what is not trained, optimizer state, steps done."""

    params: nnx.State
    ema: nnx.State
    fixed: nnx.State
    optimizer: optax.OptState
    step: Int[Array, ""]


@pytree
class StepReport:
    """What one update saw."""

    gradient_norm: Float[Array, ""]
    """Of what is trained, before clipping."""
    finite: Array
    """False: the gradient was not finite, and nothing but the step was changed."""


def updated(
    state: TrainState,
    gradient: nnx.State,
    norm: Float[Array, ""],
    method: optax.GradientTransformation,
    config: OptimizerConfig,
) -> TrainState:
    """One optimizer step and the moving average; a gradient that is not finite changes only the step.

    Args:
        state, gradient: of a whole model or a part of it.
        norm: of the gradient of the whole model.
    """
    clipped: Any = optimizer.clip(gradient, jnp.asarray(norm), config)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an integer power
        updates, moments = method.update(clipped, state.optimizer, state.params)
    params: Any = optax.apply_updates(state.params, updates)
    step = state.step + 1
    # A young average forgets its random start faster: decay min(ema_decay, (1 + n) / (10 + n)).
    n = step.astype(norm.dtype)
    decay = jnp.minimum(config.ema_decay, (1 + n) / (10 + n))
    ema: Any = optax.incremental_update(params, state.ema, 1 - decay)
    new = TrainState(params, ema, state.fixed, moments, step)
    kept: TrainState = jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(norm), a, b), new, state)
    # A skipped step counts: checkpoints and logs go by the step.
    return TrainState(kept.params, kept.ema, kept.fixed, kept.optimizer, step)


class Trainer:
    """Compiled gradient and update of one model structure on one device; holds no state of its own.

    Args:
        steps: of the whole run, for the learning rate.
    """

    def __init__(self, model: Potential, config: OptimizerConfig, steps: int, weights: LossConfig):
        self.graphdef, _, _ = nnx.split(model, nnx.Param, ...)
        self.method = optimizer.make(config, steps)
        self.config, self.weights = config, weights
        self.gradient = jax.jit(self._gradient)
        self.update = jax.jit(self._update)

    def init(self, model: Potential) -> TrainState:
        _, params, fixed = nnx.split(model, nnx.Param, ...)
        ema = jax.tree.map(jnp.copy, params)
        return TrainState(params, ema, fixed, self.method.init(params), jnp.zeros((), jnp.int32))

    def model(self, state: TrainState, *, params: nnx.State | None = None) -> Potential:
        """The potential with the averaged parameters, or those given."""
        return nnx.merge(self.graphdef, state.ema if params is None else params, state.fixed)

    def needs(self, number: int) -> bool:
        """Whether this process needs a micro-batch of a global batch: all."""
        return True

    def predictor(self, state: TrainState) -> Predictor:
        """Predictions with the averaged parameters."""
        return Predictor(self.model(state))

    def step(
        self, state: TrainState, micro_batches: Sequence[AtomGraph | None], counts: LabelCounts
    ) -> tuple[TrainState, LossTerms, StepReport]:
        """One update from the micro-batches of a global batch."""
        parts = [self.gradient(state, micro, counts) for micro in micro_batches if micro is not None]
        gradient = reduce(lambda a, b: jax.tree.map(add, a, b), [part[0] for part in parts])
        state, report = self.update(state, gradient)
        return state, reduce(add, [part[1] for part in parts]), report

    def _gradient(self, state: TrainState, graph: AtomGraph, counts: LabelCounts) -> tuple[nnx.State, LossTerms]:
        """This micro-batch's part of the gradient and of the loss of its global batch."""

        def total(params):
            model = nnx.merge(self.graphdef, params, state.fixed)
            terms = loss(energy_forces_stress(model, graph), graph, counts, self.weights)
            return terms.total, terms

        return jax.grad(total, has_aux=True)(state.params)

    def _update(self, state: TrainState, gradient: nnx.State) -> tuple[TrainState, StepReport]:
        norm = jnp.sqrt(optimizer.squared_norm(gradient, self.config))
        return updated(state, gradient, norm, self.method, self.config), StepReport(norm, jnp.isfinite(norm))

    def compilations(self) -> int:
        """Programs compiled so far for the gradient: one per capacity."""
        return compilation.count(self.gradient)
