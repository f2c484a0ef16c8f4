"""The folder of a run is usable between any two writes: the command can be given again, or the run be resumed."""

import os
import shutil
import sys
from pathlib import Path

import ase.io
import jax.numpy as jnp
import numpy as np
import pytest
from ase.build import bulk
from flax import nnx

from janus_jax import bundle, configuration
from janus_jax.cli.main import main
from janus_jax.models import build, convert
from janus_jax.models.esen import EsenConfig
from md import restart
from md.config import MdConfig
from md.reading import read_thermo

SMALL = EsenConfig(cutoff_angstrom=3.5, channels=4, hidden_channels=4, edge_channels=4, num_basis=8, num_layers=1)
WRITES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "shutil.move")
FILES = ("thermo.csv", "trajectory.extxyz", "trajectory.h5md")


class Recorder:
    """Copies of a folder as it is before each write to it: what a process that is killed there leaves behind."""

    def __init__(self, folder: Path, states: Path):
        self.folder, self.states, self.seen, self.on = folder, states, {}, False
        sys.addaudithook(self._heard)

    def __enter__(self):
        self.on = True
        return self

    def __exit__(self, *_):
        self.on = False

    def _heard(self, event: str, given: tuple) -> None:
        if not self.on or event not in WRITES or not isinstance(given[0], str | os.PathLike):
            return
        if event == "open" and not given[2] & (os.O_WRONLY | os.O_RDWR) and not set(str(given[1])) & set("wax+"):
            return
        if not Path(given[0]).absolute().is_relative_to(self.folder):
            return
        self.on = False
        try:
            self.copy()
        finally:
            self.on = True

    def copy(self) -> None:
        """Keep the present state, if none kept is like it."""
        there = [path for path in self.folder.rglob("*") if path.is_file()] if self.folder.exists() else []
        state = tuple(sorted((str(path), path.stat().st_size) for path in there if restart.UNFINISHED not in str(path)))
        if state not in self.seen:
            self.seen[state] = kept = self.states / str(len(self.seen))
            shutil.copytree(self.folder, kept) if self.folder.exists() else kept.mkdir(parents=True)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The words of a command, in a folder with its model and structure."""
    monkeypatch.chdir(tmp_path)
    model = build(SMALL, rngs=nnx.Rngs(0), references=((11, -3.0), (17, -5.0)))
    bundle.save("model.janus", convert.cast(model, jnp.float64))
    salt = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    salt.rattle(0.1, seed=1)
    ase.io.write("salt.extxyz", salt)
    return ["md", "salt.extxyz", "--model", "model.janus", "--steps", "4", "folder=run", "--thermo", "2",
            "output.frames=2", "output.formats=[h5md,extxyz]", "output.checkpoint=2",
            "output.report=false"]  # fmt: skip


def test_a_folder_can_be_used_between_any_two_writes(words, tmp_path, capsys):
    with Recorder(tmp_path / "run", tmp_path / "states") as recorder:
        assert main(words) == 0
    recorder.copy()
    whole = read_thermo(tmp_path / "run")
    begun, resumable = [], []
    for state in recorder.seen.values():
        steps = sorted(int(p.name) for p in (state / restart.FOLDER).glob("*") if p.name.isdigit())
        if steps:  # can be resumed: all of it is there, and whole
            assert configuration.load(MdConfig, str(state / "config.yaml")).steps == 4
            bundle.load(state / "model.janus")
            assert len(ase.io.read(state / "start.traj")) == 8
            resumable.append((steps, state))
        else:  # nothing stands in the way of the same command
            assert not [name for name in FILES if (state / name).exists()], state
            assert not restart.holds_some(state)
            begun.append(state)
    assert any((state / "config.yaml").exists() for state in begun)
    assert len(resumable) > 8
    assert not (resumable[0][1] / "thermo.csv").exists()
    half = next(state for steps, state in resumable if steps == [0] and (state / "trajectory.extxyz").exists())
    for left in (begun[-1], resumable[0][1], half):
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(left, tmp_path / "run")
        assert main(words if left == begun[-1] else ["md", "--resume", "run"]) == 0, capsys.readouterr().err
        again = read_thermo(tmp_path / "run")
        np.testing.assert_array_equal(again["step"], [0, 2, 4])
        np.testing.assert_allclose(again["conserved_ev"], whole["conserved_ev"], rtol=1e-12)
        assert [frame.info["step"] for frame in ase.io.read("run/trajectory.extxyz", ":")] == [0, 2, 4]


def test_a_damaged_trajectory_is_named_and_can_be_left_out(words, tmp_path, capsys):
    assert main(words) == 0
    path = tmp_path / "run" / "trajectory.h5md"
    for damage in (b"", path.read_bytes()[:3000], b"broken" * 999):
        path.write_bytes(damage)
        capsys.readouterr()
        assert main(["md", "--resume", "run", "--steps", "2"]) == 2
        said = capsys.readouterr().err
        assert "run/trajectory.h5md is damaged (" in said
        assert len(said.strip().splitlines()) == 1
        assert "output.formats=[extxyz]" in said
    path.rename(tmp_path / "aside")
    assert main(["md", "--resume", "run", "--steps", "2", "output.formats=[extxyz]"]) == 0
