"""Requests of all schemes: nothing is left out, how much is sent, the bins of a grid, and logical offsets."""

import dataclasses
import functools
import os
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partition import bins
from partition.cut import atoms, cut
from partition.errors import PartitionError
from partition.exchange import BOX_BYTES, POSITION_BYTES, SCHEMES, requests, traffic
from partition.offsets import offsets, padded_bytes, source
from partition.testing import oracle_pairs, systems

EVERY = os.environ.get("JANUS_JAX_EVERY")
TRICLINIC = np.array([[24.0, 0.0, 0.0], [8.0, 18.0, 0.0], [-6.0, 5.0, 21.0]])
EVERYWHERE = np.ones(3, bool)


@functools.cache
def gas(count=600, size=1.0):
    cell = TRICLINIC * size
    return atoms(np.random.default_rng(0).uniform(0, 1, (count, 3)) @ cell, cell, EVERYWHERE)


def asked(table, rank):
    """Candidates of a rank as tuples (id, image); none may occur twice."""
    ids, images = table.candidates(rank)
    assert images.shape == (len(ids), 3)
    rows = list(map(tuple, np.column_stack([ids, images]).tolist()))
    assert len(set(rows)) == len(rows)
    return set(rows)


def needed(system, made, pairs):
    """(id, image) of the wrapped atoms that each rank must be given to find pairs (i, j, S) of the atoms as given."""
    wanted, owner = [set() for _ in range(made.ranks)], made.owner()
    for i, j, *shift in pairs:
        image = np.array(shift) - system.turns[i] + system.turns[j]
        if owner[i] != owner[j] or image.any():
            wanted[owner[i]].add((j, *image.tolist()))
    return wanted


def assert_nothing_is_left_out(given_system, ranks, method, scheme):
    system = atoms(given_system.positions, given_system.cell, given_system.pbc)
    made = cut(system, ranks, method, cutoff=given_system.cutoff)
    table = requests(system, made, given_system.cutoff, scheme)
    must, _ = oracle_pairs(**vars(given_system))
    owner, peers = made.owner(), table.pairs
    for rank, wanted in enumerate(needed(system, made, must)):
        found = asked(table, rank)
        assert wanted <= found
        assert not {(int(k), 0, 0, 0) for k in made.ids(rank)} & found
        assert peers[rank, owner[[row[0] for row in found]]].all() if found else True
        assert peers[rank, rank]


@settings(max_examples=2000 if EVERY else 30, deadline=None, suppress_health_check=list(HealthCheck))
@given(systems(20), st.sampled_from((1, 2, 3, 5, 8)), st.sampled_from(("grid", "hilbert")), st.sampled_from(SCHEMES))
def test_candidates_cover_every_foreign_neighbour(system, ranks, method, scheme):
    assert_nothing_is_left_out(system, ranks, method, scheme)


@settings(max_examples=1000 if EVERY else 10, deadline=None, suppress_health_check=list(HealthCheck))
@given(systems(20), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 5)))
def test_coarse_bins_cover_every_foreign_neighbour(system, ranks, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bins, "MOST_BINS", most)
        assert_nothing_is_left_out(system, ranks, "hilbert", "spatial-bin")


def test_bins_are_half_the_reach_until_a_rank_would_have_too_many(monkeypatch):
    system = gas(1000, 2.0)
    made, reach = cut(system, 3, "hilbert"), 3.0

    def occupied(table):
        return [len(np.unique(table._at(made.ids(rank), np.zeros(3)), axis=0)) for rank in range(3)]

    fine = bins.bin_requests(system, made, reach)
    np.testing.assert_allclose(system.lengths / fine.bins, reach / 2, rtol=0.05)
    assert max(occupied(fine)) > 200
    assert bins.MOST_BINS == 8192
    monkeypatch.setattr(bins, "MOST_BINS", 20)
    coarse = bins.bin_requests(system, made, reach)
    assert 10 < max(occupied(coarse)) <= 20
    assert len({int(width) for width in system.lengths / coarse.bins}) <= 2
    for rank in range(3):
        assert asked(fine, rank) < asked(coarse, rank)


@pytest.mark.parametrize(("edges", "reach"), [((0.3, 3.0, 3.0), 6.0), ((1e6, 5.0, 5.0), 1.0)])
def test_bins_of_a_cell_with_few_atoms_are_few(edges, reach):
    cell = np.diag(edges)
    system = atoms(np.array([cell[0] / 2, 0 * cell[0]]) * (edges[0] > 1), cell, EVERYWHERE)
    table = requests(system, cut(system, 1, "hilbert"), reach, "spatial-bin")
    table = dataclasses.replace(table, images=table.images[:2])  # itself and a neighbour
    tracemalloc.start()
    try:
        table.candidates(0)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("method", "ranks"), [("hilbert", 1), ("hilbert", 5), ("grid", 6)])
def test_smaller_boxes_ask_for_less(method, ranks):
    system = gas(300)
    made = cut(system, ranks, method)
    tables = {scheme: requests(system, made, 3.0, scheme, pieces=6) for scheme in SCHEMES[:3]}
    tables["two boxes"] = requests(system, made, 3.0, "multi-box", pieces=2)
    for rank in range(ranks):
        found = {name: asked(table, rank) for name, table in tables.items()}
        assert found["multi-box"] <= found["rank-box"] <= found["all-gather"]
        assert found["two boxes"] <= found["rank-box"]
    rank_box, all_gather = (traffic(tables[scheme]) for scheme in ("rank-box", "all-gather"))
    assert (rank_box.atoms <= all_gather.atoms).all()
    assert (all_gather.atoms == np.where(np.eye(ranks), 0, made.counts)).all()
    assert ranks == 1 or rank_box.bytes.sum() < all_gather.bytes.sum()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_traffic_counts_the_candidates(scheme):
    system = gas()
    for ranks, method in ((1, "hilbert"), (6, "grid"), (7, "hilbert")):
        made = cut(system, ranks, method)
        table = requests(system, made, 2.5, scheme)
        sent = traffic(table, scheme)
        owner = made.owner()
        for rank in range(ranks):
            found = asked(table, rank)
            assert sent.candidates[rank] == len(found)
            foreign = {row[0] for row in found if owner[row[0]] != rank}
            assert sent.atoms[rank].tolist() == [sum(owner[k] == s for k in foreign) for s in range(ranks)]
            assert sent.bytes[rank] == len(foreign) * POSITION_BYTES
        assert sent.scheme == scheme
        assert (sent.peers == table.pairs.sum(1)).all()
        assert sent.metadata_bytes == table.metadata_bytes


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_few_atoms_give_an_estimate(scheme):
    system = gas(3000)
    table = requests(system, cut(system, 4, "hilbert"), 3.0, scheme)
    exact, estimate = traffic(table), traffic(table, stride=5)
    np.testing.assert_allclose(estimate.candidates, exact.candidates, rtol=0.1)
    np.testing.assert_allclose(estimate.atoms, exact.atoms, rtol=0.25)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ranks_ask_each_other(scheme):
    system = gas(600, 2.0)
    for ranks, method in ((5, "hilbert"), (8, "grid")):
        pairs = requests(system, cut(system, ranks, method), 3.0, scheme).pairs
        assert (pairs == pairs.T).all()
        assert pairs.diagonal().all()


def test_ranks_without_atoms_ask_for_nothing():
    system = gas(3)
    made = cut(system, 5, "hilbert")
    for scheme in SCHEMES:
        table = requests(system, made, 4.0, scheme)
        for rank in np.flatnonzero(made.counts == 0).tolist():
            assert asked(table, rank) == set()
            assert table.pairs[rank].sum() == table.pairs[:, rank].sum() == 1
    nothing = atoms(np.zeros((0, 3)), TRICLINIC, EVERYWHERE)
    for scheme in SCHEMES:
        sent = traffic(requests(nothing, cut(nothing, 2, "grid"), 4.0, scheme))
        assert not sent.atoms.any()
        assert not sent.candidates.any()
        assert sent.metadata_bytes <= 4 * BOX_BYTES


@pytest.mark.parametrize("ranks", [1, 2, 8, 27])
def test_metadata_of_rank_box_fit_into_three_kibibytes(ranks):
    edge = 30.0
    cell = np.diag([edge] * 3)
    system = atoms(np.random.default_rng(0).uniform(0, edge, (2700, 3)), cell, EVERYWHERE)
    for method in ("grid", "hilbert"):
        table = requests(system, cut(system, ranks, method), 5.0)
        assert 2 * BOX_BYTES <= table.metadata_bytes < 3 * 1024
        own = np.flatnonzero(table.rank[table.run] == 0)
        assert table.metadata_bytes >= (len(own) + 1) * BOX_BYTES


def test_unknown_schemes_are_refused():
    with pytest.raises(PartitionError, match="unknown exchange scheme 'gossip'; allowed: all-gather, rank-box, multi"):
        requests(gas(), cut(gas(), 2, "grid"), 3.0, "gossip")


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 3, 4), (7, 1, 1)])
def test_offsets_are_permutations_that_reach_every_pair(shape):
    ranks = int(np.prod(shape))
    rng = np.random.default_rng(0)
    for density in (0.0, 0.1, 0.5, 1.0):
        pairs = rng.uniform(size=(ranks, ranks)) < density
        found = offsets(shape, pairs)
        assert len(set(found)) == len(found) <= max(ranks - 1, 0)
        assert (0, 0, 0) not in found
        reached = np.eye(ranks, dtype=bool)
        for offset in found:
            sources = source(shape, offset)
            assert sorted(sources.tolist()) == list(range(ranks))
            assert pairs[np.arange(ranks), sources].any()
            assert not reached[np.arange(ranks), sources].any()
            reached[np.arange(ranks), sources] = True
        assert reached[pairs].all()
    assert len(offsets(shape, np.ones((ranks, ranks), bool))) == ranks - 1


def test_an_offset_leads_to_the_next_rank_of_the_grid():
    assert source((3, 2, 1), (1, 0, 0)).tolist() == [2, 3, 4, 5, 0, 1]
    assert source((3, 2, 1), (0, 1, 0)).tolist() == [1, 0, 3, 2, 5, 4]
    asks = np.zeros((6, 6), bool)
    asks[0, 5] = asks[2, 0] = True
    assert offsets((3, 2, 1), asks) == ((2, 0, 0), (2, 1, 0))


def test_padded_bytes_are_those_of_the_longest_messages():
    system = gas()
    made = cut(system, 6, "grid", cutoff=3.0)
    sent = traffic(requests(system, made, 3.0)).atoms
    longest = {}
    for q, s in zip(*np.nonzero(sent), strict=True):
        ends = np.array(np.unravel_index([q, s], made.shape)).T
        step = tuple(((ends[1] - ends[0]) % made.shape).tolist())
        longest[step] = max(longest.get(step, 0), int(sent[q, s]))
    assert padded_bytes(traffic(requests(system, made, 3.0)), made) == 4 * sum(longest.values())
    along = cut(system, 6, "hilbert")
    found = traffic(requests(system, along, 3.0))
    assert padded_bytes(found, along) == 4 * 5 * found.atoms.max()
