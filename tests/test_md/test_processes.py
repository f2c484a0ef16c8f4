"""Two processes with two devices each give the run of one process, and one process takes it over."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ase.io
import jax.numpy as jnp
import numpy as np
from ase.build import bulk
from flax import nnx

from janus_jax import bundle
from janus_jax.models import build, convert
from janus_jax.models.esen import EsenConfig
from janus_jax.runtime.multihost import NUMBER
from md.ensembles import EnsembleConfig
from md.simulation import Simulation

SMALL = EsenConfig(cutoff_angstrom=3.5, channels=4, hidden_channels=4, edge_channels=4, num_basis=8)


def thermo(folder: Path) -> np.ndarray:
    with (folder / "thermo.csv").open() as file:
        return np.array(list(csv.reader(file))[1:], float)


def test_processes_share_a_run_that_one_process_can_go_on_with(tmp_path):
    model = convert.cast(build(SMALL, rngs=nnx.Rngs(0), references=((11, -3.0), (17, -5.0))), jnp.float64)
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.1, seed=1)
    bundle.save(tmp_path / "model.janus", model)
    ase.io.write(tmp_path / "salt.traj", atoms)
    words = ["launch", "-n", "2", "--", "md", "salt.traj", "--model", "model.janus", "--devices", "4"]
    words += ["--steps", "10", "--ensemble", "nvt", "--thermo", "5", "--output", "two"]
    words += ["output.sample=5", "output.report=false"]
    ours = ("XLA_FLAGS", "JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION")  # jax-md needs the defaults
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, "-m", "janus_jax.cli.main", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "10 steps of 8 atoms on 4 devices" in done.stdout
    config = EnsembleConfig(name="nvt")
    one = Simulation(model, atoms, config, folder=tmp_path / "one", thermo=5)
    one.run(15)
    np.testing.assert_allclose(thermo(tmp_path / "two"), thermo(tmp_path / "one")[:3], rtol=1e-9, atol=1e-9)
    again = Simulation(model, None, config, folder=tmp_path / "two", resume=True, thermo=5)
    assert again.engine.step == 10
    again.run(5)
    np.testing.assert_allclose(again.engine.positions(), one.engine.positions(), atol=1e-10)
    np.testing.assert_allclose(thermo(tmp_path / "two"), thermo(tmp_path / "one"), rtol=1e-9, atol=1e-9)
    again.close()
    # SIGTERM to one of them, not the first, stops all between two steps
    command = [*command[: command.index("md")], "md", "--resume", "two", "--steps", "1000000"]
    launcher = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        while len(thermo(tmp_path / "two")) < 6:
            assert launcher.poll() is None, launcher.communicate()
            time.sleep(0.05)
        os.kill(process_of(launcher.pid, "1"), signal.SIGTERM)
        out, errors = launcher.communicate(timeout=100)
    finally:
        launcher.kill()
    assert launcher.returncode == 143, errors
    assert b"(SIGTERM); the checkpoint is in two" in out


def process_of(launcher: int, number: str) -> int:
    """Of the processes a launcher has started, the one with this number."""
    for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"{NUMBER}={number}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return int(pid)
    raise LookupError(number)
