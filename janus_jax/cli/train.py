"""`janus-jax train [CONFIG] [key=value ...]` and `janus-jax train --resume RUN`."""

import argparse
from typing import TYPE_CHECKING, Any

from janus_jax.cli._processes import begin, ended, together
from janus_jax.cli._tables import files_in, show_metrics
from janus_jax.errors import ConfigError

if TYPE_CHECKING:
    from janus_jax.train.config import TrainConfig

FILES = ("model.janus", "results.json", "metrics.jsonl", "train.csv", "validation.csv", "plots", "report.html")


def configure(arguments: list[str]):
    """The configuration of a command line: at most one file, then overrides."""
    from janus_jax.train import config

    return config.load(*file_and_overrides(arguments))


def file_and_overrides(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The words of a command line without "=", of which there may be one, and those with it.

    Raises:
        ConfigError: more than one file.
    """
    overrides = [text for text in arguments if "=" in text]
    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"One configuration file is allowed, got: {', '.join(files)}.")
    return (files[0] if files else None), overrides


def use_precision(precision: str) -> None:
    """Switch JAX to 64 bits if a run needs it, before anything is computed."""
    if precision == "float64":
        import jax

        jax.config.update("jax_enable_x64", True)


def set_up(config: "TrainConfig") -> None:
    """What must be done before JAX is used: precision, devices, other processes."""
    use_precision(config.precision)
    begin(config.mesh.devices)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.cli._logging import to_stderr

    to_stderr()
    if arguments.resume is not None and arguments.tune:
        raise ConfigError("--tune belongs to a new run; a resumed one keeps its schedule.")
    return together(_train, arguments)


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    from pathlib import Path

    from janus_jax.train import run as training

    if arguments.resume is None:
        config = configure(arguments.arguments)
        set_up(config)
        return ended(training.run(config, tune=arguments.tune).figures)
    if (Path(arguments.resume) / "config.yaml").exists():
        set_up(training.read_config(Path(arguments.resume) / "config.yaml", arguments.arguments))
    return ended(training.resume(arguments.resume, arguments.arguments).figures)


def exit_code(figures: dict[str, Any]) -> int:
    """128 + signal number where a signal stopped the run, as shells and batch systems expect."""
    return {"SIGTERM": 143, "SIGINT": 130}.get(figures.get("stopped", ""), 0)


def show(figures: dict[str, Any]) -> None:
    if "stopped" in figures:
        print(f"stopped at step {figures['step']} ({figures['stopped']}); the checkpoint is in {figures['run']}")
        return
    show_metrics({name: figures[name] for name in ("validation", "test") if name in figures})
    print(f"{figures['seconds']} s. {files_in(figures['run'], FILES)}")
