"""Any file ASE reads, and ASE databases (.db, sqlite)."""

import threading
from functools import cached_property
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.db import connect
from ase.db.row import AtomsRow
from ase.io import Trajectory, read

from janus_jax.data.sources.base import FileSource
from janus_jax.errors import DataError


class AseFile(FileSource):
    """All frames of a file in one of ASE's formats; in memory, except for `.traj`."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def __getstate__(self):
        return {"path": self.path}

    @cached_property
    def _frames(self) -> Any:
        try:
            return Trajectory(str(self.path)) if self.path.suffix == ".traj" else read(self.path, index=":")
        except Exception as error:
            raise DataError(f"{self.path}: ASE cannot read it ({type(error).__name__}: {error}).") from error

    def __len__(self) -> int:
        return len(self._frames)

    def __getitem__(self, index: int) -> Atoms:
        try:
            return self._frames[index]
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
    return atoms
