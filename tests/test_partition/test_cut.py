"""Cuts: exact counts, ties by id, shapes of shards, the factors of grids, the choice of "auto", and weights."""

import itertools
import re

import numpy as np
import pytest

from partition import curves
from partition.cell import heights
from partition.cut import atoms, cut, factors
from partition.errors import PartitionError
from partition.exchange import requests, traffic
from partition.offsets import padded_bytes

METHODS = ("grid", "hilbert", "morton")
RANKS = (1, 2, 3, 5, 7, 8, 13)
TRICLINIC = np.array([[30.0, 0.0, 0.0], [9.0, 24.0, 0.0], [-7.0, 5.0, 27.0]])
EVERYWHERE = np.ones(3, bool)


def gas(count, cell=TRICLINIC, pbc=EVERYWHERE, seed=0):
    positions = np.random.default_rng(seed).uniform(0, 1, (count, 3)) @ cell
    return atoms(positions, cell, pbc)


def fractional(system):
    return np.linalg.solve(system.cell.T, system.positions.T).T


def shards(made):
    return [frozenset(made.ids(rank).tolist()) for rank in range(made.ranks)]


def expected_counts(count, ranks):
    return [(rank + 1) * count // ranks - rank * count // ranks for rank in range(ranks)]


@pytest.mark.parametrize("method", ("auto", *METHODS))
def test_every_rank_gets_its_share_to_the_atom(method):
    for count, ranks in itertools.product((0, 1, 5, 100, 331), (*RANKS, 17)):
        made = cut(gas(count), ranks, method)
        assert made.counts.tolist() == expected_counts(count, ranks)
        assert sorted(made.order.tolist()) == list(range(count))
        assert np.prod(made.shape) == made.ranks == ranks


@pytest.mark.parametrize("method", METHODS)
def test_atoms_in_one_place_are_divided_by_id(method):
    system = atoms(np.full((23, 3), 1.5), TRICLINIC, EVERYWHERE)
    for ranks in RANKS:
        assert (cut(system, ranks, method).order == np.arange(23)).all()


@pytest.mark.parametrize("method", METHODS)
def test_atoms_that_share_places_are_divided_by_id(method):
    rng = np.random.default_rng(0)
    place = rng.integers(0, 4, 60)
    system = atoms(rng.uniform(0, 20, (4, 3))[place], TRICLINIC, EVERYWHERE)
    for ranks in RANKS:
        owner = cut(system, ranks, method).owner()
        for k in range(4):
            assert (np.diff(owner[place == k]) >= 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_the_order_in_which_atoms_are_given_does_not_matter(method):
    system = gas(400)
    numbers = np.random.default_rng(1).permutation(400)
    permuted = atoms(system.positions[numbers], TRICLINIC, EVERYWHERE)
    for ranks in RANKS:
        made, again = cut(system, ranks, method), cut(system, ranks, method)
        assert (made.order == again.order).all()
        assert (numbers[cut(permuted, ranks, method).order] == made.order).all()


@pytest.mark.parametrize("method", METHODS)
def test_atoms_of_a_shard_are_in_hilbert_order(method):
    system = gas(500)
    bits = curves.bits_for(500)
    x = fractional(system)
    codes = curves.join(*curves.hilbert(curves.quantize((x - x.min(0)) / np.ptp(x, axis=0), bits), bits))
    made = cut(system, 7, method)
    for rank in range(7):
        assert (np.diff(codes[made.ids(rank)].astype(float)) >= 0).all()
    if method == "hilbert":
        assert (np.diff(codes[made.order].astype(float)) >= 0).all()


def test_shards_along_morton_are_runs_of_its_code():
    cell = np.diag([40.0, 10.0, 20.0])
    system = gas(500, cell)
    low, span = system.positions.min(0), np.ptp(system.positions, axis=0)
    bits = curves.bits_for(500)
    cells = np.floor((system.positions - low) / span * span / span.max() * 2**bits).clip(0, 2**bits - 1)
    codes = curves.join(*curves.morton(cells.astype(np.uint32), bits))
    made = cut(system, 7, "morton")
    ends = [(codes[made.ids(rank)].min(), codes[made.ids(rank)].max()) for rank in range(7)]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("cell", "ranks", "shape"),
    [
        (np.diag([100.0, 20.0, 20.0]), 5, (5, 1, 1)),
        (np.diag([60.0, 60.0, 4.0]), 9, (3, 3, 1)),
        (TRICLINIC, 8, (2, 2, 2)),
        (np.diag([20.0, 20.0, 40.0]), 12, None),
    ],
)
def test_shards_of_a_grid_are_slabs_pencils_and_blocks(cell, ranks, shape):
    system = gas(700, cell)
    made = cut(system, ranks, "grid")
    assert shape is None or made.shape == shape
    x, grid = fractional(system), np.arange(ranks).reshape(made.shape)

    def apart(groups, axis):
        for a, b in itertools.pairwise(groups):
            below, above = (np.concatenate([made.ids(rank) for rank in group.ravel()]) for group in (a, b))
            assert x[below, axis].max() < x[above, axis].min() + 1e-9

    apart(grid, 0)
    for slab in grid:
        apart(slab, 1)
        for pencil in slab:
            apart(pencil, 2)


def test_factors_multiply_to_the_number_of_ranks_and_divide_the_long_axes():
    for ranks in (*range(1, 33), 97, 360, 1024):
        shape = factors(ranks, np.array([50.0, 40.0, 60.0]), 6.0, EVERYWHERE)
        assert np.prod(shape) == ranks
    for axis, ranks in itertools.product(range(3), (2, 3, 7, 13)):
        lengths = np.full(3, 20.0)
        lengths[axis] = 100
        assert factors(ranks, lengths, 6.0, EVERYWHERE)[axis] == ranks
    assert factors(27, np.full(3, 90.0), 6.0, EVERYWHERE) == (3, 3, 3)
    assert factors(16, np.array([100.0, 4.0, 100.0]), 6.0, EVERYWHERE) == (4, 1, 4)
    assert factors(4, np.array([0.0, 0.0, 0.0]), 6.0, ~EVERYWHERE) in itertools.permutations((4, 1, 1))


def test_factors_count_the_halo_of_an_open_axis_once():
    lengths = np.array([40.0, 40.0, 40.0])
    for axis in range(3):
        assert factors(2, lengths, 6.0, np.arange(3) != axis)[axis] == 2


def along_a_line(count):
    """Atoms along the diagonal: a grid of many boxes would have most of them empty."""
    steps = np.linspace(0, 1, count, endpoint=False)[:, None]
    return atoms(steps * [[40.0, 40.0, 40.0]], np.diag([40.0, 40.0, 40.0]), EVERYWHERE)


@pytest.mark.parametrize("system", [gas(600), gas(900, np.diag([90.0, 10.0, 10.0])), along_a_line(300)])
def test_auto_takes_the_cut_that_sends_fewer_bytes_and_says_so(system):
    for ranks in (4, 6, 8):
        predicted = {}
        for method in ("grid", "hilbert"):
            made = cut(system, ranks, method, cutoff=4.0)
            predicted[method] = padded_bytes(traffic(requests(system, made, 4.0)), made)
        chosen = cut(system, ranks, cutoff=4.0)
        assert predicted[chosen.method] == min(predicted.values())
        assert (chosen.order == cut(system, ranks, chosen.method, cutoff=4.0).order).all()
        shape = "x".join(map(str, factors(ranks, system.lengths, 4.0, system.pbc)))
        numbers = f"grid {shape}: {predicted['grid']} bytes a rank and number, hilbert: {predicted['hilbert']}"
        assert chosen.reason == numbers


def test_auto_takes_either_cut():
    cell = np.diag([60.0, 60.0, 60.0])
    corners = np.array(list(itertools.product([0.2, 0.7], repeat=3))) @ cell
    dense = np.concatenate([np.random.default_rng(0).normal(c, 1.0, (40, 3)) for c in corners[[0, 3, 5, 6]]])
    chosen = {cut(system, 8, cutoff=3.0).method for system in (gas(600), atoms(dense, cell, EVERYWHERE))}
    assert chosen == {"grid", "hilbert"}
    assert cut(gas(10), 1).reason == "one rank"
    assert all(cut(gas(10), 2, method).reason == "" for method in METHODS)


def rank_weights(made, weights):
    return np.array([weights[made.ids(rank)].sum() for rank in range(made.ranks)])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ranks", [2, 3, 7, 12])
def test_weights_are_balanced_to_an_atom_where_rows_allow(method, ranks):
    system = gas(600)
    x = fractional(system)
    rng = np.random.default_rng(0)
    for weights in (rng.uniform(0, 1, 600), 1 + 20 * (x[:, 0] < 0.3), rng.integers(0, 3, 600)):
        made = cut(system, ranks, method, weights=weights, rows=600)
        loads = rank_weights(made, weights)
        assert sorted(made.order.tolist()) == list(range(600))
        levels = sum(parts > 1 for parts in made.shape)  # each cuts where an atom ends
        assert np.abs(loads - weights.sum() / ranks).max() <= levels * weights.max() + 1e-9


@pytest.mark.parametrize("method", ("auto", *METHODS))
def test_no_rank_gets_more_atoms_than_rows(method):
    system = gas(500)
    x = fractional(system)
    heavy = np.where(np.arange(500) == 123, 1e6, 1.0)
    for weights in (np.exp(-9 * x[:, 0]), heavy, np.exp(np.random.default_rng(0).normal(0, 4, 500)), x[:, 1] < 0.1):
        for ranks in (2, 5, 8):
            for rows in (None, -(-500 // ranks), 500 // ranks + 2, 500 // ranks + 40):
                made = cut(system, ranks, method, weights=weights, rows=rows)
                assert made.counts.max() <= (1.4 * 500 / ranks + 2 if rows is None else rows)
                assert sorted(made.order.tolist()) == list(range(500))


def test_more_rows_balance_weights_better():
    system = gas(500)
    weights = np.exp(-6 * fractional(system)[:, 0])
    largest = []
    for rows in (100, 110, 130, 180, 400):
        made = cut(system, 5, "grid", weights=weights, rows=rows)
        largest.append(rank_weights(made, weights).max())
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 2 * weights.sum() / 5
    assert largest[-1] < 1.05 * weights.sum() / 5


def test_rows_that_leave_no_choice_and_weights_that_say_nothing_give_equal_counts():
    system, weights = gas(50), np.random.default_rng(0).uniform(0, 1, 50)
    for given, rows in ((weights, 8), (weights, 7.2), (np.zeros(50), None), (np.full(50, 3.0), None)):
        made = cut(system, 7, "hilbert", weights=given, rows=rows)
        assert made.counts.tolist() == expected_counts(50, 7)
    assert cut(gas(0), 3, "grid", weights=np.zeros(0)).counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 2, "method": "peano"}, "unknown cut 'peano'; allowed: auto, grid, hilbert, morton"),
        ({"ranks": 0}, "0 ranks; at least one is needed"),
        ({"ranks": -3, "method": "grid"}, "-3 ranks; at least one is needed"),
        ({"ranks": 2, "weights": np.ones(9)}, "9 weights for 10 atoms; they must be finite and not negative"),
        ({"ranks": 2, "weights": np.full(10, np.nan)}, "weights .* must be finite and not negative"),
        ({"ranks": 2, "weights": np.linspace(-0.1, 1, 10)}, "weights .* must be finite and not negative"),
        ({"ranks": 3, "weights": np.ones(10), "rows": 3}, "3 rows for 3.33333 atoms a rank"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(arguments, message):
    for method in ("grid", "hilbert", "morton", "auto") if "method" not in arguments else (arguments["method"],):
        with pytest.raises(PartitionError, match=f"^{message}|{message}$"):
            cut(gas(10), **(arguments | {"method": method}))


def test_the_occupied_range_is_measured_between_faces():
    system = gas(2000)
    np.testing.assert_allclose(system.lengths, heights(TRICLINIC), rtol=0.01)
    half = atoms(system.positions * 0.5, TRICLINIC, EVERYWHERE)
    np.testing.assert_allclose(half.lengths, 0.5 * system.lengths)
    spread = half.spread(np.arange(2000))
    assert (spread.min(0) == 0).all()
    np.testing.assert_allclose(spread.max(0), 1)
    assert not re.search("nan", str(atoms(np.ones((1, 3)), TRICLINIC, EVERYWHERE).spread(np.arange(1))))
