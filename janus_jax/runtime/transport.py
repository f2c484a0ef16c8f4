"""What stages hand each other: copies within a process, one collective program between two.

Between processes on GPUs `jax.device_put` could copy directly; JAX refuses it on CPU, and the collective
works on both, so there is one path.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from janus_jax.runtime.layout import AXES, Device, Layout, assemble, shards
from janus_jax.typing import shapes

Leaves = list[jax.Array]


class Transport:
    """Moves stacked arrays from the devices of one rank to those of another, entry by entry."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self._programs: dict[Any, Any] = {}

    def local(self, source: int, target: int) -> bool:
        """Whether this process holds both ends, so that the other end need not be waited for."""
        return self.layout.whole(source) and self.layout.whole(target)

    def copy(self, leaves: Leaves, target: int) -> Leaves:
        """One call for all that an instruction moves; both ends are in this process."""
        return jax.device_put(leaves, self.layout.stacked((target,)))

    def exchange(self, leaves: Leaves | None, like: Sequence, source: int, target: int) -> Leaves | None:
        """As `copy`, between processes; called by those at both ends, in one order.

        Args:
            leaves: what to send; None at the receiving end.
            like: shapes of the stacked arrays.

        Returns:
            The arrays at the receiving end; None at the sending end.
        """
        pair = (min(source, target), max(source, target))
        key = (source, target, tuple((s.shape, str(s.dtype)) for s in like))
        if key not in self._programs:
            self._programs[key] = self._make(pair, source, like)
        run, blank = self._programs[key]
        sharding = self.layout.stacked(pair)
        both = []
        for k, shape in enumerate(like):
            pieces = dict(blank[k])
            if leaves is not None:
                pieces |= shards(leaves[k])
            both.append(assemble((2 * shape.shape[0], *shape.shape[1:]), shape.dtype, sharding, pieces))
        moved = run(both)
        if target not in self.layout.here:
            return None
        row = self.layout.stacked((target,))
        return [assemble(s.shape, s.dtype, row, shards(m)) for s, m in zip(like, moved, strict=True)]

    def spread(self, pieces: dict[Device, jax.Array], shape: tuple[int, ...], dtype) -> jax.Array:
        """An array stacked over all devices, with zeros where there is no piece [1, *shape]."""
        layout = self.layout
        count = len(layout.everyone) * layout.width
        key = ("zero", str(dtype))
        if not shape and key not in self._programs:  # every step wants these
            self._programs[key] = self._blank(shape, dtype, layout.everyone)
        zeros = self._blank(shape, dtype, layout.everyone) if shape else self._programs[key]
        return assemble((count, *shape), dtype, layout.stacked(layout.everyone), zeros | pieces)

    def _blank(self, shape: tuple[int, ...], dtype, ranks: Sequence[int]) -> dict[Device, jax.Array]:
        """Zeros [1, *shape] on this process's devices of some ranks."""
        zero = np.zeros((1, *shape), dtype)
        return {d: jax.device_put(zero, d) for rank in ranks for d in self.layout.owned[rank]}

    def fetch(self, tree: Any, like: Any, rank: int) -> Any:
        """Arrays stacked on a rank on the host of every process, which all call this.

        Args:
            tree: None in processes without the rank.
            like: arrays or shapes of the same structure.
        """
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, tree)
        leaves, structure = jax.tree.flatten(like)
        given = [{}] * len(leaves) if tree is None else [shards(leaf) for leaf in jax.tree.leaves(tree)]
        return jax.tree.unflatten(structure, self.gather(given, shapes(leaves, drop=1)))

    def gather(
        self, pieces: Sequence[dict[Device, jax.Array]], like: Sequence[jax.ShapeDtypeStruct]
    ) -> list[np.ndarray]:
        """Arrays [devices of a rank, *shape] on the host of every process, which all call this.

        Args:
            pieces: [1, *shape] by device of one rank; of this process, there may be none.
            like: shapes of the pieces, without their first axis.
        """
        whole = [self.spread(p, s.shape, s.dtype) for p, s in zip(pieces, like, strict=True)]
        rows = len(self.layout.everyone)
        if "fetch" not in self._programs:
            everyone = self.layout.replicated(self.layout.everyone)
            self._programs["fetch"] = jax.jit(
                lambda leaves: [a.reshape(rows, -1, *a.shape[1:]).sum(0) for a in leaves], out_shardings=everyone
            )
        return [np.asarray(a) for a in self._programs["fetch"](whole)]

    def _make(self, pair: tuple[int, int], source: int, like: Sequence):
        mesh = self.layout.mesh(pair)
        way = [(pair.index(source), 1 - pair.index(source))]
        step = jax.shard_map(
            lambda leaves: [jax.lax.ppermute(a, "pipe", way) for a in leaves],
            mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=False,
        )  # fmt: skip
        target = pair[1 - pair.index(source)]  # the sending end has its own to put in
        return jax.jit(step), [self._blank(s.shape[1:], s.dtype, (target,)) for s in like]
