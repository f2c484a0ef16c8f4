"""A whole small run: files, figures, determinism, failure."""

import contextlib
import io
import json
import re

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from janus_jax import bundle
from janus_jax.cli.train import show
from janus_jax.errors import CapacityError, ConfigError, DataError, MissingPackageError, TrainingError, UnknownNameError
from janus_jax.train import config, loop, report, run
from janus_jax.train.evaluate import Evaluation
from janus_jax.train.prepare import prepare

PARTS = ("train", "validation")
SAID = io.StringIO()
"""What the run of `result` has said."""


@pytest.fixture(scope="module")
def result(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with contextlib.redirect_stderr(SAID):
        return run.run(tiny(folder, "batch.micro_batches=2", "tracking.tensorboard=true", "tracking.report=true"))


def rows(result, name="metrics.jsonl"):
    return [json.loads(line) for line in (result.folder / name).read_text().splitlines()]


def test_a_run_leaves_everything_a_user_needs(result):
    names = {path.relative_to(result.folder).as_posix() for path in result.folder.rglob("*")}
    wanted = {"config.yaml", "metrics.jsonl", "model.janus", "results.json", "plots/learning_curve.png"}
    wanted |= {"train.csv", "validation.csv", "events.jsonl", "report.html"}
    for split in ("test", "validation"):
        wanted |= {f"plots/parity_{split}.png", f"evaluation/{split}.npz", f"evaluation/worst_{split}.extxyz"}
    assert wanted <= names
    assert json.loads((result.folder / "results.json").read_text()) == result.figures
    logged = rows(result)
    assert [row["step"] for row in logged if "train_loss" in row] == list(range(1, 9))
    assert [row["step"] for row in logged if "validation_loss" in row] == [4, 8]
    assert all(0 < row["atoms_used"] <= 1 and 0 < row["edges_used"] <= 1 for row in logged if "train_loss" in row)
    assert result.figures["compilations"] == 1
    assert result.figures["test"]["structures"] == 6
    assert any((result.folder / "tensorboard").iterdir())
    assert config.load(result.folder / "config.yaml").steps == 8
    table = (result.folder / "train.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in table] == ["step", *map(str, range(1, 9))]
    assert rows(result, "events.jsonl")[0]["reason"] == "first batch of this capacity"


def test_people_are_told_sizes_and_errors_and_no_names_of_classes(result):
    said = SAID.getvalue()
    assert re.search(r"batches of [\d,]+ atoms, [\d,]+ edges, [\d,]+ structures; starting", said)
    assert not re.search(r"[A-Z][a-z]+\(\w+=|<\w+|np\.float", said)
    train, validation = ({key for row in rows(result) for key in row if key.startswith(part)} for part in PARTS)
    errors = {"forces_mae_meV_per_angstrom", "energy_mae_meV_per_atom"}
    assert errors <= {key.removeprefix("train_") for key in train}
    assert errors <= {key.removeprefix("validation_") for key in validation}


def test_the_last_line_names_the_files_that_there_are(result, capsys):
    show(result.figures)
    named = capsys.readouterr().out.splitlines()[-1].partition(": ")[2].split(", ")
    assert set(named) == {
        "model.janus",
        "results.json",
        "metrics.jsonl",
        "train.csv",
        "validation.csv",
        "plots",
        "report.html",
    }
    (result.folder / "report.html").rename(result.folder / "away")
    show(result.figures)
    assert "report.html" not in capsys.readouterr().out
    (result.folder / "away").rename(result.folder / "report.html")


def test_the_model_file_says_where_it_comes_from(result):
    header = bundle.describe(result.folder)
    assert header["elements"] == ["H", "O"]
    assert header["cutoff_angstrom"] == 3.0
    assert header["summary"]["test"] == result.figures["test"]
    assert header["data_hash"] == prepare(config.load(result.folder / "config.yaml")).data_hash
    assert header["versions"]["jax"] == jax.__version__


def test_the_report_is_one_page_with_pictures_and_no_network(result):
    page = (result.folder / "report.html").read_text()
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:|//)|url\(|<script|<link", page)
    titles = re.findall(r"<h2[^>]*>([^<]*)", page)
    for split in ("validation", "test"):
        assert {f"{kind}: {split}" for kind in ("Parity", "Force errors", "By element", "Worst frames")} <= set(titles)
    wanted = {"Learning curves", "Batches and speed", "Compilations and skipped steps", "Configuration", "Versions"}
    assert wanted <= set(titles)
    assert page.count("data:image/png;base64,") >= 8
    (result.folder / "report.html").unlink()
    report.write(result.folder)
    assert re.findall(r"<h2[^>]*>([^<]*)", (result.folder / "report.html").read_text()) == titles


def test_the_worst_frames_are_those_with_the_largest_errors(result):
    evaluation = Evaluation.load(result.folder / "evaluation" / "test.npz")
    difference = evaluation.forces - evaluation.forces_label
    per_frame = np.split(difference, np.cumsum(evaluation.atoms)[:-1])
    rmse = sorted((1000 * np.sqrt((part**2).mean()) for part in per_frame), reverse=True)
    frames = read(result.folder / "evaluation" / "worst_test.extxyz", ":")
    np.testing.assert_allclose([f.info["force_rmse_meV_per_angstrom"] for f in frames], rmse, rtol=1e-5)


def test_runs_can_be_compared(result, tmp_path):
    figures = report.compare([result.folder, result.folder], tmp_path / "new" / "c.html")
    assert list(figures.values()) == [result.figures]
    assert "Differing settings" in (tmp_path / "new" / "c.html").read_text()
    with pytest.raises(ConfigError, match="not a run folder"):
        report.compare([tmp_path], tmp_path / "c.html")


def test_the_same_configuration_gives_the_same_model(result, tiny, tmp_path):
    again = run.run(tiny(tmp_path, "batch.micro_batches=2"))
    for a, b in zip(*(jax.tree.leaves(bundle.convert.save_state(r.model)) for r in (result, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_existing_run_is_never_overwritten(tmp_path):
    assert [run.new_folder(tmp_path / "run").name for _ in range(3)] == ["run", "run-2", "run-3"]


def test_training_lowers_the_loss_and_stops_when_it_no_longer_does(tiny, tmp_path):
    # The held-out loss of the averaged weights falls well below that of the first steps.
    changes = ["model.channels=16", "model.num_basis=32", "steps=200", "validate_every=50"]
    outcome = run.run(tiny(tmp_path, *changes, "optimizer.learning_rate=0.004"))
    values = [row["validation_loss"] for row in rows(outcome) if "validation_loss" in row]
    assert values[-1] < 0.8 * values[0]


def test_early_stop_ends_the_run_and_says_so(tiny, tmp_path):
    changes = ["steps=200", "validate_every=1", "patience=2", "optimizer.learning_rate=1e-12"]
    outcome = run.run(tiny(tmp_path, *changes, "optimizer.weight_decay=0", "optimizer.ema_decay=0"))
    assert outcome.figures["ended_early"] == "no better validation in 2"
    assert outcome.figures["steps"] < 200
    assert outcome.stopped is None


def test_a_structure_larger_than_the_batch_names_need_and_budget(tiny, tmp_path):
    with pytest.raises(CapacityError, match=r"\d+ atoms needed, capacity 16.*batch.atoms \(.*xyz, frame \d"):
        run.run(tiny(tmp_path, "batch.atoms=16"))
    assert not (tmp_path / "run").exists()


def test_bad_data_stops_before_anything_is_written(tiny, tmp_path):
    frame = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])
    frame.calc = SinglePointCalculator(frame, energy=np.nan, forces=np.zeros((2, 3)))
    write(tmp_path / "nan.xyz", [frame], format="extxyz")
    nan = [f"data.train={tmp_path / 'nan.xyz'}", "data.references={H: 0, O: 0}"]
    with pytest.raises(DataError, match=r"1 of 1 frames of data.train.*nan.xyz, frame 0: energy is not finite"):
        run.run(tiny(tmp_path, *nan))
    with pytest.raises(ConfigError, match="data.train: no structure is left"):
        run.run(tiny(tmp_path, *nan, "data.bad_frames=skip"))
    with pytest.raises(DataError, match="No reference energy for O"):
        run.run(tiny(tmp_path, "data.references={H: -13}"))
    with pytest.raises(DataError, match="missing.xyz: no such file"):
        run.run(tiny(tmp_path, f"data.train={tmp_path / 'missing.xyz'}"))
    with pytest.raises(ConfigError, match="less than 1"):
        run.run(tiny(tmp_path, "data.validation=1.5"))
    with pytest.raises(DataError, match=r"data.labels.energy: no frame of .* has 'E'; found: energy"):
        run.run(tiny(tmp_path, "data.labels.energy=E"))
    with pytest.raises(ConfigError, match=r"optimizer: Unknown optimizer.schedule 'cosine'"):
        run.run(tiny(tmp_path, "optimizer.schedule=cosine"))
    with pytest.raises(MissingPackageError, match="wandb"):
        run.run(tiny(tmp_path, "tracking.wandb_project=p"))
    with pytest.raises(UnknownNameError, match="loss.config_type_weights 'bulk'"):
        run.run(tiny(tmp_path, "loss.config_type_weights={bulk: 2}"))
    assert not (tmp_path / "run").exists()


def test_steps_without_a_finite_gradient_name_their_frames_and_keep_the_last_good_state(
    tiny, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(loop, "MAX_SKIPPED", 2)
    with pytest.raises(TrainingError, match="no finite gradient"):
        run.run(tiny(tmp_path, "loss.energy=1e38"))  # overflows float32
    shown = capsys.readouterr().err
    assert "step 1: gradient not finite (1 in a row)" in shown
    assert "train.xyz, frame" in shown
    skipped = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in skipped if event["event"] == "skipped"] == [1, 2]
    settings = config.load(tmp_path / "run" / "config.yaml")
    prepared = prepare(settings)
    checkpoints = loop.Checkpoints(tmp_path / "run" / "checkpoints")
    trainer = loop.make_trainer(settings, prepared.model)
    work = loop.Loop(settings, prepared, tmp_path / "run", checkpoints, trainer)
    state, progress = work.restore()
    checkpoints.close()
    assert progress.skipped == 2
    for good, kept in zip(jax.tree.leaves(work.fresh.params), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_array_equal(good, kept)


def test_fractions_of_the_training_set_can_be_held_out(tiny, tmp_path, caplog):
    caplog.set_level("INFO")
    prepared = prepare(tiny(tmp_path, "data.validation=0.3", "data.test=0.3"))
    sizes = [len(part) for part in (prepared.train, prepared.validation, prepared.test)]
    assert sum(sizes) == 6
    assert min(sizes) >= 1
    names = [part.name(k) for part in (prepared.train, prepared.validation, prepared.test) for k in range(len(part))]
    assert len(set(names)) == 6
    for name, size in zip(("validation", "test"), sizes[1:], strict=True):
        assert (f"data.{name}: {size} of 6 structures, where 0.3 of them" in caplog.text) == (abs(size - 1.8) >= 1)
