"""Writing that leaves a whole file or the one before, and says in one sentence when there is no room."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from janus_jax.errors import DiskFullError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_text(path: Path, text: str) -> None:
    """The text at `path`, all of it or what was there before, also after a loss of power.

    Raises:
        DiskFullError: no room.
    """
    data = text.encode()
    with replacing(path, len(data)) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, need: int) -> Iterator[IO[bytes]]:
    """A file to write, which takes the place of `path` when it is whole; removed if something fails.

    Args:
        need: bytes, about.

    Raises:
        DiskFullError: no room.
    """
    partial = path.with_name(path.name + ".partial")
    with room_for(path, need):
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


@contextmanager
def room_for(path: Path, need: int) -> Iterator[None]:
    """Say what did not fit.

    Args:
        need: bytes, about.

    Raises:
        DiskFullError: what is done inside found no room.
    """
    try:
        yield
    except Exception as error:
        if not is_full(error):
            raise
        raise DiskFullError(path, need, free_bytes(path)) from error


def ask_for(path: Path, need: int) -> None:
    """Refuse to begin what cannot be ended; a quota may still be less than what is free.

    Raises:
        DiskFullError: fewer than `need` bytes are free.
    """
    if (free := free_bytes(path)) < need:
        raise DiskFullError(path, need, free)


def is_full(error: BaseException | None) -> bool:
    """Whether an error, Orbax's too, comes from a full disk, a quota, or a limit of file size."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        if any(os.strerror(number).lower() in str(error).lower() for number in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def free_bytes(path: Path) -> int:
    """Left for users on the file system of a path that may not exist yet."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
