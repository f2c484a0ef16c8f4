"""Lengths of fixed arrays: buckets, what a build needed, and growth. Nothing is ever cut off silently.

A build runs in arrays of the lengths of a `Capacity` and reports what it would have needed (`Need`, the same
fields, the largest of all ranks). `grow` gives the next capacity, or None if all fitted. A count that follows
an overflow is a lower bound, so growth may take a few builds.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from partition.errors import CapacityError, CellError, checked

SPARE = 1.1
Leaf = Any  # an array, or what stands for one in a tree of shapes or of shardings


def bucket(count: int) -> int:
    """The next of eight lengths an octave: at most an eighth is spare, and few lengths are ever compiled."""
    count = checked("rows", max(int(count), 8))
    step = 1 << max(count.bit_length() - 4, 0)
    return min(-(-count // step) * step, 2**31 - 1)


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Lengths of one rank's arrays; static, so each of them is compiled once.

    Attributes:
        sent: atoms sent to each slot before the search.
        images: periodic images looked at.
        near: images of own and of received atoms near the rank's box.
        blocks, chunk: blocks of candidates, and candidates, near one chunk of queries.
        degree: edges of one atom.
        local, remote: edges to own and to received atoms, for each cutoff.
        halo: atoms received through each slot, for each cutoff.
    """

    sent: tuple[int, ...]
    images: int
    near: int
    blocks: int
    chunk: int
    degree: int
    local: tuple[int, ...]
    remote: tuple[int, ...]
    halo: tuple[tuple[int, ...], ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Need:
    """What a build needed: as `Capacity`, arrays; and the reach of what it assumed.

    Attributes:
        outside: requests [K, K] bool between ranks (asked, asking) that no slot serves.
        far: whether positions are not finite or too many cells away for 32 bits.
    """

    sent: Leaf
    images: Leaf
    near: Leaf
    blocks: Leaf
    chunk: Leaf
    degree: Leaf
    local: Leaf
    remote: Leaf
    halo: Leaf
    outside: Leaf
    far: Leaf


def over(capacity: Capacity, need: Need) -> dict[str, tuple[int, int]]:
    """Names of the arrays that were too short, with need and capacity."""
    found = {}
    for field in dataclasses.fields(Capacity):
        needed = np.ravel(np.asarray(getattr(need, field.name)))
        have = np.ravel(np.asarray(getattr(capacity, field.name)))
        for n, h in zip(needed.tolist(), have.tolist(), strict=True):
            if n > h:
                found[field.name] = max(found.get(field.name, (0, 0)), (n, h))
    return found


def used(capacity: Capacity, need: Need) -> dict[str, float]:
    """Part of each array that was needed, of the fullest."""
    pairs = {
        field.name: (
            np.ravel(np.asarray(getattr(need, field.name))),
            np.ravel(np.asarray(getattr(capacity, field.name))),
        )
        for field in dataclasses.fields(Capacity)
    }
    return {name: float((n / np.maximum(h, 1)).max(initial=0)) for name, (n, h) in pairs.items()}


def grow(capacity: Capacity, need: Need) -> Capacity | None:
    """The next capacity with room for `need` and a tenth more; None if all fitted."""
    if not over(capacity, need):
        return None

    def longer(needed: Any, have: Any) -> Any:
        if isinstance(have, tuple):
            return tuple(longer(n, h) for n, h in zip(needed, have, strict=True))
        return bucket(int(SPARE * int(needed))) if needed > have else have

    return Capacity(**{
        field.name: longer(np.asarray(getattr(need, field.name)), getattr(capacity, field.name))
        for field in dataclasses.fields(Capacity)
    })  # fmt: skip


def check(capacity: Capacity, need: Need) -> None:
    """Refuse a build that did not fit.

    Raises:
        CapacityError: with the names, needs and capacities; also for requests that no slot serves.
        CellError: positions are not finite or too far away.
    """
    if np.asarray(need.far).any():
        raise CellError("positions are not finite, or more than 2^30 cells away; wrap them")
    found = over(capacity, need)
    unserved = int(np.asarray(need.outside).sum())
    if unserved:
        found["requests without a slot"] = (unserved, 0)
    if found:
        raise CapacityError(found)
