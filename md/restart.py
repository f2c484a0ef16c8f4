"""Checkpoints of dynamics with Orbax: every shard is written by the process that has it.

What is kept: the state of motion with thermostat and random numbers, who owns which atom, and what the neighbour
lists were built from (positions and cell of the build, capacities), so that on as many devices the same lists are
built again and the run goes on bit for bit. On another number of devices atoms get new owners (through the host,
as at the start of a run), and the run goes on to rounding.
"""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

from janus_jax import storage
from janus_jax.models.potential import Potential
from janus_jax.train import items
from md.config import EngineConfig
from md.layout import AXIS, Layout, lists_of, rows_by_id
from partition.capacity import Capacity
from partition.layout import Cut
from partition.transport import Transport

FORMAT = 1
FOLDER = "checkpoints"
UNFINISHED = "orbax-checkpoint-tmp"
"""Orbax has it in the names of what it is still writing."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint: arrays by name (those of motion as motion/0, motion/1, ... in tree order) and their description."""

    arrays: dict[str, Any]
    about: dict[str, Any]

    def motion(self) -> list[Any]:
        """Leaves of the motion; keys of random numbers as numbers."""
        return [self.arrays[f"motion/{k}"] for k in range(sum(name.startswith("motion/") for name in self.arrays))]

    def positions(self) -> tuple[np.ndarray, np.ndarray]:
        """Wrapped positions [N, 3] by atom at the last build, and the cell."""
        positions = rows_by_id(np.asarray(self.arrays["ids"]), np.asarray(self.arrays["reference"], float))
        return positions, np.asarray(self.arrays["build_cell"], float)

    def layout(self, model: Potential, settings: EngineConfig, pbc: tuple[bool, bool, bool]) -> Layout:
        """That of the run; its cut is without an order: who owns what is in the arrays."""
        about = self.about
        starts = np.linspace(0, about["atoms"], about["ranks"] + 1).astype(np.int64)
        cut = Cut(about["method"], tuple(about["shape"]), np.arange(about["atoms"]), starts)
        room, transport = capacity_of(about)
        return Layout(cut, about["rows"], lists_of(model, settings.skin_angstrom, pbc, transport), room)


def holds_some(folder: Path) -> bool:
    """Whether a run's folder has whole checkpoints, or some that were moved aside."""
    return any(UNFINISHED not in path.name for path in (folder / FOLDER).glob("*"))


def described(capacity: Capacity, transport: Transport) -> dict[str, Any]:
    return {"capacity": dataclasses.asdict(capacity), "kind": transport.kind, "sources": transport.sources}


def capacity_of(about: dict[str, Any]) -> tuple[Capacity, Transport]:
    """The inverse of `described`, of JSON."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list | tuple) else value

    capacity = Capacity(**{name: tuples(value) for name, value in about["capacity"].items()})
    return capacity, Transport(about["kind"], AXIS, about["ranks"], tuples(about["sources"]))


class Checkpoints:
    """The checkpoints below a run's folder: the last two are kept."""

    def __init__(self, folder: Path):
        self.folder = (folder / FOLDER).absolute()
        self.written: set[int] = set()
        self.manager = items.manager(self.folder, max_to_keep=2)

    def save(self, step: int, arrays: dict[str, jax.Array], about: dict[str, Any]) -> None:
        """Write; `about` has ranks and rows of the cut."""
        if step in self.written:
            return
        self.written.add(step)
        if step in items.steps(self.folder):  # of a run that went another way, or unreadable
            items.move_aside(self.folder, step)
            self.manager.reload()
        total = about["ranks"] * about["rows"]
        shapes = {n: [list(a.shape), str(a.dtype), a.ndim > 0 and a.shape[0] == total] for n, a in arrays.items()}
        described = {"format": FORMAT, "shapes": shapes, "sums": items.sums(arrays), **about}
        contents = ocp.args.Composite(
            arrays=ocp.args.StandardSave(arrays),  # type: ignore[call-arg]
            about=ocp.args.JsonSave(items.seal(described)),  # type: ignore[call-arg]
        )
        size = sum(array.nbytes for array in arrays.values())
        items.save(self.manager, step, contents, size)
        with storage.room_for(self.folder, size):
            self.manager.wait_until_finished()

    def load(self, devices: int) -> Saved:
        """The newest checkpoint that can be read, for so many devices; later ones are moved aside.

        Raises:
            CheckpointError: there is none, or it is of a newer version.
        """
        saved, unreadable = items.newest(self.folder, lambda step: self._read(step, devices))
        for step in unreadable:
            items.move_aside(self.folder, step)
        if unreadable:
            self.manager.reload()
        self.written.add(saved.about["step"])
        return saved

    def _read(self, step: int, devices: int) -> Saved:
        where = self.folder / str(step)
        about = items.read_about(where, FORMAT)
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), (AXIS,))
        same = devices == about["ranks"]

        def place(rows: bool) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(AXIS) if rows and same else PartitionSpec())

        like = {
            name: jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype), sharding=place(rows))
            for name, (shape, dtype, rows) in about["shapes"].items()
        }
        return Saved(items.read_arrays(where, "arrays", like, about.get("sums")), about)

    def close(self) -> None:
        """Wait for what is being written."""
        self.manager.wait_until_finished()
        self.manager.close()
