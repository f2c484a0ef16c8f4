"""One connection from every process to the first: when a process dies, the system closes it, and all others stop.

Without it they would wait in a collective until JAX notices missing heartbeats, and end with a stack trace of C++.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable

FAREWELL = b"done"
STATUS = 75
"""Exit status of a process that stops because another has: EX_TEMPFAIL, try again."""


class Lifeline:
    """Held by all processes of a run until it ends well.

    Args:
        number, count: of this process and of all.
        agree: gives the text of process 0 to all; called once by each.
        lost: what to do when a process has gone; its number is given.
        host: by which the others reach process 0; None: its name.
    """

    def __init__(
        self,
        number: int,
        count: int,
        agree: Callable[[str], str],
        lost: Callable[[int], None] | None = None,
        host: str | None = None,
    ):
        self.lost = lost or stop
        self.ended = False
        self.sockets: list[socket.socket] = []
        if number == 0:
            with socket.create_server(("", 0)) as server:
                agree(f"{host or socket.gethostname()}:{server.getsockname()[1]}")
                self.sockets = [server.accept()[0] for _ in range(count - 1)]
            for connection in self.sockets:
                other = int.from_bytes(connection.recv(4), "big")
                self._watch(connection, other)
        else:
            where, _, port = agree("").rpartition(":")
            connection = socket.create_connection((where, int(port)))
            connection.sendall(number.to_bytes(4, "big"))
            self.sockets = [connection]
            self._watch(connection, 0)

    def _watch(self, connection: socket.socket, other: int) -> None:
        threading.Thread(target=self._wait, args=(connection, other), daemon=True, name="lifeline").start()

    def _wait(self, connection: socket.socket, other: int) -> None:
        with connection:
            try:
                word = connection.recv(len(FAREWELL))
            except OSError:
                word = b""
        if word != FAREWELL and not self.ended:
            self.lost(other)

    def end(self) -> None:
        """This process has done its part."""
        self.ended = True
        for connection in self.sockets:
            try:
                connection.sendall(FAREWELL)
            except OSError:
                continue


def stop(other: int) -> None:
    """End this process at once: it cannot finish a step, and what is on disk is whole."""
    print(
        f"janus-jax: process {other} has ended, so this one stops too. "
        "Go on from the last checkpoint with: train --resume RUN",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STATUS)
