"""What does not fit together is said in one sentence, before anything is written."""

import numpy as np
import pytest

from janus_jax.cli.main import main
from janus_jax.errors import CapacityError, MeshError, ScheduleError, UnknownNameError
from janus_jax.runtime import multihost
from janus_jax.runtime.config import PipelineConfig
from janus_jax.runtime.orders import make_schedule
from janus_jax.schedule import make, to_text
from janus_jax.train import run
from tests.test_janus_jax.test_runtime.conftest import pipeline


@pytest.mark.parametrize(("pipe", "data", "settings", "error", "words"), [
    (5, 1, {}, MeshError, "mesh.pipe=5: the model has 4 blocks .model.num_layers.; each stage needs one"),
    (2, 3, {}, MeshError, "4 micro-batches .batch.micro_batches. cannot be shared by mesh.data=3; choose a multiple"),
    (4, 4, {}, MeshError, "takes 16 devices; there are 8 cpu devices in 1 processes. Change the mesh or the devices"),
    (2, 1, {"blocks": (3, 2)}, MeshError, "does not fit mesh.pipe=2 and a model of 4 blocks"),
    (2, 1, {"schedule": "dualpipe"}, UnknownNameError, "no such file either.*'dualpipe'; allowed: .*wavek"),
    (2, 1, {"schedule": "wavek", "cap": 3}, ScheduleError, "a cap belongs to split, not to wavek"),
])  # fmt: skip
def test_impossible_grids(one, pipe, data, settings, error, words):
    with pytest.raises(error, match=words):
        pipeline(one.model, pipe, data, settings.pop("schedule", "split"), **settings)


def test_a_schedule_from_a_file_must_be_for_this_grid(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(to_text(make("wavek", 4, 8)))
    assert make_schedule(PipelineConfig(schedule=str(path)), 4, 8).name.startswith("wavek")
    with pytest.raises(ScheduleError, match="for 4 stages and 8 micro-batches on 4 ranks; mesh.pipe is 2"):
        make_schedule(PipelineConfig(schedule=str(path)), 2, 8)
    path.write_text(path.read_text().replace("RGF", "", 1).replace("FF(0)", "", 1))
    with pytest.raises(ScheduleError, match="device|line"):
        make_schedule(PipelineConfig(schedule=str(path)), 4, 8)


def test_another_schedule_of_other_programs_is_refused(one):
    trainer = pipeline(one.model, 2, 1, "split")
    with pytest.raises(ScheduleError, match="split differs from that of"):
        trainer.with_schedule(make("wavek", 2, 4))
    with pytest.raises(ScheduleError, match="micro_batches differs"):
        trainer.with_schedule(make("split", 2, 5))


def test_devices_that_processes_cannot_share(monkeypatch):
    monkeypatch.setenv(multihost.COUNT, "3")
    with pytest.raises(MeshError, match="a mesh of 4 devices cannot be shared by 3 processes"):
        multihost.start(4)


@pytest.mark.parametrize(("changes", "error", "words"), [
    (["mesh.pipe=3"], MeshError, "the model has 1 blocks"),
    (["mesh.data=2"], MeshError, "1 micro-batches"),
    (["mesh.data=2", "batch.micro_batches=2", "batch.atoms=8"], CapacityError, "atoms needed, capacity 8"),
])  # fmt: skip
def test_a_run_that_cannot_start_writes_nothing(tiny, tmp_path, changes, error, words):
    with pytest.raises(error, match=words):
        run.run(tiny(tmp_path, *changes))
    assert not list(tmp_path.iterdir())


def test_tuning_needs_a_pipeline(tiny, tmp_path, capsys):
    assert main(["train", "--tune", *tiny.overrides(tmp_path)]) == 2
    assert "--tune chooses a pipeline's schedule; set mesh.pipe above 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_launch_wants_a_command(capsys):
    assert main(["launch", "-n", "2"]) == 2
    assert "launch runs train and md" in capsys.readouterr().err
    assert main(["launch", "-n", "0", "--", "train"]) == 2
    assert "at least one process" in capsys.readouterr().err


def test_largest_alone():
    assert multihost.largest(3) == 3
    np.testing.assert_array_equal(multihost.known(np.array([1.0, np.nan])), [1.0, np.nan])
    assert multihost.text_of_primary("here") == "here"
