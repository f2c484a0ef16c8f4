"""A whole small run: files, figures, checkpoints, determinism, failure."""

import json

import jax
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from janus_jax import bundle
from janus_jax.errors import CapacityError, ConfigError, DataError, TrainingError
from janus_jax.train import config, loop
from janus_jax.train.checkpoint import Checkpoints
from janus_jax.train.prepare import prepare
from janus_jax.train.state import Trainer

TINY = [
    "model={cutoff_angstrom: 3, num_layers: 1, channels: 8, hidden_channels: 8, edge_channels: 8, num_basis: 8}",
    "batch.atoms=64", "steps=8", "validate_every=4", "optimizer.warmup_steps=2", "optimizer.ema_decay=0.5",
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files cut from the built-in set."""
    from janus_jax.data.readers import read_frames

    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "validation", "test"):
        write(folder / f"{split}.xyz", read_frames(f"water:{split}")[:6], format="extxyz")
    return folder


def tiny(files, folder, *changes):
    sources = [f"data.{split}={files / split}.xyz" for split in ("train", "validation", "test")]
    return config.load(None, [*TINY, *sources, f"output={folder / 'run'}", *changes])


@pytest.fixture(scope="module")
def result(files, tmp_path_factory):
    return loop.run(tiny(files, tmp_path_factory.mktemp("runs"), "batch.micro_batches=2"))


def test_a_run_leaves_everything_a_user_needs(result):
    names = {path.relative_to(result.folder).as_posix() for path in result.folder.rglob("*")}
    wanted = {"config.yaml", "metrics.jsonl", "model.janus", "results.json", "plots/learning_curve.png"}
    assert wanted | {"plots/parity_test.png", "plots/parity_validation.png"} <= names
    assert json.loads((result.folder / "results.json").read_text()) == result.figures
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train_loss" in row] == list(range(1, 9))
    assert [row["step"] for row in rows if "validation_loss" in row] == [4, 8]
    assert result.figures["compilations"] == 1
    assert result.figures["test"]["structures"] == 6
    assert any((result.folder / "tensorboard").iterdir())
    assert config.load(result.folder / "config.yaml").steps == 8


def test_best_and_last_checkpoints_restore_the_state(result, files, tmp_path):
    checkpoints = Checkpoints(result.folder / "checkpoints")
    try:
        assert checkpoints.steps()[-1] == 8
        assert checkpoints.best() == result.figures["best_step"]
        settings = config.load(result.folder / "config.yaml")
        prepared = prepare(settings)
        trainer = Trainer(prepared.model, loop.optimizer.make(settings.optimizer, 8), settings.loss, 0.5)
        state, about = checkpoints.restore(trainer.init(prepared.model), checkpoints.best())
        assert about["config"] == settings.model_dump(mode="json")
        assert about["position"]["drawn"] > 0
        stored = bundle.convert.save_state(bundle.load(result.folder))
        for name, array in bundle.convert.save_state(trainer.model(state)).items():
            np.testing.assert_array_equal(array, stored[name])
    finally:
        checkpoints.close()


def test_the_same_configuration_gives_the_same_model(result, files, tmp_path):
    again = loop.run(tiny(files, tmp_path, "batch.micro_batches=2"))
    for a, b in zip(*(jax.tree.leaves(bundle.convert.save_state(r.model)) for r in (result, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_existing_run_is_never_overwritten(tmp_path):
    assert [loop.new_folder(tmp_path / "run").name for _ in range(3)] == ["run", "run-2", "run-3"]


def test_training_lowers_the_loss(files, tmp_path):
    # The held-out loss of the averaged weights falls well below that of the first steps.
    changes = [
        "model.channels=16",
        "model.num_basis=32",
        "steps=200",
        "validate_every=50",
        "optimizer.learning_rate=0.004",
    ]
    outcome = loop.run(tiny(files, tmp_path, *changes))
    rows = [json.loads(line) for line in (outcome.folder / "metrics.jsonl").read_text().splitlines()]
    values = [row["validation_loss"] for row in rows if "validation_loss" in row]
    assert values[-1] < 0.8 * values[0]


def test_a_structure_larger_than_the_batch_names_need_and_budget(files, tmp_path):
    with pytest.raises(CapacityError, match=r"\d+ atoms needed, capacity 16.*batch.atoms"):
        loop.run(tiny(files, tmp_path, "batch.atoms=16"))
    assert not (tmp_path / "run").exists()


def test_bad_data_stops_before_anything_is_written(files, tmp_path):
    frame = Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])
    frame.calc = SinglePointCalculator(frame, energy=np.nan, forces=np.zeros((2, 3)))
    write(tmp_path / "nan.xyz", [frame], format="extxyz")
    with pytest.raises(DataError, match=r"nan.xyz, frame 0: energy is not finite"):
        loop.run(tiny(files, tmp_path, f"data.train={tmp_path / 'nan.xyz'}", "data.references={H: 0, O: 0}"))
    with pytest.raises(DataError, match="No reference energy for O"):
        loop.run(tiny(files, tmp_path, "data.references={H: -13}"))
    with pytest.raises(DataError, match="missing.xyz: no such file"):
        loop.run(tiny(files, tmp_path, f"data.train={tmp_path / 'missing.xyz'}"))
    with pytest.raises(ConfigError, match="fraction"):
        loop.run(tiny(files, tmp_path, "data.validation=1.5"))
    assert not (tmp_path / "run").exists()


def test_steps_without_a_finite_gradient_end_the_run_with_a_sentence(files, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "MAX_SKIPPED", 2)
    with pytest.raises(TrainingError, match="no finite gradient"):
        loop.run(tiny(files, tmp_path, "loss.energy=1e38"))  # overflows float32
    assert (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_fraction_of_the_training_set_can_be_held_out(files, tmp_path):
    prepared = prepare(tiny(files, tmp_path, "data.validation=0.5", "data.test=null"))
    assert (len(prepared.train), len(prepared.validation), len(prepared.test)) == (3, 3, 0)
