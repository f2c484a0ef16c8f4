"""Which ranks hold which parameters, and a whole training state as the parts that ranks hold and change.

A parameter is held by every rank that reads it: the parameters of a block by one, those of the shared
geometry by all, and with schedules that run energy and forces on different ranks, most by two. Parameters
with the same holders form a group. A group is changed by one program over its ranks, so that copies
cannot drift apart.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from janus_jax.runtime.layout import Layout, assemble, scattered, shards, view
from janus_jax.schedule.instructions import Schedule
from janus_jax.stages import Path, Stage
from janus_jax.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class Group:
    """Parameters with the same holders, by their paths in the model."""

    ranks: tuple[int, ...]
    paths: tuple[Path, ...]

    def part(self, params: nnx.State) -> nnx.State:
        flat = dict(nnx.to_flat_state(params))
        return nnx.from_flat_state([(path, flat[path]) for path in self.paths])


def make_groups(stages: Sequence[Stage], schedule: Schedule) -> list[Group]:
    """The groups, in an order that all processes agree on."""
    holders: dict[Path, set[int]] = {}
    for number, stage in enumerate(stages):
        for path, _ in nnx.to_flat_state(stage.params):
            ranks = schedule.energy_device[number], schedule.force_device[number]
            holders.setdefault(stage.in_model(path), set()).update(ranks)
    groups: dict[tuple[int, ...], list[Path]] = {}
    for path, ranks in holders.items():
        groups.setdefault(tuple(sorted(ranks)), []).append(path)
    return [Group(ranks, tuple(sorted(paths, key=str))) for ranks, paths in sorted(groups.items())]


def _part_state(method: optax.GradientTransformation, params: nnx.State, step: jax.Array) -> TrainState:
    return TrainState(params, params, nnx.State({}), method.init(params), step)


class Parts:
    """A `TrainState` of the whole model, its leaves on the ranks that hold them, and the parts it is made of.

    Leaves that belong to no parameter (counts of steps) are on all ranks.

    Args:
        like: the state of one device, or its shapes.
        shard: spread optimizer state and averages over the data axis.
    """

    def __init__(
        self,
        layout: Layout,
        groups: Sequence[Group],
        like: TrainState,
        method: optax.GradientTransformation,
        shard: bool,
    ):
        self.layout, self.groups, self.spread = layout, groups, shard
        self._unshard: list[Any] | None = None
        leaves, self.tree = jax.tree_util.tree_flatten_with_path(like)
        index = {jax.tree_util.keystr(path): k for k, (path, _) in enumerate(leaves)}
        self.shapes = [leaf.shape for _, leaf in leaves]
        self.dtypes = [leaf.dtype for _, leaf in leaves]
        self.trees: list[Any] = []
        self.places: list[list[int]] = []
        holders: list[set[int]] = [set() for _ in leaves]
        for number, group in enumerate(groups):
            params = group.part(like.params)
            part = jax.eval_shape(partial(_part_state, method), params, like.step)
            paths, tree = jax.tree_util.tree_flatten_with_path(part)
            self.trees.append(tree)
            self.places.append([index[jax.tree_util.keystr(path)] for path, _ in paths])
            for place in self.places[-1]:
                holders[place].add(number)
        common = layout.everyone
        self.single = [len(h) == 1 for h in holders]
        self.ranks = [groups[min(h)].ranks if len(h) == 1 else common for h in holders]
        mean = [str(path[0]) in (".ema", ".optimizer") for path, _ in leaves]
        numbered = jax.tree.unflatten(self.tree, range(len(leaves)))
        self.params_ranks = [self.ranks[k] for k in jax.tree.leaves(numbered.params)]
        self.shardings = [
            self._sharding(ranks, leaf.shape, shard and spread and single)
            for ranks, (_, leaf), spread, single in zip(self.ranks, leaves, mean, self.single, strict=True)
        ]

    def _sharding(self, ranks: tuple[int, ...], shape: tuple[int, ...], spread: bool):
        mesh = self.layout.mesh(ranks)
        if spread:
            data = mesh.shape["data"]
            for axis, length in enumerate(shape):
                if length and length % data == 0:
                    spec = jax.sharding.PartitionSpec(*(None,) * axis, "data")
                    return jax.sharding.NamedSharding(mesh, spec)
        return self.layout.replicated(ranks)

    def place(self, state: TrainState) -> TrainState:
        """A state of host arrays or of one device, on the ranks."""
        pairs = zip(jax.tree.leaves(state), self.shardings, strict=True)
        return jax.tree.unflatten(self.tree, [scattered(np.asarray(leaf), sharding) for leaf, sharding in pairs])

    def unsharded(self, params: nnx.State) -> nnx.State:
        """Parameters or averages, the same on all devices of their ranks."""
        if not self.spread:
            return params
        leaves, tree = jax.tree.flatten(params)
        if self._unshard is None:
            self._unshard = [jax.jit(lambda a: a, out_shardings=self.layout.replicated(r)) for r in self.params_ranks]
        here, triples = set(self.layout.here), zip(self._unshard, leaves, self.params_ranks, strict=True)
        return jax.tree.unflatten(tree, [run(leaf) if here & set(r) else leaf for run, leaf, r in triples])

    def here(self, group: Group) -> bool:
        return any(rank in self.layout.here for rank in group.ranks)

    def part(self, leaves: Sequence[jax.Array], number: int) -> TrainState:
        """What group `number` changes, given the leaves of the whole state."""
        group = self.groups[number]
        own = self.layout.replicated(group.ranks)
        chosen = [leaves[k] if self.single[k] else view(leaves[k], own) for k in self.places[number]]
        return jax.tree.unflatten(self.trees[number], chosen)

    def part_shardings(self, number: int) -> Any:
        own = self.layout.replicated(self.groups[number].ranks)
        chosen = [self.shardings[k] if self.single[k] else own for k in self.places[number]]
        return jax.tree.unflatten(self.trees[number], chosen)

    def merged(self, state: TrainState, parts: dict[int, TrainState]) -> TrainState:
        """The whole state with the changed parts of this process in it."""
        leaves = jax.tree.leaves(state)
        pieces: dict[int, dict] = {}
        for number, part in parts.items():
            for k, leaf in zip(self.places[number], jax.tree.leaves(part), strict=True):
                if self.single[k]:
                    leaves[k] = leaf
                else:
                    pieces.setdefault(k, {}).update(shards(leaf))
        for k, found in pieces.items():
            leaves[k] = assemble(self.shapes[k], self.dtypes[k], self.shardings[k], found)
        return jax.tree.unflatten(self.tree, leaves)
