"""Two processes with two devices each: as one device; one killed in mid-step, and the run gone on with."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from janus_jax import bundle
from janus_jax.errors import RunInUseError
from janus_jax.runtime import launch
from janus_jax.runtime.lifeline import Lifeline
from janus_jax.runtime.multihost import COORDINATOR, COUNT, NUMBER
from janus_jax.train import run

SETTINGS = ["model.num_layers=2", "batch.micro_batches=4", "precision=float64", "steps=12", "validate_every=6"]
GRID = [*SETTINGS, "mesh.pipe=2", "mesh.data=2", "mesh.shard_optimizer=true", "checkpoint.every_steps=3"]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_ENABLE_X64")}


def logged(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("train_loss", "gradient_norm", "validation_loss", "validation_forces_mae_meV_per_angstrom")
    return {(row["step"], key): row[key] for row in rows for key in kept if key in row}


def start(arguments):
    """Both processes, as a batch system would start them."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    return [
        subprocess.Popen(
            [sys.executable, "-m", "janus_jax.cli.main", "train", *arguments],
            env={**ENVIRONMENT, COORDINATOR: address, COUNT: "2", NUMBER: str(number)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for number in range(2)
    ]  # fmt: skip


def test_killed_and_resumed_processes_end_where_one_device_does(tiny, tmp_path):
    processes = start(tiny.overrides(tmp_path, *GRID))
    try:
        folder, end = tmp_path / "run", time.monotonic() + 200
        while not (folder / "checkpoints" / "3").exists():
            assert time.monotonic() < end
            assert all(process.poll() is None for process in processes), processes[0].communicate()[1]
            time.sleep(0.01)
        processes[1].send_signal(signal.SIGKILL)
        began = time.monotonic()
        _, text = processes[0].communicate(timeout=60)
        assert time.monotonic() - began < 60
        assert processes[0].returncode not in (0, None)
        assert "process 1 has ended, so this one stops too" in text or "distributed service" in text
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert not (folder / "results.json").exists()
    command = [sys.executable, "-m", "janus_jax.cli.main", "launch", "-n", "2", "--", "train", "--resume", str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    alone = run.run(tiny(tmp_path / "alone", *SETTINGS)).folder
    found, expected = logged(folder), logged(alone)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, err_msg=str(key))
    mine, theirs = (bundle.convert.save_state(bundle.load(f)) for f in (folder, alone))
    for name, array in theirs.items():
        np.testing.assert_allclose(mine[name], array, rtol=0, atol=1e-8 * max(np.abs(array).max(), 1e-3), err_msg=name)
    # a grid's checkpoints are those of any other layout: one device can take over
    config = run.read_config(folder / "config.yaml", ["mesh.pipe=1", "mesh.data=1"])
    assert config.mesh.devices == 1
    resumed = run.resume(folder, ["mesh.pipe=1", "mesh.data=1", "steps=14"])
    assert resumed.figures["steps"] == 14


def children(process):
    """Process ids of what a launcher has started, by number."""
    return [int(k) for k in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def saved(folder):
    return max((int(path.name) for path in (folder / "checkpoints").glob("*") if path.name.isdigit()), default=0)


@contextmanager
def launched(*words):
    command = [sys.executable, "-m", "janus_jax.cli.main", "launch", "-n", "2", "--", "train", *words]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until(true, process, seconds=200):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def test_processes_stop_cleanly_by_time_limit_by_a_signal_to_one_and_with_their_launcher(tiny, tmp_path):
    folder, many = tmp_path / "run", ["steps=100000", "validate_every=100000", "checkpoint.every_steps=5"]
    grid = [*SETTINGS, *many, "mesh.pipe=2", "batch.micro_batches=2"]
    with launched(*tiny.overrides(tmp_path, *grid, "checkpoint.time_limit_minutes=1e-9")) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors.count("(time limit); go on with: janus-jax train --resume") == 1
    assert saved(folder) == 1
    go_on = ["--resume", str(folder), "checkpoint.time_limit_minutes=null"]
    with launched(*go_on) as process:
        wait_until(lambda: saved(folder) > 1, process)
        with pytest.raises(RunInUseError, match=rf"in use by process {children(process)[0]} on "):
            run.resume(folder)
        os.kill(children(process)[1], signal.SIGTERM)
        _, errors = process.communicate(timeout=100)
    assert process.returncode == 143, errors
    assert errors.count("(SIGTERM); go on with: janus-jax train --resume") == 1
    before = saved(folder)
    with launched(*go_on) as process:
        wait_until(lambda: saved(folder) > before, process)
        pids = children(process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        end = time.monotonic() + 60
        while any(map(runs, pids)) and time.monotonic() < end:
            time.sleep(0.05)
        assert not any(map(runs, pids))
    assert max(row for row, _ in logged(folder)) == saved(folder)  # they saved before they ended


def runs(pid):
    """Whether a process does; one that has ended may wait for a parent to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_lifelines_name_who_goes_or_falls_silent():
    """In threads of one process: 2 is closed as if it had been killed, or says no more that it lives."""
    for how in ("has ended", "has not been heard of for 1 s"):
        box: dict = {}
        ready, gone = threading.Event(), []

        def agree(text, box=box, ready=ready):
            if text:
                box["address"] = text
                ready.set()
            ready.wait(10)
            return box["address"]

        lines: list = [None] * 4

        def hold(number, agree=agree, lines=lines, gone=gone, silence=1.0 if "heard" in how else 60.0):
            lines[number] = Lifeline(number, 4, agree, lambda *who: gone.append((number, *who)), silence=silence)

        threads = [threading.Thread(target=hold, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        lines[1].end()
        if "heard" in how:
            lines[2]._send = lambda _: None  # frozen
        else:
            lines[2].sockets[0].shutdown(socket.SHUT_RDWR)
        end = time.monotonic() + 10
        while not {(0, 2), (3, 2)} <= {entry[:2] for entry in gone} and time.monotonic() < end:
            time.sleep(0.01)
        assert {(0, 2, how), (3, 2, "has ended or does not answer")} <= set(gone), (
            gone
        )  # 3 hears it from 0, and blames the right one
        assert not any(other == 1 for _, other, _ in gone)
        for line in lines:
            line.end()


@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 0), ((0, 3), 3), ((143, 143), 143), ((-15, -15), 143)])
def test_launch_passes_on_how_processes_end(monkeypatch, codes, expected):
    started = []

    class Fake(subprocess.Popen):
        def __init__(self, command, env, **_):
            code = codes[int(env[NUMBER])]
            started.append((env[COORDINATOR], env[COUNT]))
            end = f"os.kill(os.getpid(), {-code})" if code < 0 else f"sys.exit({code})"
            super().__init__([sys.executable, "-c", f"import os, sys; {end}"])

    monkeypatch.setattr(launch.subprocess, "Popen", Fake)
    assert launch.launch(2, ["train"]) == expected
    assert len(set(started)) == 1
    assert started[0][1] == "2"
