"""Settings of the device grid and of the pipeline."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from janus_jax.configuration import Section
from janus_jax.phases.memory import Memory


class MeshConfig(Section):
    """Devices, as a grid pipe x data x graph."""

    pipe: PositiveInt = 1
    """Stages the model's blocks are cut into."""
    data: PositiveInt = 1
    """Micro-batches worked on side by side; batch.micro_batches must be a multiple."""
    graph: Literal[1] = 1
    """Devices a structure is spread over; only 1 yet."""
    shard_optimizer: bool = False
    """Spread optimizer state and averaged weights over the data axis."""

    @property
    def devices(self) -> int:
        return self.pipe * self.data * self.graph


class PipelineConfig(Section):
    """How stages work together; with one device it says nothing."""

    schedule: str = "split"
    """gpipe_2nd, 1f1b_2nd, hanayo_2nd, symfold, wavek, split, or a file written by schedule show --text."""
    unit: PositiveInt | None = None
    """Micro-batches in a unit of wavek; null: pipe."""
    cap: PositiveInt | None = None
    """Micro-batches a device may hold at once in split; null: twice pipe."""
    blocks: tuple[PositiveInt, ...] | None = None
    """Blocks of each stage; null: balanced by estimated cost."""
    memory: Memory = Memory()
    device_memory_gib: PositiveFloat | None = None
    """What micro-batches may keep on a device; null: with --tune most of what is free, without limit on CPUs."""
    timeline: bool = False
    """Write the measured timeline of an early step beside the simulated one into the run folder."""
