"""From a configuration to what a run works on: graphs, reference energies, scale, capacity, model."""

import dataclasses

import jax
import numpy as np
from flax import nnx

from janus_jax.data import batching, readers, references
from janus_jax.data.loader import split_by_fraction
from janus_jax.errors import ConfigError
from janus_jax.graph import AtomGraph, Capacity
from janus_jax.models import build, convert
from janus_jax.models.potential import Potential
from janus_jax.prediction import check_elements, check_system
from janus_jax.train.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Prepared:
    """All structures of a run, in memory, and the model to train on them."""

    train: list[AtomGraph]
    validation: list[AtomGraph]
    test: list[AtomGraph]
    capacity: Capacity
    model: Potential


def prepare(config: TrainConfig) -> Prepared:
    """Read data, fit reference energies and the energy scale, choose the capacity, build the model.

    Raises:
        DataError, CapacityError: with source and frame, or with need and capacity.
        UnknownElementError, StructureError: an element above `model.max_element`, a charge or spin out of range.
        ConfigError: precision float64 without JAX's 64-bit mode; nothing left to train on.
    """
    check_precision(config.precision)
    data, cutoff, keys = config.data, config.model.cutoff_angstrom, config.data.keys
    frames = {"train": readers.read_frames(data.train)}
    if isinstance(data.validation, str):
        frames["validation"] = readers.read_frames(data.validation)
    else:
        if not 0 < data.validation < 1:
            raise ConfigError(f"data.validation: {data.validation} is not a fraction between 0 and 1.")
        frames["train"], frames["validation"] = split_by_fraction(frames["train"], data.validation, config.seed)
    frames["test"] = readers.read_frames(data.test) if data.test else []
    if not frames["train"]:
        raise ConfigError(f"data.train: no structure of {data.train} is left to train on.")

    sources = {"train": data.train, "validation": data.validation, "test": data.test}
    for name, part in frames.items():
        readers.check_labels(str(sources[name]), part, keys)
    every = [frame for part in frames.values() for frame in part]
    if data.references == "least_squares":
        table = references.least_squares(frames["train"], keys)
        references.require(table, every)  # an element only in other splits has none
    else:
        table = references.given(data.references, every)
    references.check(table, frames["train"], keys)

    graphs = {name: readers.load_graphs(str(sources[name]), part, cutoff, table, keys) for name, part in frames.items()}
    needs = [batching.need(graph) for part in graphs.values() for graph in part]
    capacity = batching.choose(needs, config.batch.atoms)
    used = tuple(sorted(table.items()))
    model = build(config.model, rngs=nnx.Rngs(config.seed), scale=force_scale(graphs["train"]), references=used)
    model = convert.cast(model, config.precision)
    for graph in graphs["train"] + graphs["validation"] + graphs["test"]:
        check_elements(model, np.asarray(graph.numbers))
        check_system(model, graph)
    return Prepared(graphs["train"], graphs["validation"], graphs["test"], capacity, model)


def check_precision(precision: str) -> None:
    """Raises ConfigError if float64 is asked for but JAX is in its 32-bit mode."""
    if precision == "float64" and not jax.config.jax_enable_x64:
        raise ConfigError("precision: float64 needs JAX's 64-bit mode; set JAX_ENABLE_X64=1 or use the command line.")


def force_scale(graphs: list[AtomGraph]) -> float:
    """Root mean square of the force labels' components, eV/Å; 1 where there are none."""
    forces = [g.targets.forces[g.targets.forces_mask] for g in graphs if g.targets is not None]
    flat = np.concatenate(forces) if forces else np.zeros((0, 3))
    rms = float(np.sqrt((flat**2).mean())) if flat.size else 0.0
    return rms or 1.0
