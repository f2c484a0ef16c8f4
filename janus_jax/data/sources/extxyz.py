"""Extended XYZ files by frame number: an index of byte offsets, frames parsed by ASE when asked for.

Two things differ from `ase.io.read`: `stress` and `virial` may have 6 numbers (Voigt order) as well
as 9, and an error names the frame and the line it starts at.
"""

import io
import os
import weakref
from collections import deque
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io.extxyz import key_val_str_to_dict, read_xyz
from ase.stress import voigt_6_to_full_3x3_stress

from janus_jax.data.sources.base import FileSource
from janus_jax.errors import DataError


class ExtxyzFile(FileSource):
    """Frames of one extended XYZ file; 16 bytes of memory a frame."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.offsets, self.lines = _scan(self.path)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getstate__(self):
        return {"path": self.path, "offsets": self.offsets, "lines": self.lines}

    @cached_property
    def _descriptor(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    def __getitem__(self, index: int) -> Atoms:
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        text = os.pread(self._descriptor, end - start, start)  # no file position: safe with threads
        try:
            return next(read_xyz(io.StringIO(text.decode()), index=0, properties_parser=_properties))
        except Exception as error:
            reason = f"{error}" or type(error).__name__
            raise DataError(f"{self.name(index)} (line {self.lines[index] + 1}): {reason}.") from error


def _scan(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Byte offsets of all frames and of the end; line numbers, counted from 0, of all frames."""
    offsets, lines, line = [], [], 0
    with open(path, "rb") as file:
        while True:
            start = file.tell()
            head = file.readline()
            if not head:
                break
            word = head.strip()
            if not word or (offsets and word.startswith(b"VEC")):  # a blank line; or a cell vector, part of the frame
                line += 1
                continue
            where = f"{path}, frame {len(offsets)} (line {line + 1})"
            if not word.isdigit():
                raise DataError(f"{where}: expected the number of atoms, found {head[:40].decode(errors='replace')!r}.")
            expected = int(word) + 1
            counter = deque(enumerate(islice(file, expected), 1), maxlen=1)
            found = counter[0][0] if counter else 0
            if found < expected:
                raise DataError(f"{where}: the file ends after {max(found - 1, 0)} of {int(word)} atoms.")
            offsets.append(start)
            lines.append(line)
            line += expected + 1
        offsets.append(file.tell())
    return np.array(offsets, np.int64), np.array(lines, np.int64)


def _properties(line: str) -> dict:
    """ASE's parser of the comment line, without its demand that stress and virial have nine numbers."""
    hidden = {"stress": "janus_hidden_stress", "virial": "janus_hidden_virial"}
    words = line
    for name, other in hidden.items():
        words = _rename(words, name, other)
    values = key_val_str_to_dict(words)
    for name, other in hidden.items():
        if other not in values:
            continue
        value = np.asarray(values.pop(other))
        if value.shape not in ((6,), (9,)) or value.dtype.kind not in "if":
            raise ValueError(f"{name} must be 6 or 9 numbers, found {value.tolist()!r}")
        full = voigt_6_to_full_3x3_stress(value) if value.shape == (6,) else value.reshape(3, 3)
        values[name] = np.asarray(full, float)
    return values


def _rename(line: str, key: str, other: str) -> str:
    """`key=` at the start of the line or after white space becomes `other=`."""
    for separator in ("", " ", "\t"):
        wanted = f"{separator}{key}="
        if separator == "" and line.startswith(wanted):
            line = f"{other}=" + line[len(wanted) :]
        elif separator:
            line = line.replace(wanted, f"{separator}{other}=")
    return line
