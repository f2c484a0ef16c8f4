"""Orbax checkpoints of a run, written in the background: best, last two, and every n steps.

A checkpoint holds the whole `TrainState` (raw and averaged parameters, optimizer with its schedule's
count, step) and, as JSON, the progress of the run (position in the data, best so far), the resolved
configuration, a hash of the data, and sums by which damage is noticed. There is no other
random state: what epoch n draws depends on the seed and n alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

from janus_jax import storage
from janus_jax.train import items
from janus_jax.train.state import TrainState

FORMAT = 2


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


class Checkpoints(checkpoint_managers.PreservationPolicy):
    """The checkpoints below `folder`, by step.

    Args:
        keep_every: keep for good what is saved at multiples of this.
    """

    def __init__(self, folder: str | Path, keep_every: int | None = None):
        self.keep_every, self.unreadable, self.size = keep_every, set[int](), 0
        self.bests: dict[int, int] = {}
        """Of a checkpoint, the step of the best validation up to then."""
        self.folder = Path(folder).absolute()
        if jax.process_count() > 1:
            ocp.type_handlers.register_type_handler(jax.Array, _PartsHandler(primary_host=None), override=True)
        self.manager = items.manager(self.folder, preservation_policy=self)

    def save(self, state: TrainState, about: dict[str, Any]) -> None:
        """Start writing; `about` holds the progress of the run, which names the best step so far."""
        step = int(state.step)
        if step in self.steps():
            if step in self.manager.all_steps() and step not in self.unreadable:
                return
            items.move_aside(self.folder, step)
            self.unreadable.discard(step)
            self.manager.reload()
        self.bests[step] = about["progress"].get("best_step", 0)
        described = {"format": FORMAT, "sums": items.sums(state), **about}
        contents = ocp.args.Composite(
            state=ocp.args.StandardSave(state),  # type: ignore[call-arg]
            about=ocp.args.JsonSave(items.seal(described)),  # type: ignore[call-arg]
        )
        self.size = sum(array.nbytes for array in jax.tree.leaves(state))
        items.save(self.manager, step, contents, self.size)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Orbax's question which to keep: what cannot be read, the newest two with their best, every n-th."""
        newest = [c.step for c in checkpoints if c.step not in self.unreadable][-2:]
        kept = {*newest, *(self.bests.get(step, 0) for step in newest), *self.unreadable}
        return [c.step in kept or bool(self.keep_every and c.step % self.keep_every == 0) for c in checkpoints]

    def about(self, step: int) -> dict[str, Any]:
        """The description of a checkpoint, in the present format.

        Raises:
            CheckpointError: damaged, or not one of ours.
        """
        about = items.read_about(self.folder / str(step), FORMAT)
        while about["format"] < FORMAT:
            about = MIGRATIONS[about["format"]](about)
        return about

    def state(self, step: int, like: TrainState) -> TrainState:
        """The state at `step`, with shapes and types of `like`.

        Raises:
            CheckpointError: damaged, or of another model.
        """
        return self._both(step, like)[0]

    def _both(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        about = self.about(step)
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
        state = items.read_arrays(self.folder / str(step), "state", shapes, about.get("sums"))
        self.bests[step] = about["progress"].get("best_step", 0)
        return state, about

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """State and description of the newest checkpoint that can be read.

        Checkpoints that cannot be read are named in the log and left alone.

        Raises:
            CheckpointError: no checkpoint can be read.
        """
        found, unreadable = items.newest(self.folder, lambda step: self._both(step, like))
        self.unreadable.update(unreadable)
        return found

    def steps(self) -> list[int]:
        return items.steps(self.folder)

    def best(self) -> int | None:
        """Step of the checkpoint with the smallest validation loss; None: it is not there."""
        about, _ = items.newest(self.folder, self.about)
        best = about["progress"].get("best_step", 0)
        return best if best in self.steps() else None

    def close(self) -> None:
        """Wait for what is being written."""
        with storage.room_for(self.folder, self.size):
            self.manager.wait_until_finished()
            self.manager.close()
