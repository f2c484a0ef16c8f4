"""Predicted against reference: what is compared, its bias, R2 and errors, and the picture."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from janus_jax import plotting
from janus_jax.train.evaluate import Evaluation
from janus_jax.units import MEV_PER_EV

POINTS = 20_000
"""More points than this are thinned out in scatter plots."""


class Compared(NamedTuple):
    """A quantity of all structures that have a label: reference and predicted values, and their unit."""

    reference: np.ndarray
    predicted: np.ndarray
    unit: str


class Statistics(NamedTuple):
    """Of predicted minus reference, in its unit; NaN without a finite pair."""

    mae: float
    bias: float
    """Mean of predicted minus reference."""
    r2: float
    """1 - (mean square error) / (variance of the reference); NaN where the reference does not vary."""


def compared(evaluation: Evaluation) -> dict[str, Compared]:
    """Energy per atom, force components, pressure and deviatoric stress; what has no label is left out.

    Pressure is -tr(stress)/3. The deviatoric stress is what is left: stress + pressure, six components.
    """
    known, atoms = evaluation.known(), np.maximum(evaluation.atoms, 1)
    six = np.array([0, 1, 2, 1, 0, 0]), np.array([0, 1, 2, 2, 2, 1])

    def parts(stress: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pressure = -np.trace(stress, axis1=1, axis2=2) / 3
        return pressure, (stress + pressure[:, None, None] * np.eye(3))[:, *six].ravel()

    rows = known["stress"]
    labels, found = parts(evaluation.stress_label[rows]), parts(evaluation.stress[rows])
    energies = [(energy / atoms)[known["energy"]] for energy in (evaluation.energy_label, evaluation.energy)]
    forces = [force[known["forces"]].ravel() for force in (evaluation.forces_label, evaluation.forces)]
    every = {
        "energy": (*energies, "eV/atom"),
        "forces": (*forces, "eV/Å"),
        "pressure": (labels[0], found[0], "eV/Å³"),
        "deviatoric stress": (labels[1], found[1], "eV/Å³"),
    }
    return {name: Compared(*values) for name, values in every.items() if len(values[0])}


def statistics(pair: Compared) -> Statistics:
    """Of the pairs whose prediction is finite."""
    good = np.isfinite(pair.predicted)
    reference, error = pair.reference[good], (pair.predicted - pair.reference)[good]
    if not len(error):
        return Statistics(*[float("nan")] * 3)
    spread, size = float(reference.var()), float(np.abs(reference).max())
    varies = spread > (1e-12 * size) ** 2  # rounding alone is no variation
    r2 = 1 - float((error**2).mean()) / spread if varies else float("nan")
    return Statistics(float(np.abs(error).mean()), float(error.mean()), r2)


def figure(evaluation: Evaluation, title: str = ""):
    """One panel a quantity, both axes alike."""
    pairs = compared(evaluation)
    result, axes = plotting.figure(max(1, min(2, len(pairs))), max(1, -(-len(pairs) // 2)), width=5.0, height=4.8)
    for axis in axes[max(1, len(pairs)) :]:
        axis.set_axis_off()
    for axis, (name, pair) in zip(axes, pairs.items(), strict=False):
        low, high = plotting.limits(pair.reference, pair.predicted)
        few = slice(None, None, -(-len(pair.reference) // POINTS))
        axis.plot((low, high), (low, high), color="0.7", lw=1)
        axis.plot(pair.reference[few], pair.predicted[few], ".", ms=3, alpha=0.5)
        axis.set(xlim=(low, high), ylim=(low, high), xlabel=f"reference, {pair.unit}", ylabel=f"predicted, {pair.unit}")
        axis.set_aspect("equal")
        axis.locator_params(nbins=5)
        found = statistics(pair)
        lost = int((~np.isfinite(pair.predicted)).sum())
        head = plotting.plain(f"{title} {name}".strip())
        head += f", {lost} of {len(pair.predicted)} not finite" if lost else ""
        r2 = "-" if np.isnan(found.r2) else f"{found.r2:.4f}"
        axis.set_title(
            f"{head}\nMAE {MEV_PER_EV * found.mae:.2f}, bias {MEV_PER_EV * found.bias:+.2f} m{pair.unit}, R² {r2}",
            fontsize=10,
        )
    if not pairs:
        plotting.nothing(axes[0], "no labels to compare with")
    return result


def write(evaluation: Evaluation, path: Path, title: str = "") -> None:
    """The figure as PNG."""
    plotting.save(figure(evaluation, title), path)
