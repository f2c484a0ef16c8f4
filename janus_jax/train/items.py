"""What checkpoints of training and of dynamics are made of, read so that damage is noticed and passed over.

A checkpoint is a folder named by its step, with a description (JSON, sealed by a digest of itself) and arrays, whose
sums are in the description: Orbax's files have no checksums of their own, and one flipped bit of a weight would pass.
Everything is read from the items' own folders, not through Orbax's manager: what else lies there cannot stand in the
way, and a process that cannot read does not leave the others waiting.
"""

import gc
import hashlib
import json
import logging
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from janus_jax import storage
from janus_jax.errors import CheckpointError
from janus_jax.runtime import multihost

log = logging.getLogger(__name__)

DIGEST = "digest"


class NewerFormatError(CheckpointError):
    """A checkpoint that can be read, but not by this version."""


def seal(about: dict[str, Any]) -> dict[str, Any]:
    """A description with its digest."""
    return {**about, DIGEST: _digest(about)}


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(json.loads(json.dumps(about)), sort_keys=True).encode()).hexdigest()


def sums(tree: Any) -> list[int]:
    """Of each leaf the sum of its entries' bits as whole numbers, modulo 2**64; all processes call this.

    It does not depend on the layout, and one flipped bit always changes it.
    """
    arrays = jax.tree.leaves(tree)
    found = [sum(_sum(shard.data) for shard in a.addressable_shards if shard.replica_id == 0) for a in arrays]
    return multihost.summed(np.array([value % 2**64 for value in found], np.uint64)).tolist()


def _sum(data: Any) -> int:
    array = np.ascontiguousarray(data)
    return int(array.reshape(-1).view(f"u{array.dtype.itemsize}").sum(dtype=np.uint64))


def manager(folder: Path, **options: Any) -> ocp.CheckpointManager:
    """What writes checkpoints. Whatever it cannot write it raises, and is kept from saying in hundreds of lines."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    return ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(**options))


def save(manager: ocp.CheckpointManager, step: int, contents: Any, size: int) -> None:
    """Start writing.

    Args:
        size: bytes, about.

    Raises:
        DiskFullError: no room, for this one or the one before, which was written in the background.
    """
    folder = Path(manager.directory)
    storage.ask_for(folder, size)
    with storage.room_for(folder, size):  # forced: one of a later step, damaged or foreign, must not hinder this one
        manager.save(step, args=contents, force=True)


@contextmanager
def together(where: Path) -> Iterator[None]:
    """What fails to be read in one process counts as unreadable in all; no process waits for another inside.

    Raises:
        CheckpointError: naming `where`.
    """
    failed: CheckpointError | None = None
    with _quiet():
        try:
            yield
        except CheckpointError as error:
            failed = error
        except Exception as error:  # without its traceback, which holds what Orbax has not come to read
            text = next(iter(str(error).splitlines()), "")[:160]
            failed = CheckpointError(where, f"cannot be read ({type(error).__name__}: {text})")
            traceback.clear_frames(error.__traceback__)
            del error
            gc.collect()  # coroutines that were never finished complain when they go
    if multihost.largest(int(failed is not None)):
        raise failed or CheckpointError(where, "cannot be read (another process says so)")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Orbax's own messages about what it cannot read, a thousand lines of them: the error says it."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    before, hook = [logger.level for logger in loggers], sys.unraisablehook
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _restore(where: Path, handler: Any, args: Any) -> Any:
    alone: dict[str, Any] = {}
    if jax.process_count() > 1:
        index = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"read{index}"
        )
        alone = {"multiprocessing_options": options}
    with ocp.Checkpointer(handler, **alone) as reader:
        return reader.restore(where, args=args)


def read_about(where: Path, newest: int) -> dict[str, Any]:
    """The description of the checkpoint in the folder `where`, of any format up to `newest`.

    Raises:
        CheckpointError: damaged, not one of ours, or (NewerFormatError) of a newer version.
    """
    with together(where):
        about = json.loads((where / "about" / "metadata").read_text())
        if not isinstance(about, dict) or not isinstance(about.get("format"), int):
            raise CheckpointError(where, "not a checkpoint of janus-jax")
        seal = about.pop(DIGEST, None)
        if seal is not None and seal != _digest(about):
            raise CheckpointError(where, "damaged: its description is not what was written")
        if about["format"] > newest:
            text = f"written by a newer version (format {about['format']}, this one reads up to {newest})"
            raise NewerFormatError(where, text)
    return about


def read_arrays(where: Path, item: str, like: Any, expected: list[int] | None) -> Any:
    """The arrays of the checkpoint in `where`, with shapes, types and places of `like`.

    Args:
        expected: their sums; None: of a checkpoint that kept none.

    Raises:
        CheckpointError: damaged, or of another model.
    """
    found = None
    with together(where):
        handler = ocp.StandardCheckpointHandler()
        found = _restore(where / item, handler, ocp.args.StandardRestore(like))  # type: ignore[call-arg]
    if expected is not None and sums(found) != expected:
        raise CheckpointError(where, "damaged: its numbers are not those that were written")
    return found


def steps(folder: Path) -> list[int]:
    """Of all checkpoints in a folder, readable or not, in order."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit() and path.is_dir())


def newest[T](folder: Path, load: Callable[[int], T]) -> tuple[T, list[int]]:
    """(what `load` makes of the newest checkpoint that it can read, steps of later ones that it cannot).

    Raises:
        CheckpointError: there is none.
    """
    unreadable: list[int] = []
    for step in reversed(steps(folder)):
        try:
            return load(step), unreadable
        except NewerFormatError:
            raise
        except CheckpointError as error:
            if multihost.primary():
                log.warning("%s It is left as it is; the one before is tried.", error)
            unreadable.append(step)
    reason = "that can be read" if unreadable else "yet"
    raise CheckpointError(folder, f"holds no checkpoint {reason}, so there is nothing to go on from")


def move_aside(folder: Path, step: int) -> None:
    """Make room for a checkpoint of the same step without losing what is there; all processes call this."""
    if multihost.primary():
        names = (folder / f"{step}.unreadable{k or ''}" for k in range(1000))
        (folder / str(step)).rename(next(path for path in names if not path.exists()))
    multihost.wait_for_all(f"checkpoint {step}")


def clear_unfinished(folder: Path) -> None:
    """Remove what a killed process had begun to write; only while the run is held."""
    if multihost.primary():
        for path in folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(path, ignore_errors=True)
    multihost.wait_for_all("unfinished checkpoints")
