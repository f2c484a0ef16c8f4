"""Checkpoints: a killed run goes on bit for bit; damaged, foreign and old checkpoints."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from janus_jax import bundle
from janus_jax.errors import CheckpointError, ConfigError
from janus_jax.train import run
from janus_jax.train.checkpoint import FORMAT, MIGRATIONS, Checkpoints
from janus_jax.train.state import Trainer

FIXTURES = Path(__file__).parents[2] / "fixtures"
MEASURED = ("step_s", "data_wait_s", "atoms_per_s")


def logged(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in MEASURED} for row in rows]


def weights(folder):
    return bundle.convert.save_state(bundle.load(folder))


def states(folder):
    """Everything in the last checkpoint."""
    checkpoints = Checkpoints(folder / "checkpoints")
    try:
        return checkpoints.manager.restore(checkpoints.steps()[-1])["state"]
    finally:
        checkpoints.close()


def results(folder):
    found = json.loads((folder / "results.json").read_text())
    return {key: value for key, value in found.items() if key not in ("run", "seconds", "compilations")}


def assert_equal_runs(one, other):
    assert logged(one) == logged(other)
    assert results(one) == results(other)
    for name, array in weights(one).items():
        np.testing.assert_array_equal(array, weights(other)[name])
    for a, b in zip(*(jax.tree.leaves(states(folder)) for folder in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)


LONG = ["steps=14", "validate_every=4", "batch.micro_batches=2", "checkpoint.every_steps=3"]


@pytest.fixture(scope="module")
def undisturbed(tiny, tmp_path_factory):
    return run.run(tiny(tmp_path_factory.mktemp("whole"), *LONG)).folder


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "janus_jax.cli.main", "train", *arguments],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for_step(process, folder, step):
    while process.poll() is None:
        path = folder / "metrics.jsonl"
        if path.exists() and len(path.read_text().splitlines()) >= step:
            return
        time.sleep(0.005)


def test_a_killed_run_goes_on_bit_for_bit(tiny, undisturbed, tmp_path):
    process = start(*tiny.overrides(tmp_path, *LONG))
    wait_for_step(process, tmp_path / "run", int(np.random.default_rng().integers(2, 13)))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run.resume(tmp_path / "run")
    assert_equal_runs(undisturbed, tmp_path / "run")


def test_sigterm_saves_and_says_how_to_go_on(tiny, undisturbed, tmp_path):
    process = start(*tiny.overrides(tmp_path, *LONG))
    wait_for_step(process, tmp_path / "run", 2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143
    assert f"--resume {tmp_path / 'run'}" in errors
    step = max(int(name) for name in os.listdir(tmp_path / "run" / "checkpoints") if name.isdigit())
    assert step == max(row["step"] for row in logged(tmp_path / "run"))
    run.resume(tmp_path / "run")
    assert_equal_runs(undisturbed, tmp_path / "run")


def test_a_time_limit_stops_and_a_resumed_run_may_have_another(tiny, undisturbed, tmp_path):
    result = run.run(tiny(tmp_path, *LONG, "checkpoint.time_limit_minutes=1e-9"))
    assert result.stopped == "time limit"
    assert not (result.folder / "results.json").exists()
    run.resume(result.folder, ["checkpoint.time_limit_minutes=null"])
    assert_equal_runs(undisturbed, result.folder)
    with pytest.raises(ConfigError, match=r"model.channels: a resumed run can change only steps"):
        run.resume(result.folder, ["model.channels=4"])
    with pytest.raises(ConfigError, match="no run to resume"):
        run.resume(tmp_path)


def test_best_last_two_and_every_n_are_kept(undisturbed, tiny, tmp_path):
    checkpoints = Checkpoints(undisturbed / "checkpoints")
    best = json.loads((undisturbed / "results.json").read_text())["best_step"]
    try:
        assert checkpoints.best() == best
        assert set(checkpoints.steps()) == {best, 12, 14}
    finally:
        checkpoints.close()
    folder = run.run(tiny(tmp_path, "checkpoint.keep_every_steps=3")).folder
    assert {"3", "6"} <= set(os.listdir(folder / "checkpoints"))


def damage(folder):
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size > 200:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_damaged_checkpoint_is_named_left_alone_and_the_one_before_is_used(tiny, undisturbed, tmp_path, caplog):
    result = run.run(tiny(tmp_path, *LONG))
    last = result.folder / "checkpoints" / "14"
    damage(last / "state")
    before = {path: path.read_bytes() for path in last.rglob("*") if path.is_file()}
    caplog.clear()
    run.resume(result.folder, ["checkpoint.every_steps=1"])
    assert f"{last}: cannot be read" in caplog.text
    aside = last.with_name("14.unreadable")  # the run has reached step 14 again, and saved it
    assert {aside / path.relative_to(last): data for path, data in before.items()} == {
        path: path.read_bytes() for path in aside.rglob("*") if path.is_file()
    }
    assert {"13", "14"} <= set(os.listdir(last.parent))
    assert logged(undisturbed) == logged(result.folder)
    for step in os.listdir(result.folder / "checkpoints"):
        damage(result.folder / "checkpoints" / step)
    with pytest.raises(CheckpointError, match="no checkpoint that can be read"):
        run.resume(result.folder)


def test_a_foreign_folder_is_named_and_left_alone(tiny, tmp_path, caplog):
    result = run.run(tiny(tmp_path))
    foreign = result.folder / "checkpoints" / "99"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    (foreign / "commit_success.txt").touch()
    run.resume(result.folder, ["steps=12"])
    assert "checkpoints/99: " in caplog.text
    assert (foreign / "notes.txt").read_text() == "mine"
    assert "12" in os.listdir(result.folder / "checkpoints")  # a later number keeps nothing from being saved


def spoiled(monkeypatch, steps):
    """Make the gradient of these steps infinite, as a bad batch would."""
    original = Trainer._gradient

    def gradient(self, state, graph, counts):
        value, terms = original(self, state, graph, counts)
        bad = jnp.isin(state.step + 1, jnp.array(steps, jnp.int32))
        return jax.tree.map(lambda x: jnp.where(bad, jnp.inf, x), value), terms

    monkeypatch.setattr(Trainer, "_gradient", gradient)


def test_skipped_steps_count_and_resume_bit_for_bit(tiny, tmp_path, monkeypatch):
    spoiled(monkeypatch, [2, 3, 8])
    whole = run.run(tiny(tmp_path / "a", *LONG)).folder
    assert [row["step"] for row in logged(whole) if "train_loss" in row] == list(range(1, 15))
    again = run.run(tiny(tmp_path / "c", *LONG, "checkpoint.time_limit_minutes=1e-9")).folder
    for _ in range(3):  # a step at a time, over the first skipped ones
        assert run.resume(again).stopped == "time limit"
    run.resume(again, ["checkpoint.time_limit_minutes=null"])
    assert_equal_runs(whole, again)


def test_an_early_stop_stays_where_it_is_when_resumed(tiny, tmp_path):
    still = ["optimizer.learning_rate=1e-12", "optimizer.weight_decay=0", "optimizer.ema_decay=0"]
    result = run.run(tiny(tmp_path, "steps=30", "validate_every=1", "patience=2", *still))
    ended = result.figures["steps"]
    assert ended < 30
    assert run.resume(result.folder).figures["steps"] == ended


def test_changed_data_are_refused(tiny, files, tmp_path):
    data = tmp_path / "train.xyz"
    data.write_text((files / "train.xyz").read_text())
    result = run.run(tiny(tmp_path, f"data.train={data}", "data.validation=0.3", "data.test=null"))
    data.write_text((files / "validation.xyz").read_text())
    with pytest.raises(CheckpointError, match="the data have changed"):
        run.resume(result.folder)


@pytest.mark.parametrize("version", range(1, FORMAT + 1))
def test_a_checkpoint_of_every_format_goes_on(version, files, tmp_path, monkeypatch):
    # The stored runs were made from the first three frames of each split; see docs/training.md.
    from ase.io import read, write

    with tarfile.open(FIXTURES / f"run_format{version}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for split in ("train", "validation", "test"):
        write(tmp_path / f"{split}.xyz", read(files / f"{split}.xyz", ":3"), format="extxyz")
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.manager.restore(4)["about"]["format"] == version
    assert checkpoints.about(4)["format"] == FORMAT
    checkpoints.close()
    stored = weights(tmp_path / "run")
    result = run.resume("run", ["steps=6"])
    assert result.figures["steps"] == 6
    assert [row["step"] for row in logged(tmp_path / "run") if "train_loss" in row] == [1, 2, 3, 4, 5, 6]
    assert any((weights(tmp_path / "run")[name] != array).any() for name, array in stored.items())


def test_migrations_are_complete():
    assert set(MIGRATIONS) == set(range(1, FORMAT))
