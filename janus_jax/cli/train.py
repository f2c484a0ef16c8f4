"""`janus-jax train [CONFIG] [key=value ...]`."""

import argparse
from typing import Any

from janus_jax.cli._tables import show_metrics
from janus_jax.errors import ConfigError


def configure(arguments: list[str]):
    """The configuration of a command line: at most one file, then overrides."""
    from janus_jax.train import config

    overrides = [text for text in arguments if "=" in text]
    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise ConfigError(f"One configuration file is allowed, got: {', '.join(files)}.")
    result = config.load(files[0] if files else None, overrides)
    if result.precision == "float64":
        import jax

        jax.config.update("jax_enable_x64", True)
    return result


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.cli._logging import to_stderr
    from janus_jax.train import loop

    to_stderr()
    return loop.run(configure(arguments.arguments)).figures


def show(figures: dict[str, Any]) -> None:
    show_metrics({name: figures[name] for name in ("validation", "test") if name in figures})
    print(f"{figures['seconds']} s; model, metrics and plots are in {figures['run']}")
