"""One connection from every process to the first: when a process dies, the system closes it, and all others stop.

Each also says every now and then that it lives, since a frozen process or a machine that vanished closes nothing.
Without it they would wait in a collective until JAX notices missing heartbeats, and end with a stack trace of C++.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable

ALIVE, FAREWELL, GONE = b".", b"d", b"g"
"""Messages: one letter; GONE is followed by the number of the process that is to blame, 4 bytes."""
PULSE_SECONDS, SILENCE_SECONDS = 2.0, 20.0
"""Between signs of life, and without one until a process is taken for dead."""
STATUS = 75
"""Exit status of a process that stops because another has: EX_TEMPFAIL, try again."""


class Lifeline:
    """Held by all processes of a run until it ends well.

    Args:
        number, count: of this process and of all.
        agree: gives the text of process 0 to all; called once by each.
        lost: what to do when a process has gone; given are its number and how it went.
        host: by which the others reach process 0; None: its name.
        silence: seconds without a sign of life after which a process counts as gone.
    """

    def __init__(
        self,
        number: int,
        count: int,
        agree: Callable[[str], str],
        lost: Callable[[int, str], None] | None = None,
        host: str | None = None,
        silence: float = SILENCE_SECONDS,
    ):
        self.lost = lost or stop
        self.silence, self.number, self.pulse = silence, number, min(PULSE_SECONDS, silence / 4)
        self.ended = threading.Event()
        self._told = threading.Lock()
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
        threading.Thread(target=self._pulse, daemon=True, name="lifeline").start()

    def _watch(self, connection: socket.socket, other: int) -> None:
        connection.settimeout(self.silence)
        threading.Thread(target=self._wait, args=(connection, other), daemon=True, name="lifeline").start()

    def _pulse(self) -> None:
        while not self.ended.wait(self.pulse):
            self._send(ALIVE)

    def _send(self, message: bytes) -> None:
        for connection in self.sockets:
            try:
                connection.sendall(message)
            except OSError:
                continue

    def _wait(self, connection: socket.socket, other: int) -> None:
        how, word = "has ended", ALIVE
        with connection:
            try:
                while word == ALIVE:
                    word = self._heard(connection)
                if word == GONE:
                    how, other = "has ended or does not answer", int.from_bytes(connection.recv(4), "big")
            except TimeoutError:
                how, word = f"has not been heard of for {self.silence:g} s", b""
            except OSError:
                word = b""
        if word != FAREWELL and not self.ended.is_set() and self._told.acquire(blocking=False):  # the first is to blame
            if self.number == 0:
                self._send(GONE + other.to_bytes(4, "big"))
            self.lost(other, how)

    def _heard(self, connection: socket.socket) -> bytes:
        """The next letter. Silence counts only if this process was awake: a queue may suspend all of a job at once."""
        while True:
            began = time.monotonic()
            try:
                return connection.recv(1)
            except TimeoutError:
                if time.monotonic() - began < self.silence + self.pulse:
                    raise

    def end(self) -> None:
        """This process has done its part."""
        self.ended.set()
        self._send(FAREWELL)


def stop(other: int, how: str) -> None:
    """End this process at once: it cannot finish a step, and what is on disk is whole."""
    print(
        f"janus-jax: process {other} {how}, so this one stops too. "
        "Go on from the last checkpoint with: train --resume RUN",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STATUS)
