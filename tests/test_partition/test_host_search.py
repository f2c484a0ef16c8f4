"""Neighbours of every cut and scheme against the oracle, and what must not change them."""

import itertools
import os

import numpy as np
import pytest
import vesin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partition import host_search
from partition.cut import atoms, cut
from partition.errors import CapacityError
from partition.exchange import SCHEMES, requests
from partition.host_search import all_pairs
from partition.layout import Cut
from partition.testing import System, as_set, assert_exact, oracle_pairs, systems

CUTS = ("grid", "hilbert", "morton")
RANKS = (1, 2, 3, 5, 7, 8, 13)
EXAMPLES = 5000 if os.environ.get("JANUS_JAX_EVERY") else 60
TRICLINIC = np.array([[13.0, 0.0, 0.0], [4.0, 11.0, 0.0], [-3.5, 5.0, 12.0]])
SHARP = 35.0 * np.array([[1, 0, 0], [0.5, 0.75**0.5, 0], [0.766, 0.3, 0.569]])  # angles of 46, 40 and 60 degrees
PBC = [(True, True, True), (True, False, True), (False, False, True), (False, False, False)]
EVERYWHERE = np.ones(3, bool)


def search(positions, cell, pbc, cutoff, ranks=3, method="hilbert", scheme="rank-box"):
    system = atoms(positions, cell, pbc)
    made = cut(system, ranks, method, cutoff=cutoff)
    return all_pairs(requests(system, made, cutoff, scheme), cutoff)


def found(*system, **cut_and_scheme):
    return as_set(*search(*system, **cut_and_scheme))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(systems(), st.sampled_from(RANKS), st.sampled_from(CUTS), st.sampled_from(SCHEMES))
def test_every_cut_and_scheme_finds_the_pairs_of_the_oracle(system, ranks, method, scheme):
    pairs = as_set(*search(**vars(system), ranks=ranks, method=method, scheme=scheme))
    assert_exact(pairs, system)


def gas(pbc, seed=0, count=150):
    """Atoms in and around a cell; no pair is so close to the cutoff of 4 Å that rounding decides."""
    positions = np.random.default_rng(seed).uniform(-0.7, 1.4, (count, 3)) @ TRICLINIC
    return positions, TRICLINIC, np.array(pbc), 4.0


@pytest.fixture(scope="module", params=PBC, ids=str)
def known(request):
    """A system, and its pairs: those of the oracle."""
    system = gas(request.param)
    must, may = oracle_pairs(*system)
    pairs = found(*system, ranks=1)
    assert must == may == pairs
    assert len(pairs) > 200
    return system, pairs


@pytest.mark.parametrize(("method", "scheme"), [("grid", "rank-box"), ("hilbert", "spatial-bin")])
def test_cuts_and_translations_and_whole_turns_of_atoms_do_not_matter(known, method, scheme):
    (positions, cell, pbc, cutoff), pairs = known
    rng = np.random.default_rng(1)
    for ranks in (2, 6):
        vector = rng.normal(size=3) * 10.0 ** rng.integers(-1, 6)
        turns = rng.integers(-9, 10, positions.shape) * pbc
        moved = found(positions + vector + turns @ cell, cell, pbc, cutoff, ranks=ranks, method=method, scheme=scheme)
        assert {(i, j, *(np.array(image) + turns[j] - turns[i]).tolist()) for i, j, *image in moved} == pairs


def test_the_order_of_atoms_does_not_matter(known):
    (positions, *rest), pairs = known
    new = np.random.default_rng(2).permutation(len(positions))
    permuted = found(positions[new], *rest, ranks=5)
    assert {(int(new[i]), int(new[j]), *image) for i, j, *image in permuted} == pairs


def test_rotations_and_reflections_do_not_matter(known):
    (positions, cell, pbc, cutoff), pairs = known
    rng = np.random.default_rng(3)
    for _ in range(4):
        rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        assert found(positions @ rotation, cell @ rotation, pbc, cutoff, ranks=4) == pairs


def test_the_choice_of_cell_vectors_does_not_matter():
    system = gas((True, True, True))
    positions, cell, pbc, cutoff = system
    other = np.array([[1, 1, 0], [0, 1, -1], [2, 3, 0]])
    assert round(np.linalg.det(other)) == 1
    pairs = found(positions, other @ cell, pbc, cutoff, ranks=4)
    assert {(i, j, *(np.array(image) @ other).tolist()) for i, j, *image in pairs} == found(*system)


@pytest.mark.parametrize("method", CUTS)
def test_supercells_repeat_degrees(method):
    positions, cell, pbc, cutoff = gas((True, True, True), count=60)
    repeats = (2, 1, 3)
    cells = np.array(list(itertools.product(*map(range, repeats))))
    many = (positions[None] + (cells @ cell)[:, None]).reshape(-1, 3)
    i, j, _ = search(positions, cell, pbc, cutoff, ranks=1)
    centre, other, _ = search(many, cell * np.array(repeats)[:, None], pbc, cutoff, ranks=5, method=method)
    assert len(centre) == 6 * len(i)
    assert (np.bincount(centre).reshape(6, 60) == np.bincount(i, minlength=60)).all()
    between = np.stack([i, j]), np.stack([centre % 60, other % 60])
    counts = [np.unique(pair, axis=1, return_counts=True) for pair in between]
    assert (counts[0][0] == counts[1][0]).all()
    assert (6 * counts[0][1] == counts[1][1]).all()


@pytest.mark.parametrize("cutoff", [3.0, 3.0 * (1 - 2.0**-52), 3.0 * (1 + 2.0**-52)])
def test_a_pair_at_the_cutoff_is_found_by_both_of_its_ranks_or_by_none(cutoff):
    rng, number = np.random.default_rng(0), 0
    places = np.indices((5, 5, 5)).reshape(3, -1).T / 5
    count = len(places)
    of_two_ranks = Cut("hilbert", (2, 1, 1), np.arange(2 * count), np.array([0, count, 2 * count]))
    for scheme in SCHEMES:
        cell = 6 * TRICLINIC @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
        directions = rng.normal(size=(count, 3))
        directions *= cutoff / np.linalg.norm(directions, axis=1)[:, None]
        image = rng.integers(-2, 3, (count, 3))
        first = (places + rng.uniform(-0.02, 0.02, (count, 3))) @ cell  # half of the places are at faces
        positions = np.concatenate([first, first + directions - image @ cell])
        pairs = as_set(*all_pairs(requests(atoms(positions, cell, EVERYWHERE), of_two_ranks, cutoff, scheme), cutoff))
        one_way = {pair for pair in pairs if pair[0] < count}
        assert one_way <= {(k, k + count, *image[k].tolist()) for k in range(count)}
        assert pairs - one_way == {(j, i, -a, -b, -c) for i, j, a, b, c in one_way}
        number += len(one_way)
    assert 100 < number < 400


def test_pairs_at_the_cutoff_decide_by_their_own_rounding():
    positions = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [8.0, 0.0, 0.0]])
    cell = np.eye(3) * 10
    for ranks in (1, 2, 3):
        assert found(positions, cell, EVERYWHERE, 2.0, ranks=ranks) == set()
        assert found(positions, cell, EVERYWHERE, 2.0 + 2.0**-51, ranks=ranks) == {(0, 2, -1, 0, 0), (2, 0, 1, 0, 0)}
        assert found(positions, cell, EVERYWHERE, 3.0, ranks=ranks) == {(0, 2, -1, 0, 0), (2, 0, 1, 0, 0)}


@pytest.mark.parametrize("pbc", [(True, True, False), (True, True, True)])
def test_a_large_thin_sheet(pbc):
    rng = np.random.default_rng(0)
    places = rng.uniform(0, 9000, (120, 1, 3)) * [1, 1, 5 / 9000]
    places[:20, :, 0] = 0.5  # at a face
    positions = (places + rng.normal(size=(120, 3, 3)) * [2, 2, 0.5]).reshape(-1, 3)
    system = System(positions, np.diag([9000.0, 9000.0, 5.0]), np.array(pbc), 6.0)
    for ranks, method in ((1, "hilbert"), (4, "grid")):
        pairs = as_set(*search(**vars(system), ranks=ranks, method=method))
        assert len(pairs) > 600
        assert_exact(pairs, system)


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, False), (False, False, False)])
def test_clusters_in_a_vacuum_of_a_tenth_of_a_millimetre(pbc):
    rng = np.random.default_rng(1)
    places = rng.uniform(0, 1e6, (6, 1, 3))
    places[:3] = np.diag([1e6, 1e6, 1e6])[:, None] / 2  # on edges of the cell
    positions = (places + rng.normal(size=(6, 20, 3)) * 2).reshape(-1, 3)
    system = System(positions, np.diag([1e6, 1e6, 1e6]), np.array(pbc), 4.0)
    for ranks, method, scheme in ((1, "hilbert", "rank-box"), (5, "grid", "multi-box"), (3, "hilbert", "spatial-bin")):
        pairs = as_set(*search(**vars(system), ranks=ranks, method=method, scheme=scheme))
        assert len(pairs) > 500
        assert_exact(pairs, system)


@pytest.mark.parametrize("seed", range(3))
def test_hilbert_blocks_in_triclinic_cells_do_not_lose_pairs_when_the_system_moves(seed):
    rng = np.random.default_rng(seed)
    positions = rng.uniform(0, 1, (2000, 3)) @ SHARP
    expected = vesin.NeighborList(cutoff=5.0, full_list=True).compute(positions, SHARP, True, "i")[0]
    degrees = np.bincount(expected, minlength=2000)
    assert degrees.sum() > 40_000
    for turns in (np.zeros(3, int), rng.integers(-3, 4, 3), rng.integers(-3, 4, (2000, 3))):
        for ranks in (1, 8):
            i, _, _ = search(positions + turns @ SHARP, SHARP, EVERYWHERE, 5.0, ranks=ranks)
            assert len(i) == len(expected)
            assert (np.bincount(i, minlength=2000) == degrees).all()


def test_pairs_fill_arrays_of_fixed_length_or_say_what_is_needed():
    positions, cell = np.random.default_rng(5).random((40, 3)) * 9, np.eye(3) * 9.0
    system = atoms(positions, cell, EVERYWHERE)
    made = cut(system, 2, "hilbert", cutoff=3.0)
    table = requests(system, made, 3.0)
    owned, (ids, images) = system.positions[made.ids(0)], table.candidates(0)
    pairs = host_search.search(owned, system.positions[ids], images, cell, 3.0)
    edges = host_search.padded(pairs, len(pairs) + 7, made.rows)
    assert edges.mask.sum() == len(pairs)
    assert (np.diff(edges.dst) >= 0).all()
    for name in ("src", "dst", "image"):
        np.testing.assert_array_equal(getattr(edges, name)[edges.mask], getattr(pairs, name))
    with pytest.raises(CapacityError, match=f"edges: {len(pairs)} needed, capacity {len(pairs) - 1}"):
        host_search.padded(pairs, len(pairs) - 1, made.rows)
