"""Pictures of runs: learning curves, parity, force errors, use of the batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from janus_jax import plotting
from janus_jax.train import worst
from janus_jax.train.evaluate import Evaluation
from janus_jax.units import MEV_PER_EV

POINTS = 20_000
"""More points than this are thinned out in scatter plots."""

PANELS = (
    ("train_force_norm_meV_per_angstrom", "validation_forces_mae_meV_per_angstrom", "forces, meV/Å"),
    ("train_energy_mae_meV_per_atom", "validation_energy_mae_meV_per_atom", "energy, meV/atom"),
)

Rows = Sequence[Mapping[str, Any]]


def learning_curves_figure(rows: Rows):
    """Training errors over steps, with the validation MAEs of the averaged weights, and the loss."""
    figure, axes = plotting.figure(3)
    names = ("training batch (force norm)", "training batch"), ("validation MAE (components)", "validation MAE")
    for k, (axis, (train, validation, label)) in enumerate(zip(axes, PANELS, strict=False)):
        _curve(axis, rows, train, label=names[0][k], lw=0.6, color="0.6")
        _curve(axis, rows, validation, label=names[1][k], marker="o", ms=4)
        axis.set(xlabel="step", ylabel=label, yscale="log")
        axis.legend()
    _curve(axes[2], rows, "train_loss", label="training batch", lw=0.6, color="0.6")
    _curve(axes[2], rows, "validation_loss", label="validation", marker="o", ms=4)
    axes[2].set(xlabel="step", ylabel="loss", yscale="log")
    axes[2].legend()
    return figure


def learning_curves(rows: Rows, path: Path) -> None:
    plotting.save(learning_curves_figure(rows), path)


def _curve(axis, rows: Rows, key: str, x: str = "step", **style) -> None:
    points = [(row[x], row[key]) for row in rows if row.get(key)]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def parity_figure(evaluation: Evaluation, title: str = ""):
    """Predicted against reference: energy per atom, force components, stress components."""
    atoms, known = np.maximum(evaluation.atoms, 1), evaluation.known()
    quantities = {
        "energy": (evaluation.energy_label / atoms, evaluation.energy / atoms, "eV/atom"),
        "forces": (evaluation.forces_label, evaluation.forces, "eV/Å"),
        "stress": (evaluation.stress_label, evaluation.stress, "eV/Å$^3$"),
    }
    shown = [name for name in quantities if known[name].any()]
    figure, axes = plotting.figure(max(1, len(shown)))
    metrics = evaluation.metrics()
    for axis, name in zip(axes, shown, strict=False):
        reference, predicted, unit = quantities[name]
        reference, predicted = reference[known[name]].ravel(), predicted[known[name]].ravel()
        few = slice(None, None, -(-len(reference) // POINTS))
        axis.axline((reference[0],) * 2, slope=1, color="0.7", lw=1)
        axis.plot(reference[few], predicted[few], ".", ms=3, alpha=0.5)
        mae = next(value for key, value in metrics.items() if key.startswith(f"{name}_mae"))
        axis.set(
            xlabel=f"reference, {unit}", ylabel=f"predicted, {unit}", title=f"{title} {name}: MAE {mae:.1f} m{unit}"
        )
    return figure


def parity(evaluation: Evaluation, path: Path, title: str = "") -> None:
    plotting.save(parity_figure(evaluation, title), path)


def force_errors_figure(evaluation: Evaluation):
    """Histogram of force-error lengths, and error against the size of the reference force."""
    known = evaluation.known()["forces"]
    error = np.linalg.norm(evaluation.differences()["forces"][known], axis=1)
    size = np.linalg.norm(evaluation.forces_label[known], axis=1)
    figure, axes = plotting.figure(2)
    if len(error):
        positive = np.maximum(error, 1e-6)
        axes[0].hist(
            MEV_PER_EV * positive,
            bins=np.geomspace(MEV_PER_EV * positive.min(), MEV_PER_EV * positive.max() * 1.001, 60),
        )
        axes[0].axvline(
            MEV_PER_EV * np.median(error), color="k", lw=1, label=f"median {MEV_PER_EV * np.median(error):.1f}"
        )
        few = slice(None, None, -(-len(error) // POINTS))
        axes[1].plot(size[few], error[few], ".", ms=3, alpha=0.5)
        axes[0].legend()
    axes[0].set(xlabel="length of the force error, meV/Å", ylabel="atoms", xscale="log")
    axes[1].set(xlabel="reference force, eV/Å", ylabel="force error, eV/Å")
    return figure


def bars_figure(values: Mapping[str, float], label: str):
    """One horizontal bar a name, largest on top."""
    figure, (axis,) = plotting.figure(1, width=6.0, height=1.2 + 0.3 * len(values))
    names = sorted(values, key=lambda name: values[name])
    axis.barh(names, [values[name] for name in names])
    axis.set(xlabel=label)
    return figure


def batches_figure(rows: Rows):
    """How full the batches were, and how fast steps went."""
    figure, axes = plotting.figure(3)
    train = [row for row in rows if "train_loss" in row]
    for key, name in (("atoms_used", "atoms"), ("edges_used", "edges")):
        values = [100 * row[key] for row in train if row.get(key) is not None]
        if values:
            axes[0].hist(values, bins=np.linspace(0, 100, 41).tolist(), alpha=0.6, label=name)
    axes[0].set(xlabel="part of the capacity used, %", ylabel="steps")
    if axes[0].has_data():
        axes[0].legend()
    _curve(axes[1], train, "atoms_per_s", lw=0.8)
    axes[1].set(xlabel="step", ylabel="atoms/s")
    _curve(axes[2], train, "gradient_norm", lw=0.8)
    axes[2].set(xlabel="step", ylabel="gradient norm", yscale="log")
    return figure


def worst_figure(frames: Sequence[Any]):
    """Pictures of the worst structures with their errors."""
    figure, axes = plotting.figure(min(3, len(frames)), -(-len(frames) // 3))
    for axis in axes[len(frames) :]:
        axis.set_axis_off()
    for axis, frame in zip(axes, frames, strict=False):
        worst.draw(axis, frame)
        axis.set_title(
            f"{frame.get_chemical_formula()}\nforces {frame.info['force_rmse_meV_per_angstrom']:.0f} meV/Å, "
            f"energy {frame.info['energy_error_meV_per_atom']:+.1f} meV/atom",
            fontsize=9,
        )
    return figure


def compare_figure(runs: Mapping[str, Rows]):
    """Validation force and energy MAE of several runs, over steps and over training time."""
    figure, axes = plotting.figure(2, 2)
    for name, rows in runs.items():
        seconds, timed = 0.0, []
        for row in rows:
            seconds += row.get("step_s") or 0.0
            timed.append({**row, "seconds": seconds})
        for k, (_, validation, label) in enumerate(PANELS):
            for row, x in enumerate(("step", "seconds")):
                axis = axes[2 * row + k]
                _curve(axis, timed, validation, x, marker="o", ms=3, label=name)
                axis.set(xlabel="step" if x == "step" else "training time, s", ylabel=f"validation {label}")
                axis.set_yscale("log")
    for axis in axes:
        if axis.has_data():
            axis.legend()
    return figure
