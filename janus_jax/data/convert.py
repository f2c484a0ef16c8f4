"""Structures from any source to one convention: ASE's keys, eV and Å, tensile-positive stress."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.calculators.singlepoint import SinglePointCalculator
from ase.db import connect
from ase.io import write
from ase.io.extxyz import key_val_dict_to_str, key_val_str_to_dict
from ase.stress import full_3x3_to_voigt_6_stress

from janus_jax.data.labels import CANDIDATES, LabelConfig, read_labels
from janus_jax.data.sources import aselmdb
from janus_jax.data.sources.ase_files import ARRAYS, data_of
from janus_jax.data.sources.base import Source
from janus_jax.errors import DataError

FORMATS = (".xyz", ".extxyz", ".aselmdb", ".db")
BATCH = 256


def canonical(frame: Atoms, config: LabelConfig) -> Atoms:
    """The frame with its labels as calculator results and under no other name; all else is kept."""
    labels = read_labels(frame, config)
    result = frame.copy()
    # The names not used go too: left in, a reader would take them for labels again.
    names = {*labels.names.values(), *(name for candidates in CANDIDATES.values() for name in candidates)}
    for name in names:
        result.info.pop(name, None)
        result.arrays.pop(name, None)
    other = frame.calc.results if frame.calc is not None else {}
    values = {key: value for key, value in other.items() if key in all_properties and key not in names}
    if config.energy_unit != "eV":  # these would keep the old unit
        for name in ("energies", "stresses"):
            values.pop(name, None)
    values |= {"energy": labels.energy, "forces": labels.forces}
    values["stress"] = None if labels.stress is None else full_3x3_to_voigt_6_stress(labels.stress)
    known = {name: value for name, value in values.items() if value is not None}
    if known:
        result.calc = SinglePointCalculator(result, **known)
    return result


def frames(source: Source, config: LabelConfig) -> Iterator[Atoms]:
    """`canonical` frames of a source.

    Raises:
        DataError: a frame cannot be read; names it.
    """
    for index in range(len(source)):
        try:
            yield canonical(source[index], config)
        except DataError as error:
            name = source.name(index)
            raise error if str(error).startswith(name) else DataError(f"{name}: {error}.") from error


def check_new(path: str | Path) -> Path:
    """Raises DataError if structures cannot be written to `path`: it exists, or has an unknown suffix."""
    path = Path(path)
    if path.suffix not in FORMATS:
        raise DataError(f"{path}: unknown suffix {path.suffix!r}; allowed: {', '.join(FORMATS)}.")
    if path.exists():
        raise DataError(f"{path}: exists already; give another name.")
    return path


def write_frames(path: str | Path, structures: Iterable[Atoms]) -> int:
    """Write structures to a new file whose suffix says the format; a few at a time. Returns how many.

    Raises:
        DataError: the file exists, or the suffix is none of FORMATS.
    """
    path = check_new(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    partial.unlink(missing_ok=True)
    try:
        count = _WRITERS[path.suffix](partial, structures)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
        Path(f"{partial}-lock").unlink(missing_ok=True)
    return count


def _extxyz(path: Path, structures: Iterable[Atoms]) -> int:
    count, waiting = 0, []
    with open(path, "w") as file:
        for frame in structures:
            waiting.append(_for_extxyz(frame))
            count += 1
            if len(waiting) == BATCH:
                write(file, waiting, format="extxyz")
                waiting = []
        if waiting:
            write(file, waiting, format="extxyz")
    return count


def _for_extxyz(frame: Atoms) -> Atoms:
    """The frame with `info` in a form that ASE's writer and reader bring back unchanged.

    Raises:
        DataError: a text holds what the format has no way to write.
    """
    result = frame.copy()
    result.calc = frame.calc
    data = data_of(frame)
    data.pop(ARRAYS, None)
    result.info = {key: _writable(key, value) for key, value in data.items()}
    return result


def _writable(key: str, value: Any) -> Any:
    if not isinstance(value, str) and value is not None:
        return value
    for form in (value, f"_JSON {json.dumps(value)}"):
        if form is not None and form != "" and _survives(key, form, value):
            return form
    raise DataError(f"info {key!r} is {value!r}; extxyz cannot hold a line break or backslash, another format can")


def _survives(key: str, form: str, value: str | None) -> bool:
    try:
        found = key_val_str_to_dict(key_val_dict_to_str({key: form}))
    except ValueError:
        return False
    return found.keys() == {key} and type(found[key]) is type(value) and found[key] == value


def _database(path: Path, structures: Iterable[Atoms]) -> int:
    count = 0
    with connect(path) as database:  # pyright: ignore[reportGeneralTypeIssues]
        for count, frame in enumerate(structures, 1):  # noqa: B007 (the last count is what is returned)
            database.write(frame, data=data_of(frame))
    return count


_WRITERS = {".xyz": _extxyz, ".extxyz": _extxyz, ".aselmdb": aselmdb.write, ".db": _database}
