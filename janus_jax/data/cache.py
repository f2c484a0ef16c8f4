"""Arrays kept between runs, by name, in `$JANUS_JAX_CACHE` or the user's cache folder.

Losing the folder costs time only: whatever is missing or damaged is made again.
"""

import logging
import os
import tempfile
from pathlib import Path

import numpy as np

log = logging.getLogger(__name__)


def folder() -> Path:
    """Where the cache is."""
    if "JANUS_JAX_CACHE" in os.environ:
        return Path(os.environ["JANUS_JAX_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "janus-jax"


def load(name: str) -> dict[str, np.ndarray] | None:
    """What was saved under `name`; None if nothing was, or it cannot be read."""
    path = folder() / name
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        return None
    except Exception as error:
        log.warning("%s cannot be read (%s) and is made again", path, type(error).__name__)
        return None


def save(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Keep `arrays` under `name`; a folder that cannot be written is only a warning."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder(), suffix=f".{os.getpid()}.partial", delete=False) as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
        os.replace(file.name, folder() / name)
    except OSError as error:
        for left in folder().glob(f"*.{os.getpid()}.partial"):
            left.unlink(missing_ok=True)
        log.warning("%s cannot be written (%s); data will be read again next time", folder(), error)
