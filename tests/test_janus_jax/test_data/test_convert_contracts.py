"""Conversion between all formats: labels become ASE's, everything else stays, or the frame is named."""

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCartesian
from ase.io import write
from ase.spacegroup import crystal

from janus_jax.data import convert
from janus_jax.data.labels import LabelConfig, read_labels
from janus_jax.data.sources import open_source
from janus_jax.data.summary import fixed_atoms, summarize
from janus_jax.errors import DataError

FORMATS = (".xyz", ".extxyz", ".aselmdb", ".db")
META = {"charge": -1, "spin": 2, "dataset": "omol", "config_type": "bulk phase"}
FORCES = np.array([[0.125, -0.25, 0.5], [1.0, 2.0, -3.0], [-1.125, -1.75, 2.5]])
TEXT = (
    '3\nLattice="4 0 0 0 5 0 0 0 6" pbc="T T F" energy=99 REF_energy=-7.25 charge=-1 spin=2 dataset=omol id=7 '
    'REF_virials="-1.2 -2.4 -3.6 -4.8 -6.0 -7.2" config_type="bulk phase" weight=0.5 list="1 2" yes=T '
    "Properties=species:S:1:pos:R:3:move_mask:L:1:REF_forces:R:3:mulliken:R:1\n"
    "O 0.25 0 0 F 0.125 -0.25 0.5 -0.5\nH 0 1 0 T 1 2 -3 0.25\nH 0 0 1.25 F -1.125 -1.75 2.5 0.25\n"
    "1\nconfig_type=IsolatedAtom energy=-3.5\nH 0 0 0\n"
    "2\nconfig_type=unlabelled\nH 0 0 0\nH 0 0 0.75\n"
)


pytestmark = pytest.mark.usefixtures("own_cache")


def water(**info) -> Atoms:
    atoms = Atoms("OH2", [[0.25, 0, 0], [0, 1, 0], [0, 0, 1.25]], cell=[4, 5, 6], pbc=True, info=info)
    atoms.calc = SinglePointCalculator(atoms, energy=-7.25, forces=FORCES, stress=np.arange(1.0, 7) / 100)
    return atoms


def converted(source, path):
    convert.write_frames(path, convert.frames(open_source(source), LabelConfig()))
    return path


@pytest.fixture(params=FORMATS)
def suffix(request):
    return request.param


@pytest.fixture
def through(tmp_path, suffix):
    """A frame after having been written to each format."""

    def through(frame: Atoms) -> Atoms:
        convert.write_frames(tmp_path / f"through{suffix}", [frame])
        return open_source(tmp_path / f"through{suffix}")[0]

    return through


@pytest.mark.parametrize("before", [*FORMATS, ".traj"])
def test_from_each_format_to_each(tmp_path, before, suffix):
    (tmp_path / "hand.xyz").write_text(TEXT)
    if before == ".traj":
        write(tmp_path / "first.traj", list(convert.frames(open_source(tmp_path / "hand.xyz"), LabelConfig())))
    else:
        converted(tmp_path / "hand.xyz", tmp_path / f"first{before}")
    source = open_source(converted(tmp_path / f"first{before}", tmp_path / f"second{suffix}"))
    first, atom, bare = (source[k] for k in range(3))
    info = {**META, "id": 7, "weight": 0.5, "yes": True}
    assert first.info.items() >= info.items()
    assert first.info["list"].tolist() == [1, 2]
    assert not {"REF_energy", "REF_virials", "energy", "stress"} & first.info.keys()
    assert (first.pbc.tolist(), fixed_atoms(first).tolist()) == ([True, True, False], [0, 2])
    np.testing.assert_allclose(first.cell.array, np.diag([4, 5, 6]))
    np.testing.assert_allclose(first.positions, np.diag([0.25, 1, 1.25]))
    found = read_labels(first)
    assert found.energy == -7.25
    np.testing.assert_allclose(found.forces, FORCES)
    np.testing.assert_allclose(found.stress, [[0.01, 0.06, 0.05], [0.06, 0.02, 0.04], [0.05, 0.04, 0.03]])
    assert (found.names, found.unused) == ({"energy": "energy", "forces": "forces", "stress": "stress"}, {})
    assert (read_labels(atom).energy, atom.pbc.any(), atom.cell.rank) == (-3.5, False, 0)
    assert (read_labels(bare).names, bare.info) == ({}, {"config_type": "unlabelled"})
    made = summarize(source, 3.0)
    assert made.config_types == ["bulk phase", "IsolatedAtom", "unlabelled"]
    assert (made.records["charge"].tolist(), made.records["spin"].tolist()) == ([-1, 0, 0], [2, 0, 0])
    assert sorted(p.name for p in tmp_path.iterdir() if "second" in p.name) == [f"second{suffix}"]


def test_columns_stay_columns(tmp_path, suffix):
    (tmp_path / "hand.xyz").write_text(TEXT.replace("charge=-1 spin=2", "").replace("id=7", ""))
    frame = open_source(converted(tmp_path / "hand.xyz", tmp_path / f"out{suffix}"))[0]
    np.testing.assert_allclose(frame.arrays["mulliken"], [-0.5, 0.25, 0.25])
    assert "mulliken" not in frame.info


def test_what_ase_keeps_of_an_atom_stays_there(through):
    frame = water()
    frame.set_tags([1, 2, 3])
    frame.set_initial_charges([0.5, -0.25, -0.25])
    frame.set_initial_magnetic_moments([1, 0, 0])
    frame.set_momenta(FORCES)
    found = through(frame)
    assert found.get_tags().tolist() == [1, 2, 3]
    assert found.get_initial_charges().tolist() == [0.5, -0.25, -0.25]
    assert found.get_initial_magnetic_moments().tolist() == [1, 0, 0]
    np.testing.assert_allclose(found.get_momenta(), FORCES)
    assert found.info == {}


def test_other_results_are_kept():
    frame = water()
    frame.calc.results.update(dipole=np.ones(3), magmoms=np.array([1.0, 0, 0]))
    found = convert.canonical(frame, LabelConfig())
    assert found.calc.results["dipole"].tolist() == [1, 1, 1]
    assert found.calc.results["magmoms"].tolist() == [1, 0, 0]


@pytest.mark.parametrize("value", ["back\\slash", "line\nbreak"])
@pytest.mark.parametrize("suffix", [".xyz", ".extxyz"])
def test_text_that_extended_xyz_cannot_hold_is_refused_by_name(tmp_path, suffix, value):
    with pytest.raises(DataError, match="info 'config_type'"):
        convert.write_frames(tmp_path / f"out{suffix}", [water(config_type=value)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "two words", 'say "this"', "it's", "a = b", "[1, 2]", "{x}", "x=1", "001", "T"])
def test_text_comes_back_as_it_was_and_spoils_nothing(through, value):
    found = through(water(config_type=value, charge=-1))
    assert found.info == {"config_type": value, "charge": -1}
    assert read_labels(found).names == {"energy": "energy", "forces": "forces", "stress": "stress"}


@pytest.mark.parametrize(
    "value", [np.int64(3), np.float32(0.5), np.bool_(True), None, [1, 2], {"a": [1]}, np.eye(3)], ids=str
)
def test_values_of_other_kinds_come_back(through, value):
    assert np.all(through(water(value=value)).info.get("value") == value)


def test_a_charge_that_is_none_does_not_become_one(through):
    frame = through(water(charge=None))
    assert frame.info.get("charge") is None


def test_objects_in_info_are_written_or_left_out(through):
    frame = crystal("Na", [(0, 0, 0)], spacegroup=229, cellpar=[4, 4, 4, 90, 90, 90])  # a Spacegroup in info
    found = through(frame)
    assert len(found) == 2
    assert found.info["unit_cell"] == "conventional"


def test_atoms_held_in_some_directions_only(through):
    frame = water()
    frame.set_constraint([FixCartesian(1, [True, False, True]), FixAtoms([0])])
    found = through(frame)
    assert fixed_atoms(found).tolist() == [0]
    moved = found.copy()
    moved.set_positions(moved.positions + 1.0)
    np.testing.assert_allclose(moved.positions - found.positions, [[0, 0, 0], [0, 1, 0], [1, 1, 1]])


def test_a_frame_that_cannot_be_read_is_named_and_leaves_nothing(tmp_path, suffix):
    (tmp_path / "hand.xyz").write_text("1\nenergy=1\nH 0 0 0\n1\nenergy=abc\nH 0 0 0\n")
    out = tmp_path / f"out{suffix}"
    for _ in range(2):
        with pytest.raises(DataError, match=r"hand.xyz, frame 1.*energy"):
            converted(tmp_path / "hand.xyz", out)
        assert [p.name for p in tmp_path.iterdir() if not p.is_dir()] == ["hand.xyz"]
    (tmp_path / "hand.xyz").write_text("1\nenergy=1\nH 0 0 0\n")
    assert len(open_source(converted(tmp_path / "hand.xyz", out))) == 1
    with pytest.raises(DataError, match=f"out{suffix}: exists already"):
        converted(tmp_path / "hand.xyz", out)


def test_a_virial_over_no_volume_is_not_written(tmp_path):
    (tmp_path / "flat.xyz").write_text('1\nLattice="4 0 0 0 5 0 4 5 0" virial="1 0 0 0 1 0 0 0 1"\nH 0 0 0\n')
    with np.errstate(all="ignore"), pytest.raises(DataError, match=r"flat.xyz, frame 0"):
        converted(tmp_path / "flat.xyz", tmp_path / "out.xyz")


def test_more_frames_than_are_written_at_once(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(convert, "BATCH", 4)
    assert convert.write_frames(tmp_path / f"out{suffix}", (water(number=k) for k in range(9))) == 9
    source = open_source(tmp_path / f"out{suffix}")
    assert [int(source[k].info["number"]) for k in range(9)] == list(range(9))


def test_unknown_suffixes_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"out.cif: unknown suffix '.cif'.*aselmdb"):
        convert.write_frames(tmp_path / "out.cif", [water()])
