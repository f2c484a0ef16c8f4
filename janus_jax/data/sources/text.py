"""Bytes of text files: plain or compressed, and the characters they stand for."""

import bz2
import codecs
import gzip
import lzma
from io import BufferedReader, BytesIO
from pathlib import Path

from janus_jax.errors import DataError

PACKERS = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
UTF_8 = codecs.BOM_UTF8
OTHER = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
"""Byte-order marks of what is not read."""


def unpack(path: Path) -> bytes:
    """All bytes of a compressed file.

    Raises:
        DataError: it is damaged.
    """
    try:
        return PACKERS[path.suffix.lower()](path.read_bytes())
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}).") from error


def check_encoding(path: Path, file: BufferedReader | BytesIO) -> None:
    """Raises DataError if a file begins with the byte-order mark of something else than UTF-8."""
    start = file.read(2)
    file.seek(0)
    if start in OTHER:
        raise DataError(f"{path}: it is {OTHER[start]} text; save it as UTF-8.")


def is_utf_8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def looks_like_xyz(path: Path) -> bool:
    """Whether a file begins with a number of atoms, a comment, and an element with a position."""
    with open(path, "rb") as file:
        head = [file.readline(4096) for _ in range(3)]
    words = head[2].split()
    if not head[0].removeprefix(UTF_8).strip().isdigit() or len(words) < 4:
        return False
    try:
        return words[0][:1].isalpha() and all(float(word) is not None for word in words[1:4])
    except ValueError:
        return False
