"""Packing a global batch anew: Algorithm 1 of the JanusPipe paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from janus_jax.data import gars
from janus_jax.data.loader import stream
from janus_jax.data.sources import read_frames
from janus_jax.graph import Capacity
from janus_jax.testing import dataset

LARGE = Capacity(10**6, 10**6, 10**6)


def by_the_book(sizes, count):
    """Lines 3 to 8 as they stand."""
    groups = [[] for _ in range(count)]
    for index in np.argsort(-sizes, kind="stable"):
        groups[int(np.argmin([sum(sizes[g]) if g else 0 for g in groups]))].append(int(index))
    return groups


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 8), st.integers(1, 4))
def test_packing_is_the_papers(values, count, graph):
    sizes = np.array(values)
    packed = gars.repack(sizes, 30 * sizes, count, LARGE, graph=graph)
    assert packed is not None
    assert [sorted(m.members) for m in packed] == [sorted(g) for g in by_the_book(sizes, count)]
    for micro in packed:
        total, largest = sizes[list(micro.members)].sum(), max(sizes[list(micro.members)], default=0)
        assert micro.kind == ("comm_free" if largest <= total / graph else "dist")
        if micro.kind == "comm_free":
            assert sorted(k for rank in micro.ranks for k in rank) == sorted(micro.members)


def test_balance_is_better_than_in_order_and_order_within_is_shuffled():
    rng = np.random.default_rng(0)
    sizes = np.minimum(rng.lognormal(3, 1, 200).astype(int) + 1, 400)
    packed = gars.repack(sizes, sizes, 16, LARGE, (1, 2))
    loads = [sizes[list(m.members)].sum() for m in packed]
    in_order = [part.sum() for part in np.array_split(sizes, 16)]
    assert np.std(loads) < 0.1 * np.std(in_order)
    assert any(list(m.members) != sorted(m.members, key=lambda k: -sizes[k]) for m in packed)
    assert packed == gars.repack(sizes, sizes, 16, LARGE, (1, 2))
    assert packed != gars.repack(sizes, sizes, 16, LARGE, (1, 3))


def test_capacity_is_kept_and_what_cannot_fit_is_said():
    atoms = np.array([50, 40, 30, 30, 30, 20])
    for micro in gars.repack(atoms, 10 * atoms, 2, Capacity(110, 1100, 3)):
        assert atoms[list(micro.members)].sum() <= 110
        assert len(micro.members) <= 3
    assert gars.repack(atoms, 10 * atoms, 2, Capacity(90, 1100, 6)) is None
    by_edges = gars.repack(atoms, np.array([1, 1, 100, 1, 1, 1]), 2, LARGE, cost="edges")
    assert [len(m.members) for m in by_edges if 2 in m.members] == [1]


@pytest.mark.parametrize("balance", ["atoms", "edges"])
def test_the_stream_repacks_within_each_global_batch(balance):
    data = dataset(read_frames("water:validation")[:11], 3.0, {1: 0.0, 8: 0.0})
    capacity = Capacity(192, 4096, 8)
    plain, packed = stream(data, capacity, 2, seed=3), stream(data, capacity, 2, seed=3, balance=balance)
    for _ in range(4):
        a, b = next(plain), next(packed)
        assert sorted(a.members) == sorted(b.members)
        assert a.position == b.position
        np.testing.assert_array_equal(*([float(x) for x in vars(c.counts).values()] for c in (a, b)))
    plain.close()
    packed.close()
