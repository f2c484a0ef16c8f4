"""Any file ASE reads, and ASE databases (.db, sqlite)."""

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.db import connect
from ase.db.row import AtomsRow
from ase.io import Trajectory, read

from janus_jax.data.sources.base import FileSource
from janus_jax.errors import DataError

ARRAYS = "janus_arrays"
OWN = {"numbers", "positions", "tags", "momenta", "masses", "initial_magmoms", "initial_charges"}
"""Arrays for which a row has a place of its own."""


class AseFile(FileSource):
    """All frames of a file in one of ASE's formats, in memory."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __getstate__(self):
        return {"path": self.path}

    @cached_property
    def _frames(self) -> Any:
        try:
            return read(self.path, index=":")
        except Exception as error:
            raise DataError(f"{self.path}: ASE cannot read it ({type(error).__name__}: {error}).") from error

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Atoms:
        try:
            return self._frames[index]
        except Exception as error:
            raise DataError(f"{self.name(index)}: {type(error).__name__}: {error}.") from error


class AseTrajectory(FileSource):
    """Frames of a `.traj` file, opened anew for each: a folder may have more files than a process may open."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        try:
            with Trajectory(str(self.path)) as frames:
                self._length = len(frames)
        except Exception as error:
            raise DataError(f"{self.path}: ASE cannot read it ({type(error).__name__}: {error}).") from error

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Atoms:
        try:
            frames: Any
            with Trajectory(str(self.path)) as frames:
                return frames[index]
        except Exception as error:
            raise DataError(f"{self.name(index)}: {type(error).__name__}: {error}.") from error


class AseDatabase(FileSource):
    """Rows of an ASE database in the order of their ids."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._local = threading.local()
        try:
            columns: Any = ["id"]
            self.ids = [row.id for row in self._database.select(columns=columns, include_data=False)]
        except Exception as error:
            raise DataError(f"{path}: ASE cannot read it ({type(error).__name__}: {error}).") from error

    def __getstate__(self):
        return {"path": self.path, "ids": self.ids}

    def __setstate__(self, state):
        self.__dict__.update(state, _local=threading.local())

    @property
    def _database(self):
        """sqlite connections belong to one thread."""
        if not hasattr(self._local, "database"):
            self._local.database = connect(self.path)
        return self._local.database

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Atoms:
        try:
            return atoms_of(self._database.get(id=self.ids[index]))
        except Exception as error:
            raise DataError(f"{self.name(index)}: {type(error).__name__}: {error}.") from error

    def name(self, index: int) -> str:
        return f"{self.path}, frame {index} (id {self.ids[index]})"


def atoms_of(row: AtomsRow) -> Atoms:
    """Structure of a database row; key-value pairs and data go to `info`, calculator results stay."""
    atoms = row.toatoms()
    data = row.data if isinstance(row.data, dict) else {}
    atoms.info.update({**data, **row.key_value_pairs})
    for name, array in atoms.info.pop(ARRAYS, {}).items():
        atoms.new_array(name, np.asarray(array))
    return atoms


def data_of(atoms: Atoms) -> dict[str, Any]:
    """What a row keeps beside what ASE gives a place: `info`, and columns under a name of their own.

    Objects that are neither numbers, text, arrays nor lists of these are left out.
    """
    arrays = {name: array for name, array in atoms.arrays.items() if name not in OWN}
    kept = {key: plain for key, value in atoms.info.items() if (plain := _plain(value)) is not NotImplemented}
    return {**kept, ARRAYS: arrays} if arrays else kept


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else _plain(value.tolist())
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return NotImplemented if any(item is NotImplemented for item in items) else items
    if isinstance(value, dict):
        items = {str(key): _plain(item) for key, item in value.items()}
        return NotImplemented if any(item is NotImplemented for item in items.values()) else items
    return NotImplemented
