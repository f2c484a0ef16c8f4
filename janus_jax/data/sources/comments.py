"""The comment line and the columns of an extended XYZ frame: ASE's parser, and what it would misread."""

import re
from collections.abc import Mapping

import numpy as np
from ase.io.extxyz import key_val_str_to_dict

from janus_jax.data.labels import full_stress

SIX = "janus_six_numbers"
"""Set in `info` where the numbers of a stress are as the file has them."""


def properties(line: str) -> dict:
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


def check_columns(frame: str) -> None:
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
