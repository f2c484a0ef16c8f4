"""One contract for every format: labels, what they are called, what a frame is, what is missing, wrong or cut off.

Each format has a writer here that shares no code with the reader where it can: extended XYZ is
written as text, and one of the two `.aselmdb` writers follows fairchem's layout with lmdb and zlib.
"""

import subprocess
import sys
import zlib
from pathlib import Path

import lmdb
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.db import connect
from ase.io import write
from ase.io.jsonio import encode

import janus_jax
from janus_jax.data import references
from janus_jax.data.dataset import Dataset
from janus_jax.data.labels import read_labels
from janus_jax.data.sources import aselmdb, open_source, read_frames
from janus_jax.data.summary import fixed_atoms, summarize
from janus_jax.errors import DataError

PER_ATOM = ("forces", "force", "REF_forces", "REF_force")
META = {"charge": -1, "spin": 2, "dataset": "omol", "config_type": "bulk phase", "id": 7}  # one id for all frames
FORCES = np.array([[0.125, -0.25, 0.5], [1.0, 2.0, -3.0], [-1.125, -1.75, 2.5]])
VOIGT = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]  # xx yy zz yz xz xy
STRESS = [[0.01, 0.06, 0.05], [0.06, 0.02, 0.04], [0.05, 0.04, 0.03]]
NINE = [0.01, 0.06, 0.05, 0.06, 0.02, 0.04, 0.05, 0.04, 0.03]
VIRIAL_6 = [-1.2, -2.4, -3.6, -4.8, -6.0, -7.2]  # -V stress, V = 4 x 5 x 6
VIRIAL_9 = [-1.2, -7.2, -6.0, -7.2, -2.4, -4.8, -6.0, -4.8, -3.6]
ALL = {"energy": -7.25, "forces": FORCES, "stress": VOIGT}


def water(shift=0.0, pbc=(True, True, False), cell=(4, 5, 6), fixed=(0, 2), **info) -> Atoms:
    atoms = Atoms("OH2", [[0.25, 0, 0], [0, 1.0, shift], [0, 0, 1.25]], cell=cell, pbc=pbc, info=info)
    atoms.set_constraint(FixAtoms(list(fixed)) if fixed else None)
    return atoms


def extxyz(path, frames):
    def text(value):
        return f'"{" ".join(map(str, np.ravel(value).tolist()))}"'

    lines = []
    for atoms, labels in frames:
        columns = {"species:S:1": [[s] for s in atoms.symbols], "pos:R:3": atoms.positions.tolist()}
        columns |= {f"{name}:R:3": np.asarray(labels[name]).tolist() for name in PER_ATOM if name in labels}
        if atoms.constraints:
            columns["move_mask:L:1"] = [["F" if k in atoms.constraints[0].index else "T"] for k in range(len(atoms))]
        words = {**atoms.info, **{name: value for name, value in labels.items() if name not in PER_ATOM}}
        comment = [f"Lattice={text(atoms.cell.array)}"] if atoms.cell.any() else []
        comment += [f"{name}={text(value)}" for name, value in words.items()]
        comment += [f"pbc={text(['FT'[int(p)] for p in atoms.pbc])}", f"Properties={':'.join(columns)}"]
        rows = zip(*columns.values(), strict=True)
        lines += [str(len(atoms)), " ".join(comment), *(" ".join(str(x) for part in row for x in part) for row in rows)]
    path.write_text("".join(f"{line}\n" for line in lines))


def labelled(atoms, labels, arrays=False):
    """As ASE has it: what it has names for as results, the rest in info (or arrays)."""
    atoms = atoms.copy()
    results = {name: value for name, value in labels.items() if name in all_properties}
    for name in labels.keys() - results.keys():
        value = np.array(labels[name]) if np.ndim(labels[name]) else labels[name]
        (atoms.arrays if arrays and name in PER_ATOM else atoms.info)[name] = value
    if results:
        atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def database(path, frames):
    with connect(path) as db:
        for atoms, labels in frames:
            row = labelled(atoms, labels)
            words = {name: row.info.pop(name) for name in ("config_type", "dataset") if name in row.info}
            db.write(row, key_value_pairs=words, data=row.info)


def lmdb_by_hand(path, frames):
    """Layout of fairchem's ase_db_backends.aselmdb.LMDBDatabase."""
    environment = lmdb.open(str(path), map_size=1 << 24, subdir=False, meminit=False, map_async=True, lock=False)
    with environment.begin(write=True) as transaction:

        def put(key, value):
            transaction.put(key.encode("ascii"), zlib.compress(bytes(encode(value), "utf-8")))

        for k, (atoms, labels) in enumerate(frames, 1):
            frame = labelled(atoms, labels)
            words = {name: frame.info.pop(name) for name in ("config_type", "dataset") if name in frame.info}
            row = {"numbers": frame.numbers, "positions": frame.positions, "cell": frame.cell.array, "pbc": frame.pbc}
            row |= {"unique_id": f"{k:032x}", "ctime": 25.0, "mtime": 25.1, "user": "someone"}
            row |= {} if frame.calc is None else {"calculator": "unknown", **frame.calc.results}
            if frame.constraints:
                row["constraints"] = [constraint.todict() for constraint in frame.constraints]
            put(str(k), {**row, "key_value_pairs": words, "data": frame.info})
        put("nextid", len(frames) + 1)
        put("metadata", {"format": "none of ours"})
    environment.close()


FORMATS = {
    "extxyz": (".xyz", extxyz),
    "traj": (".traj", lambda path, frames: write(path, [labelled(*frame) for frame in frames])),
    "db": (".db", database),
    "aselmdb": (".aselmdb", lambda path, frames: aselmdb.write(path, [labelled(*f, arrays=True) for f in frames])),
    "fairchem": (".aselmdb", lmdb_by_hand),
}


@pytest.fixture(params=FORMATS)
def make(request, tmp_path):
    """Writes (structure, labels by name) to a file of each format."""
    suffix, writer = FORMATS[request.param]

    def made(frames, name="data"):
        writer(tmp_path / f"{name}{suffix}", frames)
        return tmp_path / f"{name}{suffix}"

    return made


pytestmark = pytest.mark.usefixtures("own_cache")


def assert_same_labels(found):
    assert found.energy == pytest.approx(-7.25)
    np.testing.assert_allclose(found.forces, FORCES, atol=1e-9)
    np.testing.assert_allclose(found.stress, STRESS, atol=1e-9)


NAMES = [
    {"energy": -7.25, "forces": FORCES, "stress": VOIGT},
    {"free_energy": -7.25, "force": FORCES, "stress": NINE},
    {"REF_energy": -7.25, "REF_forces": FORCES, "REF_stress": VOIGT},
    {"REF_energy": -7.25, "REF_force": FORCES, "REF_stress": NINE},
    {"energy": -7.25, "forces": FORCES, "virial": VIRIAL_9},
    {"energy": -7.25, "force": FORCES, "virial": VIRIAL_6},
    {"energy": -7.25, "forces": FORCES, "virials": VIRIAL_6},
    {"REF_energy": -7.25, "REF_forces": FORCES, "REF_virial": VIRIAL_6},
    {"REF_energy": -7.25, "REF_forces": FORCES, "REF_virials": VIRIAL_9},
    # what the reference is wins over what a calculator left behind
    {"energy": 99.0, "REF_energy": -7.25, "forces": 9 * FORCES, "REF_forces": FORCES, "stress": VOIGT},
]


@pytest.mark.parametrize("labels", NAMES, ids=lambda labels: "-".join(labels) + f"-{len(list(labels.values())[-1])}")
def test_every_name_gives_the_same_labels(make, labels):
    source = open_source(make([(water(), labels)]))
    assert len(source) == 1
    found = read_labels(source[0])
    assert_same_labels(found)
    assert set(found.names.values()) <= set(labels)
    assert len(found.names) == 3


def test_what_a_frame_is_survives(make):
    cells = {"bulk": (True, (4, 5, 6)), "slab": ((True, True, False), (4, 5, 6)), "box": (False, (4, 5, 6))}
    cells |= {"molecule": (False, None), "wire": ((False, False, True), np.diag([0, 0, 6.0]))}
    frames = [water(pbc=pbc, cell=cell, **{**META, "config_type": kind}) for kind, (pbc, cell) in cells.items()]
    path = make([(frame, ALL) for frame in frames])
    source = open_source(path)
    assert len(source) == 5
    for k, frame in enumerate(frames):
        found = source[k]
        assert found.info.items() >= frame.info.items()
        assert (found.pbc == frame.pbc).all()
        np.testing.assert_allclose(found.cell.array, frame.cell.array)
        np.testing.assert_allclose(found.positions, frame.positions)
        assert found.symbols.get_chemical_formula("reduce") == "OH2"
        assert fixed_atoms(found).tolist() == [0, 2]
        assert f"{path}, frame {k}" in source.name(k)
    made = summarize(source, 3.0)
    assert made.config_types == list(cells)
    assert made.datasets == ["omol"]
    assert (made.records["charge"] == -1).all()
    assert (made.records["spin"] == 2).all()
    assert (made.records["fixed"] == 2).all()
    assert np.isfinite(made.records["pressure"]).tolist() == [True, True, True, False, False]
    assert not made.problems


def test_missing_labels_are_masked_and_counted(make):
    partial = [{}, {"energy": -7.25}, {"forces": FORCES}, {"stress": VOIGT}, {"energy": 0.0}, ALL]
    source = open_source(make([(water(k / 8, fixed=()), labels) for k, labels in enumerate(partial)]))
    made = summarize(source, 3.0)
    assert made.names == {"energy=energy": 3, "forces=forces": 2, "stress=stress": 2}
    assert not made.problems
    assert np.isnan(made.records["energy"]).tolist() == [True, False, True, True, False, False]
    assert made.records["forces"].tolist() == [0, 0, 3, 0, 0, 3]
    for labels, graph in zip(partial, Dataset(source, made, np.arange(6), 3.0, {1: -1.0, 8: -2.0}), strict=True):
        targets = graph.targets
        assert targets.energy_mask.tolist() == ["energy" in labels]
        assert targets.forces_mask.tolist() == ["forces" in labels] * 3
        assert targets.stress_mask.tolist() == ["stress" in labels]
        if "energy" in labels:
            assert targets.energy[0] == pytest.approx(labels["energy"] + 4.0)


@pytest.mark.parametrize("train_on_fixed_atoms", [False, True])
def test_forces_on_fixed_atoms_are_masked(make, train_on_fixed_atoms):
    source = open_source(make([(water(), ALL)]))
    data = Dataset(source, summarize(source, 3.0), np.array([0]), 3.0, {}, train_on_fixed_atoms=train_on_fixed_atoms)
    assert data[0].targets.forces_mask.tolist() == ([True] * 3 if train_on_fixed_atoms else [False, True, False])
    np.testing.assert_allclose(data[0].targets.forces, FORCES)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"REF_energy": np.nan}, "REF_energy is not finite"),
        ({"REF_energy": "many"}, "REF_energy is not numeric"),
        ({"forces": np.where(np.eye(3) > 0, np.inf, FORCES)}, "forces is not finite"),
        ({"REF_forces": np.full((3, 3), np.nan)}, "REF_forces is not finite"),
        ({"REF_stress": VOIGT[:5]}, "REF_stress"),
        ({"REF_stress": [*VOIGT[:5], np.inf]}, "REF_stress is not finite"),
        ({"virials": [0, 1, 0, 0, 0, 0, 0, 0, 0.0]}, "virials is not symmetric"),
        ({"charge": 0.5}, "charge"),
        ({"spin": "up"}, "spin"),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
def test_wrong_values_name_file_frame_and_field(make, labels, words):
    path = make([(water(), ALL), (water(0.5), labels), (water(0.25), ALL)])
    source = open_source(path)
    made = summarize(source, 3.0)
    assert list(made.problems) == [1]
    assert words in made.problems[1]
    assert made.records["usable"].tolist() == [True, False, True]
    with pytest.raises(DataError, match=words) as error:
        Dataset(source, made, np.arange(3), 3.0, {})[1]
    assert f"{path}, frame 1" in str(error.value)


def test_isolated_atoms_are_recognised(make):
    alone = [Atoms("H"), Atoms("O", cell=[9, 9, 9], pbc=True), Atoms("H", cell=[2, 2, 2], pbc=True)]
    alone[2].info["config_type"] = "IsolatedAtom"  # called so, in spite of its images
    ion, crystal = Atoms("H", info={"charge": 1}), Atoms("H", cell=[2, 2, 2], pbc=True)
    frames = [(atoms, {"energy": -float(k)}) for k, atoms in enumerate([*alone, ion, crystal, water()], 1)]
    made = summarize(open_source(make(frames)), 3.0)
    assert references.isolated(made).tolist() == [True, True, True, False, False, False]
    assert references.isolated_energies(made) == {1: -3.0, 8: -2.0}


def test_empty_and_truncated_files_are_named(make):
    path = make([(water(k / 8), ALL) for k in range(39)])
    content = path.read_bytes()
    empty = path.with_name(f"empty{path.suffix}")
    empty.touch()
    with pytest.raises(DataError, match=f"{empty}: the file is empty"):
        open_source(empty)
    cuts = [path.with_name(f"cut{k}{path.suffix}") for k in (1, 2, 3)]
    for k, cut in enumerate(cuts, 1):
        cut.write_bytes(content[: k * len(content) // 4])
    if path.suffix != ".aselmdb":
        for cut in cuts:
            with pytest.raises(DataError, match=str(cut)):
                read_frames(cut)
        return
    # in processes of their own: reading a memory map of a file cut short can end one
    code = "import sys; from janus_jax.data.sources import read_frames; read_frames(sys.argv[1])"
    root = Path(janus_jax.__file__).parents[1]
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(cut)], cwd=root, stderr=subprocess.PIPE) for cut in cuts
    ]
    for process, cut in zip(running, cuts, strict=True):
        _, words = process.communicate()
        assert process.returncode == 1, f"ended with {process.returncode}"
        assert f"DataError: {cut}" in words.decode()
