"""What stages hand each other: copies within a process, one collective program between two.

Between processes on GPUs `jax.device_put` could copy directly; JAX refuses it on CPU, and the collective
works on both, so there is one path.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from janus_jax.runtime.layout import AXES, Device, Layout, assemble, shards

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

    def exchange(self, leaves: Leaves | None, shapes: Sequence, source: int, target: int) -> Leaves | None:
        """As `copy`, between processes; called by those at both ends, in one order.

        Args:
            leaves: what to send; None at the receiving end.
            shapes: of the stacked arrays.

        Returns:
            The arrays at the receiving end; None at the sending end.
        """
        pair = (min(source, target), max(source, target))
        key = (source, target, tuple((s.shape, str(s.dtype)) for s in shapes))
        if key not in self._programs:
            self._programs[key] = self._make(pair, source, shapes)
        run, blank = self._programs[key]
        sharding = self.layout.stacked(pair)
        both = []
        for k, shape in enumerate(shapes):
            pieces = dict(blank[k])
            if leaves is not None:
                pieces |= shards(leaves[k])
            both.append(assemble((2 * shape.shape[0], *shape.shape[1:]), shape.dtype, sharding, pieces))
        moved = run(both)
        if target not in self.layout.here:
            return None
        row = self.layout.stacked((target,))
        return [assemble(s.shape, s.dtype, row, shards(m)) for s, m in zip(shapes, moved, strict=True)]

    def stacked(self, pieces: dict[Device, jax.Array], like: jax.ShapeDtypeStruct, rank: int) -> jax.Array:
        return assemble(like.shape, like.dtype, self.layout.stacked((rank,)), pieces)

    def spread(self, pieces: dict[Device, jax.Array], shape: tuple[int, ...], dtype) -> jax.Array:
        """An array stacked over all devices, with zeros where there is no piece [1, *shape]."""
        layout = self.layout
        key = ("zeros", shape, str(dtype))
        if key not in self._programs:
            devices = [d for owned in layout.owned for d in owned]
            self._programs[key] = {d: jax.device_put(np.zeros((1, *shape), dtype), d) for d in devices}
        count = len(layout.everyone) * layout.width
        return assemble((count, *shape), dtype, layout.stacked(layout.everyone), self._programs[key] | pieces)

    def fetch(self, tree: Any, like: Any, rank: int) -> Any:
        """Arrays stacked on a rank on the host of every process, which all call this.

        Args:
            tree: None in processes without the rank.
            like: arrays or shapes of the same structure.
        """
        if jax.process_count() == 1:
            return jax.tree.map(np.asarray, tree)
        shapes, structure = jax.tree.flatten(like)
        given = [{}] * len(shapes) if tree is None else [shards(leaf) for leaf in jax.tree.leaves(tree)]
        whole = [self.spread(g, s.shape[1:], s.dtype) for g, s in zip(given, shapes, strict=True)]
        rows = len(self.layout.everyone)
        if "fetch" not in self._programs:
            everyone = self.layout.replicated(self.layout.everyone)
            self._programs["fetch"] = jax.jit(
                lambda leaves: [a.reshape(rows, -1, *a.shape[1:]).sum(0) for a in leaves], out_shardings=everyone
            )
        return jax.tree.unflatten(structure, [np.asarray(a) for a in self._programs["fetch"](whole)])

    def _make(self, pair: tuple[int, int], source: int, shapes: Sequence):
        mesh = self.layout.mesh(pair)
        way = [(pair.index(source), 1 - pair.index(source))]
        step = jax.shard_map(
            lambda leaves: [jax.lax.ppermute(a, "pipe", way) for a in leaves],
            mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=False,
        )  # fmt: skip
        devices = [d for rank in pair for d in self.layout.owned[rank]]
        blank = [{d: jax.device_put(jnp.zeros((1, *s.shape[1:]), s.dtype), d) for d in devices} for s in shapes]
        return jax.jit(step), blank
