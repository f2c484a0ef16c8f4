"""Pictures: what they compare, and that nothing in data or names makes matplotlib warn (a warning fails a test)."""

import re
from pathlib import Path

import numpy as np
import pytest
from ase.build import molecule

import janus_jax
from janus_jax import plotting
from janus_jax.data import inspection
from janus_jax.data.sources import Frames
from janus_jax.data.summary import summarize
from janus_jax.train import parity, plots, worst
from janus_jax.train.evaluate import Evaluation

RNG = np.random.default_rng(0)
ROW = {
    "train_loss": 3.0, "train_forces_mae_meV_per_angstrom": 20.0, "train_energy_mae_meV_per_atom": 2.0,
    "atoms_used": 0.5, "edges_used": 0.7, "atoms_per_s": 100.0, "gradient_norm": 1.0, "step_s": 0.1,
}  # fmt: skip
VALIDATION = {
    "validation_loss": 2.0, "validation_forces_mae_meV_per_angstrom": 30.0, "validation_energy_mae_meV_per_atom": 3.0,
}  # fmt: skip


def evaluation(structures: int = 4, atoms: int = 3, error: float = 0.1, **changes) -> Evaluation:
    shapes = {"energy": (structures,), "forces": (structures * atoms, 3), "stress": (structures, 3, 3)}
    values: dict = {
        "atoms": np.full(structures, atoms),
        "numbers": np.tile([8, 1, 1], structures)[: structures * atoms],
    }
    values["weight"] = np.ones(structures)
    for name, shape in shapes.items():
        label = RNG.normal(size=shape)
        values[f"{name}_label"] = label + np.swapaxes(label, -1, -2) if name == "stress" else label
        values[name] = values[f"{name}_label"] + error
    return Evaluation(**values | changes)


def test_pressure_and_deviatoric_stress_are_apart():
    shear = np.array([[1.0, 3.0, -2.0], [3.0, 1.0, 0.5], [-2.0, 0.5, -2.0]])
    label = RNG.normal(size=(4, 3, 3))
    label = label + np.swapaxes(label, 1, 2)
    pairs = parity.compared(evaluation(stress_label=label, stress=label - 0.2 * np.eye(3)))
    assert list(pairs) == ["energy", "forces", "pressure", "deviatoric stress"]
    np.testing.assert_allclose(pairs["pressure"].reference, -np.trace(label, axis1=1, axis2=2) / 3)
    assert parity.statistics(pairs["pressure"])[:2] == pytest.approx((0.2, 0.2))
    assert parity.statistics(pairs["deviatoric stress"]).mae < 1e-12
    pairs = parity.compared(evaluation(stress_label=label, stress=label + shear))
    assert parity.statistics(pairs["pressure"]).mae < 1e-12
    six = shear[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]]
    assert parity.statistics(pairs["deviatoric stress"])[:2] == pytest.approx((np.abs(six).mean(), six.mean()))


def test_bias_and_r2():
    reference = RNG.normal(size=200)
    predicted = 0.9 * reference + 0.3 + 0.1 * RNG.normal(size=200)
    found = parity.statistics(parity.Compared(reference, predicted, "eV"))
    error = predicted - reference
    r2 = 1 - (error**2).sum() / ((reference - reference.mean()) ** 2).sum()
    assert found == pytest.approx((np.abs(error).mean(), error.mean(), r2))
    predicted[3] = np.nan  # such a one is counted in the title
    assert np.isfinite(parity.statistics(parity.Compared(reference, predicted, "eV"))).all()
    one = parity.statistics(parity.Compared(np.full(3, 0.1 + 0.2), np.array([0.3, 0.4, 0.5]), "eV"))
    assert np.isnan(one.r2)


def test_both_axes_of_a_parity_plot_are_alike():
    figure = parity.figure(evaluation(error=2.0), "test")
    assert len(figure.axes) == 4
    for axis in figure.axes:
        assert axis.get_xlim() == axis.get_ylim()
        assert axis.get_aspect() == 1.0
        assert re.search(r"MAE [\d.]+, bias [+-][\d.]+ m\S+, R² -?[\d.]+", axis.get_title())


NAN = {
    "forces": np.full((12, 3), np.nan), "energy": np.full(4, np.inf), "stress": np.full((4, 3, 3), np.nan),
}  # fmt: skip
NONE = {f"{name}_label": np.full_like(value, np.nan) for name, value in NAN.items()}
SAME = {
    "forces_label": np.zeros((12, 3)), "energy_label": np.ones(4), "stress_label": np.zeros((4, 3, 3)),
    "forces": np.zeros((12, 3)), "energy": np.ones(4), "stress": np.zeros((4, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [evaluation(0), evaluation(1, 1), evaluation(**NAN), evaluation(**NONE), evaluation(**SAME), evaluation(error=0.0)],
    ids=["empty", "one atom", "not finite", "no labels", "all the same", "exact"],
)
def test_any_evaluation_can_be_drawn(given):
    plotting.to_png(parity.figure(given, "a $file$ of_水"))
    plotting.to_png(plots.force_errors_figure(given))


@pytest.mark.parametrize(
    "rows",
    [[], [{"step": 1, **ROW, **VALIDATION}], [{"step": 1, **dict.fromkeys([*ROW, *VALIDATION])}]],
    ids=["empty", "one step", "not finite"],
)
def test_any_rows_can_be_drawn(rows):
    for figure in (
        plots.learning_curves_figure(rows),
        plots.batches_figure(rows),
        plots.compare_figure({"_run": rows, "a$b": rows[:1], "水": []}),
        plots.bars_figure({"_a$": 1.0, "水": 0.0}, "force MAE"),
    ):
        plotting.to_png(figure)
    labels = [
        text.get_text()
        for text in plots.compare_figure({"_run": [{"step": 1, **VALIDATION}]}).axes[0].get_legend().texts
    ]
    assert labels == [" _run"]  # matplotlib would leave out a label that begins with _


def test_a_learning_curve_has_one_figure_of_errors():
    rows = [
        {"step": 1, **ROW, "train_force_norm_meV_per_angstrom": 99.0},  # of older runs: another figure
        {"step": 2, **VALIDATION},
    ]
    axis = plots.learning_curves_figure(rows).axes[0]
    drawn = {line.get_label(): line.get_ydata().tolist() for line in axis.lines}
    assert drawn == {"training batch": [20.0], "validation": [30.0]}
    assert axis.get_ylabel() == "force MAE (components), meV/Å"


@pytest.mark.parametrize("count", [0, 1, 4])
def test_worst_frames_have_one_colour_bar(count):
    frames = []
    for k in range(count):
        frame = molecule("H2O")
        frame.info = {"force_rmse_meV_per_angstrom": 10.0, "energy_error_meV_per_atom": float("nan")}
        frame.new_array("force_error", np.full((3, 3), 0.1 * (k + 1)))
        frame.arrays["force_error"][0] = np.nan  # held by a constraint: no label
        frames.append(frame)
    figure = plots.worst_figure(frames)
    plotting.to_png(figure)
    bars = [axis for axis in figure.axes if "force error, meV/Å" in axis.get_ylabel()]
    assert len(bars) == min(count, 1)
    if count == 4:
        assert bars[0].get_ylim() == pytest.approx((0, 400 * 3**0.5))
        colors = worst.Colors(frames).of(frames[0])
        assert colors[0].tolist() == [0.8] * 3
        assert (colors[1] != worst.Colors(frames).of(frames[3])[1]).any()


def test_histograms_of_data_that_hardly_differ(tmp_path):
    summary = summarize(Frames([molecule("H2O"), molecule("CH4")]), 3.0)
    summary.records["pressure"] = 100.0, np.nextafter(100.0, 200)  # numpy makes no ten bins between these
    inspection.draw(summary, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5000


def test_legends_have_a_fixed_place():
    # "best" is slow with many points, and matplotlib warns of it and of legends without a label.
    root = Path(janus_jax.__file__).parents[1]
    files = [path for package in ("janus_jax", "md", "benchmarks") for path in (root / package).rglob("*.py")]
    wrong = [path.name for path in files if re.search(r"(?<!plotting)\.legend\(", path.read_text())]
    assert wrong == ["plotting.py"]
    axis = plotting.figure(1)[1][0]
    plotting.legend(axis)
    assert axis.get_legend() is None
    axis.plot([1], [2], label="a")
    plotting.legend(axis)
    assert axis.get_legend()._loc == 1
