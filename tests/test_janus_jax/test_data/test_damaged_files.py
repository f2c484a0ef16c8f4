"""Files and frames that cannot be read: each names file, frame and field, and the other frames are read."""

import zlib

import lmdb
import numpy as np
import pytest
from ase.io.jsonio import encode

from janus_jax.data.dataset import Dataset
from janus_jax.data.sources import open_source, read_frames
from janus_jax.data.summary import summarize
from janus_jax.errors import DataError

CELL = 'Lattice="4 0 0 0 5 0 0 0 6"'
ROWS = ("O 0.5 0 0", "H 0 0 1.5")
COLUMNS = "Properties=species:S:1:pos:R:3:"

pytestmark = pytest.mark.usefixtures("own_cache")


def frame(comment, rows=ROWS):
    return f"{len(rows)}\n{comment}\n" + "".join(f"{row}\n" for row in rows)


BAD_COMMENTS = [
    ('Lattice="4 0 0 0 5 0 0 0"', "Lattice"),
    ('Lattice="4 0 0 0 5 0 0 0 x"', "Lattice"),
    ('Lattice="4 0 0 0 5 0 nan 0 6"', "cell"),
    ('Lattice="4 0 0 0 5 0 4 5 0" virial="1 0 0 0 1 0 0 0 1"', "cell"),
    *((f"{CELL} energy{value}", "energy") for value in ("=abc", "=NaN", "=-inf", "=T", "", '="1 2"', "=1.5d0")),
    *((f"{CELL} REF_energy{value}", "REF_energy") for value in ("=abc", "=nan", "=F", "")),
    *((f'{CELL} stress="{value}"', "stress") for value in ("Infinity 0 0 0 0 0", "1 2 3 4 5", "a b c d e f", "T")),
    (f'{CELL} stress="0 1 0 0 0 0 0 0 0"', "stress"),  # asymmetric
    (f'{CELL} virial="0 1 0 0 0 0 0 0 0"', "virial"),
    (f'{CELL} virial="1 2 3 4 5 6 7 8"', "virial"),
    (f'{CELL} REF_virials="0 0 0 nan 0 0"', "REF_virials"),
    *((f"{CELL} charge={value}", "charge") for value in ("0.5", "abc", "nan", "inf", "10000000000", "T", '"1 2"')),
    (f"{CELL} spin=1.5", "spin"),
    *((f'{CELL} pbc="{value}"', "pbc") for value in ("T T", "T T X", "maybe", "T T T T")),
    ('pbc="T T T"', "pbc"),
    (f"{CELL} {COLUMNS}forces:R", "forces"),
    (f"{CELL} {COLUMNS}forces:R:3", ""),  # columns that are not there
]
BAD_ROWS = [
    (f"{COLUMNS}forces:R:3", ["O 0 0 0 1 2 abc", "H 0 0 1 1 2 3"], "forces"),
    (f"{COLUMNS}forces:R:3", ["O 0 0 0 1 2 3", "H 0 0 1 1 2 inf"], "forces"),
    (f"{COLUMNS}REF_forces:R:3", ["O 0 0 0 1 nan 3", "H 0 0 1 1 2 3"], "REF_forces"),
    (f"{COLUMNS}forces:R:3", ["O 0 0 0 1 2 3", "H 0 0 1 1 2"], ""),
    (f"{COLUMNS}forces:R:2", ["O 0 0 0 1 2", "H 0 0 1 1 2"], "forces"),
    ("", ["O 0 0 zero", "H 0 0 1"], "pos"),
    ("", ["O 0 0 nan", "H 0 0 1"], "positions"),
    ("", ["Qq 0 0 0", "H 0 0 1"], "Qq"),
    ("", ["O 0 0 0", "H 0 0 0"], "coincide"),
    (f"{COLUMNS}move_mask:L:1", ["O 0 0 0 1", "H 0 0 1 0"], "move_mask"),
]
BAD = [(frame(comment), word) for comment, word in BAD_COMMENTS]
BAD += [(frame(f"{CELL} {comment}", rows), word) for comment, rows, word in BAD_ROWS]


@pytest.mark.parametrize(("text", "word"), BAD, ids=["|".join(text.splitlines()[1:]) for text, _ in BAD])
def test_what_cannot_be_read_names_file_frame_and_field(read, tmp_path, text, word):
    source = read(frame(CELL), text, frame(CELL))
    with np.errstate(all="ignore"):
        made = summarize(source, 3.0)
        assert list(made.problems) == [1]
        assert word in made.problems[1]
        with pytest.raises(DataError, match=f"{tmp_path}/hand.xyz, frame 1.*{word}"):
            Dataset(source, made, np.arange(3), 3.0, {})[1]
    assert made.records["usable"].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("\n \n", "no structure"),
        (frame(CELL) + f"2\n{CELL}\nO 0 0 0\n", r"frame 1 \(line 5\).*1 of 2 atoms"),
        (frame(CELL) + "2\n", r"frame 1 \(line 5\)"),
        (frame(CELL) + f"two\n{CELL}\nO 0 0 0\nH 0 0 1\n", r"frame 1 \(line 5\).*number of atoms.*two"),
        (f"-2\n{CELL}\nO 0 0 0\nH 0 0 1\n", r"frame 0 \(line 1\).*number of atoms"),
        (f"2.0\n{CELL}\nO 0 0 0\nH 0 0 1\n", r"frame 0 \(line 1\).*number of atoms"),
        (f"1\n{CELL}\nO 0 0 0\nH 0 0 1\n", r"frame 1 \(line 4\)"),  # more atoms than it says
    ],
)
def test_files_that_are_no_frames_are_named(read, tmp_path, text, words):
    with pytest.raises(DataError, match=f"{tmp_path}/hand.xyz.*{words}"):
        read(text)


def raw(path, rows: dict, nextid: int, **values):
    """An `.aselmdb` file of rows as bytes, with the other values beside them."""
    environment = lmdb.open(str(path), map_size=1 << 22, subdir=False, lock=False)
    with environment.begin(write=True) as transaction:
        for key, value in {"nextid": nextid, **values}.items():
            transaction.put(key.encode(), zlib.compress(encode(value).encode()))
        for key, value in rows.items():
            transaction.put(str(key).encode(), value)
    environment.close()


def row(number: int) -> bytes:
    frame = {"numbers": np.array([1]), "positions": np.zeros((1, 3)), "cell": np.eye(3), "pbc": np.zeros(3, bool)}
    return zlib.compress(encode({**frame, "ctime": 0.0, "mtime": 0.0, "data": {"number": number}}).encode())


@pytest.mark.parametrize("suffix", [".aselmdb", ".db", ".traj", ".cif"])
def test_rubbish_is_named(tmp_path, suffix):
    path = tmp_path / f"rubbish{suffix}"
    path.write_bytes(np.random.default_rng(0).bytes(9000))
    with pytest.raises(DataError, match=f"rubbish{suffix}"):
        read_frames(path)


@pytest.mark.parametrize("deleted", [[], [2], [1, 4], [1, 2, 3]], ids=len)
def test_deleted_rows_are_left_out(tmp_path, deleted):
    raw(tmp_path / "a.aselmdb", {k: row(k) for k in range(1, 5) if k not in deleted}, 5, deleted_ids=deleted)
    source = open_source(tmp_path / "a.aselmdb")
    kept = [k for k in range(1, 5) if k not in deleted]
    assert [source[k].info["number"] for k in range(len(source))] == kept
    assert source.name(0) == f"{tmp_path}/a.aselmdb, frame 0 (id {kept[0]})"


@pytest.mark.parametrize(
    "bad", [b"no zlib", row(2)[:-9], zlib.compress(b"{no json"), zlib.compress(b'{"numbers": 1}'), None]
)
def test_a_damaged_row_is_named_and_the_others_are_read(tmp_path, bad):
    rows = {1: row(1), **({} if bad is None else {2: bad}), 3: row(3)}
    raw(tmp_path / "a.aselmdb", rows, 4, deleted_ids=[])
    source = open_source(tmp_path / "a.aselmdb")
    assert len(source) == 3
    with pytest.raises(DataError, match=r"a.aselmdb, frame 1 \(id 2\)"):
        source[1]
    assert (source[0].info["number"], source[2].info["number"]) == (1, 3)
    assert list(summarize(source, 3.0).problems) == [1]
