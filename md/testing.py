"""A Lennard-Jones potential with the model contract: cheap, known, and comparable with published numbers."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
from flax import nnx

from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Exchange, Potential
from janus_jax.typing import Array, Float

ARGON = {"epsilon": 0.010323, "sigma": 3.405}
"""eV, Å (epsilon / k = 119.8 K)."""


class LennardJones(Potential):
    """Pairs 4 epsilon ((sigma/r)^12 - (sigma/r)^6), half of it at each atom.

    Args:
        epsilon, sigma: eV, Å; cutoff: Å.
        shift: 0: truncated; 1: energy zero at the cutoff; 2: force zero there too.
    """

    def __init__(self, epsilon: float, sigma: float, cutoff: float, shift: int = 2, numbers: tuple[int, ...] = (18,)):
        self.config, self.cutoff, self.scale, self.shift = SimpleNamespace(max_element=118), cutoff, 1.0, shift
        self.references = tuple((number, 0.0) for number in numbers)
        self.blocks = nnx.List([])
        self.strength = nnx.Param(jnp.array([epsilon, sigma]))

    def geometry(self, graph: AtomGraph, vectors: Float[Array, "edges 3"], exchange: Exchange):
        epsilon, sigma = self.strength[...]

        def pair(r):
            sixth = (sigma / r) ** 6
            return 4 * epsilon * (sixth * sixth - sixth)

        end = jnp.asarray(self.cutoff, vectors.dtype)
        r = jnp.sqrt((vectors * vectors).sum(-1))
        energy = pair(r)
        if self.shift > 0:
            energy -= pair(end)
        if self.shift > 1:
            energy -= jax.grad(pair)(end) * (r - end)
        return jnp.where(graph.edge_mask, 0.5 * energy, 0)

    def embed(self, graph: AtomGraph, geometry) -> Float[Array, "atoms 1 1"]:
        sums = [jax.ops.segment_sum(geometry[part], graph.dst[part], len(graph.numbers)) for part in graph.edge_parts]
        return sum(sums[1:], sums[0])[:, None, None]

    def readout(self, h: Float[Array, "atoms 1 1"], graph: AtomGraph) -> Float[Array, "atoms"]:
        return h[:, 0, 0]


class Layer(nnx.Module):
    """Adds to the first number of an atom what its neighbours within the shorter cutoff have there."""

    def __call__(self, h, graph: AtomGraph, geometry, exchange: Exchange):
        everywhere, change = exchange(h), jnp.zeros_like(h[:, 0, 0])
        for part in graph.edge_parts:
            message = geometry[part, 0] * jnp.tanh(everywhere[graph.src[part], 0, 0])
            change += jax.ops.segment_sum(message, graph.dst[part], len(h))
        return h.at[:, 0, 0].add(change)


class ManyBody(LennardJones):
    """Lennard-Jones pairs, and an energy of a density that neighbours within a shorter cutoff make and pass on.

    As far as halos go this is a message-passing model of two cutoffs; it compiles in a second.

    Args:
        short: Å, of density and messages; layers: of messages.
    """

    def __init__(self, short: float, layers: int = 2, **pairs):
        super().__init__(**pairs)
        self.short, self.blocks = short, nnx.List([Layer() for _ in range(layers)])

    def geometry(self, graph: AtomGraph, vectors: Float[Array, "edges 3"], exchange: Exchange):
        pairs = super().geometry(graph, vectors, exchange)
        x = jnp.clip(jnp.sqrt((vectors * vectors).sum(-1)) / self.short, 0, 1)
        density = jnp.where(graph.edge_mask, (1 - x * x) ** 3, 0)
        return jnp.stack([density, pairs], -1)

    def embed(self, graph: AtomGraph, geometry) -> Float[Array, "atoms 1 2"]:
        sums = [jax.ops.segment_sum(geometry[part], graph.dst[part], len(graph.numbers)) for part in graph.edge_parts]
        return sum(sums[1:], sums[0])[:, None, :]

    def readout(self, h: Float[Array, "atoms 1 2"], graph: AtomGraph) -> Float[Array, "atoms"]:
        return h[:, 0, 1] - self.strength[...][0] * jnp.sqrt(1 + h[:, 0, 0] ** 2)
