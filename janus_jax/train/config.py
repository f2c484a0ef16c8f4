"""The training configuration: one frozen schema.

Defaults are the recipe of `configs/train/water.yaml`, which is `janus-jax config template`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from janus_jax import configuration
from janus_jax.configuration import Section
from janus_jax.data.labels import LabelConfig
from janus_jax.data.summary import FrameKeys
from janus_jax.models import ModelConfig
from janus_jax.runtime.config import MeshConfig, PipelineConfig
from janus_jax.train.loss import LossConfig
from janus_jax.train.optimizer import OptimizerConfig

Fraction = Annotated[float, Field(gt=0, lt=1)]
Sources = str | tuple[str, ...]
WATER = "water:train"


class DataConfig(Section):
    """Files, folders, globs (or lists of them), or built-in sets such as water:train."""

    train: Sources = WATER
    """Where training structures come from."""
    validation: Sources | Fraction | None = "water:validation"
    """A source, the fraction of train to hold out (0.1 for data of your own), or null: the last weights are kept."""
    test: Sources | Fraction | None = "water:test"
    """A source, a fraction of train, or null."""
    labels: LabelConfig = LabelConfig()
    keys: FrameKeys = FrameKeys()
    """Names in the info of a frame of what it is."""
    dataset: str = ""
    """Data set of frames that name none."""
    references: Literal["auto", "isolated_atoms", "least_squares"] | dict[str, float] = "auto"
    """Energies per element: eV by symbol, or auto (isolated atoms in the data, least squares for the rest)."""
    bad_frames: Literal["error", "skip"] = "error"
    """What to do with frames that cannot be used (not finite, coincident atoms): stop, or leave out and say so."""
    train_on_fixed_atoms: bool = False
    """Whether forces on atoms held by a constraint are labels."""
    workers: NonNegativeInt = 0
    """Processes that read data; 0: a thread of this one."""
    memory_mib: NonNegativeInt = 1024
    """Graphs are kept in memory if all of a split fit into this."""

    @model_validator(mode="before")
    @classmethod
    def _own_data(cls, values: Any) -> Any:
        """The water splits belong to the water set: with other data, hold out a tenth and test on nothing."""
        if isinstance(values, dict) and values.get("train", WATER) != WATER:
            return {"validation": 0.1, "test": None, **values}
        return values


class BatchConfig(Section):
    """One optimizer step sees micro_batches groups of up to `atoms` atoms each."""

    atoms: PositiveInt = 48
    """A micro-batch is filled up to this many atoms."""
    micro_batches: PositiveInt = 1
    """Summed for one optimizer step, over all devices."""
    balance: Literal["atoms", "edges"] | None = None
    """Pack each global batch anew, so that micro-batches have equal atoms or edges (GARS); the gradient is the same."""


class CheckpointConfig(Section):
    """Saved beside every validation; the best and the last two are kept."""

    every_steps: PositiveInt | None = None
    """Save also every so many steps."""
    keep_every_steps: PositiveInt | None = None
    """Keep for good what is saved at multiples of this."""
    time_limit_minutes: PositiveFloat | None = None
    """Save and stop after this time, to be resumed."""


class TrackingConfig(Section):
    """Where numbers go, beside metrics.jsonl and the terminal."""

    csv: bool = True
    """train.csv and validation.csv."""
    tensorboard: bool = True
    wandb_project: str | None = None
    """Weights & Biases project (needs the extra wandb)."""
    report: bool = True
    """Pictures and report.html at the end; janus-jax report makes it later."""


class TrainConfig(Section):
    """A training run."""

    output: str = "runs/water"
    """Run folder; a number is appended if it exists."""
    start_from: str | None = None
    """Model file or run folder to fine-tune; its architecture is used."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    batch: BatchConfig = BatchConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    steps: PositiveInt = 600
    """Optimizer steps."""
    validate_every: PositiveInt = 100
    """Steps between validations."""
    patience: PositiveInt | None = None
    """Stop after this many validations without a better one; null: never."""
    mesh: MeshConfig = MeshConfig()
    pipeline: PipelineConfig = PipelineConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tracking: TrackingConfig = TrackingConfig()
    seed: NonNegativeInt = 0
    precision: Literal["float32", "float64"] = "float32"

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> "TrainConfig":
        if self.patience is not None and self.data.validation is None:
            raise ValueError("patience counts validations, and data.validation is null; change one of them")
        return self


def load(path: str | Path | None = None, overrides: Sequence[str] = ()) -> TrainConfig:
    """A training configuration; see `janus_jax.configuration.load`."""
    return configuration.load(TrainConfig, path, overrides)
