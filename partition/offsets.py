"""Logical offsets between ranks, what an exchange along them costs, and the choice of the cut by that cost."""

import dataclasses

import numpy as np

from partition.cut import Atoms, cut
from partition.exchange import Traffic, requests, traffic
from partition.layout import Cut


def padded_bytes(traffic: Traffic, cut: Cut) -> int:
    """Bytes a rank sends in one exchange of one 4-byte number an atom, padding included.

    A grid sends one permutation for each logical offset, as long as the longest of its messages; along a
    curve every rank is an offset, so it is an all-to-all whose parts are as long as the longest one.
    """
    if cut.method == "grid":
        ranks, used = np.arange(cut.ranks), offsets(cut.shape, traffic.atoms > 0)
        return 4 * int(sum(traffic.atoms[ranks, source(cut.shape, offset)].max() for offset in used))
    return 4 * int(traffic.atoms.max(initial=0)) * (cut.ranks - 1)


def offsets(shape: tuple[int, int, int], pairs: np.ndarray) -> tuple[tuple[int, int, int], ...]:
    """Logical offsets (source minus asking rank, modulo the grid) along which some rank asks another one."""
    asking, asked = np.nonzero(pairs)
    difference = (np.stack(np.unravel_index(asked, shape), -1) - np.stack(np.unravel_index(asking, shape), -1)) % shape
    return tuple(sorted({(int(x), int(y), int(z)) for x, y, z in np.unique(difference, axis=0)} - {(0, 0, 0)}))


def source(shape: tuple[int, int, int], offset: tuple[int, int, int]) -> np.ndarray:
    """The rank each rank receives from along an offset [K]: a permutation."""
    where = np.stack(np.unravel_index(np.arange(np.prod(shape)), shape), -1)
    return np.asarray(np.ravel_multi_index(tuple(((where + offset) % shape).T), shape))


def choose(system: Atoms, ranks: int, cutoff: float, **weighted) -> Cut:
    """The one of the grid and the Hilbert cut that is predicted to send fewer bytes (`cut(..., "auto")`)."""
    if ranks == 1 or len(system) == 0:
        reason = "one rank" if ranks == 1 else "no atoms"
        return dataclasses.replace(cut(system, ranks, "hilbert", cutoff=cutoff, **weighted), reason=reason)
    stride = max(len(system) // ranks // 2000, 1)
    found = {}
    for method in ("grid", "hilbert"):
        made = cut(system, ranks, method, cutoff=cutoff, **weighted)
        found[method] = (padded_bytes(traffic(requests(system, made, cutoff), stride=stride), made), made)
    best = min(found, key=lambda method: (found[method][0], method))
    shape = "x".join(str(k) for k in found["grid"][1].shape)
    reason = f"grid {shape}: {found['grid'][0]} bytes a rank and number, hilbert: {found['hilbert'][0]}"
    return dataclasses.replace(found[best][1], reason=reason)
