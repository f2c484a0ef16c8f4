"""`janus-jax train [CONFIG] [key=value ...]` and `janus-jax train --resume RUN`."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from janus_jax.cli._tables import show_metrics
from janus_jax.errors import ConfigError, JanusError

if TYPE_CHECKING:
    from janus_jax.train.config import TrainConfig
    from janus_jax.train.run import RunResult


def configure(arguments: list[str]):
    """The configuration of a command line: at most one file, then overrides."""
    from janus_jax.train import config

    overrides = [text for text in arguments if "=" in text]
    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"One configuration file is allowed, got: {', '.join(files)}.")
    return config.load(files[0] if files else None, overrides)


def use_precision(precision: str) -> None:
    """Switch JAX to 64 bits if a run needs it, before anything is computed."""
    if precision == "float64":
        import jax

        jax.config.update("jax_enable_x64", True)


def set_up(config: "TrainConfig") -> None:
    """What must be done before JAX is used: precision, devices, other processes."""
    from janus_jax.runtime import multihost

    use_precision(config.precision)
    multihost.start(config.mesh.devices)
    if not multihost.primary():  # process 0 speaks for all
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        logging.getLogger().setLevel(logging.WARNING)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.cli._logging import to_stderr

    to_stderr()
    if arguments.resume is not None and arguments.tune:
        raise ConfigError("--tune belongs to a new run; a resumed one keeps its schedule.")
    return together(_train, arguments)


def together(work: Callable[[argparse.Namespace], dict[str, Any]], arguments: argparse.Namespace) -> dict[str, Any]:
    """A command of several processes: one that fails must not leave the others waiting."""
    try:
        return work(arguments)
    except BaseException as error:
        from janus_jax.runtime import multihost

        multihost.fail(error, trace=arguments.debug or not isinstance(error, JanusError | OSError | KeyboardInterrupt))
        raise


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    from pathlib import Path

    from janus_jax.train import run as training

    if arguments.resume is None:
        config = configure(arguments.arguments)
        set_up(config)
        return finished(training.run(config, tune=arguments.tune))
    if (Path(arguments.resume) / "config.yaml").exists():
        set_up(training.read_config(Path(arguments.resume) / "config.yaml", arguments.arguments))
    return finished(training.resume(arguments.resume, arguments.arguments))


def finished(result: "RunResult") -> dict[str, Any]:
    from janus_jax.runtime import multihost

    multihost.wait_for_all("the end")
    multihost.finish()
    return result.figures


def exit_code(figures: dict[str, Any]) -> int:
    """128 + signal number where a signal stopped the run, as shells and batch systems expect."""
    return {"SIGTERM": 143, "SIGINT": 130}.get(figures.get("stopped", ""), 0)


def show(figures: dict[str, Any]) -> None:
    if "stopped" in figures:
        print(f"stopped at step {figures['step']} ({figures['stopped']}); the checkpoint is in {figures['run']}")
        return
    show_metrics({name: figures[name] for name in ("validation", "test") if name in figures})
    print(f"{figures['seconds']} s; model, metrics, plots and report.html are in {figures['run']}")
