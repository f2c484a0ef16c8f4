"""Pictures of runs: learning curves, force errors, worst structures, use of the batches."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from janus_jax import plotting
from janus_jax.train import worst
from janus_jax.train.evaluate import Evaluation
from janus_jax.train.parity import POINTS
from janus_jax.units import MEV_PER_EV

PANELS = (
    ("forces_mae_meV_per_angstrom", "force MAE (components), meV/Å"),
    ("energy_mae_meV_per_atom", "energy MAE, meV/atom"),
)
"""One figure of both, training and validation."""

Rows = Sequence[Mapping[str, Any]]


def learning_curves_figure(rows: Rows):
    """Errors of each step's batch, the same errors of the averaged weights on the validation set, and the loss."""
    figure, axes = plotting.figure(3)
    for axis, (key, label) in zip(axes, (*PANELS, ("loss", "loss")), strict=True):
        _curve(axis, rows, f"train_{key}", label="training batch", lw=0.6, color="0.6")
        _curve(axis, rows, f"validation_{key}", label="validation", marker="o", ms=4)
        axis.set(xlabel="step", ylabel=label)
        plotting.logarithmic(axis)
        plotting.legend(axis)
    return figure


def learning_curves(rows: Rows, path: Path) -> None:
    plotting.save(learning_curves_figure(rows), path)


def _curve(axis, rows: Rows, key: str, x: str = "step", **style) -> None:
    points = [(row[x], row[key]) for row in rows if row.get(key)]
    if points:
        axis.plot(*zip(*points, strict=True), **style)


def force_errors_figure(evaluation: Evaluation):
    """Histogram of force-error lengths, and error against the size of the reference force."""
    known = evaluation.known()["forces"]
    error = np.linalg.norm(evaluation.differences()["forces"][known], axis=1)
    size = np.linalg.norm(evaluation.forces_label[known], axis=1)
    figure, axes = plotting.figure(2)
    good = np.isfinite(error)
    error, size, lost = error[good], size[good], int((~good).sum())
    if len(error):
        shown = MEV_PER_EV * np.maximum(error, 1e-6)
        axes[0].hist(shown, bins=np.geomspace(shown.min() / 1.001, shown.max() * 1.001, 60).tolist())
        axes[0].axvline(np.median(shown), color="k", lw=1, label=f"median {np.median(shown):.4g}")
        few = slice(None, None, -(-len(error) // POINTS))
        axes[1].plot(size[few], MEV_PER_EV * error[few], ".", ms=3, alpha=0.5)
        axes[0].set_xscale("log")
        plotting.legend(axes[0], "upper left")
    axes[0].set(xlabel="length of the force error, meV/Å", ylabel="atoms")
    axes[1].set(xlabel="reference force, eV/Å", ylabel="length of the force error, meV/Å")
    if lost:
        axes[0].set_title(f"without {lost} atoms whose force is not finite", fontsize=9)
    return figure


def bars_figure(values: Mapping[str, float], label: str):
    """One horizontal bar a name, largest on top."""
    figure, (axis,) = plotting.figure(1, width=6.0, height=1.2 + 0.3 * len(values))
    names = sorted(values, key=lambda name: values[name])
    axis.barh(range(len(names)), [values[name] for name in names])
    axis.set(xlabel=label, yticks=range(len(names)), yticklabels=[plotting.plain(name) for name in names])
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
    plotting.legend(axes[0], "upper left")
    _curve(axes[1], train, "atoms_per_s", lw=0.8)
    axes[1].set(xlabel="step", ylabel="atoms/s")
    _curve(axes[2], train, "gradient_norm", lw=0.8)
    axes[2].set(xlabel="step", ylabel="gradient norm")
    plotting.logarithmic(axes[2])
    return figure


def worst_figure(frames: Sequence[Any]):
    """Pictures of the worst structures with their errors; one colour bar for the errors of all atoms."""
    figure, axes = plotting.figure(min(3, max(1, len(frames))), -(-max(1, len(frames)) // 3))
    for axis in axes[len(frames) :]:
        axis.set_axis_off()
    colors = worst.Colors(frames)
    for axis, frame in zip(axes, frames, strict=False):
        worst.draw(axis, frame, colors)
        energy = float(frame.info["energy_error_meV_per_atom"])
        shown = "no energy label" if np.isnan(energy) else f"energy {energy:+.1f} meV/atom"
        axis.set_title(
            f"{frame.get_chemical_formula()}\nforces {frame.info['force_rmse_meV_per_angstrom']:.0f} meV/Å, {shown}",
            fontsize=9,
        )
    if len(frames):
        figure.colorbar(colors.mappable(), ax=list(axes), label="length of an atom's force error, meV/Å", shrink=0.8)
    return figure


def compare_figure(runs: Mapping[str, Rows]):
    """Validation force and energy MAE of several runs, over steps and over training time."""
    figure, axes = plotting.figure(2, 2)
    for name, rows in runs.items():
        seconds, timed = 0.0, []
        for row in rows:
            seconds += row.get("step_s") or 0.0
            timed.append({**row, "seconds": seconds})
        for k, (key, label) in enumerate(PANELS):
            for row, x in enumerate(("step", "seconds")):
                axis = axes[2 * row + k]
                _curve(axis, timed, f"validation_{key}", x, marker="o", ms=3, label=plotting.plain(name))
                axis.set(xlabel="step" if x == "step" else "training time, s", ylabel=f"validation {label}")
                plotting.logarithmic(axis)
    for axis in axes:
        plotting.legend(axis)
    return figure
