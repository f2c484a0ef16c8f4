"""Cuts: exact counts, ties by id, shapes of shards, the factors of grids, the choice of "auto", and weights."""

import itertools

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


@pytest.mark.parametrize("method", METHODS)
def test_every_rank_gets_its_share_to_the_atom(method):
    for count, ranks in itertools.product((0, 5, 100), (*RANKS, 17)):
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
        (10 * TRICLINIC, 27, (3, 3, 3)),
        (np.diag([100.0, 200.0, 400.0]), 12, (1, 2, 6)),
    ],
)
def test_shards_of_a_grid_are_slabs_pencils_and_blocks(cell, ranks, shape):
    system = gas(700, cell)
    made = cut(system, ranks, "grid")
    assert made.shape == shape
    x, grid = fractional(system), np.arange(ranks).reshape(made.shape)

    def apart(groups, axis):
        for a, b in itertools.pairwise(groups):
            below, above = (np.concatenate([made.ids(rank) for rank in group.ravel().tolist()]) for group in (a, b))
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
    assert np.prod(factors(4, np.zeros(3), 6.0, ~EVERYWHERE)) == 4


def test_factors_count_the_halo_of_an_open_axis_once():
    lengths = np.array([40.0, 40.0, 40.0])
    for axis in range(3):
        assert factors(2, lengths, 6.0, np.arange(3) != axis)[axis] == 2


def clusters(count, size, seed):
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 60, (count, 1, 3))
    positions = (centres + rng.normal(size=(count, size, 3))).reshape(-1, 3)
    return atoms(positions, np.diag([60.0, 60.0, 60.0]), EVERYWHERE)


@pytest.mark.parametrize(
    ("system", "ranks", "method"),
    [(gas(300), 6, "grid"), (clusters(6, 10, 2), 4, "hilbert"), (clusters(6, 10, 1), 4, "grid")],
)
def test_auto_takes_the_cut_that_sends_fewer_bytes_and_says_so(system, ranks, method):
    predicted, made = {}, {}
    for name in ("grid", "hilbert"):
        made[name] = cut(system, ranks, name, cutoff=4.0)
        predicted[name] = padded_bytes(traffic(requests(system, made[name], 4.0)), made[name])
    chosen = cut(system, ranks, cutoff=4.0)
    assert chosen.method == method
    assert predicted[method] == min(predicted.values())
    assert (chosen.order == made[method].order).all()
    assert (chosen.counts == made[method].counts).all()
    shape = "x".join(map(str, made["grid"].shape))
    assert chosen.reason == (
        f"grid {shape}: {predicted['grid']} bytes a rank and number, hilbert: {predicted['hilbert']}"
    )


def test_only_auto_gives_reasons():
    assert cut(gas(10), 1).reason == "one rank"
    assert [cut(gas(10), 2, method).reason for method in METHODS] == ["", "", ""]


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


@pytest.mark.parametrize("method", METHODS)
def test_no_rank_gets_more_atoms_than_rows(method):
    system = gas(200)
    x = fractional(system)
    heavy = np.where(np.arange(200) == 123, 1e6, 1.0)
    for weights in (np.exp(-9 * x[:, 0]), heavy, np.exp(np.random.default_rng(0).normal(0, 4, 200)), x[:, 1] < 0.1):
        for ranks, rows in ((3, None), (3, 68), (8, 25), (8, 26), (8, 30)):
            made = cut(system, ranks, method, weights=weights, rows=rows)
            assert made.counts.max() <= (np.ceil(1.4 * 200 / ranks) + 1 if rows is None else rows)
            assert sorted(made.order.tolist()) == list(range(200))


def test_auto_weighs_atoms_too():
    system, weights = gas(100), np.arange(100.0)
    made = cut(system, 4, weights=weights, rows=45, cutoff=4.0)
    assert (made.order == cut(system, 4, made.method, weights=weights, rows=45, cutoff=4.0).order).all()
    assert made.counts.max() <= 45
    assert made.counts.min() < 25


def test_more_rows_balance_weights_better():
    system = gas(500, np.diag([100.0, 20.0, 20.0]))
    weights = np.exp(-4 * fractional(system)[:, 0])
    largest = []
    for rows in (100, 110, 130, 180, 400):
        made = cut(system, 5, "grid", weights=weights, rows=rows)
        assert made.counts.max() >= min(rows, 300) - 2
        largest.append(rank_weights(made, weights).max())
    assert largest == sorted(largest, reverse=True)
    assert largest[0] > 2 * weights.sum() / 5
    assert largest[-1] < weights.sum() / 5 + weights.max()


def test_rows_that_leave_no_choice_and_weights_that_say_nothing_give_equal_counts():
    system, weights = gas(50), np.random.default_rng(0).uniform(0, 1, 50)
    for given, rows in ((weights, 8), (np.zeros(50), None)):
        made = cut(system, 7, "hilbert", weights=given, rows=rows)
        assert made.counts.tolist() == expected_counts(50, 7)
    assert set(cut(system, 7, "hilbert", weights=np.full(50, 3.0)).counts.tolist()) == {7, 8}
    assert cut(gas(0), 3, "grid", weights=np.zeros(0)).counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 2, "method": "peano"}, "unknown cut 'peano'; allowed: auto, grid, hilbert, morton"),
        ({"ranks": 0}, "0 ranks; at least one is needed"),
        ({"ranks": -3, "method": "grid"}, "-3 ranks; at least one is needed"),
        (
            {"ranks": 2, "weights": np.ones(9)},
            "9 weights for 10 atoms, among them .*; they must be finite and not negative",
        ),
        ({"ranks": 2, "weights": np.full(10, np.nan)}, "weights .* must be finite and not negative"),
        ({"ranks": 2, "weights": np.linspace(-0.1, 1, 10)}, "weights .* must be finite and not negative"),
        ({"ranks": 3, "weights": np.ones(10), "rows": 3}, "3 rows for 10 atoms on 3 ranks"),
    ],
)
def test_errors_say_what_was_given_and_what_is_allowed(arguments, message):
    for method in [arguments["method"]] if "method" in arguments else ["auto", *METHODS]:
        with pytest.raises(PartitionError, match=f"{message}$"):
            cut(gas(10), **(arguments | {"method": method}))


def test_the_occupied_range_is_measured_between_faces():
    system = gas(2000)
    np.testing.assert_allclose(system.lengths, heights(TRICLINIC), rtol=0.01)
    half = atoms(system.positions * 0.5, TRICLINIC, EVERYWHERE)
    np.testing.assert_allclose(half.lengths, 0.5 * system.lengths)
    spread = half.spread(np.arange(2000))
    assert (spread.min(0) == 0).all()
    np.testing.assert_allclose(spread.max(0), 1)
    assert (atoms(np.ones((2, 3)), TRICLINIC, EVERYWHERE).spread(np.arange(2)) == 0).all()
