"""Structures by number, read when asked for: files, folders, globs, databases, built-in sets.

    source = open_source("data/*.xyz")
    len(source), source[7], source.name(7)

A source knows how many structures it has without reading them, gives any one as ASE `Atoms`, names
it for error messages, and has a `fingerprint` of its content. Sources can be pickled; files are
opened lazily in each process, so they are safe under spawn.
"""

import glob
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from ase import Atoms

from janus_jax.data.sources import builtin, text
from janus_jax.data.sources.ase_files import AseDatabase, AseFile, AseTrajectory
from janus_jax.data.sources.aselmdb import AseLmdb
from janus_jax.data.sources.base import Frames, Joined, Source, Subset
from janus_jax.data.sources.extxyz import ExtxyzFile
from janus_jax.errors import DataError, listed

log = logging.getLogger(__name__)

__all__ = ["AseLmdb", "ExtxyzFile", "Frames", "Joined", "Source", "Subset", "builtin", "open_source", "read_frames"]

METADATA = "metadata.npz"
READERS = {".xyz": ExtxyzFile, ".extxyz": ExtxyzFile, ".aselmdb": AseLmdb, ".db": AseDatabase, ".traj": AseTrajectory}
"""Suffixes looked for in a folder. A single file with another suffix is left to ASE."""
XYZ = (".xyz", ".extxyz")
"""Also read compressed."""
PLAIN = (".dat", ".txt", "")
"""Files that may be of xyz form: what is in them says."""
ARCHIVES = (".zip", ".tar", ".tgz", ".zst", ".7z")


def open_source(spec: str | Path | Sequence[str]) -> Source:
    """The source a path, folder, glob, built-in name, or a list of these stands for.

    Raises:
        DataError: nothing is there, it is empty, or it cannot be read; names the file.
        UnknownNameError: a built-in set has no such split.
    """
    if not isinstance(spec, str | Path):
        if not spec:
            raise DataError("no source of structures is given; give a file, a folder, a glob or a built-in set.")
        parts = [open_source(one) for one in spec]
        return parts[0] if len(parts) == 1 else Joined(parts)
    if builtin.is_name(str(spec)) and not Path(spec).exists():
        return builtin.open_set(str(spec), ExtxyzFile)
    path = Path(spec)
    if path.is_dir():
        files = sorted(_in_folder(path))
        if not files:
            raise DataError(f"{path}: no structures in this folder; looked for files ending in {', '.join(READERS)}.")
    elif not path.exists() and glob.has_magic(str(spec)):
        files = sorted(Path(match) for match in glob.glob(str(spec), recursive=True))
        files = [file for file in files if not file.is_dir() and not file.name.endswith(("-lock", METADATA))]
        if not files:
            raise DataError(f"{spec}: no file matches.")
    else:
        return _open_file(path)
    source = Joined([_open_file(file) for file in files]) if len(files) > 1 else _open_file(files[0])
    _check_metadata(files, source)
    return source


def _in_folder(folder: Path) -> Iterator[Path]:
    """Files of structures in a folder and those below it, linked ones too, but no hidden ones."""
    seen, packed = set(), []
    for root, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(root)) in seen:  # a link to what has been read
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(root, name) for name in names if not name.startswith(".")):
            if _must_be_unpacked(path):
                packed.append(str(path))
            elif path.suffix.lower() in READERS or (path.is_file() and _reader(path) is not None):
                yield path  # broken links too: opening them says so
    if packed:
        log.warning("%d files are not read; unpack them first: %s.", len(packed), listed(packed, 5))


def _suffixes(path: Path) -> tuple[str, str]:
    """Of a file, and of what is in it if it is compressed, in small letters."""
    return path.suffix.lower(), Path(path.stem).suffix.lower()


def _reader(path: Path) -> Callable[[Path], Source] | None:
    """What reads a file; None: ASE, if anything."""
    suffix, inner = _suffixes(path)
    if suffix in text.PACKERS:
        return ExtxyzFile if inner in XYZ else None
    return READERS.get(suffix) or (ExtxyzFile if suffix in PLAIN and text.looks_like_xyz(path) else None)


def _must_be_unpacked(path: Path) -> bool:
    suffix, inner = _suffixes(path)
    return suffix in ARCHIVES or (suffix in text.PACKERS and inner not in XYZ and inner in (*READERS, ".tar"))


def _open_file(path: Path) -> Source:
    if not path.exists():
        if path.is_symlink():
            raise DataError(f"{path}: a link to {os.readlink(path)}, which is not there.")
        raise DataError(f"{path}: no such file; built-in sets are: {', '.join(builtin.SETS)}.")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty.")
    if path.suffix == ".lmdb":
        raise DataError(f"{path}: .lmdb files of pickled graphs are not read; convert them to .aselmdb or extxyz.")
    if _must_be_unpacked(path):
        raise DataError(f"{path}: it has to be unpacked first; only {' and '.join(XYZ)} are read compressed.")
    source = (_reader(path) or AseFile)(path)
    if len(source) == 0:
        raise DataError(f"{path}: the file holds no structure.")
    return source


def _check_metadata(files: list[Path], source: Source) -> None:
    """fairchem keeps `natoms` of all shards of a folder in metadata.npz; another length means a missing shard."""
    for folder in sorted({file.parent for file in files if file.suffix == ".aselmdb"}):
        path = folder / METADATA
        if not path.exists() or set(folder.glob("*.aselmdb")) - set(files):  # some shards only are asked for
            continue
        try:
            with np.load(path, allow_pickle=False) as archive:
                expected = len(archive["natoms"])
        except Exception as error:
            raise DataError(f"{path}: cannot be read ({type(error).__name__}: {error}).") from error
        found = sum(len(AseLmdb(file)) for file in files if file.parent == folder and file.suffix == ".aselmdb")
        if found != expected:
            raise DataError(
                f"{path}: it lists {expected} structures, the shards opened beside it hold {found}; "
                "is a shard missing? Remove metadata.npz to use what is there."
            )


def read_frames(spec: str | Path | Sequence[str]) -> list[Atoms]:
    """All structures of a source, in memory."""
    source = open_source(spec)
    return [source[index] for index in range(len(source))]
