"""Folders, globs, lists, fairchem's shards with metadata.npz, conventions mixed, and reading in other processes."""

import gc
import os
import pickle
import shutil

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from janus_jax.data import convert, summary
from janus_jax.data.labels import read_labels
from janus_jax.data.sources import aselmdb, open_source, read_frames
from janus_jax.data.summary import summarize
from janus_jax.errors import DataError, UnknownNameError

SUFFIXES = (".xyz", ".extxyz", ".aselmdb", ".db", ".traj")


pytestmark = pytest.mark.usefixtures("own_cache")


def water(number: int) -> Atoms:
    atoms = Atoms("OH2", [[0, 0, 0], [0, 0, 1 + number / 64], [0, 1, 0]], cell=[4, 5, 6], pbc=True)
    atoms.info["number"] = number
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0 - number, forces=np.full((3, 3), number / 8))
    return atoms


def put(path, *numbers):
    """A file with these frames; returns its path."""
    path.parent.mkdir(exist_ok=True, parents=True)
    frames = [water(number) for number in numbers]
    _ = write(path, frames) if path.suffix == ".traj" else convert.write_frames(path, frames)
    return str(path)


def numbers(source) -> list[int]:
    return [int(source[k].info["number"]) for k in range(len(source))]


def test_folders_globs_and_lists(tmp_path):
    files = [put(tmp_path / f"set/{k}{suffix}", 2 * k, 2 * k + 1) for k, suffix in enumerate(SUFFIXES)]
    deep = put(tmp_path / "set/sub/5.xyz", 10)
    for other in ("notes.txt", ".0.xyz.swp", ".hidden.xyz", "2.aselmdb-lock", "metadata.json"):
        (tmp_path / "set" / other).write_text("not a structure")
    source = open_source(tmp_path / "set")
    assert numbers(source) == list(range(11))
    assert [source.name(k).partition(", frame")[0] for k in range(11)] == [files[k // 2] for k in range(10)] + [deep]
    assert source.name(3).startswith(f"{files[1]}, frame 1")
    assert numbers(open_source(f"{tmp_path}/set/[1-3].*")) == list(range(2, 8))
    assert numbers(open_source(f"{tmp_path}/**/*.xyz")) == [0, 1, 10]
    assert numbers(open_source([files[2], f"{tmp_path}/set/sub", files[0]])) == [4, 5, 10, 0, 1]
    assert numbers(open_source([files[4]])) == [8, 9]
    assert [frame.info["number"] for frame in read_frames(files[3])] == [6, 7]


def test_hidden_folders_are_left_out(tmp_path):
    put(tmp_path / "set/a.xyz", 1)
    put(tmp_path / "set/.ipynb_checkpoints/a-checkpoint.xyz", 1)
    assert numbers(open_source(tmp_path / "set")) == [1]


def test_a_folder_called_like_a_file_is_a_folder(tmp_path):
    put(tmp_path / "set/a.xyz/b.xyz", 1)
    assert numbers(open_source(tmp_path / "set")) == [1]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("none.xyz", "none.xyz: no such file"),
        ("none*.xyz", r"none\*.xyz: no file matches"),
        ("text", "text: no structures in this folder.*xyz.*aselmdb.*db"),
        ("text/notes.txt", "notes.txt: ASE cannot read it"),
        ("graphs.lmdb", "graphs.lmdb: .lmdb files"),
        (["good.xyz", "none.xyz"], "none.xyz: no such file"),
        ([], "no"),
    ],
)
def test_what_is_not_there_is_named(tmp_path, monkeypatch, spec, words):
    put(tmp_path / "good.xyz", 0)
    (tmp_path / "text").mkdir()
    (tmp_path / "text/notes.txt").write_text("not a structure")
    (tmp_path / "graphs.lmdb").write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=words):
        len(open_source(spec))
    with pytest.raises(UnknownNameError, match="train, validation"):
        open_source("water:training")


@pytest.mark.parametrize("spec", ["shards", "shards/*.aselmdb", "shards/*"])
def test_metadata_of_shards_is_held_against_them(tmp_path, spec):
    for k in range(3):
        put(tmp_path / f"shards/data.{k:04}.aselmdb", 2 * k, 2 * k + 1)
    spec, metadata = f"{tmp_path}/{spec}", tmp_path / "shards/metadata.npz"
    np.savez(metadata, natoms=np.full(6, 3))
    assert numbers(open_source(spec)) == list(range(6))
    np.savez(metadata, natoms=np.full(7, 3))
    with pytest.raises(DataError, match=f"{metadata}.*7.*6"):
        open_source(spec)
    for content in (b"rubbish", b""):
        metadata.write_bytes(content)
        with pytest.raises(DataError, match=f"{metadata}"):
            open_source(spec)
    np.savez(metadata, other=np.zeros(6))
    with pytest.raises(DataError, match=f"{metadata}.*natoms"):
        open_source(spec)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_made_anew_is_read_anew(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    put(path, 1)
    assert numbers(open_source(path)) == [1]
    path.unlink()
    put(path, 2, 3)
    assert numbers(open_source(path)) == [2, 3]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_many_files_do_not_stay_open(tmp_path, suffix):
    put(tmp_path / f"set/0{suffix}", 5)
    for k in range(1, 80):
        shutil.copy(tmp_path / f"set/0{suffix}", tmp_path / f"set/{k}{suffix}")
    gc.collect()  # sources of other tests
    before = len(os.listdir("/dev/fd"))
    source = open_source(tmp_path / "set")
    assert numbers(source) == [5] * 80
    assert len(os.listdir("/dev/fd")) - before < 40  # a folder may have more files than a process may open


def test_mixed_conventions_in_one_folder_give_the_same_labels(tmp_path):
    cell, columns = 'Lattice="4 0 0 0 5 0 0 0 6"', "Properties=species:S:1:pos:R:3"
    names = [("energy", "forces", 'stress="1 2 3 4 5 6"')] * 2
    names += [("REF_energy", "REF_forces", 'virials="-120 -720 -600 -720 -240 -480 -600 -480 -360"')] * 3
    for k, (energy, forces, stress) in enumerate(names):
        text = f"1\n{cell} {energy}=-2.5 {stress} {columns}:{forces}:R:3\nH 0 0 0 1 2 3\n"
        (tmp_path / f"{k}.xyz").write_text(text)
    (tmp_path / "5.xyz").write_text(f"1\n{cell} energy=9 REF_energy=-2.5\nH 0 0 0\n")
    source = open_source(tmp_path)
    for k in range(6):
        found = read_labels(source[k])
        assert found.energy == -2.5
        if k < 5:
            assert found.forces.tolist() == [[1, 2, 3]]
            np.testing.assert_allclose(found.stress, [[1, 6, 5], [6, 2, 4], [5, 4, 3]])
    assert summarize(source, 3.0).names == {
        "energy=energy": 2,
        "energy=REF_energy": 4,
        "energy=energy (unused)": 1,
        "forces=forces": 2,
        "forces=REF_forces": 3,
        "stress=stress": 2,
        "stress=virials": 3,
    }


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_sources_survive_pickling_and_know_their_content(tmp_path, suffix):
    path = put(tmp_path / f"a{suffix}", 1, 2)
    source = open_source(path)
    source[1]
    copy = pickle.loads(pickle.dumps(source))
    assert copy[1] == source[1]
    assert copy.fingerprint() == source.fingerprint()
    moved = open_source(str(shutil.copy(path, tmp_path / f"moved{suffix}")))
    assert moved.fingerprint() == source.fingerprint()
    assert open_source(put(tmp_path / f"other{suffix}", 1, 3)).fingerprint() != source.fingerprint()
    both = [open_source([str(moved.path), path]), open_source([path, str(moved.path)])]
    assert both[0].fingerprint() == both[1].fingerprint() != source.fingerprint()


def test_workers_under_spawn_read_the_same_frames(tmp_path, monkeypatch):
    files = [put(tmp_path / f"{k}{suffix}", *range(3 * k, 3 * k + 3)) for k, suffix in enumerate(SUFFIXES)]
    source = open_source(files)
    monkeypatch.setattr(summary, "CHUNK", 4)
    here = summarize(source, 3.0)  # files are open here when the workers start
    monkeypatch.setenv("JANUS_JAX_CACHE", str(tmp_path / ".other"))
    there = summarize(source, 3.0, workers=2)
    assert here.records.tobytes() == there.records.tobytes()
    assert here.records["energy"].tolist() == [-1.0 - k for k in range(15)]
    assert (here.names, here.problems) == (there.names, {})
    assert here.names == {"energy=energy": 15, "forces=forces": 15}
    assert aselmdb.AseLmdb(files[2])[0].info["number"] == 6
