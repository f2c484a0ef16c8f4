"""Two processes with two devices each: as one device; one killed in mid-step, and the run gone on with."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from janus_jax import bundle
from janus_jax.errors import RunInUseError
from janus_jax.runtime import launch
from janus_jax.runtime.lifeline import STATUS
from janus_jax.runtime.multihost import COORDINATOR, COUNT, NUMBER
from janus_jax.train import run

ROOT = Path(__file__).parents[3]
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
        folder, end = tmp_path / "run", time.monotonic() + 400
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


def wait_until(true, process, seconds=400):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def test_processes_stop_cleanly_by_time_limit_by_a_signal_to_one_and_with_their_launcher(tiny, tmp_path):
    folder, many = tmp_path / "run", ["steps=100000", "validate_every=100000", "checkpoint.every_steps=5"]
    grid = [*SETTINGS, *many, "mesh.pipe=2", "batch.micro_batches=2"]
    with launched(*tiny.overrides(tmp_path, *grid, "checkpoint.time_limit_minutes=1e-9")) as process:
        _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    assert errors.count("(time limit); go on with: janus-jax train --resume") == 1
    assert saved(folder) == 1
    go_on = ["--resume", str(folder), "checkpoint.time_limit_minutes=null"]
    with launched(*go_on) as process:
        wait_until(lambda: saved(folder) > 1, process)
        with pytest.raises(RunInUseError, match=rf"in use by process {children(process)[0]} on "):
            run.resume(folder)
        os.kill(children(process)[1], signal.SIGTERM)
        _, errors = process.communicate(timeout=400)
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


HOLD = """
import sys, time
from pathlib import Path
from janus_jax.runtime.lifeline import Lifeline
number, where = int(sys.argv[1]), Path(sys.argv[2])

def agree(text):
    if text:
        where.with_suffix(".partial").write_text(text)
        where.with_suffix(".partial").rename(where)
    while not where.exists():
        time.sleep(0.01)
    return where.read_text()

line = Lifeline(number, 3, agree, host="localhost", silence=3.0)
print("up", flush=True)
time.sleep(4.5)  # longer than the silence that is allowed
print("still up", flush=True)
if number == 2:
    time.sleep(60)
line.end()
sys.stdin.read()
"""


def run_python(code, *arguments, **options):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, **pipes, **options)


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGSTOP, "has not been heard of for 3 s"), (signal.SIGKILL, "has ended")]
)
def test_a_frozen_and_a_killed_process_are_named_by_all_others(tmp_path, number, how):
    held = [run_python(HOLD, k, tmp_path / "address") for k in range(3)]
    try:
        assert [process.stdout.readline() for process in held] == ["up\n"] * 3
        held[1].send_signal(number)
        for k, said in ((0, how), (2, "has ended or does not answer")):  # 2 hears it from 0
            assert held[k].wait(30) == STATUS
            assert f"process 1 {said}" in held[k].stderr.read()
    finally:
        for process in held:
            process.kill()
            process.communicate()


def test_processes_that_live_are_suspended_together_and_end_are_left_alone(tmp_path):
    held = [run_python(HOLD, k, tmp_path / "address") for k in range(3)]
    try:
        assert [process.stdout.readline() for process in held] == ["up\n"] * 3
        for number in (signal.SIGSTOP, signal.SIGCONT):
            time.sleep(5 * (number == signal.SIGCONT))  # longer than the silence that is allowed
            for process in held:
                process.send_signal(number)
        assert [process.stdout.readline() for process in held] == ["still up\n"] * 3
        held[1].communicate("", timeout=30)
        assert held[1].returncode == 0
        assert held[0].poll() is None
        held[2].send_signal(signal.SIGKILL)  # process 0 has done its part, so this is not its concern
        held[0].communicate("", timeout=30)
        assert held[0].returncode == 0
    finally:
        for process in held:
            process.kill()
            process.communicate()


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
