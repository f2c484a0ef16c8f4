"""A run folder is usable at every moment: the process is stopped at each of its writes, and the disk is full at one."""

import dataclasses
import itertools
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from janus_jax import bundle, storage
from janus_jax.errors import ConfigError, DiskFullError
from janus_jax.models import build
from janus_jax.models.esen import EsenConfig
from janus_jax.train import run
from janus_jax.train.checkpoint import Checkpoints
from janus_jax.train.evaluate import Evaluation
from tests.test_janus_jax.test_train.test_damaged_checkpoints import about, same, state


class Stopped(BaseException):
    """What cannot be caught by mistake."""


class Writes:
    """Lets so many writes below a folder happen, then no more, as if the process had died."""

    def __init__(self):
        self.folder, self.left = None, 0
        sys.addaudithook(self)  # for good; idle without a folder

    def __call__(self, event, values):
        if self.folder is None or event not in ("open", "os.rename", "os.mkdir", "os.remove"):
            return
        mode = values[1] if event == "open" else "w"
        if str(self.folder) not in str(values[0]) or (isinstance(mode, str) and not set("wa+x") & set(mode)):
            return
        if event == "open" and mode is None:  # os.open, as rmtree reads folders
            return
        self.left -= 1
        if self.left < 0:
            raise Stopped


@pytest.fixture(scope="module")
def writes():
    return Writes()


def stopped_at_each(writes, folder, work):
    """Stop `work` before its first, second, ... write until it comes to its end; yields after each."""
    for count in range(100):
        writes.folder, writes.left = folder, count
        try:
            work()
            assert count > 2
            return
        except Stopped:
            writes.folder = None
            yield count
        finally:
            writes.folder = None
    raise AssertionError("no end")


@pytest.fixture
def quick(monkeypatch):
    """Up to the first step, which is not made."""

    def go(config, prepared, folder, began, trainer):
        return run.RunResult(folder, prepared.model, {"config": config})

    monkeypatch.setattr(run, "_go", go)


def test_a_new_folder_is_whole_or_not_there(tiny, files, tmp_path, writes, quick, monkeypatch):
    model = run.prepare(tiny(tmp_path)).model
    bundle.save(tmp_path / "start.janus", model)
    changes = [f"start_from={tmp_path / 'start.janus'}", "model={}"]
    config = tiny(tmp_path / "runs", *changes)
    prepared = run.prepare(config)
    monkeypatch.setattr(run, "prepare", lambda _: prepared)
    for _ in stopped_at_each(writes, tmp_path / "runs", lambda: run.run(config)):
        for folder in (tmp_path / "runs").glob("run*"):
            assert run.resume(folder).figures["config"].start_from == str(folder / "start.janus")
    assert (tmp_path / "runs" / "run" / "config.yaml").exists()


def test_a_changed_layout_is_resumed_whenever_it_was_stopped(tiny, tmp_path, writes, quick, monkeypatch):
    two = ["model.num_layers=2", "batch.micro_batches=2", "mesh.pipe=2"]
    config = tiny(tmp_path, *two)
    prepared = run.prepare(config)
    monkeypatch.setattr(run, "prepare", lambda _: prepared)
    run.run(config)
    folder = tmp_path / "run"
    change = ["pipeline.schedule=1f1b_2nd"]
    for _ in stopped_at_each(writes, folder, lambda: run.resume(folder, change)):
        assert run.resume(folder).figures["config"].pipeline.schedule in ("split", "1f1b_2nd")
        kept = (folder / "schedule.txt").read_text()
        wanted = run.read_config(folder / "config.yaml", []).pipeline.schedule
        assert kept.split()[1].startswith(wanted.split("_")[0]), kept[:80]
    assert "1f1b" in (folder / "schedule.txt").read_text()[:80]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def large(step):
    found = state(step)
    wide = jax.tree.map(lambda a: jax.numpy.asarray(np.random.default_rng(1).normal(size=(400, 400))), found.params)
    return dataclasses.replace(found, params=wide)


def test_a_full_disk_is_one_sentence_and_the_last_state_is_safe(small_disk):
    checkpoints = Checkpoints(small_disk / "checkpoints")
    checkpoints.save(state(1), about(1))
    checkpoints.manager.wait_until_finished()
    with pytest.raises(DiskFullError, match=r"checkpoints: no room for its 1,\d+,\d+ bytes \([\d,]+ are free[^\n]*$"):
        checkpoints.save(large(2), about(1))
    checkpoints.close()
    found, _ = Checkpoints(small_disk / "checkpoints").restore(state(0))
    assert same(found, state(1))
    path = small_disk / "model.janus"
    bundle.save(path, (model := build(EsenConfig(channels=4, hidden_channels=4, edge_channels=4), rngs=nnx.Rngs(0))))
    (small_disk / "other").write_bytes(bytes(storage.free_bytes(small_disk) - path.stat().st_size // 2))
    with pytest.raises(DiskFullError, match=r"model.janus: no room for its [\d,]+ bytes"):
        bundle.save(path, model, {"step": 2})
    assert bundle.describe(path)["summary"] == {}
    other = small_disk / "other"  # larger than was said
    with pytest.raises(DiskFullError, match="other"), storage.replacing(other, 0) as file:
        file.write(bytes(400_000))
    assert sorted(p.name for p in small_disk.iterdir()) == ["checkpoints", "model.janus", "other"]


def test_the_best_weights_come_from_the_model_file_if_their_checkpoint_is_damaged(tiny, tmp_path, caplog, monkeypatch):
    losses = itertools.count()
    monkeypatch.setattr(Evaluation, "loss", lambda *_: float(next(losses)))  # the first is the best
    result = run.run(tiny(tmp_path, "steps=2", "validate_every=1", "tracking.report=false"))
    assert result.figures["best_step"] == 1
    for path in (result.folder / "checkpoints" / "1" / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    again = run.resume(result.folder, ["steps=3"])
    assert again.figures["best_step"] == 1
    assert "The best weights so far are taken from" in caplog.text
    before = bundle.convert.save_state(result.model)
    for name, array in bundle.convert.save_state(again.model).items():
        np.testing.assert_array_equal(array, before[name])


def test_training_without_validation_keeps_the_last_weights(tiny, tmp_path, capsys):
    result = run.run(tiny(tmp_path, "data.validation=null", "data.test=null", "steps=3", "tracking.report=true"))
    assert "no validation (data.validation is null): the model is that of the last step" in capsys.readouterr().err
    assert result.figures["best_step"] == 3
    assert "validation" not in result.figures
    assert bundle.describe(result.folder)["summary"]["best_step"] == 3
    with pytest.raises(ConfigError, match="patience counts validations, and data.validation is null"):
        tiny(tmp_path, "data.validation=null", "patience=2")


def test_a_memory_that_micro_batches_do_not_fit_into_is_refused_before_anything_is_written(tiny, tmp_path):
    settings = ["model.num_layers=2", "batch.micro_batches=2", "mesh.pipe=2", "pipeline.device_memory_gib=1e-7"]
    with pytest.raises(
        ConfigError, match=r"pipeline.device_memory_gib=1e-07: micro-batches of split.* need [\d.e-]+ GiB"
    ):
        run.run(tiny(tmp_path, *settings))
    assert not list(tmp_path.iterdir())
