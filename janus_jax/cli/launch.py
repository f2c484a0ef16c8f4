"""`janus-jax launch -n 2 -- train CONFIG ...`, or `md`: the command in several local processes."""

import argparse
import sys

from janus_jax.errors import ConfigError


def run(arguments: argparse.Namespace) -> None:
    from janus_jax.runtime.launch import launch

    words = [word for word in arguments.words if word != "--"]
    if not words or words[0] not in ("train", "md"):
        given = " ".join(words) or "nothing"
        raise ConfigError(f"launch runs train and md, as in: janus-jax launch -n 2 -- train CONFIG; got {given}.")
    if arguments.processes < 1:
        raise ConfigError(f"-n {arguments.processes}: at least one process is needed.")
    status = launch(arguments.processes, words)
    if status:
        sys.exit(status)


def show(_) -> None:
    """Process 0 has printed everything."""
