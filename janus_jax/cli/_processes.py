"""What commands of one or several processes share: begin, fail and end together."""

import argparse
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from janus_jax.errors import JanusError


def begin(devices: int) -> None:
    """Join the other processes, before JAX is used; process 0 speaks for all."""
    from janus_jax.runtime import multihost

    multihost.start(devices)
    if not multihost.primary():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        logging.getLogger().setLevel(logging.WARNING)


def together(work: Callable[[argparse.Namespace], dict[str, Any]], arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of a command; a process that fails must not leave the others waiting."""
    try:
        return work(arguments)
    except BaseException as error:
        from janus_jax.runtime import multihost

        multihost.fail(error, trace=arguments.debug or not isinstance(error, JanusError | OSError | KeyboardInterrupt))
        raise


def ended(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures, when all processes are done."""
    from janus_jax.runtime import multihost

    multihost.wait_for_all("the end")
    multihost.finish()
    return figures
