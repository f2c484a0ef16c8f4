"""Functions of distance shared by all models: basis, envelope, radial network, plain linear maps.

Module attributes are named so that the path of a parameter is its name in the public
implementations' checkpoints (`net.0.weight`, ...); weights are [out, in], as there.
"""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from janus_jax.typing import Array, Float

LAYER_NORM_EPS = 1e-5  # torch's default, not flax's: 1e-6 shifts results by 1e-4


def gaussian_basis(r: Float[Array, "edges"], cutoff: float, size: int) -> Float[Array, "edges basis"]:
    """Gaussians centred on linspace(0, cutoff, size), of twice their spacing's width."""
    spacing = cutoff / (size - 1)
    centres = jnp.linspace(0, cutoff, size, dtype=r.dtype)
    return jnp.exp(-0.5 * ((r[:, None] - centres[None]) / (2 * spacing)) ** 2)


def polynomial_envelope(r: Float[Array, "edges"], cutoff: float) -> Float[Array, "edges"]:
    """1 - 21 s^5 + 35 s^6 - 15 s^7 with s = r/cutoff, 0 beyond; two smooth derivatives at 1."""
    s = jnp.minimum(r / cutoff, 1.0)
    return 1 + s**5 * (-21 + s * (35 - 15 * s))


def uniform(rngs: nnx.Rngs, shape: tuple[int, ...], bound: float) -> nnx.Param:
    return nnx.Param(jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound))


class Linear(nnx.Module):
    """y = x W^T + b on the last axis; weights and bias uniform within 1/sqrt(in) (torch's default)."""

    def __init__(self, size_in: int, size_out: int, *, bias: bool = True, rngs: nnx.Rngs):
        bound = size_in**-0.5
        self.weight = uniform(rngs, (size_out, size_in), bound)
        self.bias = uniform(rngs, (size_out,), bound) if bias else None

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        y = x @ self.weight[...].T
        return y if self.bias is None else y + jnp.broadcast_to(self.bias[...], y.shape)


class LayerNorm(nnx.Module):
    """Layer normalisation over the last axis."""

    def __init__(self, size: int):
        self.weight, self.bias = nnx.Param(jnp.ones(size, jnp.float32)), nnx.Param(jnp.zeros(size, jnp.float32))

    def __call__(self, x: Float[Array, "edges channels"]) -> Float[Array, "edges channels"]:
        x = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + LAYER_NORM_EPS)
        return x * scale * self.weight[...][None] + self.bias[...][None]


class Silu(nnx.Module):
    """Holds the place of an activation in a numbered sequence."""

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        return jax.nn.silu(x)


class Sequence(nnx.List):
    """Modules applied in order; parameters are named by position."""

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        for module in self:
            x = module(x)
        return x


class RadialMLP(nnx.Module):
    """Linear, LayerNorm, SiLU, Linear, LayerNorm, SiLU, Linear over edge scalars."""

    def __init__(self, size_in: int, hidden: int, size_out: int, *, rngs: nnx.Rngs):
        linear = partial(Linear, rngs=rngs)
        self.net = Sequence(
            [
                linear(size_in, hidden),
                LayerNorm(hidden),
                Silu(),
                linear(hidden, hidden),
                LayerNorm(hidden),
                Silu(),
                linear(hidden, size_out),
            ]
        )

    def __call__(self, x: Float[Array, "edges in"]) -> Float[Array, "edges out"]:
        return self.net(x)


class Table(nnx.Module):
    """One learnt row per index; normal initialisation, or uniform within `bound`."""

    def __init__(self, rows: int, width: int, *, bound: float | None = None, rngs: nnx.Rngs):
        if bound is None:
            self.weight = nnx.Param(jax.random.normal(rngs.params(), (rows, width), jnp.float32))
        else:
            self.weight = uniform(rngs, (rows, width), bound)

    def __call__(self, index: Array) -> Array:
        return self.weight[...][index]
