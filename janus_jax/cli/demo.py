"""`janus-jax demo`: the whole way on the built-in water set, with pictures."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from janus_jax.cli._tables import show_metrics
from janus_jax.cli.train import exit_code as exit_code

STEPS = 600
"""Of dynamics."""


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.cli._logging import to_stderr
    from janus_jax.cli.train import configure
    from janus_jax.data.sources import read_frames
    from janus_jax.train import run as training

    to_stderr()
    result = training.run(configure([f"output={arguments.output}", *arguments.overrides]))
    if result.stopped:
        return result.figures
    dynamics = constant_energy(result.folder, read_frames("water:test")[0])
    figures = {**result.figures, "nve": dynamics}
    (result.folder / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    figures["plots"] = [str(path) for path in sorted(Path(result.folder / "plots").glob("*.png"))]
    return figures


def constant_energy(run: Path, start) -> dict[str, Any]:
    """Figures of `janus-jax md` at constant energy from 300 K, in a process of its own: it computes in 64 bits.

    Raises:
        DynamicsError: it has failed, and has said why.
    """
    import ase.io

    from janus_jax.errors import DynamicsError

    ase.io.write(run / "water.extxyz", start)
    command = [
        sys.executable, "-m", "janus_jax.cli.main", "md", str(run / "water.extxyz"), "--model", str(run), "--json",
        "--steps", str(STEPS), f"folder={run / 'md'}", "ensemble.timestep_fs=0.5", "output.thermo=5",
        "output.sample=10",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise DynamicsError(f"the potential in {run} is trained, but its dynamics have failed, see above")
    return json.loads(done.stdout)


def show(figures: dict[str, Any]) -> None:
    if "stopped" in figures:
        print(f"stopped at step {figures['step']} ({figures['stopped']}); the checkpoint is in {figures['run']}")
        return
    show_metrics({name: figures[name] for name in ("validation", "test")})
    nve = figures["nve"]
    print(
        f"NVE, {nve['steps']} steps of 0.5 fs of {nve['atoms']} atoms at about {nve['mean_temperature_kelvin']:.0f} K: "
        f"drift {nve['drift_meV_per_atom_per_ps']:.4f} meV/atom/ps, {nve['steps_per_s']:.0f} steps/s"
    )
    pages = [f"{folder}/report.html" for folder in (figures["run"], nve["folder"])]
    files = [*figures["plots"], *(page for page in pages if Path(page).exists())]
    print(f"{figures['seconds']} s of training. To look at: {', '.join(files)}")
