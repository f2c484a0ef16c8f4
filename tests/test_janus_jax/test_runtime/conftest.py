"""A potential that compiles in a moment, labelled batches, and what one device makes of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from janus_jax.graph import AtomGraph, LabelCounts, Targets
from janus_jax.models.potential import Potential
from janus_jax.phases import Memory
from janus_jax.runtime.config import MeshConfig, PipelineConfig
from janus_jax.runtime.trainer import PipelineTrainer
from janus_jax.testing import crystal, molecule, padded, slab
from janus_jax.train.loss import LossConfig
from janus_jax.train.optimizer import OptimizerConfig
from janus_jax.train.state import Trainer

OPTIONS = {"xla_backend_optimization_level": 0}
LOSS = LossConfig(energy=3.0, stress=2.0)
ADAM = OptimizerConfig(method="adamw", warmup_steps=2, ema_decay=0.9, clip_norm=1.0)


class Block(nnx.Module):
    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        self.mix = nnx.Param(0.5 * jax.random.normal(rngs(), (channels, channels)))
        self.radial = nnx.Param(jax.random.normal(rngs(), (4, channels)))

    def __call__(self, h, graph, geometry, exchange):
        radial, envelope, source = geometry
        message = jnp.tanh((h[:, 0] @ self.mix[...])[graph.src] + source) * (radial @ self.radial[...]) * envelope
        return h + jax.ops.segment_sum(message, graph.dst, len(graph.numbers), indices_are_sorted=True)[:, None]


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    num_layers: int
    max_element: int = 30
    datasets: tuple[str, ...] = ()
    charge_spin: str = "none"


class Toy(Potential):
    """Smooth, with a table that every stage reads."""

    def __init__(self, blocks: int = 4, channels: int = 5, *, rngs: nnx.Rngs):
        self.config = ToyConfig(blocks)
        self.cutoff, self.scale, self.references = 3.5, 1.3, ()
        self.table = nnx.Param(jax.random.normal(rngs(), (31, channels)))
        self.source = nnx.Param(jax.random.normal(rngs(), (31, channels)))
        self.blocks = nnx.List(Block(channels, rngs=rngs) for _ in range(blocks))
        self.head = nnx.Param(jax.random.normal(rngs(), (channels,)))

    def geometry(self, graph, vectors, exchange):
        square = (vectors**2).sum(-1, keepdims=True)
        radial = jnp.exp(-((jnp.sqrt(square) - jnp.asarray([[1.0, 1.7, 2.4, 3.1]], square.dtype)) ** 2))
        envelope = jnp.maximum(1 - square / self.cutoff**2, 0) ** 3
        return radial, envelope, self.source[...][graph.numbers[graph.src]]

    def embed(self, graph, geometry):
        return self.table[...][graph.numbers][:, None]

    def readout(self, h, graph):
        return jnp.tanh(h[:, 0]) @ self.head[...]


def toy(dtype=np.float64, blocks: int = 4) -> Toy:
    model = Toy(blocks, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(model)
    return nnx.merge(graphdef, jax.tree.map(lambda a: a.astype(dtype), state))


def labelled(number: int, dtype=np.float64) -> AtomGraph:
    """One of the micro-batches; some labels are missing."""
    pairs = [(molecule(), crystal()), (slab(), crystal()), (slab(), molecule())]
    graph, rng = padded(*pairs[number % 3], dtype=dtype), np.random.default_rng(number)
    atoms, structures = len(graph.numbers), len(graph.charge)
    some = np.arange(structures) != number % 4
    targets = Targets(
        rng.normal(size=structures).astype(dtype), graph.structure_mask & some,
        rng.normal(size=(atoms, 3)).astype(dtype), graph.atom_mask,
        rng.normal(size=(structures, 3, 3)).astype(dtype), graph.structure_mask,
        rng.uniform(0.5, 2, structures).astype(dtype),
    )  # fmt: skip
    return graph.replace(targets=targets, dataset=np.zeros_like(graph.dataset))  # the model has no data sets


@dataclasses.dataclass(frozen=True)
class Reference:
    """Batches, and states and numbers of one device after each."""

    model: Toy
    trainer: Trainer
    batches: list[tuple[list[AtomGraph], LabelCounts]]
    states: list
    terms: list
    reports: list


def emptied(graph: AtomGraph) -> AtomGraph:
    """The same shapes with padding alone, as a data rank gets that has no structure left."""
    masks = {name: np.zeros_like(getattr(graph, name)) for name in ("atom_mask", "edge_mask", "structure_mask")}
    names = ("energy_mask", "forces_mask", "stress_mask")
    targets = graph.targets.replace(**{name: np.zeros_like(getattr(graph.targets, name)) for name in names})
    return graph.replace(targets=targets, **masks)


def reference(dtype, steps: int, micro_batches: int = 4, blocks: int = 4, empty: tuple[int, ...] = ()) -> Reference:
    """Args: `empty`: micro-batches of padding alone."""
    model = toy(dtype, blocks)
    trainer = Trainer(model, ADAM, 100, LOSS)
    state = trainer.init(model)
    found = Reference(model, trainer, [], [state], [], [])
    for step in range(steps):
        graphs = [labelled(micro_batches * step + k, dtype) for k in range(micro_batches)]
        graphs = [emptied(graph) if k in empty else graph for k, graph in enumerate(graphs)]
        counts = LabelCounts.of([_real(graph) for graph in graphs], dtype)
        state, terms, report = trainer.step(state, graphs, counts)
        found.batches.append((graphs, counts))
        found.states.append(state)
        found.terms.append(terms)
        found.reports.append(report)
    return found


def _real(graph: AtomGraph) -> AtomGraph:
    """For counting: padding carries no labels."""
    targets = graph.targets
    keep = graph.structure_mask
    return graph.replace(targets=targets.replace(
        energy_mask=targets.energy_mask & keep, stress_mask=targets.stress_mask & keep
    ))  # fmt: skip


@pytest.fixture(scope="session")
def one():
    return reference(np.float64, 2)


def pipeline(model, pipe: int, data: int, schedule: str, micro_batches: int = 4, *, shard: bool = False, **settings):
    memory = Memory(mode=settings.pop("memory", "keep"))
    return PipelineTrainer(
        model, ADAM, 100, LOSS, MeshConfig(pipe=pipe, data=data, shard_optimizer=shard),
        PipelineConfig(schedule=schedule, memory=memory, **settings), micro_batches, compiler_options=OPTIONS,
    )  # fmt: skip


def worst(found, expected) -> float:
    """Largest error of any leaf, as a part of its largest entry."""
    errors = [0.0]
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert a.shape == b.shape, path
        errors.append(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0)
    assert all(np.isfinite(errors))
    return max(errors)
