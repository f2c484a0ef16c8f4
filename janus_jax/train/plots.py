"""Pictures of a run, as PNG: learning curves and parity plots."""

from pathlib import Path
from typing import Any

import numpy as np

from janus_jax import plotting
from janus_jax.train.evaluate import Evaluation


def learning_curves(history: list[dict[str, Any]], path: Path) -> None:
    """Training force error over steps, with the validation MAEs of the averaged weights."""
    figure, axes = plotting.figure(2)
    panels = [
        ("train_force_norm_meV_per_angstrom", "validation_forces_mae_meV_per_angstrom", "forces, meV/Å"),
        ("train_energy_mae_meV_per_atom", "validation_energy_mae_meV_per_atom", "energy, meV/atom"),
    ]
    for axis, (train, validation, label) in zip(axes, panels, strict=True):
        for key, style, name in (
            (
                train,
                {"lw": 0.6, "color": "0.6"},
                "training batch (force norm)" if "force" in train else "training batch",
            ),
            (validation, {"marker": "o"}, "validation MAE (components)" if "force" in train else "validation MAE"),
        ):
            points = [(row["step"], row[key]) for row in history if row.get(key)]
            if points:
                axis.plot(*zip(*points, strict=True), label=name, **style)
        axis.set(xlabel="step", ylabel=label, yscale="log")
        axis.legend()
    plotting.save(figure, path)


def parity(evaluation: Evaluation, path: Path, title: str = "") -> None:
    """Predicted against reference: energy per atom, force components, stress components."""
    atoms = np.maximum(evaluation.atoms, 1)
    quantities = {
        "energy": (evaluation.energy_label / atoms, evaluation.energy / atoms, "eV/atom"),
        "forces": (np.concatenate(evaluation.forces_label).ravel(), np.concatenate(evaluation.forces).ravel(), "eV/Å"),
        "stress": (evaluation.stress_label.ravel(), evaluation.stress.ravel(), "eV/Å$^3$"),
    }
    known = {name: values for name, values in quantities.items() if np.isfinite(values[0]).any()}
    figure, axes = plotting.figure(max(1, len(known)))
    metrics = evaluation.metrics()
    for axis, (name, (label, predicted, unit)) in zip(axes, known.items(), strict=False):
        axis.axline((label[np.isfinite(label)][0],) * 2, slope=1, color="0.7", lw=1)
        axis.plot(label, predicted, ".", ms=3, alpha=0.5)
        mae = next(value for key, value in metrics.items() if key.startswith(f"{name}_mae"))
        axis.set(
            xlabel=f"reference, {unit}", ylabel=f"predicted, {unit}", title=f"{title} {name}: MAE {mae:.1f} m{unit}"
        )
    plotting.save(figure, path)
