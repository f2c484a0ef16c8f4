"""The training loss: an energy error per atom, a force error and a stress error, added with weights.

By default the mean absolute energy error per atom, the mean norm of the force error and the mean
absolute stress error (reference/models.md section B.4). Every mean is over the labels of the whole
global batch, whose (weighted) counts are known when it is drawn. So the loss and its gradient are
plain sums over micro-batches, whatever their grouping.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax
from pydantic import Field, NonNegativeFloat, PositiveFloat

from janus_jax.configuration import Section
from janus_jax.graph import AtomGraph, LabelCounts, Targets
from janus_jax.models.potential import Prediction
from janus_jax.typing import Array, Float, pytree

Kind = Literal["mae", "mse", "huber"]


class LossConfig(Section):
    """Weights (per eV/atom, eV/Å, eV/Å^3) and kinds of the three terms."""

    energy: NonNegativeFloat = 2.0
    """Per eV/atom; large weights slow the forces down."""
    forces: NonNegativeFloat = 2.0
    """Per eV/Å."""
    stress: NonNegativeFloat = 1.0
    """Per eV/Å^3."""
    energy_error: Kind = "mae"
    forces_error: Literal["norm", "mae", "mse", "huber"] = "norm"
    """norm: length of the error vector; the others go by component."""
    stress_error: Kind = "mae"
    huber_delta: PositiveFloat = 0.01
    """Where huber turns from square to linear, in eV/atom, eV/Å and eV/Å^3."""
    config_type_weights: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Relative weight of structures by configuration type, 1 for those not named."""
    dataset_weights: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Relative weight of structures by data set; multiplied with the other."""


@pytree
class LossTerms:
    """Weighted sum of the terms, and three means for progress reports, whatever the loss; NaN without labels."""

    total: Float[Array, ""]
    energy_per_atom: Float[Array, ""]
    """Mean absolute error, eV."""
    forces: Float[Array, ""]
    """Mean absolute error of components, eV/Å."""
    stress: Float[Array, ""]
    """Mean absolute error, eV/Å^3."""

    def __add__(self, other: "LossTerms") -> "LossTerms":
        return jax.tree.map(jnp.add, self, other)


def safe_norm(x: Float[Array, "atoms 3"]) -> Float[Array, "atoms"]:
    """Euclidean norm of rows with gradient zero, not NaN, at zero."""
    square = (x * x).sum(-1)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, 1.0)), 0.0)


def penalty(difference: Array, kind: str, delta: float) -> Array:
    """Error of each row: absolute value, square or Huber's, averaged over the row's components; or its norm."""
    if kind == "norm":
        return safe_norm(difference)
    if kind == "huber":
        errors = optax.losses.huber_loss(difference, delta=delta)
    else:
        errors = jnp.abs(difference) if kind == "mae" else difference**2
    return errors.mean(tuple(range(1, errors.ndim)))


def loss(prediction: Prediction, graph: AtomGraph, counts: LabelCounts, config: LossConfig) -> LossTerms:
    """This micro-batch's part of the loss of the global batch with these `counts`."""
    energy = energy_loss(prediction.energy, graph, counts, config)
    return energy + force_loss(prediction.forces, prediction.stress, graph, counts, config)


def energy_loss(
    energy: Float[Array, "structures"], graph: AtomGraph, counts: LabelCounts, config: LossConfig
) -> LossTerms:
    """The part of `loss` that energies (eV) have, the other terms zero."""
    targets = _targets(graph)
    atoms = jnp.maximum(graph.atoms_per_structure(), 1).astype(energy.dtype)
    rest = targets.energy_mask, targets.weight, counts.energies
    term, shown = _means((energy - targets.energy) / atoms, (config.energy_error, "mae"), config, *rest)
    zero = jnp.zeros_like(shown)
    return LossTerms(config.energy * term, shown, zero, zero)


def force_loss(
    forces: Float[Array, "atoms 3"],
    stress: Float[Array, "structures 3 3"],
    graph: AtomGraph,
    counts: LabelCounts,
    config: LossConfig,
) -> LossTerms:
    """The part of `loss` that forces (eV/Å) and stress (eV/Å^3) have, the energy's zero."""
    targets = _targets(graph)
    rest = targets.forces_mask, targets.weight[graph.atom_structure], counts.forces
    force, shown_force = _means(forces - targets.forces, (config.forces_error, "mae"), config, *rest)
    rest = targets.stress_mask, targets.weight, counts.stresses
    difference = stress - targets.stress
    if targets.stress_trace is not None:
        trace = jnp.trace(difference, axis1=1, axis2=2)[:, None, None] / 3
        difference = jnp.where(targets.stress_trace[:, None, None], trace, difference)
    tension, shown_stress = _means(difference, (config.stress_error, "mae"), config, *rest)
    total = config.forces * force + config.stress * tension
    return LossTerms(total, jnp.zeros_like(shown_force), shown_force, shown_stress)


def _targets(graph: AtomGraph) -> Targets:
    assert graph.targets is not None, "batches for training carry targets"
    return graph.targets


def _means(difference: Array, kinds: tuple[str, str], config: LossConfig, mask, weight, count) -> list[Array]:
    """Weighted means over the known rows of two penalties: the loss's, and the one shown, NaN without labels."""
    errors = (penalty(difference, kind, config.huber_delta) for kind in kinds)
    term, shown = (jnp.where(mask, weight * error, 0).sum() / jnp.where(count > 0, count, 1) for error in errors)
    return [term, jnp.where(count > 0, shown, jnp.nan)]
