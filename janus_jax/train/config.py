"""The training configuration: one frozen schema, from YAML and dotted overrides.

Defaults are the recipe of `configs/train/water.yaml`. Errors name the dotted path, what is allowed,
and the nearest valid key.
"""

import difflib
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from janus_jax.data.readers import LabelKeys
from janus_jax.errors import ConfigError
from janus_jax.models import ModelConfig
from janus_jax.train.loss import LossConfig
from janus_jax.train.optimizer import OptimizerConfig


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(_Frozen):
    """Where structures come from: paths, or built-in sets such as `water:train`."""

    train: str = "water:train"
    validation: str | float = "water:validation"
    """A source, or the fraction of `train` to hold out."""
    test: str | None = "water:test"
    keys: LabelKeys = LabelKeys()
    """Names of the labels in the files."""
    references: Literal["least_squares"] | dict[str, float] = "least_squares"
    """Reference energies, eV by element symbol."""


class BatchConfig(_Frozen):
    """One optimizer step sees `micro_batches` groups of up to `atoms` atoms each."""

    atoms: PositiveInt = 48
    micro_batches: PositiveInt = 1


class TrainConfig(_Frozen):
    """A training run."""

    output: str = "runs/water"
    """Run folder; a number is appended if it exists."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    batch: BatchConfig = BatchConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    steps: PositiveInt = 600
    validate_every: PositiveInt = 100
    seed: int = Field(default=0, ge=0)
    precision: Literal["float32", "float64"] = "float32"


def load(path: str | Path | None = None, overrides: list[str] | tuple[str, ...] = ()) -> TrainConfig:
    """The configuration in a YAML file (defaults if None), changed by `dotted.key=value` strings.

    Raises:
        ConfigError: file missing or not YAML, an override without "=", an unknown key, a bad value.
    """
    values: Any = {}
    if path is not None:
        try:
            values = yaml.safe_load(Path(path).read_text()) or {}
        except FileNotFoundError:
            raise ConfigError(f"{path}: no such configuration file.") from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: expected a mapping of keys, got {type(values).__name__}.")
    for text in overrides:
        _override(values, text)
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem) for problem in error.errors())) from None


def _override(values: dict, text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"Override {text!r} is not of the form dotted.key=value.")
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise ConfigError(f"Override {text!r}: {part} is a value, not a section.")
    try:
        values[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"Override {text!r}: the value is not valid YAML: {error}") from error


def _explain(problem) -> str:
    path = [str(part) for part in problem["loc"]]
    dotted = ".".join(path)
    if problem["type"] != "extra_forbidden":
        return f"{dotted}: {problem['msg']} (given: {problem['input']!r})."
    names = list(_fields(path[:-1]))
    near = difflib.get_close_matches(path[-1], names, n=1)
    hint = f"did you mean {'.'.join([*path[:-1], near[0]])}? " if near else ""
    return f"{dotted}: unknown key; {hint}allowed: {', '.join(names)}."


def _fields(path: list[str]) -> dict[str, Any]:
    """Fields of the section at `path`."""
    model: Any = TrainConfig
    for part in path:
        model = model.model_fields[part].annotation
    return model.model_fields


def dump(config: BaseModel) -> str:
    """YAML of a configuration, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
