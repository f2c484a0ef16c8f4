"""fairchem's `.aselmdb`: one LMDB file of ASE database rows, each JSON (ASE's coding) under zlib.

Keys are the row numbers from 1 in ASCII; `nextid` and `deleted_ids` are coded as the rows are. Not
read through fairchem's own package, which keeps files open across processes.
"""

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.db.row import AtomsRow
from ase.io.jsonio import decode, encode

from janus_jax.data.sources.ase_files import atoms_of
from janus_jax.data.sources.base import FileSource
from janus_jax.errors import DataError

_environments: dict[tuple[int, str], Any] = {}


def _environment(path: Path):
    """LMDB allows one handle a file and process."""
    key = (os.getpid(), str(path.absolute()))
    if key not in _environments:
        _environments[key] = lmdb.open(
            str(path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False, max_readers=1024
        )
    return _environments[key]


class AseLmdb(FileSource):
    """Rows of one `.aselmdb` file in the order of their ids, deleted ones left out."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            last = self._get("nextid") or 1
            deleted = self._get("deleted_ids") or []
        except Exception as error:
            raise DataError(f"{path}: not an aselmdb file ({type(error).__name__}: {error}).") from error
        self.ids = np.setdiff1d(np.arange(1, int(last)), np.asarray(deleted, np.int64))

    def _get(self, key: str) -> Any:
        with _environment(self.path).begin() as transaction:
            value = transaction.get(key.encode())
        return None if value is None else decode(zlib.decompress(value).decode())

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Atoms:
        try:
            values = self._get(str(self.ids[index]))
            if values is None:
                raise KeyError("no such row")
            for key in all_properties:
                if isinstance(values.get(key), list):
                    values[key] = np.array(values[key])
            return atoms_of(AtomsRow({**values, "id": int(self.ids[index])}))
        except Exception as error:
            raise DataError(f"{self.name(index)}: {type(error).__name__}: {error}.") from error

    def name(self, index: int) -> str:
        return f"{self.path}, frame {index} (id {self.ids[index]})"


def write(path: str | Path, frames: Iterable[Atoms]) -> int:
    """Write structures to a new `.aselmdb` file; returns how many.

    Raises:
        DataError: the file exists.
    """
    if Path(path).exists():
        raise DataError(f"{path}: exists already; give another name.")
    environment = lmdb.open(str(path), subdir=False, map_size=2**40, meminit=False, lock=False)
    count = 0
    with environment.begin(write=True) as transaction:

        def put(key: str, value) -> None:
            transaction.put(key.encode(), zlib.compress(encode(value).encode()))

        for count, atoms in enumerate(frames, 1):
            put(str(count), _row(atoms))
        put("nextid", count + 1)
        put("deleted_ids", [])
    environment.close()
    return count


def _row(atoms: Atoms) -> dict[str, Any]:
    row = AtomsRow(atoms)
    skipped = {"id", "constraints", "data"}
    values = {key: row[key] for key in row.__dict__ if key[0] != "_" and key not in row._keys and key not in skipped}
    values |= {"cell": np.asarray(atoms.cell.array), "data": dict(atoms.info), "key_value_pairs": {}, "mtime": 0.0}
    own = {"numbers", "positions", "tags", "momenta", "masses", "magmoms", "charges", "initial_magmoms"}
    values["data"] |= {name: array for name, array in atoms.arrays.items() if name not in own}
    if atoms.constraints:
        values["constraints"] = [constraint.todict() for constraint in atoms.constraints]
    return values
