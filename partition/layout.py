"""Who owns which atom, and the padded arrays that follow from it (on the host).

Atoms are numbered 0 to N - 1 (ids). A rank owns a contiguous run of `order`; its array has `rows` rows, of
which the first `counts[rank]` hold its atoms in this order and the rest are padding.
"""

import dataclasses
from typing import Any

import numpy as np

from partition.errors import PartitionError


@dataclasses.dataclass(frozen=True, eq=False)
class Cut:
    """A cut of N atoms into K ranks.

    Attributes:
        method: "hilbert", "morton" or "grid".
        shape: the logical grid (kx, ky, kz) the ranks are numbered in, last axis fastest; (K, 1, 1) for curves.
        order: [N] int64, ids, rank after rank.
        starts: [K + 1] int64, where each rank begins in `order`.
        reason: why `auto` took this one; empty otherwise.
    """

    method: str
    shape: tuple[int, int, int]
    order: np.ndarray
    starts: np.ndarray
    reason: str = ""

    @property
    def ranks(self) -> int:
        return len(self.starts) - 1

    @property
    def atoms(self) -> int:
        return len(self.order)

    @property
    def counts(self) -> np.ndarray:
        """Atoms of each rank [K]."""
        return np.diff(self.starts)

    @property
    def rows(self) -> int:
        """Rows of a rank's array without spare: the largest count, at least one."""
        return max(int(self.counts.max()), 1)

    def ids(self, rank: int) -> np.ndarray:
        """The atoms of a rank, in the order of its rows."""
        return self.order[self.starts[rank] : self.starts[rank + 1]]

    def owner(self) -> np.ndarray:
        """Rank of each atom [N]."""
        owner = np.empty(self.atoms, np.int32)
        owner[self.order] = np.repeat(np.arange(self.ranks, dtype=np.int32), self.counts)
        return owner

    def row(self) -> np.ndarray:
        """Row of each atom in the array of its rank [N]."""
        row = np.empty(self.atoms, np.int64)
        row[self.order] = np.arange(self.atoms) - np.repeat(self.starts[:-1], self.counts)
        return row

    def table(self, rows: int | None = None) -> np.ndarray:
        """Ids in padded layout [K, rows] (int64), -1 where there is padding.

        Raises:
            PartitionError: a rank has more atoms than rows.
        """
        rows = self.rows if rows is None else rows
        if self.atoms and rows < self.counts.max():
            raise PartitionError(f"{rows} rows a rank, but one owns {self.counts.max()} atoms")
        table = np.full((self.ranks, rows), -1, np.int64)
        table[np.arange(rows)[None] < self.counts[:, None]] = self.order
        return table

    def scatter(self, values: np.ndarray, rows: int | None = None, fill: Any = 0) -> np.ndarray:
        """Per-atom values [N, ...] in padded layout [K, rows, ...]."""
        if len(values) != self.atoms:
            raise PartitionError(f"{len(values)} values for {self.atoms} atoms")
        table = self.table(rows)
        padded = np.full((*table.shape, *values.shape[1:]), fill, values.dtype)
        padded[table >= 0] = values[self.order]
        return padded

    def gather(self, padded: np.ndarray) -> np.ndarray:
        """The inverse of `scatter`: values [N, ...] by atom id."""
        if padded.shape[0] != self.ranks:
            raise PartitionError(f"an array of {padded.shape[0]} ranks for a cut of {self.ranks}")
        values = np.empty((self.atoms, *padded.shape[2:]), padded.dtype)
        values[self.order] = padded[self.table(padded.shape[1]) >= 0]
        return values

    def migrate(self, padded: np.ndarray, new: "Cut", rows: int | None = None, fill: Any = 0) -> np.ndarray:
        """A padded array of this cut in the layout of another cut of the same atoms."""
        return new.scatter(self.gather(padded), rows, fill)
