"""Two processes with two devices each: as one device; one killed in mid-step, and the run gone on with."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from janus_jax import bundle
from janus_jax.runtime import launch
from janus_jax.runtime.lifeline import STATUS, Lifeline
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


def test_lifelines_notice_who_goes():
    """In threads of one process."""
    import threading

    box: dict = {}
    ready, gone = threading.Event(), []

    def agree(text):
        if text:
            box["address"] = text
            ready.set()
        ready.wait(10)
        return box["address"]

    lines: list = [None, None, None]

    def hold(number):
        lines[number] = Lifeline(number, 3, agree, lambda other: gone.append((number, other)))

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    lines[1].end()
    lines[2].sockets[0].shutdown(socket.SHUT_RDWR)  # as if it had been killed
    end = time.monotonic() + 10
    while (0, 2) not in gone and time.monotonic() < end:
        time.sleep(0.01)
    assert (0, 2) in gone
    assert (0, 1) not in gone
    lines[0].end()
    assert STATUS == 75


@pytest.mark.parametrize(("codes", "expected"), [((0, 0), 0), ((0, 3), 3), ((143, 143), 143)])
def test_launch_passes_on_how_processes_end(monkeypatch, codes, expected):
    started = []

    class Fake(subprocess.Popen):
        def __init__(self, command, env, **_):
            code = codes[int(env[NUMBER])]
            started.append((env[COORDINATOR], env[COUNT]))
            super().__init__([sys.executable, "-c", f"import sys; sys.exit({code})"])

    monkeypatch.setattr(launch.subprocess, "Popen", Fake)
    assert launch.launch(2, ["train"]) == expected
    assert len(set(started)) == 1
    assert started[0][1] == "2"
