"""`janus-jax report RUN` and `janus-jax compare RUN RUN ...`."""

import argparse
from typing import Any


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.train import report

    if arguments.command == "report":
        from pathlib import Path

        if (Path(arguments.run) / "thermo.csv").exists():
            from md import report as dynamics

            return {"out": str(dynamics.write(arguments.run))}
        return {"out": str(report.write(arguments.run))}
    return {"runs": report.compare(arguments.runs, arguments.out), "out": arguments.out}


def show(figures: dict[str, Any]) -> None:
    from janus_jax.cli import _tables

    for name, run in figures.get("runs", {}).items():
        print(name)
        _tables.show_metrics({part: run[part] for part in ("validation", "test") if part in run})
    print(f"open {figures['out']} in a browser")
