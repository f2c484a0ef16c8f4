"""Trajectories as H5MD 1.1: chunked arrays that grow frame by frame (nongnu.org/h5md)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from janus_jax import storage
from janus_jax.errors import DynamicsError

UNITS = {"position": "Angstrom", "velocity": "Angstrom fs-1", "force": "eV Angstrom-1", "edges": "Angstrom"}


class H5mdWriter:
    """Appends frames to a file.

    Args:
        species: atomic numbers [N]; masses: [N], amu; pbc: [3].
        author: as the format demands.
    """

    def __init__(self, path: Path, species: np.ndarray, masses: np.ndarray, pbc: np.ndarray, author: str = "janus-jax"):
        self.path = path
        if path.exists():
            return
        from janus_jax import __version__

        with h5py.File(path, "w") as file:
            about = file.create_group("h5md")
            about.attrs["version"] = np.array([1, 1], np.int32)
            about.create_group("author").attrs["name"] = author
            creator = about.create_group("creator")
            creator.attrs["name"], creator.attrs["version"] = "janus-jax", __version__
            particles = file.create_group("particles/atoms")
            particles["species"] = np.asarray(species, np.int32)
            particles["mass"] = np.asarray(masses, float)
            particles["mass"].attrs["unit"] = "u"
            box = particles.create_group("box")
            box.attrs["dimension"] = 3
            box.attrs.create("boundary", ["periodic" if axis else "none" for axis in pbc], dtype=h5py.string_dtype())

    def append(self, step: int, time_fs: float, arrays: dict[str, np.ndarray], observables: dict[str, float]) -> None:
        """One frame.

        Args:
            arrays: position, velocity, force [N, 3] and edges [3, 3]; kept in 32 bits but for the cell.
            observables: numbers by name.
        """
        with self._opened("a") as file:
            for name, values in arrays.items():
                where = "particles/atoms/box/edges" if name == "edges" else f"particles/atoms/{name}"
                _append(file, where, step, time_fs, values, np.float64 if name == "edges" else np.float32)
                file[f"{where}/value"].attrs["unit"] = UNITS[name]
            for name, value in observables.items():
                _append(file, f"observables/{name}", step, time_fs, np.asarray(value), np.float64)

    def frames(self) -> int:
        """Frames in the file."""
        with self._opened("r") as file:
            found = file.get("particles/atoms/position/step")
            return len(found) if isinstance(found, h5py.Dataset) else 0

    def truncate(self, frames: int) -> None:
        """Drop frames from the `frames`-th on.

        Raises:
            DynamicsError: there are fewer.
        """
        if self.frames() < frames:
            raise DynamicsError(f"{self.path} has {self.frames()} frames, but the checkpoint was made after {frames}")

        def cut(_, item):
            if isinstance(item, h5py.Group) and {"step", "time", "value"} <= set(item):
                for name in ("step", "time", "value"):
                    _dataset(item, name).resize(frames, axis=0)

        with self._opened("a") as file:
            file.visititems(cut)

    @contextlib.contextmanager
    def _opened(self, mode: Literal["r", "a"]) -> Iterator[h5py.File]:
        """The file.

        Raises:
            DynamicsError: it is damaged.
        """
        try:
            with h5py.File(self.path, mode) as file:
                yield file
        except (OSError, RuntimeError, KeyError, ValueError) as error:  # whatever h5py says of what it cannot follow
            if isinstance(error, DynamicsError | PermissionError) or storage.is_full(error):
                raise
            raise DynamicsError(
                f"{self.path} is damaged ({str(error).splitlines()[0]}): move it away and go on with "
                "output.formats=[extxyz]"
            ) from None


def _append(file: h5py.File, where: str, step: int, time_fs: float, value: np.ndarray, dtype) -> None:
    """One more entry of a time-dependent element: step, time, value."""
    if where not in file:
        group = file.create_group(where)
        shape = value.shape
        chunk = max(1, min(64, (1 << 20) // max(value.nbytes, 1)))  # about a mebibyte
        group.create_dataset("step", (0,), np.int64, maxshape=(None,), chunks=(1024,))
        group.create_dataset("time", (0,), np.float64, maxshape=(None,), chunks=(1024,)).attrs["unit"] = "fs"
        group.create_dataset("value", (0, *shape), dtype, maxshape=(None, *shape), chunks=(chunk, *shape))
    for name, entry in (("step", step), ("time", time_fs), ("value", value)):
        dataset = _dataset(file, f"{where}/{name}")
        dataset.resize(len(dataset) + 1, axis=0)
        dataset[-1] = entry


def _dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    found = group[name]
    assert isinstance(found, h5py.Dataset)
    return found
