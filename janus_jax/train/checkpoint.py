"""Orbax checkpoints of a run, written in the background: best, last two, and every n steps.

A checkpoint holds the whole `TrainState` (raw and averaged parameters, optimizer with its schedule's
count, step) and, as JSON, the progress of the run (position in the data, best so far), the resolved
configuration and a hash of the data. There is no other random state: what epoch n draws depends on
the seed and n alone.
"""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from janus_jax.errors import CheckpointError
from janus_jax.train.state import TrainState

log = logging.getLogger(__name__)

FORMAT = 2
METRIC = "validation"


def _from_1(about: dict[str, Any]) -> dict[str, Any]:
    """Format 1 counted structures, not micro-batches, and kept nothing about the best: its epoch starts again."""
    progress = {"position": {"epoch": about["position"]["epoch"], "drawn": 0}}
    return {"format": 2, "config": config_from_1(about["config"]), "progress": progress, "data_hash": None}


def config_from_1(values: dict[str, Any]) -> dict[str, Any]:
    """Format 1 had the names of labels under data.keys, and AdamW; later configurations come back as they are."""
    data = dict(values.get("data", {}))
    if not {"energy", "forces", "stress"} & set(data.get("keys", {})):
        return values
    data["labels"] = data.pop("keys")
    optimizer = {"method": "adamw", **values.get("optimizer", {})}  # there was no other
    return {**values, "data": data, "optimizer": optimizer}


MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_1}
"""What brings the description of a checkpoint from format n to n + 1."""


class _Part:
    """An array in other clothes: Orbax refuses those that one process has alone, as the parameters of a stage are.

    It writes them as it writes all others, each shard from a process that has it.
    """

    def __init__(self, array: jax.Array):
        self.array = array

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)


class _PartsHandler(ocp.type_handlers.ArrayHandler):
    """Writes also arrays that this process has alone, and leaves those alone that it has nothing of (Orbax 0.12)."""

    async def serialize(self, values, infos, args=None):
        triples = zip(values, infos, args or [None] * len(infos), strict=True)
        here = [(_Part(value), info, arg) for value, info, arg in triples if value.addressable_shards]
        if not here:
            return []
        mine, infos, given = zip(*here, strict=True)
        return await super().serialize(mine, infos, given if args else None)

    async def deserialize(self, infos, args=None):
        """Arrays of other processes are nothing but their shapes here."""
        pairs = list(zip(infos, args or [], strict=True))
        found = [None if arg.sharding.addressable_devices else _elsewhere(arg) for _, arg in pairs]  # type: ignore[attr-defined]
        here = [pair for pair, array in zip(pairs, found, strict=True) if array is None]
        read = iter(await super().deserialize(*zip(*here, strict=True)) if here else [])
        return [next(read) if array is None else array for array in found]


def _elsewhere(arg: Any) -> jax.Array:
    return jax.make_array_from_single_device_arrays(arg.global_shape, arg.sharding, [], dtype=arg.dtype)


def read(manager: ocp.CheckpointManager, where: Path, step: int, **contents) -> Any:
    """Parts of a checkpoint.

    Raises:
        CheckpointError: naming `where`; whatever Orbax found.
    """
    try:
        return manager.restore(step, args=ocp.args.Composite(**contents))
    except Exception as error:
        text = str(error).splitlines()[0][:200] if str(error) else ""
        raise CheckpointError(where, f"cannot be read ({type(error).__name__}: {text})") from error


def _metric(metrics: dict[str, float]) -> float:
    return metrics.get(METRIC, math.inf)


class Checkpoints(checkpoint_managers.PreservationPolicy):
    """The checkpoints below `folder`, by step.

    Args:
        keep_every: keep for good what is saved at multiples of this.
    """

    def __init__(self, folder: str | Path, keep_every: int | None = None):
        self.keep_every, self.unreadable = keep_every, set()
        options = ocp.CheckpointManagerOptions(preservation_policy=self, best_fn=_metric, best_mode="min")
        self.folder = Path(folder).absolute()
        if jax.process_count() > 1:
            logging.getLogger("absl").setLevel(logging.ERROR)  # that a handler is replaced is meant
            ocp.type_handlers.register_type_handler(jax.Array, _PartsHandler(primary_host=None), override=True)
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    def save(self, state: TrainState, best: float | None, about: dict[str, Any]) -> None:
        """Start writing; `best` is the validation loss if it is the smallest so far, else None."""
        step = int(state.step)
        if step in self.unreadable:
            self._move_aside(step)
        if step in self.manager.all_steps():
            return
        contents = ocp.args.Composite(
            state=ocp.args.StandardSave(state),  # type: ignore[call-arg]
            about=ocp.args.JsonSave({"format": FORMAT, **about}),  # type: ignore[call-arg]
        )
        # Forced: a damaged or foreign checkpoint of a later step must not keep this one from being written.
        self.manager.save(step, args=contents, metrics={METRIC: math.inf if best is None else best}, force=True)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Orbax's question which to keep: what cannot be read, the newest two, the best, every n-th."""
        good = [c for c in checkpoints if c.step not in self.unreadable]
        kept = {c.step for c in good[-2:]} | self.unreadable
        if good:
            kept.add(min(good, key=lambda c: (_metric(c.metrics or {}), -c.step)).step)
        return [c.step in kept or bool(self.keep_every and c.step % self.keep_every == 0) for c in checkpoints]

    def _move_aside(self, step: int) -> None:
        """Make room for a checkpoint of the same step without losing what is there."""
        (self.folder / str(step)).rename(self.folder / f"{step}.unreadable")
        self.unreadable.discard(step)
        self.manager.reload()

    def about(self, step: int) -> dict[str, Any]:
        """The description of a checkpoint, in the present format.

        Raises:
            CheckpointError: damaged, or not one of ours.
        """
        about = self._restore(step, about=ocp.args.JsonRestore())["about"]
        if not isinstance(about, dict) or not isinstance(about.get("format"), int):
            raise CheckpointError(self.folder / str(step), "not a checkpoint of janus-jax")
        if about["format"] > FORMAT:
            reason = f"written by a newer version (format {about['format']}, this one reads up to {FORMAT})"
            raise CheckpointError(self.folder / str(step), reason)
        while about["format"] < FORMAT:
            about = MIGRATIONS[about["format"]](about)
        return about

    def state(self, step: int, like: TrainState) -> TrainState:
        """The state at `step`, with shapes and types of `like`.

        Raises:
            CheckpointError: damaged, or of another model.
        """
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        return self._restore(step, state=ocp.args.StandardRestore(shapes))["state"]  # type: ignore[call-arg]

    def _restore(self, step: int, **contents) -> Any:
        return read(self.manager, self.folder / str(step), step, **contents)

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """State and description of the newest checkpoint that can be read.

        Checkpoints that cannot be read are named in the log and left alone.

        Raises:
            CheckpointError: no checkpoint can be read.
        """
        for newest in reversed(self.steps()):
            try:
                return self.state(newest, like), self.about(newest)
            except CheckpointError as error:
                if jax.process_count() > 1:  # the others may have read it; all must go on from the same one
                    hint = f"{error} Move it away to go on from the one before"
                    raise CheckpointError(self.folder / str(newest), hint) from error
                log.warning("%s It is left as it is; the one before is tried.", error)
                self.unreadable.add(newest)
        raise CheckpointError(self.folder, "holds no checkpoint that can be read, so there is nothing to go on from")

    def steps(self) -> list[int]:
        return sorted(self.manager.all_steps())

    def best(self) -> int | None:
        """Step of the checkpoint with the smallest validation loss."""
        return self.manager.best_step()

    def close(self) -> None:
        """Wait for what is being written."""
        self.manager.wait_until_finished()
        self.manager.close()
