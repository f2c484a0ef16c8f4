"""Files as other programs and file systems leave them: read where safe, else one sentence says what to do."""

import bz2
import gzip
import lzma
import pickle

import pytest

from janus_jax.data.sources import open_source
from janus_jax.errors import DataError

FRAME = '2\nLattice="4 0 0 0 5 0 0 0 6" number={} stress="1 2 3 4 5 6"\nO 0 0 0\nH 0 0 1\n'
TEXT = FRAME.format(0) + FRAME.format(1)


def numbers(source) -> list[int]:
    return [source[k].info["number"] for k in range(len(source))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("mark.xyz", "\ufeff".encode() + TEXT.encode()),
        ("joined.xyz", "".join("\ufeff" + FRAME.format(k) for k in range(2)).encode()),
        ("of_xyz_form.dat", TEXT.encode()),
        ("of_xyz_form.txt", TEXT.encode()),
        ("no_suffix", TEXT.encode()),
        ("CAPITALS.XYZ", TEXT.encode()),
        ("packed.xyz.gz", gzip.compress(TEXT.encode())),
        ("packed.extxyz.bz2", bz2.compress(TEXT.encode())),
        ("packed.xyz.xz", lzma.compress(TEXT.encode())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("alone", [True, False], ids=["file", "folder"])
def test_files_in_another_dress_are_read(tmp_path, name, content, alone):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "notes.txt").write_text("no structure")
    source = open_source(tmp_path / name if alone else tmp_path)
    assert numbers(source) == [0, 1]
    assert source[1].calc.results["stress"].tolist() == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]  # by our own reader: ASE's refuses six numbers
    assert numbers(pickle.loads(pickle.dumps(source))) == [0, 1]


def test_comments_of_windows_are_read_with_one_message_a_file(tmp_path, caplog):
    text = TEXT.replace("number", "who=M\u00fcller number") + TEXT.replace("number", "who=plain number")
    (tmp_path / "a.xyz").write_bytes(text.encode("cp1252"))
    source = open_source(tmp_path / "a.xyz")
    assert [source[k].info["who"] for k in range(4)] == ["M\u00fcller", "M\u00fcller", "plain", "plain"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/a.xyz: comments are not UTF-8; they are read as Windows-1252."
    ]
    (tmp_path / "b.xyz").write_text(text)
    assert open_source(tmp_path / "b.xyz")[0].info["who"] == "M\u00fcller"
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.xyz", TEXT.encode("utf-16"), "it is UTF-16 text; save it as UTF-8"),
        ("a.xyz.gz", gzip.compress(TEXT.encode())[:-20], "cannot be unpacked"),
        ("a.xyz.gz", b"no gzip at all", "cannot be unpacked"),
        ("a.traj.gz", gzip.compress(b"..."), "has to be unpacked first"),
        ("a.tar.gz", gzip.compress(b"..."), "has to be unpacked first"),
        ("a.zip", b"PK..", "has to be unpacked first"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_read_says_what_to_do(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path}/{name}: .*{words}"):
        open_source(tmp_path / name)


def test_packed_files_that_a_folder_leaves_out_are_named(tmp_path, caplog):
    (tmp_path / "a.xyz").write_text(TEXT)
    (tmp_path / "b.traj.gz").write_bytes(b"...")
    assert numbers(open_source(tmp_path)) == [0, 1]
    assert f"1 files are not read; unpack them first: {tmp_path}/b.traj.gz" in caplog.text


def test_links_are_followed_and_broken_ones_named(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/a.xyz").write_text(TEXT)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/linked").symlink_to(tmp_path / "there")
    (tmp_path / "there/loop").symlink_to(tmp_path / "set")
    assert numbers(open_source(tmp_path / "set")) == [0, 1]
    (tmp_path / "set/b.xyz").symlink_to(tmp_path / "gone.xyz")
    for spec in (tmp_path / "set/b.xyz", tmp_path / "set", f"{tmp_path}/set/*.xyz"):
        with pytest.raises(DataError, match=rf"b.xyz: a link to {tmp_path}/gone.xyz, which is not there"):
            open_source(spec)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("number=0", "number=0 energy=-1.0 energy=-2.0"), "energy is there twice, as -1.0 and as -2.0"),
        (("number=0", 'number=0 stress="6 5 4 3 2 1"'), "stress is there twice"),
        (("number=0", "number=0 Properties=species:S:1:pos:R:3:pos:R:3"), "column pos is there twice"),
        (("number=0", 'number=0 energy=-1 note="energy=-2 and energy=-3"'), None),
        (("number=0", "number=0 energy=-1 energy=-1"), None),
    ],
)
def test_a_key_twice_with_two_values_is_refused(tmp_path, change, words):
    (tmp_path / "a.xyz").write_text(TEXT.replace(*change))
    source = open_source(tmp_path / "a.xyz")
    if words is None:
        assert source[0].info["number"] == 0
    else:
        with pytest.raises(DataError, match=rf"a.xyz, frame 0 \(line 1\): {words}"):
            source[0]
    assert source[1].info["number"] == 1
