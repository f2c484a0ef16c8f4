"""`janus-jax demo`: the whole way on the built-in water set, with pictures."""

import argparse
from pathlib import Path
from typing import Any

from janus_jax.cli._tables import show_metrics
from janus_jax.cli.train import exit_code as exit_code


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import json

    from janus_jax import JanusCalculator
    from janus_jax.cli._logging import to_stderr
    from janus_jax.cli.train import configure
    from janus_jax.data.sources import read_frames
    from janus_jax.train import run as training
    from md import nve

    to_stderr()
    result = training.run(configure([f"output={arguments.output}", *arguments.overrides]))
    if result.stopped:
        return result.figures
    start = read_frames("water:test")[0]
    dynamics = nve.run(start, JanusCalculator(result.model), temperature_kelvin=300.0, timestep_fs=0.5, steps=600)
    nve.plot(dynamics, result.folder / "plots" / "nve.png")
    figures = {**result.figures, "nve": dynamics.figures()}
    (result.folder / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    figures["plots"] = [str(path) for path in sorted(Path(result.folder / "plots").glob("*.png"))]
    return figures


def show(figures: dict[str, Any]) -> None:
    if "stopped" in figures:
        print(f"stopped at step {figures['step']} ({figures['stopped']}); the checkpoint is in {figures['run']}")
        return
    show_metrics({name: figures[name] for name in ("validation", "test")})
    nve = figures["nve"]
    print(
        f"NVE, {nve['atoms']} atoms, {nve['picoseconds']} ps at about {nve['mean_temperature_kelvin']:.0f} K: "
        f"drift {nve['drift_meV_per_atom_per_ps']:.4f} meV/atom/ps, {nve['steps_per_s']:.0f} steps/s"
    )
    print(f"{figures['seconds']} s of training. Pictures: {', '.join(figures['plots'])}")
    print(f"All of it on one page: {figures['run']}/report.html")
