"""The training loss: mean absolute energy error per atom, mean force-error norm, mean stress error.

Formulas as in reference/models.md section B.4. Every mean is over the labels of the whole global
batch, whose counts are known when it is drawn. So the loss and its gradient are plain sums over
micro-batches, whatever their grouping.
"""

import jax
import jax.numpy as jnp
from pydantic import BaseModel, ConfigDict, NonNegativeFloat

from janus_jax.graph import AtomGraph, LabelCounts
from janus_jax.models.potential import Prediction
from janus_jax.typing import Array, Float, pytree


class LossConfig(BaseModel):
    """Weights of the three terms (per eV/atom, eV/Å, eV/Å^3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    energy: NonNegativeFloat = 2.0
    forces: NonNegativeFloat = 2.0
    stress: NonNegativeFloat = 1.0


@pytree
class LossTerms:
    """Weighted sum and the three means it is made of, for progress reports."""

    total: Float[Array, ""]
    energy_per_atom: Float[Array, ""]
    """eV."""
    force_norm: Float[Array, ""]
    """eV/Å."""
    stress: Float[Array, ""]
    """eV/Å^3."""

    def __add__(self, other: "LossTerms") -> "LossTerms":
        return jax.tree.map(jnp.add, self, other)


def safe_norm(x: Float[Array, "atoms 3"]) -> Float[Array, "atoms"]:
    """Euclidean norm of rows with gradient zero, not NaN, at zero."""
    square = (x * x).sum(-1)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def loss(prediction: Prediction, graph: AtomGraph, counts: LabelCounts, config: LossConfig) -> LossTerms:
    """This micro-batch's part of the loss of the global batch with these `counts`."""
    targets = graph.targets
    assert targets is not None, "batches for training carry targets"
    dtype = prediction.energy.dtype
    atoms = jnp.maximum(graph.atoms_per_structure(), 1).astype(dtype)

    def mean(errors, mask, count):
        return jnp.where(mask, errors, 0).sum() / jnp.maximum(count, 1)

    energy = mean(jnp.abs(prediction.energy - targets.energy) / atoms, targets.energy_mask, counts.energies)
    forces = mean(safe_norm(prediction.forces - targets.forces), targets.forces_mask, counts.forces)
    difference = jnp.abs(prediction.stress - targets.stress).mean((1, 2))
    stress = mean(difference, targets.stress_mask, counts.stresses)
    total = config.energy * energy + config.forces * forces + config.stress * stress
    return LossTerms(total, energy, forces, stress)
