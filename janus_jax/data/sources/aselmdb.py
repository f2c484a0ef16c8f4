"""fairchem's `.aselmdb`: one LMDB file of ASE database rows, each JSON (ASE's coding) under zlib.

Keys are the row numbers from 1 in ASCII; `nextid` and `deleted_ids` are coded as the rows are. Not
read through fairchem's own package, which keeps files open across processes.
"""

import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from ase import Atoms
from ase.calculators.calculator import all_properties
from ase.db.row import AtomsRow
from ase.io.jsonio import decode, encode

from janus_jax.data.sources.ase_files import atoms_of, data_of
from janus_jax.data.sources.base import FileSource
from janus_jax.errors import DataError

OPEN = 16
"""Files kept open a process; the one not used for longest is closed for another."""

_environments: OrderedDict[tuple, Any] = OrderedDict()
_lock = threading.Lock()


def _value(path: Path, key: str) -> bytes | None:
    """The value of a key. LMDB allows one handle a file and process; a file made anew needs a new one."""
    with _lock:
        status = path.stat()
        known = (os.getpid(), str(path.absolute()), status.st_ino, status.st_mtime_ns, status.st_size)
        if known not in _environments:
            for other in [other for other in _environments if other[:3:2] == known[:3:2] or other[1] == known[1]]:
                _close(other)
            while len(_environments) >= OPEN:
                _close(next(iter(_environments)))
            _environments[known] = _opened(path, status.st_size)
        _environments.move_to_end(known)
        with _environments[known].begin() as transaction:
            return transaction.get(key.encode())


def _close(key: tuple) -> None:
    environment = _environments.pop(key)
    if key[0] == os.getpid():  # what was inherited by a fork is the parent's
        environment.close()


def _opened(path: Path, size: int):
    environment = lmdb.open(
        str(path), subdir=False, readonly=True, lock=False, readahead=False, meminit=False, max_readers=1024
    )
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    if size < needed:  # reading beyond the end of a mapped file would kill the process
        environment.close()
        raise OSError(f"the file has {size} bytes, {needed} are needed: it is cut off")
    return environment


class AseLmdb(FileSource):
    """Rows of one `.aselmdb` file in the order of their ids, deleted ones left out."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            last = self._get("nextid") or 1
            deleted = self._get("deleted_ids")
        except Exception as error:
            raise DataError(f"{path}: not an aselmdb file ({type(error).__name__}: {error}).") from error
        self.ids = np.setdiff1d(np.arange(1, int(last)), np.asarray([] if deleted is None else deleted, np.int64))

    def _get(self, key: str) -> Any:
        value = _value(self.path, key)
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
    values |= {"cell": np.asarray(atoms.cell.array), "data": data_of(atoms), "key_value_pairs": {}, "mtime": 0.0}
    if atoms.constraints:
        values["constraints"] = [constraint.todict() for constraint in atoms.constraints]
    return values
