"""Library messages on standard error, one plain line each."""

import logging


def to_stderr() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("janus_jax").setLevel(logging.INFO)
