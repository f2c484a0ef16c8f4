"""Cuts that ranks make together: the host's, from any distribution, with everything that belongs to the atoms."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partition import cut as host
from partition.distributed import migrate, recut
from tests.test_partition.conftest import AXIS, PERIODIC, mapped, put

ATOMS = 40
ROWS = 50  # before the cut: one rank can hold all atoms
SKEWED = np.array([[12.0, 0.0, 0.0], [3.0, 15.0, 0.0], [-2.0, 1.0, 20.0]])
EXACT = np.diag([16.0, 8.0, 32.0])  # its inverse has no rounding, so that equal coordinates stay equal everywhere
CASES = [
    ("hilbert", (1, 1, 1)), ("morton", (2, 1, 1)), ("grid", (3, 1, 1)), ("grid", (2, 1, 2)), ("hilbert", (5, 1, 1)),
    ("grid", (1, 2, 3)), ("morton", (7, 1, 1)), ("hilbert", (8, 1, 1)), ("morton", (8, 1, 1)), ("grid", (2, 2, 2)),
]  # fmt: skip


@functools.cache
def cutter(method: str, shape, total: int, rows: int, weighted: bool = False):
    """`recut` of positions and of more that belongs to the atoms, compiled once."""

    def run(positions, ids, cell, weights):
        more = {
            "x": positions,
            "v": jnp.stack([ids, -ids], 1).astype(jnp.float32),
            "z": ids * 7,
            "flag": (ids % 3 == 0)[:, None],
        }
        settings = {"pbc": PERIODIC, "method": method, "shape": shape, "total": total, "rows": rows, "axis": AXIS}
        return recut(more, positions, ids, cell, weights=weights if weighted else None, **settings)

    return mapped(run, int(np.prod(shape)), "ssrs", ("s", "s", "r"))


def distribution(kind: str, total: int, ranks: int, rng):
    """Ids [K, ROWS] to start from: even, half of the ranks empty, or all on one rank; padding is anywhere."""
    if kind == "even":
        owner = np.arange(total) % ranks
    elif kind == "one":
        owner = np.full(total, rng.integers(ranks))
    else:
        owner = rng.choice(rng.permutation(ranks)[: max(ranks // 2, 1)], total)
    ids = np.full((ranks, ROWS), -1, np.int32)
    order = rng.permutation(total)
    for rank in range(ranks):
        mine = order[owner[order] == rank]
        ids[rank, rng.permutation(ROWS)[: len(mine)]] = mine
    return ids


def recut_of(positions, cell, shape, method, ids, rows, weights=None):
    """Ids [K, rows] after the cut and how many rows were lost; what belongs to the atoms must have come along."""
    ranks, weighted = int(np.prod(shape)), weights is not None

    def rows_of(values, fill):
        padding = (ids < 0)[(...,) + (None,) * (values.ndim - 1)]
        return put(np.where(padding, fill, values[ids] if len(values) else fill), ranks)

    costs = rows_of(weights if weighted else np.ones(len(positions)), 1e9)  # padding must count nothing
    placed = rows_of(positions, 1e6) if len(positions) else put(np.full((*ids.shape, 3), 1e6), ranks)
    function = cutter(method, shape, len(positions), rows, weighted)
    arrays, new, lost = jax.device_get(function(placed, put(ids, ranks), jnp.asarray(cell), costs))
    real, there = new >= 0, new[new >= 0]
    if not lost:
        assert sorted(there.tolist()) == list(range(len(positions)))
    assert (arrays["x"][real] == positions[there]).all()
    assert (arrays["v"][real] == np.stack([there, -there], 1)).all()
    assert (arrays["z"][real] == 7 * there).all()
    assert (arrays["flag"][real][:, 0] == (there % 3 == 0)).all()
    assert arrays["v"].dtype == np.float32
    assert arrays["flag"].dtype == bool
    return new.reshape(ranks, rows), int(lost)


@pytest.fixture
def cut(monkeypatch):
    """The host's cut, with the shape of the grid given."""

    def make(positions, cell, shape, method):
        monkeypatch.setattr(host, "factors", lambda *_: shape)
        return host.cut(host.atoms(positions, cell, PERIODIC), int(np.prod(shape)), method)

    return make


@pytest.mark.parametrize(("method", "shape"), CASES)
def test_cuts_are_those_of_the_host_from_any_start(cut, method, shape):
    ranks, rng = int(np.prod(shape)), np.random.default_rng([len(method), *shape])
    rows = -(-ATOMS // ranks) + 2
    for start, layout in itertools.product(("even", "one", "few"), ("random", "repeated", "line")):
        cell = SKEWED if layout == "random" else EXACT
        fractional = rng.uniform(-1, 2, (ATOMS, 3))
        if layout != "random":
            fractional = rng.integers(-8, 8, (ATOMS, 3)) / 4
            fractional[: ATOMS // 4] = fractional[ATOMS // 4 : 2 * (ATOMS // 4)]
        if layout == "line":
            fractional[:, rng.permutation(3)[:2]] = 0.25
        positions = fractional @ cell
        made = cut(positions, cell, shape, method)
        new, lost = recut_of(positions, cell, shape, method, distribution(start, ATOMS, ranks, rng), rows)
        assert lost == 0
        assert (new == made.table(rows)).all(), (start, layout)


@pytest.mark.parametrize(
    ("method", "shape", "total"), [("hilbert", (8, 1, 1), 5), ("grid", (2, 2, 2), 3), ("morton", (3, 1, 1), 0)]
)
def test_ranks_may_stay_empty(cut, method, shape, total):
    rng = np.random.default_rng(total)
    for start in ("even", "one"):
        positions = rng.random((total, 3)) @ SKEWED
        expected = np.full((int(np.prod(shape)), 2), -1)
        if total:
            expected = cut(positions, SKEWED, shape, method).table(2)
        ids = distribution(start, total, len(expected), rng)
        new, lost = recut_of(positions, SKEWED, shape, method, ids, 2)
        assert lost == 0
        assert (new == expected).all()


WEIGHTED = [("hilbert", (5, 1, 1)), ("grid", (2, 1, 2)), ("morton", (8, 1, 1))]


@pytest.mark.parametrize(("method", "shape"), WEIGHTED)
def test_weights_are_balanced_to_one_atom_where_rows_allow(method, shape):
    ranks, rng = int(np.prod(shape)), np.random.default_rng(len(method))
    unbalanced = 0
    for start in ("even", "one", "few"):
        weights, positions = rng.uniform(0.5, 8, ATOMS), rng.random((ATOMS, 3)) @ SKEWED
        ids = distribution(start, ATOMS, ranks, rng)
        new, lost = recut_of(positions, SKEWED, shape, method, ids, ATOMS, weights)
        assert lost == 0
        mine = np.where(new >= 0, weights[new], 0).sum(1)
        levels = sum(parts > 1 for parts in shape)
        assert np.abs(mine - weights.sum() / ranks).max() <= levels * weights.max() * (1 + 1e-12)
        if levels == 1:  # so are all sums from the first rank on
            ideal = weights.sum() * np.arange(1, ranks + 1) / ranks
            assert np.abs(np.cumsum(mine) - ideal).max() <= weights.max() * (1 + 1e-12)
        counts = (new >= 0).sum(1)
        unbalanced += counts.max() > -(-ATOMS // ranks)
        order = host.cut(host.atoms(positions, SKEWED, PERIODIC), 1, method).order
        if method == "hilbert":  # a curve is only divided elsewhere
            assert (new[new >= 0] == order).all()
    assert unbalanced > 0


@pytest.mark.parametrize(
    ("method", "shape", "spare"),
    [("hilbert", (5, 1, 1), 0), ("hilbert", (5, 1, 1), 1), ("grid", (2, 1, 2), 1), ("grid", (2, 1, 2), 3)],
)
def test_weights_never_fill_a_rank_beyond_its_rows(method, shape, spare):
    ranks, rng = int(np.prod(shape)), np.random.default_rng(spare)
    rows = ATOMS // ranks + spare
    heavy = np.where(np.arange(ATOMS) < 3, 300.0, rng.random(ATOMS))
    for weights in (heavy, heavy[::-1], 1e-9 * heavy, np.zeros(ATOMS), np.eye(ATOMS)[7]):
        positions = rng.random((ATOMS, 3)) @ SKEWED
        new, lost = recut_of(
            positions, SKEWED, shape, method, distribution("even", ATOMS, ranks, rng), rows, weights.copy()
        )
        assert lost == 0
        assert (new >= 0).sum() == ATOMS


def test_equal_weights_give_equal_counts():
    rng = np.random.default_rng(0)
    positions = rng.random((ATOMS, 3)) @ SKEWED
    ids = distribution("few", ATOMS, 5, rng)
    new, _ = recut_of(positions, SKEWED, (5, 1, 1), "hilbert", ids, ATOMS, np.full(ATOMS, 2.5))
    assert ((new >= 0).sum(1) == ATOMS // 5).all()
    assert (new[new >= 0] == host.cut(host.atoms(positions, SKEWED, PERIODIC), 5, "hilbert").order).all()


# Migration


def migrated(share: int, rows: int):
    def run(ids, owner, key):
        values = (ids.astype(jnp.float32)[:, None] * jnp.array([[1.0, -1.0]], jnp.float32), ids % 2 == 0)
        return migrate(values, owner, [key], ids, rows, 4, AXIS, share)

    return mapped(run, 4, "sss", ("s", "s", "r"))


def test_rows_arrive_in_rounds_and_those_without_room_are_counted():
    rng, total = np.random.default_rng(0), 35
    ids = distribution("few", total, 4, rng)
    key = rng.integers(0, 5, total).astype(np.uint32)  # ties: by id
    owner = rng.choice(4, total, p=[0.6, 0.2, 0.2, 0.0]).astype(np.int32)
    given = [put(np.where(ids >= 0, array[ids], 9), 4).astype(array.dtype) for array in (owner, key)]
    for share, rows in ((3, 32), (64, 32), (3, 12)):
        (pair, even), new, lost = jax.device_get(migrated(share, rows)(put(ids, 4), *given))
        new, wanted = new.reshape(4, rows), [np.flatnonzero(owner == rank) for rank in range(4)]
        assert lost == sum(max(len(atoms) - rows, 0) for atoms in wanted)
        assert (lost > 0) == (rows == 12)
        flat = new.reshape(-1)
        assert (pair[flat >= 0] == np.stack([flat, -flat], 1)[flat >= 0]).all()
        assert (even[flat >= 0] == (flat % 2 == 0)[flat >= 0]).all()
        for rank, atoms in enumerate(wanted):
            found = new[rank][new[rank] >= 0]
            assert (new[rank][len(found) :] == -1).all()
            assert np.isin(found, atoms).all()
            assert len(found) == min(len(atoms), rows)
            assert (np.lexsort([found, key[found]]) == np.arange(len(found))).all()


def collectives(total: int, rows: int, method: str, shape) -> list[tuple[str, int]]:
    """Names and sizes of what ranks exchange in a cut of `total` atoms."""
    ranks = int(np.prod(shape))
    arrays = [
        jax.ShapeDtypeStruct(s, d)
        for s, d in (((ranks * rows, 3), float), ((ranks * rows,), np.int32), ((3, 3), float), ((ranks * rows,), float))
    ]
    found = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            if AXIS in str(equation.params.get("axis_name", equation.params.get("axes", ""))):
                found.append((equation.primitive.name, max(var.aval.size for var in equation.outvars)))
            for inner in itertools.chain(*(v if isinstance(v, tuple) else (v,) for v in equation.params.values())):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    visit(getattr(inner, "jaxpr", inner))

    visit(jax.make_jaxpr(cutter(method, shape, total, rows, True))(*arrays).jaxpr)
    return sorted(found)


@pytest.mark.parametrize(("method", "shape"), [("hilbert", (8, 1, 1)), ("grid", (2, 2, 2))])
def test_no_rank_ever_holds_all_atoms(method, shape):
    few, many = collectives(64, 8, method, shape), collectives(64_000, 8000, method, shape)
    assert few == many
    names = {name for name, _ in few}
    assert any(name.startswith("psum") for name in names)
    assert any("all_to_all" in name for name in names)
    assert not any("gather" in name for name in names)
    assert max(size for _, size in few) <= 8 * 64 * 3  # a round of positions
