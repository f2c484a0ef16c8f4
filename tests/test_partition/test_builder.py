"""Builders and capacities: what is too small grows by name until all fits, and what cannot be right is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partition.builder import Builder, estimate, stacked, transport_for, unstacked
from partition.capacity import Capacity, Need, bucket, check, grow, over
from partition.errors import CapacityError, CellError, CountError
from partition.plan import exchange_halo
from partition.testing import System, as_set, assert_exact
from partition.topology import Settings, active, build
from partition.transport import Transport, permute
from tests.test_partition.conftest import (
    AXIS,
    EVERY,
    PERIODIC,
    SHAPES,
    arrange,
    mapped,
    mesh,
    pairs_of,
    prepared,
    sharded,
)  # fmt: skip

RANKS, ATOMS, CUTOFF = 4, 32, 3.0
CELL = np.array([[16.0, 0.0, 0.0], [0.5, 8.0, 0.0], [0.0, -0.4, 8.0]])
TINY = Capacity(
    sent=(), images=8, near=8, blocks=8, chunk=8, degree=8, local=(8,), remote=(8,), halo=((),)
)  # fmt: skip
ENOUGH = dataclasses.replace(TINY, images=160, near=640, blocks=32, chunk=320, degree=64, local=(512,), remote=(512,))


def example(seed: int, clustered: bool = True):
    """Atoms of which half may be close together, so that ranks exchange very different numbers of them."""
    rng = np.random.default_rng(seed)
    fractional = rng.random((ATOMS, 3))
    positions = fractional @ CELL
    if clustered:
        positions[::2] = rng.random((ATOMS // 2, 3)) * [3.0, 3.0, 3.0] + [14.0, 1.0, 1.0]
    return positions


def builder_of(transport: Transport, capacity: Capacity, few: int) -> Builder:
    """`few`: atoms that are sent through each slot, and halo of each, to begin with."""
    slots = 0 if transport.kind == "all_gather" else transport.slots
    capacity = dataclasses.replace(capacity, sent=(few,) * slots, halo=((few,) * slots,))
    return Builder(mesh(RANKS), Settings((CUTOFF,), 0.0, PERIODIC, transport), capacity, SHAPES[RANKS])


def look(topology, cell):
    """What `Sharded.program` sees, of topologies made by a Builder."""

    def see(topology, cell):
        topology, seen = unstacked(topology), []
        for plan, cutoff in zip(topology.plans, topology.settings.cutoffs, strict=True):
            points, everyone = exchange_halo((topology.reference, topology.ids), plan)
            seen.append((everyone, *(active(edges, points, cell, cutoff) for edges in (plan.local, plan.remote))))
        return stacked(seen)

    return jax.device_get(mapped(see, RANKS, "sr", "s")(topology, jnp.asarray(cell)))


def assert_right(builder: Builder, positions, method: str, cell=CELL):
    """Builds and compares with the oracle."""
    system, made = prepared(positions, cell, PERIODIC, RANKS, method)
    topology = builder(*arrange(positions, made, made.rows), cell)
    found = as_set(*pairs_of(topology, look(topology, cell), system.turns))
    assert_exact(found, System(positions, cell, np.ones(3, bool), CUTOFF))
    assert len(found) > 100


def grown(builder: Builder) -> list[str]:
    return [reason for reason in builder.compiled if not reason.startswith("build with")]


def test_what_is_too_small_grows_by_name_to_the_right_result():
    builder = builder_of(permute(SHAPES[RANKS], [(k, 0, 0) for k in range(1, RANKS)], AXIS), TINY, 2)
    assert_right(builder, example(0), "grid")
    reasons = grown(builder)
    assert reasons[0] == "capacity: periodic images"
    for name, small in {"sent": 2, "near": 8, "chunk": 8, "degree": 8, "local": 8, "halo": 2}.items():
        assert f"{name} {small} -> " in " ".join(reasons)
    assert builder.compiled.count(f"build with {ATOMS // RANKS} rows") == len(reasons)
    before = list(builder.compiled)
    assert_right(builder, example(0), "grid")
    assert builder.compiled == before


def test_slots_of_an_all_to_all_stay_equally_long_when_only_some_overflow():
    builder = builder_of(Transport("all_to_all", AXIS, RANKS), ENOUGH, 8)
    builder.capacity = dataclasses.replace(builder.capacity, halo=((4,) * RANKS,))
    assert_right(builder, example(0), "hilbert")
    assert len(grown(builder)) == 1
    assert "halo 4 -> " in grown(builder)[0]
    assert len(set(builder.capacity.halo[0])) == len(set(builder.capacity.sent)) == 1


@pytest.mark.parametrize("first", [[(1, 0, 0)], *([[]] if EVERY else [])])
def test_offsets_that_are_missing_are_added_as_a_named_recompilation(first):
    builder = builder_of(permute(SHAPES[RANKS], first, AXIS), ENOUGH, 8)
    assert_right(builder, example(1), "grid")
    transport = builder.settings.transport
    assert transport.slots > len(first)
    assert f"capacity: offsets {len(first)} -> {transport.slots}" in builder.compiled
    assert len(builder.capacity.sent) == len(builder.capacity.halo[0]) == transport.slots
    assert set(permute(SHAPES[RANKS], first, AXIS).sources) <= set(transport.sources)


def test_estimates_serve_other_positions_of_the_same_system_without_compiling():
    positions = example(2, clustered=False)
    system, made = prepared(positions, CELL, PERIODIC, RANKS, "grid")
    settings = Settings((CUTOFF,), 0.5, PERIODIC, transport_for(system, made, CUTOFF + 0.5, AXIS))
    builder = Builder(mesh(RANKS), settings, estimate(system, made, settings, made.rows), made.shape)
    assert_right(builder, positions, "grid")
    before = list(builder.compiled)
    moved = positions + np.random.default_rng(0).normal(scale=0.02, size=positions.shape)
    builder(*arrange(moved, made, made.rows), CELL)
    assert builder.compiled == before


def test_a_cluster_takes_as_much_room_in_a_huge_box_as_in_a_small_one():
    positions, rooms = np.random.default_rng(0).normal(scale=2.5, size=(43, 3)), []
    for length in (30.0, 3000.0, 1e5):
        cell = length * np.eye(3)
        system, made = prepared(positions, cell, PERIODIC, RANKS, "grid")
        transport = transport_for(system, made, CUTOFF + 0.5, AXIS)
        settings = Settings((CUTOFF,), 0.5, PERIODIC, transport)
        rooms.append(estimate(system, made, settings, made.rows))
    for room in rooms:  # bins of atoms begin elsewhere in another box, so lengths are not the same to the row
        assert room.near <= 43 * 27
        for name in ("near", "blocks", "chunk", "degree", "local", "remote"):
            assert np.all(np.array(getattr(room, name)) <= 1.5 * np.array(getattr(rooms[0], name))), name
    assert_right(Builder(mesh(RANKS), settings, rooms[-1], made.shape), positions, "grid", cell)


# Capacities


def need_of(capacity: Capacity, **more) -> Need:
    arrays = {f.name: np.asarray(getattr(capacity, f.name)) for f in dataclasses.fields(Capacity)} | more
    zeros = {"outside": np.zeros((RANKS, RANKS), bool), "far": 0}
    return Need(**{name: jnp.asarray(array) for name, array in (arrays | zeros).items()})


FULL = Capacity(
    sent=(16, 24), images=160, near=136, blocks=8, chunk=96, degree=40,
    local=(128, 64), remote=(80, 40), halo=((16, 24), (8, 16)),
)  # fmt: skip


def test_what_fits_is_left_alone():
    check(FULL, need_of(FULL))
    assert grow(FULL, need_of(FULL)) is None
    assert over(FULL, need_of(FULL)) == {}


def test_what_does_not_fit_is_refused_with_need_and_capacity_and_grows_alone():
    need = need_of(FULL, local=[128, 65], halo=[[16, 30], [9, 16]], degree=41)
    with pytest.raises(CapacityError, match="degree: 41 needed, capacity 40; local: 65 needed, capacity 64") as caught:
        check(FULL, need)
    assert caught.value.over == over(FULL, need) == {"degree": (41, 40), "local": (65, 64), "halo": (30, 24)}
    larger = grow(FULL, need)
    check(larger, need)
    changed = {f.name for f in dataclasses.fields(Capacity) if getattr(larger, f.name) != getattr(FULL, f.name)}
    assert changed == {"degree", "local", "halo"}
    assert larger.local[0] == 128
    assert 1.1 * 65 - 1 <= larger.local[1] <= 1.1 * 65 * 1.125
    assert all(new >= old for new, old in zip(sum(larger.halo, ()), sum(FULL.halo, ()), strict=True))


def test_builds_that_do_not_fit_say_so_and_are_refused():
    short = sharded(1, "permute")
    positions = np.random.default_rng(0).random((24, 3)) * 6
    _, made = prepared(positions, np.eye(3) * 6, PERIODIC, 1, "grid")
    placed, cell = arrange(positions, made, short.rows), short.placed(np.eye(3) * 6)
    (fits, _), _ = short.program(*placed, *cell)
    total = int(np.asarray(fits.plans[0].local.mask).sum())
    for changes in ({"local": (total - 1, 3072)}, {"degree": 8, "near": 64}):
        capacity = dataclasses.replace(short.capacity, **changes)

        def run(*arrays, capacity=capacity):
            topology, need = build(*arrays, short.settings, capacity)
            return stacked(topology), need

        topology, need = mapped(run, 1, "ssrrr", ("s", "r"))(*placed, *cell)
        assert np.asarray(topology.plans[0].local.mask).sum() < total
        with pytest.raises(CapacityError) as caught:
            check(capacity, jax.device_get(need))
        assert set(changes) <= set(caught.value.over)
        assert caught.value.over.get("local", (total, 0))[0] == total


def test_buckets_are_few_and_spare_an_eighth_at_most():
    rng = np.random.default_rng(0)
    counts = np.unique(np.concatenate([np.arange(5000), rng.integers(5000, 2**30, 2000), [2**20, 2**20 + 1]]))
    lengths = np.array([bucket(int(count)) for count in counts])
    assert (lengths >= counts).all()
    assert (np.diff(lengths) >= 0).all()
    large = counts > 64
    assert (lengths[large] <= 1.125 * counts[large]).all()
    assert all(bucket(int(length)) == length for length in np.unique(lengths))
    assert len({bucket(count) for count in range(65, 129)}) == 8
    with pytest.raises(CountError):
        bucket(2**31)


# Numbers that 32 bits cannot hold


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("permute", {"images": 2**29}, "pairs of rows and images"),
        ("permute", {"images": 2**26, "sent": (8, 8, 24)}, "pairs of candidates and images"),
        ("all_gather", {"images": 2**26}, "pairs of candidates and images"),
        ("permute", {"degree": 2**29}, "rows of the neighbour table"),
    ],
)
def test_arrays_that_32_bits_cannot_number_are_refused_before_compiling(monkeypatch, kind, changes, message):
    offsets = [(k, 0, 0) for k in range(1, RANKS)]
    transport = permute(SHAPES[RANKS], offsets, AXIS) if kind == "permute" else Transport(kind, AXIS, RANKS)
    builder = builder_of(transport, TINY, 8)
    builder.capacity = dataclasses.replace(builder.capacity, **changes)
    monkeypatch.setattr(Builder, "_cell", lambda *_: pytest.fail("not refused"))  # before huge arrays are made
    _, made = prepared(example(0), CELL, PERIODIC, RANKS, "grid")
    with pytest.raises(CountError, match=message):
        builder(*arrange(example(0), made, made.rows), CELL)


def test_atoms_too_many_cells_away_are_refused():
    positions, cell = np.random.default_rng(0).random((24, 3)) * 16, np.eye(3) * 16
    small = sharded(1, "permute", near=64, edges=256, images=160)
    _, made = prepared(positions, cell, PERIODIC, 1, "grid")
    builder = Builder(mesh(1), small.settings, small.capacity, (1, 1, 1))
    builder(*arrange(positions, made, small.rows), cell)
    for cells in (1e10, -1e10, 3e9, -3e9, -(2.0**31), 2.0**30, -1.1 * 2**30):
        away = positions.copy()
        away[17, 1] += 16 * cells
        with pytest.raises(CellError, match="cells away"):
            builder(*arrange(away, made, small.rows), cell)
    away[17, 1] = positions[17, 1] + 16 * 2.0**28
    builder(*arrange(away, made, small.rows), cell)
    assert builder.compiled == [f"build with {small.rows} rows"]


def test_cells_with_too_many_images_are_refused():
    build = sharded(1, "permute")
    positions = np.zeros((1, 3))
    _, made = prepared(positions, np.eye(3), PERIODIC, 1, "hilbert")
    builder = Builder(mesh(1), build.settings, build.capacity, (1, 1, 1))
    with pytest.raises(CellError, match="images"):
        builder(*arrange(positions, made, build.rows), np.diag([1e-3, 1e-3, 1.0]))
    assert builder.compiled == []
