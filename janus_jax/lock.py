"""Whoever writes into a run folder holds it: a lock on a file in it, which the system releases when its holder dies.

The lock is POSIX's, which Linux keeps also over NFS between machines. It belongs to a process: a second hold by
the same one is allowed. Of several processes of one run, the first holds for all.
"""

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from typing import IO

from janus_jax.errors import RunInUseError
from janus_jax.runtime import multihost

log = logging.getLogger(__name__)

LOCK = ".lock"
UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_held: dict[Path, tuple[IO[str], int]] = {}
"""Files that this process has locked, and how often; closing one anywhere would release it."""


class Hold:
    """A run folder held from construction to `release` or the end of the process; all processes of a run call both.

    Raises:
        RunInUseError: another process holds it, which is named.
    """

    def __init__(self, folder: str | Path):
        self.folder, self.released = Path(folder).resolve(), False
        refusal = multihost.text_of_primary(_take(self.folder) if multihost.primary() else "")
        if refusal:
            raise RunInUseError(folder, refusal)

    def release(self) -> None:
        if not self.released and self.folder in _held:
            file, count = _held.pop(self.folder)
            if count > 1:
                _held[self.folder] = file, count - 1
            else:
                file.close()
        self.released = True


def _take(folder: Path) -> str:
    """Lock; returns who holds it already, "" if nobody did."""
    if folder in _held:
        file, count = _held[folder]
        _held[folder] = file, count + 1
        return ""
    file = (folder / LOCK).open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            log.warning("%s: this file system has no locks, so nothing keeps a second process from this run", folder)
            file.close()
            return ""
        file.seek(0)
        holder = file.read().strip()
        file.close()
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return holder or "another process"
        raise
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
    file.flush()
    _held[folder] = file, 1
    return ""
