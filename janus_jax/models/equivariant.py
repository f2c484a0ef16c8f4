"""Equivariant building blocks: norm, per-degree linear maps, SO(2) convolution, activations.

Node features are [atoms, (lmax+1)^2, channels]. Edge-frame features are a list over m = 0..mmax of
[edges, parts, channels], in the m-major order of `so3`: part (l) for m = 0; (l, +m) then (l, -m)
for m > 0. Formulas: reference/models.md sections 0 and B.2.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from janus_jax.models import so3
from janus_jax.models.radial import Linear, RadialMLP, Sequence, Silu, uniform
from janus_jax.typing import Array, Float

NORM_EPS = 1e-5

NodeFeatures = Float[Array, "atoms coefficients channels"]
FrameFeatures = list[Float[jax.Array, "edges _parts _channels"]]


class RMSNorm(nnx.Module):
    """`rms_norm_sh`: one statistic per atom over all degrees (each weighted alike) and channels."""

    def __init__(self, lmax: int, channels: int):
        self.lmax = lmax
        self.affine_weight = nnx.Param(jnp.ones((lmax + 1, channels), jnp.float32))
        self.affine_bias = nnx.Param(jnp.zeros(channels, jnp.float32))

    def __call__(self, x: NodeFeatures) -> NodeFeatures:
        l = so3.degrees(self.lmax)
        x = jnp.asarray(x)
        x = x.at[:, 0].add(-x[:, 0].mean(-1, keepdims=True))
        weight = jnp.asarray(1 / ((2 * l + 1) * (self.lmax + 1)), x.dtype)[None, :]
        variance = ((x * x).mean(-1) * weight).sum(-1)[:, None, None]
        y = x * jax.lax.rsqrt(variance + NORM_EPS) * self.affine_weight[...][l][None]
        return y.at[:, 0].add(self.affine_bias[...][None])


class SO3Linear(nnx.Module):
    """y_lm = W_l x_lm, plus a bias on l = 0."""

    def __init__(self, lmax: int, size_in: int, size_out: int, *, rngs: nnx.Rngs):
        self.lmax = lmax
        self.weight = uniform(rngs, (lmax + 1, size_out, size_in), size_in**-0.5)
        self.bias = nnx.Param(jnp.zeros(size_out, jnp.float32))

    def __call__(self, x: Float[Array, "atoms coefficients in"]) -> Float[Array, "atoms coefficients out"]:
        weight = self.weight[...]
        y = jnp.concatenate([x[:, l * l : (l + 1) ** 2] @ weight[l].T for l in range(self.lmax + 1)], 1)
        return y.at[:, 0].add(self.bias[...][None])


class SO2Linear(nnx.Module):
    """Map of the (+m, -m) parts that commutes with rolls about the edge.

    out_+ = W_a x_+ - W_b x_-; out_- = W_b x_+ + W_a x_-, done as one matrix product.
    """

    def __init__(self, size_in: int, size_out: int, *, rngs: nnx.Rngs):
        self.fc = Linear(size_in, 2 * size_out, bias=False, rngs=rngs)
        self.fc.weight[...] = self.fc.weight[...] * 0.5**0.5

    def __call__(self, x: Float[Array, "edges in2"]) -> Float[Array, "edges out2"]:
        a, b = jnp.split(self.fc.weight[...], 2)
        return x @ jnp.block([[a, -b], [b, a]]).T


class SO2Convolution(nnx.Module):
    """Linear maps per m on edge-frame features; `extra` additional scalars come from m = 0."""

    def __init__(self, lmax: int, mmax: int, size_in: int, size_out: int, *, extra: int = 0, rngs: nnx.Rngs):
        self.degrees = tuple(lmax + 1 - m for m in range(mmax + 1))
        self.extra, self.size_out = extra, size_out
        self.fc_m0 = Linear(self.degrees[0] * size_in, extra + self.degrees[0] * size_out, rngs=rngs)
        self.so2_m_conv = nnx.List(SO2Linear(n * size_in, n * size_out, rngs=rngs) for n in self.degrees[1:])

    def __call__(self, x: FrameFeatures) -> tuple[Float[Array, "edges extra"], FrameFeatures]:
        edges = len(x[0])
        flat = [jnp.asarray(part).reshape(edges, part.shape[1] * part.shape[2]) for part in x]
        y0 = self.fc_m0(flat[0])
        y = [y0[:, self.extra :]] + [linear(part) for linear, part in zip(self.so2_m_conv, flat[1:], strict=True)]
        return y0[:, : self.extra], [
            jnp.reshape(part, (edges, part.shape[1] // self.size_out, self.size_out)) for part in y
        ]


class ScaledSO2Convolution(SO2Convolution):
    """An SO(2) convolution whose input is first multiplied by radial factors, alike for +m and -m."""

    def __init__(self, inputs: int, radial_hidden: int, lmax: int, mmax: int, size_in: int, *args, **kwargs):
        super().__init__(lmax, mmax, size_in, *args, **kwargs)
        self.rad_func = RadialMLP(inputs, radial_hidden, sum(self.degrees) * size_in, rngs=kwargs["rngs"])

    def __call__(
        self, x: FrameFeatures, inputs: Float[Array, "edges inputs"]
    ) -> tuple[Float[Array, "edges extra"], FrameFeatures]:
        factors = self.rad_func(inputs).reshape(len(inputs), sum(self.degrees), x[0].shape[-1])
        rho = jnp.split(factors, np.cumsum(self.degrees)[:-1], 1)
        doubled = [rho[0]] + [jnp.tile(part, (1, 2, 1)) for part in rho[1:]]
        return super().__call__([part * factor for part, factor in zip(x, doubled, strict=True)])


def split_by_order(x: Float[Array, "edges rows channels"], lmax: int, mmax: int) -> FrameFeatures:
    """m-major rows as a list over m."""
    return jnp.split(x, np.cumsum([len(part) for part in so3.m_major(lmax, mmax)])[:-1], 1)


def gate(x: FrameFeatures, scalars: Float[Array, "edges extra"]) -> FrameFeatures:
    """SiLU on l = 0; every other coefficient times the sigmoid of its degree's gate [lmax, channels]."""
    edges, _, channels = x[0].shape
    gates = jax.nn.sigmoid(scalars).reshape(edges, x[0].shape[1] - 1, channels)
    zero = jnp.concatenate([jax.nn.silu(x[0][:, :1]), x[0][:, 1:] * gates], 1)
    rest = [part * jnp.tile(gates[:, m:], (1, 2, 1)) for m, part in enumerate(x[1:])]
    return [zero, *rest]


def sphere_silu(x: FrameFeatures, scalars: Float[Array, "edges extra"], lmax: int, mmax: int) -> FrameFeatures:
    """SiLU at the points of a grid on the sphere; l = 0 is replaced by the SiLU of `scalars`.

    Equivariant to the grid's accuracy only, and so not exactly independent of the roll of the
    edge frame.
    """
    m_major = np.concatenate(so3.m_major(lmax, mmax))
    rows = np.argsort(np.argsort(m_major))  # the grid's columns are the kept coefficients in order
    to_grid, from_grid = (jnp.asarray(grid[:, rows], x[0].dtype) for grid in so3.sphere_grid(lmax, mmax))
    values = jax.nn.silu(jnp.einsum("pi,eic->epc", to_grid, jnp.concatenate(x, 1)))
    y = jnp.einsum("pi,epc->eic", from_grid, values).at[:, 0].set(jax.nn.silu(scalars))
    return split_by_order(y, lmax, mmax)


class SpectralFeedForward(nnx.Module):
    """Per-degree linear, gate, per-degree linear. The gates pass SiLU and then a sigmoid, as published."""

    def __init__(self, lmax: int, channels: int, hidden: int, *, rngs: nnx.Rngs):
        self.lmax = lmax
        self.scalar_mlp = Sequence([Linear(channels, lmax * hidden, rngs=rngs)])
        self.so3_linear_1 = SO3Linear(lmax, channels, hidden, rngs=rngs)
        self.so3_linear_2 = SO3Linear(lmax, hidden, channels, rngs=rngs)

    def __call__(self, x: NodeFeatures) -> NodeFeatures:
        gates = jax.nn.sigmoid(jax.nn.silu(self.scalar_mlp(x[:, 0])))
        y = self.so3_linear_1(x)
        gates = gates.reshape(len(x), self.lmax, y.shape[-1])[:, so3.degrees(self.lmax)[1:] - 1]
        return self.so3_linear_2(jnp.concatenate([jax.nn.silu(y[:, :1]), y[:, 1:] * gates], 1))


class GridFeedForward(nnx.Module):
    """A pointwise network over the values on a grid on the sphere."""

    def __init__(self, lmax: int, channels: int, hidden: int, *, rngs: nnx.Rngs):
        self.lmax = lmax
        linear = partial(Linear, bias=False, rngs=rngs)
        self.grid_mlp = Sequence(
            [linear(channels, hidden), Silu(), linear(hidden, hidden), Silu(), linear(hidden, channels)]
        )

    def __call__(self, x: NodeFeatures) -> NodeFeatures:
        to_grid, from_grid = (jnp.asarray(grid, x.dtype) for grid in so3.sphere_grid(self.lmax, self.lmax))
        values = self.grid_mlp(jnp.einsum("pi,aic->apc", to_grid, x))
        return jnp.einsum("pi,apc->aic", from_grid, values)
