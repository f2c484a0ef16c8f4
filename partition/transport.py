"""How rows travel between ranks under `shard_map`: a fixed set of permutations, or one padded all-to-all.

A message goes through a slot. `permute` has one slot for each logical offset; along it every rank sends to one
rank and receives from one, and slots may differ in length. `all_to_all` has one slot for each rank, all of
one length. Arrays hold the slots one after another: [sum of lengths, ...].
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from partition.errors import PartitionError
from partition.offsets import source

KINDS = ("permute", "all_to_all", "ragged", "all_gather")


@dataclasses.dataclass(frozen=True)
class Transport:
    """Static: part of what is compiled.

    Attributes:
        kind: one of `KINDS`.
        axis: name of the mesh axis.
        ranks: K.
        sources: for `permute`, slot by slot, the rank that each rank receives from; empty otherwise.
    """

    kind: str
    axis: str
    ranks: int
    sources: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self):
        if self.kind not in KINDS:
            raise PartitionError(f"unknown exchange {self.kind!r}; allowed: {', '.join(KINDS)}")

    @property
    def spread(self) -> int:
        """By how much fractional coordinates of two atoms of a build can differ (see `cell.together`)."""
        return 1 if self.ranks == 1 else 2

    @property
    def slots(self) -> int:
        return len(self.sources) if self.kind == "permute" else self.ranks

    def targets(self) -> np.ndarray:
        """[K, slots]: the rank that each rank sends to through each slot; itself where a slot is not used."""
        if self.kind == "permute":
            return np.array([np.argsort(row) for row in self.sources], np.int32).reshape(-1, self.ranks).T
        return np.broadcast_to(np.arange(self.ranks, dtype=np.int32), (self.ranks, self.ranks))

    def rank(self) -> jax.Array:
        """The rank that runs this."""
        return jax.lax.axis_index(self.axis)

    def send(self, rows: jax.Array, lengths: Sequence[int]) -> jax.Array:
        """Rows [sum of lengths, ...] through their slots; what arrives, in the same arrangement."""
        return self._move(rows, lengths, reverse=False)

    def back(self, rows: jax.Array, lengths: Sequence[int]) -> jax.Array:
        """The way back of `send`: to the rank that a slot's rows came from. Its exact transpose."""
        return self._move(rows, lengths, reverse=True)

    def _move(self, rows, lengths, *, reverse):
        if self.kind == "permute":
            starts = np.cumsum([0, *lengths])
            parts = []
            for slot, sources in enumerate(self.sources):
                pairs = [(where, to) if not reverse else (to, where) for to, where in enumerate(sources)]
                part = rows[starts[slot] : starts[slot + 1]]
                parts.append(jax.lax.ppermute(part, self.axis, pairs) if lengths[slot] else part)
            return jnp.concatenate(parts) if parts else rows
        slots = rows.reshape(self.ranks, -1, *rows.shape[1:])
        return jax.lax.all_to_all(slots, self.axis, 0, 0).reshape(rows.shape)


def permute(shape: tuple[int, int, int], offsets: Sequence[tuple[int, int, int]], axis: str) -> Transport:
    """One slot for each offset (source minus receiver) on the logical grid of the cut."""
    sources = tuple(tuple(int(rank) for rank in source(shape, offset)) for offset in offsets)
    return Transport("permute", axis, int(np.prod(shape)), sources)
