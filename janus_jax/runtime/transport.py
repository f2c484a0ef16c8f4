"""What stages hand each other: copies within a process, one collective program between two.

Between processes on GPUs `jax.device_put` could copy directly; JAX refuses it on CPU, and the collective
works on both, so there is one path.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from janus_jax.runtime.layout import AXES, Layout, assemble, shards

Leaves = list[jax.Array]


class Transport:
    """Moves stacked arrays from the devices of one rank to those of another, entry by entry."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self._programs: dict[tuple, tuple] = {}

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
