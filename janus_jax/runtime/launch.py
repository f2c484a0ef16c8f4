"""Start a command in several local processes that work as one, and stop all when one fails."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from janus_jax.runtime.lifeline import STATUS
from janus_jax.runtime.multihost import COORDINATOR, COUNT, NUMBER

GRACE_SECONDS = 10.0
PR_SET_PDEATHSIG = 1


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run `janus-jax ARGUMENTS` in `count` processes; returns the first exit status that is not 0.

    Output of process 0 goes to the terminal, that of the others too if they write to standard error. When
    one ends badly the others are asked to stop and, after a while, killed.
    """
    address = f"localhost:{_free_port()}"
    processes = []
    for number in range(count):
        environment = {**os.environ, COORDINATOR: address, COUNT: str(count), NUMBER: str(number)}
        quiet = None if number == 0 else subprocess.DEVNULL
        command = [sys.executable, "-m", "janus_jax.cli.main", *arguments]
        # a session of its own: Ctrl-C comes through this process, once
        processes.append(
            subprocess.Popen(
                command, env=environment, stdout=quiet, start_new_session=True, preexec_fn=_end_with_this_process
            )
        )
    try:
        return _watch(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def _end_with_this_process() -> None:
    """In a new process: let the system send it SIGTERM, on which a run saves, if the launcher is gone (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _watch(processes: list[subprocess.Popen]) -> int:
    asked: list[int] = []
    before, alone_since = {}, time.monotonic()
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, lambda received, _: asked.append(received))
    try:
        while True:
            for received in asked:
                for process in processes:
                    process.send_signal(received)
                if received in before:  # once more stops at once
                    signal.signal(received, before.pop(received))
            asked.clear()
            states = [process.poll() for process in processes]
            if all(state is not None for state in states):
                return next((_status(state) for state in states if state), 0)
            failed = [k for k, state in enumerate(states) if state not in (None, 0, 143, 130, STATUS)]
            if failed:
                return _stop(processes, failed[0])
            if STATUS not in states:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > GRACE_SECONDS:  # the others have said which and why, and gone
                left = ", ".join(str(k) for k, state in enumerate(states) if state is None)
                print(f"janus-jax: process {left} does not answer and is killed.", file=sys.stderr)
                return STATUS
            time.sleep(0.1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(processes: list[subprocess.Popen], failed: int) -> int:
    """The others have nobody to talk to; they cannot finish their step."""
    status = processes[failed].returncode
    how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    hint = "" if status > 0 else " Go on from the last checkpoint with: janus-jax launch ... -- train --resume RUN"
    print(f"janus-jax: process {failed} {how}; the others are stopped.{hint}", file=sys.stderr)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        time.sleep(0.1)
    return _status(status)


def _status(state: int) -> int:
    """As shells have it: 128 + number of the signal for a process that one has killed."""
    return state if state >= 0 else 128 - state
