"""Extended XYZ written by hand, as people and other programs write it; units and signs by hand."""

import numpy as np
import pytest

from janus_jax.data.batching import pad
from janus_jax.data.dataset import Dataset
from janus_jax.data.labels import LabelConfig, read_labels
from janus_jax.data.summary import fixed_atoms, summarize
from janus_jax.errors import DataError
from janus_jax.graph import Capacity

CELL = 'Lattice="4 0 0 0 5 0 0 0 6"'  # 120 Å^3
ROWS = ("O 0.5 0 0", "H 0 0 1.5")
FORCES = ("O 0.5 0 0 1 2 3", "H 0 0 1.5 -1 -2 -3")
COLUMNS = "Properties=species:S:1:pos:R:3:"

pytestmark = pytest.mark.usefixtures("own_cache")


def frame(comment, rows=ROWS):
    return f"{len(rows)}\n{comment}\n" + "".join(f"{row}\n" for row in rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text + "\n\n \n",
        lambda text: "\n" + text.replace("2\nframe=1", "\n \n2\nframe=1"),
        lambda text: text.removesuffix("\n"),
        lambda text: text.replace(" 0", "\t  0"),
        lambda text: text.replace("\n2\n", "\n  2  \n"),
    ],
    ids=["plain", "windows", "blank end", "blank between", "no end", "tabs", "indented"],
)
def test_white_space_does_not_matter(read, change):
    text = "".join(frame(f"frame={k} {CELL} energy=-{k}.5 {COLUMNS}forces:R:3", FORCES) for k in range(3))
    source = read(change(text))
    assert len(source) == 3
    for k in range(3):
        found = read_labels(source[k])
        assert (source[k].info, found.energy) == ({"frame": k}, -k - 0.5)
        assert found.forces.tolist() == [[1, 2, 3], [-1, -2, -3]]
        assert source[k].positions.tolist() == [[0.5, 0, 0], [0, 0, 1.5]]


@pytest.mark.parametrize(
    ("comment", "pbc"),
    [
        (CELL, [True, True, True]),
        ("", [False, False, False]),
        ("just a comment", [False, False, False]),
        (f'{CELL} pbc="T T F"', [True, True, False]),
        (f'pbc="F F F" {CELL}', [False, False, False]),
        (f"{CELL} pbc=F", [False, False, False]),
        (f'{CELL} pbc="1 0 1"', [True, False, True]),
        (f'{CELL} pbc="true False TRUE"', [True, False, True]),
    ],
)
def test_periodicity_as_in_the_specification(read, comment, pbc):
    atoms = read(frame(comment))[0]
    assert atoms.pbc.tolist() == pbc
    assert atoms.cell.array.tolist() == (np.diag([4.0, 5, 6]) if "Lattice" in comment else np.zeros((3, 3))).tolist()


def test_lattice_has_its_vectors_one_after_the_other(read):
    atoms = read(frame('Lattice="4 0 0 1 5 0 2 3 6"'))[0]
    assert atoms.cell.array.tolist() == [[4, 0, 0], [1, 5, 0], [2, 3, 6]]


def test_what_the_comment_line_says_is_kept(read):
    note = "he said: virial=low, the stress=6 numbers"
    words = f'{CELL} config_type=\'slab 1\' dataset={{oc 20}} charge=-2 spin=3 id=7 note="{note}" stress="1 2 3 4 5 6"'
    source = read(frame(words), frame(words.replace("slab 1", "") + " energy=-1.5"))
    expected = {"config_type": "slab 1", "dataset": "oc 20", "charge": -2, "spin": 3, "id": 7, "note": note}
    assert source[0].info == expected
    made = summarize(source, 3.0)
    assert (made.config_types, made.datasets, made.problems) == (["slab 1", ""], ["oc 20"], {})
    assert made.records["charge"].tolist() == [-2, -2]
    assert made.records["spin"].tolist() == [3, 3]
    assert np.isnan(made.records["energy"]).tolist() == [True, False]


def test_columns(read):
    rows = ["7 1 0.5 0 0 1 2 3 a", "7 8 0 0 1.5 -1 -2 -3 b"]
    atoms = read(frame(f"{CELL} Properties=id:I:1:Z:I:1:pos:R:3:force:R:3:kind:S:1", rows))[0]
    assert str(atoms.symbols) == "HO"
    assert read_labels(atoms).forces.tolist() == [[1, 2, 3], [-1, -2, -3]]
    assert atoms.arrays["id"].tolist() == [7, 7]
    assert atoms.arrays["kind"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("columns", "held"),
    [("move_mask:L:1", ("T", "F")), ("move_mask:L:3", ("T T F", "F F F"))],
    ids=["atoms", "directions"],
)
def test_move_mask_says_which_atoms_are_fixed(read, columns, held):
    rows = [f"{row} {mask}" for row, mask in zip(FORCES, held, strict=True)]
    source = read(frame(f"{CELL} {COLUMNS}forces:R:3:{columns}", rows))
    assert fixed_atoms(source[0]).tolist() == [1]
    data = Dataset(source, summarize(source, 3.0), np.array([0]), 3.0, {})
    assert data[0].targets.forces_mask.tolist() == [True, False]


def test_a_frame_without_atoms(read):
    source = read(frame(f"{CELL} energy=0.0", ()), frame(f"{CELL} energy=-1.0"))
    assert [len(source), len(source[0]), len(source[1])] == [2, 0, 2]
    assert summarize(source, 3.0).records["atoms"].tolist() == [0, 2]


UNITS = [
    ({"energy_unit": "Hartree"}, "energy=-2", ("energy", -54.422772)),  # 27.211386 eV
    ({"energy_unit": "kcal/mol"}, "REF_energy=230.60548", ("energy", 10.0)),  # 23.060548 to the eV
    ({"energy_unit": "kJ/mol"}, "free_energy=-96.485332", ("energy", -1.0)),
    ({"energy_unit": "meV"}, "energy=1500", ("energy", 1.5)),
    ({"forces_unit": "Hartree/bohr"}, "", ("forces", 51.422067)),  # 27.211386 / 0.52917721
    ({"forces_unit": "kcal/mol/angstrom"}, "", ("forces", 0.0433641)),
    ({"stress_unit": "GPa"}, 'stress="160.21766 0 0 0 0 0"', ("stress", 1.0)),
    ({"stress_unit": "kbar"}, 'REF_stress="1602.1766 0 0 0 0 0"', ("stress", 1.0)),
    ({"stress_unit": "kbar", "stress_sign": "compressive"}, 'stress="1602.1766 0 0 0 0 0"', ("stress", -1.0)),
    ({"stress_sign": "compressive"}, 'virial="120 0 0 0 0 0"', ("stress", 1.0)),
    ({"energy_unit": "Hartree", "stress_unit": "GPa"}, 'virial="-120 0 0 0 0 0"', ("stress", 27.211386)),
    ({"stress_is": "virial"}, 'stress="120 0 0 0 0 0"', ("stress", -1.0)),
    ({"stress_is": "stress", "stress_unit": "GPa"}, 'virials="160.21766 0 0 0 0 0"', ("stress", 1.0)),
    ({"stress": "dft_virial"}, 'stress="7 0 0 0 0 0" dft_virial="240 0 0 0 0 0"', ("stress", -2.0)),
    ({"energy": "dft"}, "energy=-1 dft=-3", ("energy", -3.0)),
    ({"energy": "energy"}, "energy=-1 REF_energy=-3", ("energy", -1.0)),
    ({"energy": "free_energy"}, "energy=-1 free_energy=-3", ("energy", -3.0)),
]


@pytest.mark.parametrize(("settings", "comment", "expected"), UNITS, ids=[" ".join(u[0].values()) for u in UNITS])
def test_units_signs_and_names_are_as_declared(read, settings, comment, expected):
    found = read_labels(read(frame(f"{CELL} {comment} {COLUMNS}forces:R:3", FORCES))[0], LabelConfig(**settings))
    label, value = expected
    got = np.ravel(getattr(found, label))
    assert got[0] == pytest.approx(value, rel=1e-6)
    if label == "forces":
        np.testing.assert_allclose(got, value * np.array([1, 2, 3, -1, -2, -3.0]), rtol=1e-6)
    if label == "stress":
        assert not got[1:].any()


ORDERS = {
    "xx yy zz yz xz xy": "1 2 3 4 5 6",
    "xx yy zz xy yz xz": "1 2 3 6 4 5",  # VASP
    "xx yy zz xy xz yz": "1 2 3 6 5 4",  # LAMMPS
    "xx xy xz yy yz zz": "1 6 5 2 4 3",
}


@pytest.mark.parametrize(("name", "factor"), [("stress", 1), ("REF_stress", 1), ("virial", -1 / 120)])
@pytest.mark.parametrize("order", ORDERS)
def test_six_numbers_are_in_the_order_given_and_nine_in_their_own(read, name, factor, order):
    full = factor * np.array([[1.0, 6, 5], [6, 2, 4], [5, 4, 3]])
    for numbers in (ORDERS[order], "1 6 5 6 2 4 5 4 3"):
        atoms = read(frame(f'{CELL} {name}="{numbers}"'))[0]
        np.testing.assert_allclose(read_labels(atoms, LabelConfig(stress_order=order)).stress, full, rtol=1e-12)


@pytest.mark.parametrize(
    ("numbers", "settings"),
    [("5 6 7 1 2 3", {}), ("6", {}), ("-6", {"stress_sign": "compressive"}), ("5 1 2 1 6 3 2 3 7", {})],
)
def test_a_trace_is_a_label_of_its_own(read, numbers, settings):
    config = LabelConfig(stress_components="trace", stress="p", **settings)
    source = read(frame(f'{CELL} p="{numbers}"'))
    found = read_labels(source[0], config)
    assert found.trace_only
    np.testing.assert_allclose(found.stress, 6 * np.eye(3))
    graph = Dataset(source, summarize(source, 3.0, config), np.array([0]), 3.0, {}, labels=config)[0]
    assert pad([graph], Capacity(4, 99, 2)).targets.stress_trace.tolist() == [True, False]


def test_a_single_number_is_no_whole_stress(read):
    with pytest.raises(DataError, match="shape"):
        read_labels(read(frame(f"{CELL} stress=6.0"))[0])


def test_a_declared_name_that_is_not_there_is_a_missing_label(read):
    found = read_labels(read(frame(f"{CELL} energy=-1 REF_energy=-2"))[0], LabelConfig(energy="dft_energy"))
    assert found.energy is None
    assert (found.names, found.unused) == ({}, {"energy": ("REF_energy", "energy")})
