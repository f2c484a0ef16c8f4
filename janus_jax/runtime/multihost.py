"""Several processes as one program: how they find each other, and what they must agree on.

`janus-jax launch` sets the three variables below; under SLURM and Open MPI, JAX finds the processes itself.
Everything here does nothing in a run of one process.
"""

import os
import sys
import time
import traceback
from typing import Any

import numpy as np

from janus_jax.errors import MeshError
from janus_jax.runtime.lifeline import Lifeline

COORDINATOR, COUNT, NUMBER = "JANUS_JAX_COORDINATOR", "JANUS_JAX_PROCESSES", "JANUS_JAX_PROCESS"
HEARTBEAT_SECONDS = 100
"""JAX's own, which ends in a stack of C++: long enough for the lifeline to say what happened first."""
CLUSTERS = {"SLURM_STEP_NUM_TASKS": "SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_SIZE"}
"""Variables with the number of processes, and what must be there for JAX to find them: srun's, not sbatch's."""
_lines: list[Lifeline] = []


def processes() -> int:
    """How many processes the environment says there are."""
    if COUNT in os.environ:
        return int(os.environ[COUNT])
    return next((int(os.environ[n]) for n, also in CLUSTERS.items() if n in os.environ and also in os.environ), 1)


def start(devices: int) -> None:
    """Join the other processes, and on CPUs make as many virtual devices as the run wants; before JAX is used.

    Args:
        devices: of all processes together.

    Raises:
        MeshError: they cannot be shared out evenly.
    """
    import jax

    count = processes()
    if devices % count:
        raise MeshError(f"a mesh of {devices} devices cannot be shared by {count} processes; change one of them.")
    if devices > 1 and "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", devices // count)
    if count > 1:
        here = {}
        if COUNT in os.environ:  # processes of `launch` share the accelerators of this machine
            number, share = int(os.environ[NUMBER]), devices // count
            here = {
                "coordinator_address": os.environ[COORDINATOR], "num_processes": count, "process_id": number,
                "local_device_ids": list(range(number * share, (number + 1) * share)),
                "cluster_detection_method": "deactivate",
            }  # fmt: skip
        # its handler would swallow a SIGTERM that comes before the run has its own
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(heartbeat_timeout_seconds=HEARTBEAT_SECONDS, **here)
        host = os.environ[COORDINATOR].rpartition(":")[0] if COORDINATOR in os.environ else None
        line = Lifeline(jax.process_index(), count, text_of_primary, host=host)
        _lines.append(line)


def finish() -> None:
    """This process has ended its work well."""
    for line in _lines:
        line.end()
    _lines.clear()


def fail(error: BaseException, *, trace: bool) -> None:
    """End a process of several that cannot go on, so that the others stop; returns where it is the only one."""
    if not _lines:
        return
    import jax

    time.sleep(1.0)  # if another has gone, the lifeline says so, which is the reason
    if trace:
        traceback.print_exception(error)
    text = str(error) or type(error).__name__
    print(f"janus-jax: process {jax.process_index()}: {text}", file=sys.stderr, flush=True)
    os._exit(2)


def primary() -> bool:
    """Whether this process writes logs and files for all."""
    import jax

    return jax.process_index() == 0


def _alone() -> bool:
    import jax

    return jax.process_count() == 1


def largest(value: int) -> int:
    """The largest of the values that processes give."""
    if _alone():
        return value
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.int32(value))))


def summed(values: np.ndarray) -> np.ndarray:
    """The sum over processes of unsigned 64-bit numbers, modulo 2**64."""
    if _alone():
        return values
    from jax.experimental import multihost_utils

    gathered = np.asarray(multihost_utils.process_allgather(values.view(np.uint32)))  # as they survive without x64
    return gathered.view(np.uint64).sum(0, dtype=np.uint64)


def text_of_primary(text: str) -> str:
    """What process 0 gives, everywhere."""
    if _alone():
        return text
    from jax.experimental import multihost_utils

    return _text(multihost_utils.broadcast_one_to_all(_letters(text, 4096)))


def texts(text: str) -> list[str]:
    """The short texts that processes give, by process."""
    if _alone():
        return [text]
    from jax.experimental import multihost_utils

    return [_text(row) for row in multihost_utils.process_allgather(_letters(text, 256))]


def _letters(text: str, room: int) -> np.ndarray:
    return np.frombuffer(text.encode()[:room].ljust(room, b"\0"), np.uint8)


def _text(letters: Any) -> str:
    return bytes(np.asarray(letters, np.uint8)).rstrip(b"\0").decode(errors="ignore")


def known(values: np.ndarray) -> np.ndarray:
    """Of each number the largest that a process knows; NaN where none does."""
    if _alone():
        return values
    from jax.experimental import multihost_utils

    low = np.where(np.isnan(values), -1.0, values).view(np.uint32)  # 64-bit floats survive without x64 as bits
    merged = np.asarray(multihost_utils.process_allgather(low)).view(np.float64).max(0)
    return np.where(merged < 0, np.nan, merged)


def wait_for_all(name: str) -> None:
    """Go on when all processes are here."""
    if not _alone():
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)
