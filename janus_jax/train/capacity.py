"""The capacity of a run's micro-batches, from the sizes of its data."""

import logging

import numpy as np

from janus_jax.data import batching, loader
from janus_jax.errors import CapacityError
from janus_jax.graph import Capacity
from janus_jax.train.config import BatchConfig
from janus_jax.train.splits import Part

log = logging.getLogger(__name__)


def choose(config: BatchConfig, seed: int, parts: dict[str, Part], notes: list[str]) -> Capacity:
    """Of the micro-batches of all splits, never more than one of them can fill; what a setting comes to is noted.

    Raises:
        CapacityError: a structure does not fit; names it.
    """
    _check_sizes(parts, config.atoms)
    atoms, edges = (np.concatenate([part.records[name] for part in parts.values()]) for name in ("atoms", "edges"))
    totals = [batching.total(part.records["atoms"], part.records["edges"]) for part in parts.values()]
    most = Capacity(*(max(getattr(one, field) for one in totals) for field in ("atoms", "edges", "structures")))
    capacity = batching.choose(atoms, edges, config.atoms, most)
    train, step = parts["train"].records["atoms"], config.micro_batches
    if most.atoms < config.atoms:
        notes.append(f"batch.atoms is {config.atoms}, but no split has more than {most.atoms}: batches are of that")
    if train.sum(dtype=np.int64) <= step * capacity.atoms:
        groups = len(list(loader.plan(train, parts["train"].records["edges"], capacity, seed, 0)))
        if groups < step:
            log.warning(
                "batch.micro_batches is %d, but the training set fills only %d of %d atoms: every step goes over it "
                "%.1f times.",
                step,
                groups,
                capacity.atoms,
                step / groups,
            )
    return capacity


def _check_sizes(parts: dict[str, Part], budget: int) -> None:
    """The largest structure of every split must fit into a batch; it is named if it does not."""
    for part in parts.values():
        if len(part.indices) and part.records["atoms"].max() > budget:
            row = part.records[largest := int(part.records["atoms"].argmax())]
            need = Capacity(int(row["atoms"]), int(row["edges"]), 1)
            hint = f"raise batch.atoms ({part.source.name(int(part.indices[largest]))})"
            raise CapacityError(need, Capacity(budget, need.edges, 1), hint)
