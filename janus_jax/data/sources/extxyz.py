"""Extended XYZ files by frame number: an index of byte offsets, frames parsed by ASE when asked for.

Two things differ from `ase.io.read`: `stress` and `virial` may have 6 numbers (Voigt order) as well
as 9, and an error names the frame and the line it starts at.
"""

import logging
from collections import deque
from functools import cached_property
from io import BufferedReader, BytesIO, StringIO
from itertools import islice
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io.extxyz import read_xyz

from janus_jax.data.labels import AS_WRITTEN
from janus_jax.data.sources import text
from janus_jax.data.sources.base import FileSource
from janus_jax.data.sources.comments import SIX, check_columns, properties
from janus_jax.errors import DataError

log = logging.getLogger(__name__)

Opened = BufferedReader | BytesIO


class ExtxyzFile(FileSource):
    """Frames of one extended XYZ file; 16 bytes of memory a frame. A compressed one is unpacked in memory."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        with self._open() as file:
            self.offsets, self.lines, self.windows = _scan(self.path, file)
        if self.windows:
            log.warning("%s: comments are not UTF-8; they are read as Windows-1252.", self.path)

    @cached_property
    def _unpacked(self) -> bytes:
        return text.unpack(self.path)

    def _open(self) -> Opened:
        """Not kept open: a folder may have more files than a process may open."""
        return BytesIO(self._unpacked) if self.path.suffix.lower() in text.PACKERS else open(self.path, "rb")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getstate__(self):
        return {"path": self.path, "offsets": self.offsets, "lines": self.lines, "windows": self.windows}

    def __getitem__(self, index: int) -> Atoms:
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        try:
            with self._open() as file:
                file.seek(start)
                raw = file.read(end - start)
            frame = raw.decode("cp1252", "replace") if self.windows and not text.is_utf_8(raw) else raw.decode()
            check_columns(frame)
            atoms = next(read_xyz(StringIO(frame), index=0, properties_parser=properties))
        except Exception as error:
            reason = f"{error}" or type(error).__name__
            raise DataError(f"{self.name(index)} (line {self.lines[index] + 1}): {reason}.") from error
        if atoms.info.pop(SIX, False) and atoms.calc is not None:
            atoms.calc.parameters[AS_WRITTEN] = ["stress"]
        return atoms


def _scan(path: Path, file: Opened) -> tuple[np.ndarray, np.ndarray, bool]:
    """Byte offsets of all frames and of the end; line numbers (from 0) of all; whether a comment is not UTF-8."""
    offsets, lines, line, windows = [], [], 0, False
    text.check_encoding(path, file)
    while True:
        start = file.tell()
        head = file.readline()
        if not head:
            break
        if head.startswith(text.UTF_8):  # a byte-order mark, also where files were put one after the other
            head, start = head.removeprefix(text.UTF_8), start + len(text.UTF_8)
        word = head.strip()
        if not word or (offsets and word.startswith(b"VEC")):  # a blank line; or a cell vector, part of the frame
            line += 1
            continue
        where = f"{path}, frame {len(offsets)} (line {line + 1})"
        if not word.isdigit():
            raise DataError(f"{where}: expected the number of atoms, found {head[:40].decode(errors='replace')!r}.")
        expected, comment = int(word) + 1, file.readline()
        windows = windows or not text.is_utf_8(comment)
        counter = deque(enumerate(islice(file, expected - 1), 2), maxlen=1)
        found = counter[0][0] if counter else bool(comment)
        if found < expected:
            raise DataError(f"{where}: the file ends after {max(found - 1, 0)} of {int(word)} atoms.")
        offsets.append(start)
        lines.append(line)
        line += expected + 1
    offsets.append(file.tell())
    return np.array(offsets, np.int64), np.array(lines, np.int64), windows
