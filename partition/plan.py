"""The halo exchange of one cutoff: which rows go where, the halo behind the owned rows, edges to either apart.

A plan is made at a rebuild (`topology.build`) and is an argument of compiled code: another plan of the same
lengths compiles nothing. Rows of a rank are its owned rows [n], then the halo [h], slot after slot; `src` of
edges counts both. Everything here runs under shard_map and is linear in the features, so that it can be
differentiated as often as one likes (the ragged exchange in reverse mode only); `accumulate_halo` is the exact
transpose of `exchange_halo`.

Source: Tessera, section 3.4 (plan reuse, one buffer for several quantities).
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from partition.capacity import Leaf
from partition.transport import Transport


class Ragged(NamedTuple):
    """One direction of `jax.lax.ragged_all_to_all`: [K] int32 each, by the rank at the other end."""

    input_offsets: Leaf
    send_sizes: Leaf
    output_offsets: Leaf
    receive_sizes: Leaf


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _ragged(buffer: jax.Array, out: Ragged, back: Ragged, axis: str) -> jax.Array:
    """Rows to other ranks by sizes known at run time. Its transpose is itself the other way round."""
    return jax.lax.ragged_all_to_all(buffer, jnp.zeros_like(buffer), *out, axis_name=axis)


def _ragged_forward(buffer, out, back, axis):
    return _ragged(buffer, out, back, axis), (out, back)


def _ragged_backward(axis, residuals, cotangent):
    out, back = residuals
    return _ragged(cotangent, back, out, axis), None, None


_ragged.defvjp(_ragged_forward, _ragged_backward)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Plan:
    """Tables of one rank for one cutoff.

    Attributes:
        send: [h] int32, owned rows to send, slot after slot.
        send_mask, halo_mask: [h] bool, which rows to send and which halo rows are real.
        local, remote: `search.Edges` from owned rows and from halo rows (`src` from n on), with the skin.
        ragged: for that exchange, sizes and offsets of the way out and of the way back; its halo has no padding
            between ranks.
        transport, lengths: static; the halo of slot p has lengths[p] rows.
    """

    send: Leaf
    send_mask: Leaf
    halo_mask: Leaf
    local: Leaf
    remote: Leaf
    ragged: Leaf
    transport: Transport = dataclasses.field(metadata={"static": True})
    lengths: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    @property
    def halo(self) -> int:
        """Rows of the halo, padding included."""
        return self.halo_mask.shape[-1]


def halo(features: Any, plan: Plan) -> Any:
    """Rows [h, ...] of other ranks that this rank's edges need; padding is zero.

    Args:
        features: [n, ...], or a pytree of such; leaves of one dtype travel in one buffer.
    """
    leaves, treedef = jax.tree.flatten(features)
    out: list[Any] = [None] * len(leaves)
    for dtype in dict.fromkeys(leaf.dtype for leaf in leaves):
        at = [k for k, leaf in enumerate(leaves) if leaf.dtype == dtype]
        flat = [leaves[k].reshape(len(leaves[k]), -1) for k in at]
        moved = _exchange(flat[0] if len(flat) == 1 else jnp.concatenate(flat, 1), plan)
        start = 0
        for k, part in zip(at, flat, strict=True):
            out[k] = moved[:, start : start + part.shape[1]].reshape(-1, *leaves[k].shape[1:])
            start += part.shape[1]
    return treedef.unflatten(out)


def exchange_halo(features: Any, plan: Plan) -> Any:
    """Owned rows followed by the halo: [n + h, ...] of [n, ...], leaf by leaf."""
    return jax.tree.map(lambda own, other: jnp.concatenate([own, other]), features, halo(features, plan))


def accumulate_halo(features: Any, plan: Plan) -> Any:
    """Transpose of `exchange_halo`: what halo rows of [n + h, ...] hold is added to the rows of their owners."""

    def one(leaf):
        owned = jnp.zeros((leaf.shape[0] - plan.halo, *leaf.shape[1:]), leaf.dtype)
        return jax.vjp(lambda own: exchange_halo(own, plan), owned)[1](leaf)[0]

    return jax.tree.map(one, features)


def _exchange(rows: jax.Array, plan: Plan) -> jax.Array:
    """Halo rows [h, width] of owned rows [n, width]."""
    transport = plan.transport
    if transport.kind == "all_gather":
        gathered = jax.lax.all_gather(rows, transport.axis, tiled=True)
        return jnp.where(plan.halo_mask[:, None], gathered, jnp.zeros((), rows.dtype))
    buffer = jnp.where(plan.send_mask[:, None], rows[plan.send], jnp.zeros((), rows.dtype))
    if plan.ragged is not None:
        return _ragged(buffer, *plan.ragged, transport.axis)
    return transport.send(buffer, plan.lengths)
