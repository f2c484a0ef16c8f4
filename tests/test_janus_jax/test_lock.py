"""One process writes a run folder; the lock goes with the process that held it."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from janus_jax.errors import RunInUseError
from janus_jax.lock import Hold

HOLDER = (
    "import sys, time; from janus_jax.lock import Hold; Hold(sys.argv[1]); print('held', flush=True); time.sleep(60)"
)


def test_a_run_is_held_by_one_process_until_it_dies(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(RunInUseError, match=f"in use by process {other.pid} on {socket.gethostname()} since "):
            Hold(tmp_path)
        other.send_signal(signal.SIGKILL)
        other.wait()
        mine = Hold(tmp_path)
        again = Hold(tmp_path)  # of the same process
        again.release()
        again.release()
        text = (tmp_path / ".lock").read_text()  # reading a locked file releases it, so this is done last
        assert text.startswith(f"process {os.getpid()} on ")
        mine.release()
    finally:
        other.kill()
        other.communicate()
