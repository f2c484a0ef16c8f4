"""Everything a training run changes, as one pytree, and the two compiled functions that change it."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from janus_jax import compilation
from janus_jax.graph import AtomGraph, LabelCounts
from janus_jax.models.potential import Potential, energy_forces_stress
from janus_jax.train.loss import LossConfig, LossTerms, loss
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
    finite: Array
    """False: the gradient was not finite, and nothing but the step was changed."""


class Trainer:
    """Compiled gradient and update of one model structure; holds no state of its own."""

    def __init__(
        self, model: Potential, optimizer: optax.GradientTransformation, weights: LossConfig, ema_decay: float
    ):
        self.graphdef, _, _ = nnx.split(model, nnx.Param, ...)
        self.optimizer, self.weights, self.ema_decay = optimizer, weights, ema_decay
        self.gradient = jax.jit(self._gradient)
        self.update = jax.jit(self._update)

    def init(self, model: Potential) -> TrainState:
        _, params, fixed = nnx.split(model, nnx.Param, ...)
        ema = jax.tree.map(jnp.copy, params)
        return TrainState(params, ema, fixed, self.optimizer.init(params), jnp.zeros((), jnp.int32))

    def model(self, state: TrainState, *, params: nnx.State | None = None) -> Potential:
        """The potential with the averaged parameters, or those given."""
        return nnx.merge(self.graphdef, state.ema if params is None else params, state.fixed)

    def _gradient(self, state: TrainState, graph: AtomGraph, counts: LabelCounts) -> tuple[nnx.State, LossTerms]:
        """This micro-batch's part of the gradient and of the loss of its global batch."""

        def total(params):
            model = nnx.merge(self.graphdef, params, state.fixed)
            terms = loss(energy_forces_stress(model, graph), graph, counts, self.weights)
            return terms.total, terms

        return jax.grad(total, has_aux=True)(state.params)

    def _update(self, state: TrainState, gradient: nnx.State) -> tuple[TrainState, StepReport]:
        """One optimizer step and the moving average; a gradient that is not finite changes only the step."""
        norm = optax.tree.norm(gradient)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a Python float to an integer power
            updates, optimizer = self.optimizer.update(gradient, state.optimizer, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        step = state.step + 1
        # A young average forgets its random start faster: decay min(ema_decay, (1 + n) / (10 + n)).
        n = step.astype(norm.dtype)
        decay = jnp.minimum(self.ema_decay, (1 + n) / (10 + n))
        ema: Any = optax.incremental_update(params, state.ema, 1 - decay)
        new = TrainState(params, ema, state.fixed, optimizer, step)
        finite = jnp.isfinite(norm)
        kept: TrainState = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state)
        # A skipped step counts: checkpoints and logs go by the step.
        return TrainState(kept.params, kept.ema, kept.fixed, kept.optimizer, step), StepReport(norm, finite)

    def compilations(self) -> int:
        """Programs compiled so far for the gradient: one per capacity."""
        return compilation.count(self.gradient)
