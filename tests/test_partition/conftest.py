"""Shared by the tests on devices: builds that are compiled once and serve many systems of few atoms."""

import dataclasses
import functools
import os

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from partition.builder import stacked
from partition.capacity import Capacity, Need, check
from partition.cell import images, working_cell
from partition.cut import atoms
from partition.errors import CapacityError, CellError
from partition.layout import Cut
from partition.plan import exchange_halo
from partition.testing import CATEGORIES, System, make_system
from partition.topology import Settings, active, build
from partition.transport import Transport, permute

AXIS = "ranks"
SHAPES = {
    1: (1, 1, 1),
    2: (2, 1, 1),
    3: (3, 1, 1),
    4: (4, 1, 1),
    5: (1, 5, 1),
    6: (3, 1, 2),
    7: (7, 1, 1),
    8: (2, 2, 2),
}
EVERY = os.environ.get("JANUS_JAX_EVERY") == "1"
PERIODIC = (True, True, True)


def mesh(ranks: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:ranks]), (AXIS,))


def mapped(function, ranks: int, sharded: str, out):
    """`function` under jit and shard_map.

    Args:
        sharded: a letter for each argument: s if it is divided over the ranks, r if all ranks get all of it.
        out: the same for the results, a letter or a tuple of letters.
    """
    letters = {"s": PartitionSpec(AXIS), "r": PartitionSpec()}
    specs = tuple(letters[letter] for letter in sharded)
    outs = jax.tree.map(letters.get, out)
    return jax.jit(jax.shard_map(function, mesh=mesh(ranks), in_specs=specs, out_specs=outs, check_vma=False))


def put(values, ranks: int):
    """Rows [K, rows, ...] as an array [K rows, ...] that is divided over the ranks."""
    values = np.asarray(values)
    return jax.device_put(values.reshape(-1, *values.shape[2:]), NamedSharding(mesh(ranks), PartitionSpec(AXIS)))


def arrange(positions, made: Cut, rows: int, dtype=np.float64):
    """Sharded positions and ids of a cut."""
    table = made.table(rows).astype(np.int32)
    return put(made.scatter(positions.astype(dtype), rows), made.ranks), put(table, made.ranks)


@dataclasses.dataclass(frozen=True)
class Sharded:
    """One build in arrays of fixed lengths, for systems of up to `atoms` atoms that are cut evenly.

    The exchange serves all pairs of ranks, so that any cut goes with any kind.
    """

    ranks: int
    kind: str
    pbc: tuple[bool, bool, bool] = PERIODIC
    skin: float = 0.0
    cutoffs: tuple[float, ...] = (3.0, 2.0)
    atoms: int = 24
    near: int = 0  # images near a rank; 0: by the number of periodic axes
    edges: int = 0  # of a rank; 0: by the number of ranks
    images: int = 0  # 0: by the number of periodic axes

    @functools.cached_property
    def rows(self) -> int:
        return -(-self.atoms // self.ranks) + 1

    @functools.cached_property
    def transport(self) -> Transport:
        if self.kind != "permute":
            return Transport(self.kind, AXIS, self.ranks)
        shape = SHAPES[self.ranks]
        offsets = [tuple(int(k) for k in offset) for offset in np.ndindex(shape) if any(offset)]
        return permute(shape, offsets, AXIS)

    @functools.cached_property
    def settings(self) -> Settings:
        return Settings(self.cutoffs, self.skin, self.pbc, self.transport)

    @functools.cached_property
    def capacity(self) -> Capacity:
        lists, alone = len(self.cutoffs), self.ranks == 1
        near = self.near or (64, 128, 256, 512)[sum(self.pbc)]
        edges = self.edges or {1: 3072, 2: 1536, 3: 1024, 4: 768, 5: 768}.get(self.ranks, 512)
        sent = (self.rows,) * (0 if self.kind == "all_gather" else self.transport.slots)
        return Capacity(
            sent=sent,
            images=self.images or ((8, 8, 64, 192) if alone else (8, 16, 192, 1024))[sum(self.pbc)],
            near=near if alone else 2 * near,
            blocks=near // 16,
            chunk=near,
            degree=160,
            local=(edges,) * lists,
            remote=(8 if alone else edges,) * lists,
            halo=((self.rows * self.ranks,) if self.kind == "ragged" else sent,) * lists,
        )

    @functools.cached_property
    def program(self):
        def run(positions, ids, cell, turns, used):
            topology, need = build(positions, ids, cell, turns, used, self.settings, self.capacity)
            seen = []
            for plan, cutoff in zip(topology.plans, self.cutoffs, strict=True):
                if self.kind != "ragged":  # which no CPU can run
                    points, everyone = exchange_halo((topology.reference, topology.ids), plan)
                    on = [active(edges, points, cell, cutoff) for edges in (plan.local, plan.remote)]
                    seen.append((everyone, *on))
            return stacked((topology, seen)), need

        return mapped(run, self.ranks, "ssrrr", ("s", "r"))

    def placed(self, cell, dtype=np.float64):
        """Cell and padded images, as `build` takes them.

        Raises:
            CapacityError: more images than fit.
        """
        cell = working_cell(cell, np.array(self.pbc))
        turns = images(cell, np.array(self.pbc), self.settings.reach * (1 + 1e-3), self.transport.spread)
        spare = self.capacity.images - len(turns)
        if spare < 0:
            raise CapacityError({"images": (len(turns), self.capacity.images)})
        used = np.arange(self.capacity.images) < len(turns)
        return cell.astype(dtype), np.pad(turns, ((0, spare), (0, 0))), used

    def build(self, positions, made: Cut, cell, dtype=np.float64):
        """The topology, stacked, and for each cutoff what a rank sees: (ids of its rows, active edges of each kind).

        Raises:
            CapacityError: the system does not fit.
            CellError: an atom is too far away.
        """
        (topology, seen), need = self.program(*arrange(positions, made, self.rows, dtype), *self.placed(cell, dtype))
        need: Need = jax.device_get(need)
        if need.far:
            raise CellError("far")
        assert not need.outside.any()
        check(self.capacity, need)
        return topology, jax.device_get(seen)


sharded = functools.cache(Sharded)


def pairs_of(topology, seen, turns, k: int = 0):
    """Active pairs of the k-th cutoff by ids: (i, j, S relative to positions as given), rank after rank."""
    (everyone, *active), parts = seen[k], []
    ids = np.asarray(topology.ids)
    for edges, on in zip((topology.plans[k].local, topology.plans[k].remote), active, strict=True):
        edges = jax.device_get(edges)
        for rank in range(len(ids)):
            kept = on[rank]
            i, j = ids[rank][edges.dst[rank]][kept], everyone[rank][edges.src[rank]][kept]
            parts.append((i, j, edges.image[rank][kept] + turns[i] - turns[j]))
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def random_system(rng, pbc, most: int = 24, cutoff: float = 3.0, most_images: int = 192, **kinds) -> System:
    """One of the hard systems of `partition.testing`, scaled to one cutoff and until its images are few enough."""
    kind = {name: choices[rng.integers(len(choices))] for name, choices in CATEGORIES.items()} | kinds
    system = make_system(int(rng.integers(2**32)), int(rng.integers(0, most + 1)), pbc, kind)
    scale = cutoff / system.cutoff
    while True:
        try:
            if len(images(working_cell(system.cell * scale, system.pbc), system.pbc, cutoff * 1.01)) <= most_images:
                return System(system.positions * scale, system.cell * scale, system.pbc, cutoff)
        except CellError:
            pass
        scale *= 1.2


def liquid(count: int, rng, density: float = 0.1, spacing: float = 1.2) -> tuple[np.ndarray, np.ndarray]:
    """Positions and a skewed cell of atoms that are not too close to each other."""
    length = (count / density) ** (1 / 3)
    cell = length * np.array([[1.0, 0.05, 0.0], [0.2, 1.0, 0.0], [-0.1, 0.15, 1.0]])
    chosen: list[np.ndarray] = []
    while len(chosen) < count:
        trial = rng.random(3)
        difference = np.array(chosen).reshape(-1, 3) - trial
        vectors = (difference - np.round(difference)) @ cell
        if (np.linalg.norm(vectors, axis=1) > spacing).all():
            chosen.append(trial)
    return np.array(chosen) @ cell, cell


def prepared(positions, cell, pbc, ranks: int, method: str, cutoff: float = 3.0):
    """The wrapped system and its cut, made on the host."""
    from partition.cut import cut

    system = atoms(positions, cell, pbc)
    return system, cut(system, ranks, method, cutoff=cutoff)
