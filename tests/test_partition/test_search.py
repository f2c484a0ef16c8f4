"""Neighbours found on devices: against the oracle, against the host, in both precisions."""

import itertools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partition.builder import Builder, estimate, stacked, transport_for, unstacked
from partition.chunks import bisect_padded
from partition.errors import CapacityError, CellError
from partition.exchange import requests
from partition.host_search import all_pairs
from partition.plan import exchange_halo
from partition.search import compact
from partition.testing import System, as_set, assert_exact, oracle_pairs
from partition.topology import Settings, active
from tests.test_partition.conftest import (
    AXIS,
    EVERY,
    PERIODIC,
    arrange,
    liquid,
    mapped,
    mesh,
    pairs_of,
    prepared,
    random_system,
    sharded,
)  # fmt: skip

SLAB, OPEN = (True, False, True), (False, False, False)
METHOD = {"permute": "grid", "all_to_all": "hilbert", "all_gather": "hilbert"}
CASES = [
    (1, "permute", PERIODIC), (8, "permute", PERIODIC), (3, "all_to_all", PERIODIC), (3, "all_gather", PERIODIC),
    (3, "all_to_all", SLAB), (8, "permute", SLAB), (8, "all_to_all", OPEN),
]  # fmt: skip
if EVERY:
    CASES = [
        (ranks, kind, pbc)
        for ranks in (1, 3, 8)
        for kind in METHOD
        for pbc in itertools.product((True, False), repeat=3)
    ]


def assert_arranged(topology, seen):
    """Edges are sorted by their destination with the padding behind them; only real rows occur."""
    ids = np.asarray(topology.ids)
    owned = ids.shape[1]
    for plan, (everyone, *_) in zip(topology.plans, seen, strict=True):
        assert everyone.shape[1] == owned + plan.halo
        for remote, edges in enumerate(jax.device_get((plan.local, plan.remote))):
            assert (np.diff(edges.dst, axis=1) >= 0).all()
            assert (np.diff(edges.mask.astype(int), axis=1) <= 0).all()
            for rank in range(len(ids)):
                src, dst = edges.src[rank][edges.mask[rank]], edges.dst[rank][edges.mask[rank]]
                assert (dst < owned).all()
                assert (ids[rank][dst] >= 0).all()
                assert ((src >= owned) == bool(remote)).all()
                assert (everyone[rank][src] >= 0).all()
                assert np.isin(everyone[rank][src], ids[rank]).all() != bool(remote) or not len(src)


@pytest.mark.parametrize(("ranks", "kind", "pbc"), CASES)
def test_devices_find_the_pairs_of_the_oracle(ranks, kind, pbc):
    build, rng = sharded(ranks, kind, pbc), np.random.default_rng([ranks, len(kind), *pbc])
    examples, skipped, pairs = (150 if EVERY else 30), Counter(), 0
    for _ in range(examples):
        system = random_system(rng, pbc, most_images=build.capacity.images)
        host, made = prepared(system.positions, system.cell, system.pbc, ranks, METHOD[kind])
        try:
            topology, seen = build.build(system.positions, made, system.cell)
        except (CapacityError, CellError) as error:
            skipped[", ".join(getattr(error, "over", {"far": 0}))] += 1
            continue
        assert_arranged(topology, seen)
        for k, cutoff in enumerate(build.cutoffs):
            found = as_set(*pairs_of(topology, seen, host.turns, k))
            assert_exact(found, System(system.positions, system.cell, system.pbc, cutoff))
            pairs += len(found)
    assert skipped.total() < examples / 2, skipped
    assert pairs > 20 * examples


def test_single_precision_finds_the_same_pairs():
    build, rng, skipped, pairs = sharded(8, "permute"), np.random.default_rng(0), 0, 0
    for _ in range(60):
        kinds = {"size": rng.choice(["usual", "small", "thin"]), "shift": rng.choice(["none", "near"])}
        layout = rng.choice(["uniform", "cluster", "coincident"])
        system = random_system(rng, PERIODIC, layout=layout, **kinds)
        host, made = prepared(system.positions, system.cell, system.pbc, 8, "grid")
        try:
            topology, seen = build.build(system.positions, made, system.cell, np.float32)
        except CapacityError:
            skipped += 1
            continue
        assert topology.reference.dtype == np.float32
        assert_arranged(topology, seen)
        for k, cutoff in enumerate(build.cutoffs):
            found = as_set(*pairs_of(topology, seen, host.turns, k))
            must, may = oracle_pairs(system.positions, system.cell, system.pbc, cutoff, margin=1e-4)
            assert must <= found <= may
            assert all((j, i, -a, -b, -c) in found for i, j, a, b, c in found)
            pairs += len(found)
    assert skipped < 30
    assert pairs > 1000


@pytest.mark.parametrize("method", ["grid", "hilbert"] if EVERY else ["hilbert"])
def test_host_and_devices_find_the_same_pairs_of_many_atoms(method):
    positions, cell = liquid(2000, np.random.default_rng(1), density=0.05)
    cutoffs, skin = (5.0, 3.5), 0.5
    system, made = prepared(positions, cell, PERIODIC, 8, method, cutoffs[0] + skin)
    settings = Settings(cutoffs, skin, PERIODIC, transport_for(system, made, cutoffs[0] + skin, AXIS))
    builder = Builder(mesh(8), settings, estimate(system, made, settings, made.rows), made.shape)
    topology = builder(*arrange(positions, made, made.rows), cell)

    def see(topology, cell):
        topology, seen = unstacked(topology), []
        for plan, cutoff in zip(topology.plans, cutoffs, strict=True):
            points, everyone = exchange_halo((topology.reference, topology.ids), plan)
            seen.append((everyone, *(active(edges, points, cell, cutoff) for edges in (plan.local, plan.remote))))
        return stacked(seen)

    seen = jax.device_get(mapped(see, 8, "sr", "s")(topology, system.cell))
    for k, cutoff in enumerate(cutoffs):
        expected = as_set(*all_pairs(requests(system, made, cutoff), cutoff))
        assert as_set(*pairs_of(topology, seen, system.turns, k)) == expected
        assert len(expected) > 10_000


def test_compact_keeps_positions_in_order_and_counts_what_it_drops():
    mask = jnp.asarray([False, True, True, False, True])
    for length, expected in ((5, [1, 2, 4, -1, -1]), (3, [1, 2, 4]), (2, [1, 2])):
        rows, count = compact(mask, length)
        assert rows.tolist() == expected
        assert count == 3
    assert compact(mask[:0], 2)[0].tolist() == [-1, -1]


def test_padded_bisection_fills_the_first_chunks_of_each_half():
    rng = np.random.default_rng(0)
    points, mask = rng.random((64, 3)) * [10, 1, 1], rng.random(64) < 0.6
    rows = np.asarray(bisect_padded(jnp.asarray(points), jnp.asarray(mask), 8))
    assert sorted(rows.tolist()) == list(range(64))
    for half in rows.reshape(2, 32):  # unused rows are at the end of every run that is divided
        used = mask[half.reshape(-1, 8)]
        assert (np.diff(used.sum(1)) <= 0).all() or used[:2].all()
    used = rows[mask[rows]]
    first, second = used[np.isin(used, rows[:32])], used[np.isin(used, rows[32:])]
    assert points[first, 0].max() <= points[second, 0].min()
