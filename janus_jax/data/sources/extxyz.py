"""Extended XYZ files by frame number: an index of byte offsets, frames parsed by ASE when asked for.

Two things differ from `ase.io.read`: `stress` and `virial` may have 6 numbers (Voigt order) as well
as 9, and an error names the frame and the line it starts at.
"""

import logging
import re
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from io import BufferedReader, BytesIO, StringIO
from itertools import islice
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.io.extxyz import key_val_str_to_dict, read_xyz

from janus_jax.data.labels import AS_WRITTEN, full_stress
from janus_jax.data.sources import text
from janus_jax.data.sources.base import FileSource
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
            _check_columns(frame)
            atoms = next(read_xyz(StringIO(frame), index=0, properties_parser=_properties))
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


def _properties(line: str) -> dict:
    """ASE's parser of the comment line, without its demand that stress and virial have nine numbers."""
    _check_keys(line)
    values = key_val_str_to_dict(_renamed(line, HIDDEN))
    for name, other in HIDDEN.items():
        if other not in values:
            continue
        value = np.asarray(values.pop(other))
        if value.shape not in ((), (6,), (9,)) or value.dtype.kind not in "if":
            raise ValueError(f"{name} must be 6 or 9 numbers, found {value.tolist()!r}")
        full = value.shape == (9,)  # fewer are kept as they are: what they mean is a setting of who reads labels
        values[name] = full_stress(value.astype(float), name) if full else value.astype(float)
        if not full and name == "stress":
            values[SIX] = True
    pbc = np.asarray(values.get("pbc", True))
    if pbc.shape not in ((), (3,)) or not np.isin(pbc, (0, 1)).all():
        raise ValueError(f"pbc must be T or F, once or three times, found {pbc.tolist()!r}")
    return values


def _check_keys(line: str) -> None:
    """Raises ValueError if a key is there twice with two values, of which ASE would take the last."""
    if len(keys := KEY.findall(line)) == len(set(keys)):
        return
    values: dict[str, str] = {}
    for match in FIELD.finditer(line):  # what stands in quotes or brackets is no key
        key, value = match.groups()
        if values.setdefault(key, value) != value:
            raise ValueError(f"{key} is there twice, as {values[key]} and as {value}")


KEY = re.compile(r"(?:^|\s)([^\s=]+)=")
FIELD = re.compile(
    r"""(?:^|(?<=\s))([^\s="'{\[]+)=("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\{[^}]*\}|\[.*?\](?=\s|$)|\S*)"""
)
EMPTY = re.compile(r"""(""|''|)(?=\s*$|\s+[^\s="'{\[]+=)""")
"""A value that is not there: ASE would read the next field as the value."""
SIX = "janus_six_numbers"
HIDDEN = {"stress": "janus_hidden_stress", "virial": "janus_hidden_virial"}


def _renamed(line: str, names: Mapping[str, str]) -> str:
    """The line with keys renamed and empty values spelt out; what stands in quotes or brackets is left alone."""
    result, closing, start, k = [], "", True, 0
    while k < len(line):
        for name, other in names.items():
            if start and not closing and line.startswith(f"{name}=", k):
                result.append(other)
                k += len(name)
        char = line[k]
        result.append(char)
        if char == "\\" and k + 1 < len(line):
            result.append(line[k + 1])
            k += 1
        elif char == "=" and not closing and (empty := EMPTY.match(line, k + 1)):
            result.append('"_JSON \\"\\""')
            k += len(empty.group())
        elif closing:
            closing = "" if char == closing else closing
        else:
            closing = {"'": "'", '"': '"', "{": "}", "[": "]"}.get(char, "")
        start = char.isspace() and not closing
        k += 1
    return "".join(result)


def _check_columns(frame: str) -> None:
    """Raises ValueError, naming column and atom, for what ASE would misread or report without its column."""
    count, comment, *rows = frame.replace("\r\n", "\n").split("\n")
    match = re.search(r"Properties=(\S+)", comment)
    fields = (match.group(1) if match else "species:S:1:pos:R:3").strip("\"'").split(":")
    if len(fields) % 3:
        raise ValueError(f"Properties={':'.join(fields)} is not made of name:type:columns")
    if len(names := fields[::3]) > len(set(names)):
        raise ValueError(f"column {next(name for name in names if names.count(name) > 1)} is there twice")
    kinds = [(name, kind) for name, kind, n in zip(*[iter(fields)] * 3, strict=True) for _ in range(int(n))]
    logical = [k for k, (_, kind) in enumerate(kinds) if kind == "L"]
    numeric = [k for k, (_, kind) in enumerate(kinds) if kind in "RI"]
    for atom, row in enumerate(rows[: int(count)]):
        words = row.split()
        if len(words) < len(kinds):
            raise ValueError(f"atom {atom} has {len(words)} columns, {len(kinds)} are expected")
        for k in logical:
            if words[k] not in ("T", "F", "True", "False"):
                raise ValueError(f"{kinds[k][0]} of atom {atom} is {words[k]!r}; allowed: T or F")
        try:
            list(map(float, [words[k] for k in numeric]))
        except ValueError:
            wrong = next(k for k in numeric if not _is_number(words[k]))
            raise ValueError(f"{kinds[wrong][0]} of atom {atom} is {words[wrong]!r}, not a number") from None


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
