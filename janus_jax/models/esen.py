"""eSEN: an equivariant message-passing potential with SO(2) convolutions in edge frames.

Architecture and names of the public implementation (fairchem-core 2.24, MIT; formulas in
reference/models.md section B.2); numbers equal to it in float64. The path of a parameter in the
module tree is its name there, so `load_state` and `save_state` are a change of container.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from janus_jax.configuration import Section
from janus_jax.graph import AtomGraph
from janus_jax.models import convert, so3
from janus_jax.models.equivariant import (
    FrameFeatures,
    GridFeedForward,
    NodeFeatures,
    RMSNorm,
    ScaledSO2Convolution,
    SO2Convolution,
    SpectralFeedForward,
    gate,
    sphere_silu,
    split_by_order,
)
from janus_jax.models.potential import Exchange, Potential
from janus_jax.models.radial import Linear, RadialMLP, Sequence, Silu, Table, gaussian_basis, polynomial_envelope
from janus_jax.system import MAX_CHARGE, MAX_SPIN
from janus_jax.typing import Array, Float, Int, pytree

EDGE_DEGREE_RESCALE = 5.0


class EsenConfig(Section):
    """Architecture of eSEN. The defaults are a small model."""

    name: Literal["esen"] = "esen"
    cutoff_angstrom: PositiveFloat = 4.0
    num_layers: PositiveInt = 2
    channels: PositiveInt = 32
    hidden_channels: PositiveInt = 32
    edge_channels: PositiveInt = 32
    num_basis: int = Field(default=64, ge=2)
    """Gaussians; few of them blur the O-H stretch and learning stalls."""
    lmax: int = Field(default=2, ge=1, le=6)
    """Highest degree of spherical harmonics."""
    mmax: int | None = Field(default=None, ge=0)
    """Highest order kept in edge frames; null: lmax."""
    activation: Literal["gate", "s2"] = "gate"
    feed_forward: Literal["spectral", "grid"] = "spectral"
    charge_spin: Literal["none", "sinusoidal", "table"] = "none"
    """Embedding of total charge and spin multiplicity."""
    datasets: tuple[str, ...] = ()
    """Names of the data sets the model tells apart."""
    max_element: PositiveInt = 99
    """Largest atomic number."""

    @model_validator(mode="after")
    def _check(self):
        if self.mmax is not None and self.mmax > self.lmax:
            raise ValueError(f"mmax is {self.mmax}; allowed: 0 to lmax = {self.lmax}")
        if self.charge_spin == "sinusoidal" and self.channels % 2:
            raise ValueError(f"channels is {self.channels}; sinusoidal charge embeddings need an even number")
        return self

    @property
    def orders(self) -> int:
        """The largest |m| kept in edge frames."""
        return self.lmax if self.mmax is None else self.mmax


@pytree
class EdgeGeometry:
    """What eSEN's parts need besides node features."""

    frame: Float[Array, "edges rows coefficients"]
    """Into the edge frame, m-major rows."""
    frame_out: Float[Array, "edges rows coefficients"]
    """The same times the cutoff envelope; its transpose takes messages back."""
    scalars: Float[Array, "edges inputs"]
    """Radial basis, source and target element rows."""
    system: Float[Array, "structures channels"] | None
    """Charge, spin and data set of each structure, mixed."""


class Frequencies(nnx.Variable):
    """Fixed random frequencies: part of the state, never trained."""


class SinusoidalEmbedding(nnx.Module):
    """[sin(2 pi w q), cos(2 pi w q)] of an integer q, zero where `absent`."""

    def __init__(self, channels: int, *, rngs: nnx.Rngs):
        self.W = Frequencies(jax.random.normal(rngs.params(), (channels // 2,), jnp.float32))

    def __call__(self, q: Int[Array, "structures"]) -> Float[Array, "structures channels"]:
        w = self.W[...]
        phase = 2 * np.pi * q.astype(w.dtype)[:, None] * w[None]
        return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], -1)


class TableEmbedding(nnx.Module):
    """A learnt row for every value from `-offset` on."""

    def __init__(self, rows: int, channels: int, offset: int, *, rngs: nnx.Rngs):
        self.offset, self.rand_emb = offset, Table(rows, channels, rngs=rngs)

    def __call__(self, q: Int[Array, "structures"]) -> Float[Array, "structures channels"]:
        return self.rand_emb(q + self.offset)


class DatasetEmbedding(nnx.Module):
    """One learnt row per data-set name."""

    def __init__(self, names: tuple[str, ...], channels: int, *, rngs: nnx.Rngs):
        self.names = names
        self.dataset_emb_dict = nnx.Dict({name: Table(1, channels, rngs=rngs) for name in names})

    def __call__(self, index: Int[Array, "structures"]) -> Float[Array, "structures channels"]:
        return jnp.concatenate([self.dataset_emb_dict[name].weight[...] for name in self.names])[index]


class EdgeDegree(nnx.Module):
    """Initial features from the neighbours' distances, elements and directions."""

    def __init__(self, config: EsenConfig, scalars: int, *, rngs: nnx.Rngs):
        self.rows, self.channels = config.lmax + 1, config.channels
        self.rad_func = RadialMLP(scalars, config.edge_channels, self.rows * config.channels, rngs=rngs)

    def __call__(self, graph: AtomGraph, geometry: EdgeGeometry) -> NodeFeatures:
        m0 = self.rad_func(geometry.scalars).reshape(len(graph.src), self.rows, self.channels)
        message = jnp.einsum("emi,emc->eic", geometry.frame_out[:, : self.rows], m0)
        return sum_at_centres(message, graph) / EDGE_DEGREE_RESCALE


class EdgeWise(nnx.Module):
    """Messages: rotate into the edge frame, convolve, activate, convolve, rotate back, sum."""

    def __init__(self, config: EsenConfig, scalars: int, *, rngs: nnx.Rngs):
        self.config = config
        lmax, mmax, channels, hidden = config.lmax, config.orders, config.channels, config.hidden_channels
        extra = hidden * (lmax if config.activation == "gate" else 1)
        self.so2_conv_1 = ScaledSO2Convolution(
            scalars, config.edge_channels, lmax, mmax, 2 * channels, hidden, extra=extra, rngs=rngs
        )
        self.so2_conv_2 = SO2Convolution(lmax, mmax, hidden, channels, rngs=rngs)

    def __call__(self, x: NodeFeatures, graph: AtomGraph, geometry: EdgeGeometry, exchange: Exchange) -> NodeFeatures:
        if graph.own_edges is None:
            return self.messages(exchange(x), slice(None), x, graph, geometry)
        # The halo travels while messages of owned sources are computed; a barrier keeps XLA from merging the
        # matrix products of both parts, which would wait for the halo.
        own, away = graph.edge_parts
        graphdef, state = nnx.split(self)
        apart = nnx.merge(graphdef, jax.lax.optimization_barrier(state))
        return self.messages(x, own, x, graph, geometry) + apart.messages(exchange(x), away, x, graph, geometry)

    def messages(
        self,
        sources: Float[Array, "rows coefficients channels"],
        part: slice,
        x: NodeFeatures,
        graph: AtomGraph,
        geometry: EdgeGeometry,
    ) -> NodeFeatures:
        """Sum at each atom over one part of the edges."""
        pair = jnp.concatenate([sources[graph.src[part]], x[graph.dst[part]]], -1)
        rotated = jnp.einsum("emi,eic->emc", geometry.frame[part], pair)
        message = jnp.concatenate(self.convolve(rotated, geometry.scalars[part]), 1)
        message = jnp.einsum("emi,emc->eic", geometry.frame_out[part], message)
        return jax.ops.segment_sum(message, graph.dst[part], len(x), indices_are_sorted=True)

    def convolve(self, rotated: Float[Array, "edges rows channels"], inputs: Float[Array, "edges in"]) -> FrameFeatures:
        """Both convolutions and the activation between them, in the edge frame."""
        lmax, mmax = self.config.lmax, self.config.orders
        scalars, y = self.so2_conv_1(split_by_order(rotated, lmax, mmax), inputs)
        y = gate(y, scalars) if self.config.activation == "gate" else sphere_silu(y, scalars, lmax, mmax)
        return self.so2_conv_2(y)[1]


class Block(nnx.Module):
    """One message-passing layer: messages along edges, then a feed-forward per atom."""

    def __init__(self, config: EsenConfig, scalars: int, *, rngs: nnx.Rngs):
        lmax, channels, hidden = config.lmax, config.channels, config.hidden_channels
        feed_forward = SpectralFeedForward if config.feed_forward == "spectral" else GridFeedForward
        self.norm_1 = RMSNorm(lmax, channels)
        self.edge_wise = EdgeWise(config, scalars, rngs=rngs)
        self.norm_2 = RMSNorm(lmax, channels)
        self.atom_wise = feed_forward(lmax, channels, hidden, rngs=rngs)

    def __call__(self, h: NodeFeatures, graph: AtomGraph, geometry: EdgeGeometry, exchange: Exchange) -> NodeFeatures:
        x = add_system(self.norm_1(h), graph, geometry)
        h = h + self.edge_wise(x, graph, geometry, exchange)
        return h + self.atom_wise(self.norm_2(h))


class EnergyHead(nnx.Module):
    """Three linear maps with SiLU between, on l = 0."""

    def __init__(self, channels: int, hidden: int, *, rngs: nnx.Rngs):
        linear = partial(Linear, rngs=rngs)
        self.energy_block = Sequence(
            [linear(channels, hidden), Silu(), linear(hidden, hidden), Silu(), linear(hidden, 1)]
        )


class Esen(Potential):
    """The model; see the module docstring. `scale` and `references` as in `Potential`."""

    def __init__(
        self,
        config: EsenConfig,
        *,
        rngs: nnx.Rngs,
        scale: float = 1.0,
        references: tuple[tuple[int, float], ...] = (),
    ):
        self.config, self.scale, self.references = config, scale, references
        self.cutoff = config.cutoff_angstrom
        channels, width, rows = config.channels, config.edge_channels, config.max_element + 1
        self.sphere_embedding = Table(rows, channels, rngs=rngs)
        self.source_embedding = Table(rows, width, bound=0.001, rngs=rngs)
        self.target_embedding = Table(rows, width, bound=0.001, rngs=rngs)
        inputs = 0
        if config.charge_spin == "sinusoidal":
            self.charge_embedding = SinusoidalEmbedding(channels, rngs=rngs)
            self.spin_embedding = SinusoidalEmbedding(channels, rngs=rngs)
        elif config.charge_spin == "table":
            self.charge_embedding = TableEmbedding(2 * MAX_CHARGE + 1, channels, MAX_CHARGE, rngs=rngs)
            self.spin_embedding = TableEmbedding(MAX_SPIN + 1, channels, 0, rngs=rngs)
        inputs += 2 if config.charge_spin != "none" else 0
        if config.datasets:
            self.dataset_embedding = DatasetEmbedding(config.datasets, channels, rngs=rngs)
            inputs += 1
        if inputs:
            self.mix_csd = Linear(inputs * channels, channels, rngs=rngs)
        scalars = config.num_basis + 2 * width
        self.edge_degree_embedding = EdgeDegree(config, scalars, rngs=rngs)
        self.blocks = nnx.List(Block(config, scalars, rngs=rngs) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.lmax, channels)
        self.head = EnergyHead(channels, config.hidden_channels, rngs=rngs)

    def system(self, graph: AtomGraph) -> Float[Array, "structures channels"] | None:
        """SiLU of the mixed charge, spin and data-set embeddings; None if the model has none."""
        parts = []
        if self.config.charge_spin != "none":
            spin = self.spin_embedding(graph.spin)
            if self.config.charge_spin == "sinusoidal":
                spin = jnp.where(graph.spin[:, None] == 0, 0.0, spin)
            parts += [self.charge_embedding(graph.charge), spin]
        if self.config.datasets:
            parts.append(self.dataset_embedding(graph.dataset))
        return jax.nn.silu(self.mix_csd(jnp.concatenate(parts, -1))) if parts else None

    def geometry(self, graph: AtomGraph, vectors: Float[Array, "edges 3"], exchange: Exchange) -> EdgeGeometry:
        config = self.config
        r = jnp.sqrt((vectors * vectors).sum(-1))
        frame = so3.edge_frame(vectors / r[:, None], config.lmax, config.orders)
        scalars = [
            gaussian_basis(r, self.cutoff, config.num_basis),
            self.source_embedding(exchange(graph.numbers)[graph.src]),
            self.target_embedding(graph.numbers[graph.dst]),
        ]
        envelope = polynomial_envelope(r, self.cutoff)[:, None, None]
        return EdgeGeometry(frame, frame * envelope, jnp.concatenate(scalars, -1), self.system(graph))

    def embed(self, graph: AtomGraph, geometry: EdgeGeometry) -> NodeFeatures:
        zero = self.sphere_embedding(graph.numbers)[:, None]
        h = jnp.pad(zero, ((0, 0), (0, (self.config.lmax + 1) ** 2 - 1), (0, 0)))
        return add_system(h, graph, geometry) + self.edge_degree_embedding(graph, geometry)

    def readout(self, h: NodeFeatures, graph: AtomGraph) -> Float[Array, "atoms"]:
        return self.head.energy_block(self.norm(h)[:, 0])[:, 0]


def add_system(x: NodeFeatures, graph: AtomGraph, geometry: EdgeGeometry) -> NodeFeatures:
    """Add each structure's system vector to l = 0 of its atoms."""
    if geometry.system is None:
        return x
    return jnp.asarray(x).at[:, 0].add(geometry.system[graph.atom_structure])


def sum_at_centres(message: Float[Array, "edges coefficients channels"], graph: AtomGraph) -> NodeFeatures:
    sums = [
        jax.ops.segment_sum(message[part], graph.dst[part], len(graph.numbers), indices_are_sorted=True)
        for part in graph.edge_parts
    ]
    return sum(sums[1:], sums[0])


def load_state(config: EsenConfig, mapping: Mapping[str, np.ndarray], **options) -> Esen:
    """The model of `config` with weights from a flat mapping in the public implementation's names.

    Args:
        options: `scale` and `references` of `Esen`.

    Raises:
        StateMismatchError: names are missing or unknown, or a shape differs; all are listed.
    """
    model = nnx.eval_shape(lambda: Esen(config, rngs=nnx.Rngs(0), **options))
    return convert.load_state(model, mapping)


def save_state(model: Esen) -> dict[str, np.ndarray]:
    """The inverse of `load_state`."""
    return convert.save_state(model)
