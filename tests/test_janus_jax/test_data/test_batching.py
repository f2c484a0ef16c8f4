"""Padding, grouping by budget, and the choice of capacities."""

import dataclasses

import numpy as np
import pytest
from ase import Atoms
from hypothesis import example, given, settings
from hypothesis import strategies as st

from janus_jax.data.batching import bucket, choose, fill, need, pad, round_up
from janus_jax.data.neighbors import from_atoms
from janus_jax.errors import CapacityError, StructureError
from janus_jax.graph import Capacity, Targets
from janus_jax.testing import crystal, molecule, slab

pytestmark = pytest.mark.core

CAPACITY = Capacity(20, 300, 5)
few = settings(max_examples=60, derandomize=True, deadline=None, database=None)
needs = st.lists(st.builds(Capacity, st.integers(0, 40), st.integers(0, 900), st.just(1)), min_size=1, max_size=30)


def graphs():
    return [from_atoms(a, 3.5, dataset=k) for k, a in enumerate((molecule(), crystal(), Atoms("H"), slab()))]


def test_padded_graph_holds_every_structure_in_order():
    batch, start, first = pad(graphs(), CAPACITY), 0, 0
    for k, graph in enumerate(graphs()):
        n, e = len(graph.numbers), len(graph.src)
        atoms, edges = slice(start, start + n), slice(first, first + e)
        np.testing.assert_array_equal(batch.numbers[atoms], graph.numbers)
        np.testing.assert_array_equal(batch.positions[atoms], graph.positions.astype(np.float32))
        assert (batch.atom_structure[atoms] == k).all()
        np.testing.assert_array_equal(batch.src[edges] - start, graph.src)
        np.testing.assert_array_equal(batch.dst[edges] - start, graph.dst)
        np.testing.assert_array_equal(batch.image[edges], graph.image)
        for name in ("charge", "spin", "dataset", "pbc"):
            np.testing.assert_array_equal(getattr(batch, name)[k], getattr(graph, name)[0])
        np.testing.assert_array_equal(batch.cell[k], graph.cell[0].astype(np.float32))
        start, first = start + n, first + e


@pytest.mark.parametrize(
    "capacity", [CAPACITY, sum((need(g) for g in graphs()), Capacity(0, 0, 0)), Capacity(14, 400, 4)]
)
def test_padding_is_masked_sorted_and_of_the_exact_capacity(capacity):
    batch = pad(graphs(), capacity)
    total = sum((need(graph) for graph in graphs()), Capacity(0, 0, 0))
    assert need(batch) == total
    assert batch.capacity == capacity
    for name, real in dataclasses.asdict(total).items():
        rows = getattr(capacity, name)
        mask = getattr(batch, {"atoms": "atom_mask", "edges": "edge_mask", "structures": "structure_mask"}[name])
        assert (mask == (np.arange(rows) < real)).all()
    assert (np.diff(batch.dst) >= 0).all()
    assert (np.diff(batch.atom_structure) >= 0).all()
    for index in (batch.src, batch.dst):
        assert (index[total.edges :] == capacity.atoms - 1).all()
    assert (batch.atom_structure[total.atoms :] == capacity.structures - 1).all()
    assert (batch.cell[total.structures :] == np.eye(3)).all()
    counts = batch.atoms_per_structure()
    assert counts.tolist() == [6, 3, 1, 4] + [0] * (capacity.structures - 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_only_floating_point_arrays_change_type(dtype):
    batch, one = pad(graphs(), CAPACITY, dtype), graphs()[0]
    for field in dataclasses.fields(batch):
        if field.name not in ("targets", "own_edges"):
            before = getattr(one, field.name).dtype
            expected = dtype if np.issubdtype(before, np.floating) else before
            assert getattr(batch, field.name).dtype == expected, field.name


def test_targets_are_padded_and_masked():
    def labelled(graph, energy):
        n = len(graph.numbers)
        forces = energy + np.arange(3.0 * n).reshape(n, 3)
        known = np.ones(1, bool)
        return graph.replace(
            targets=Targets(
                np.array([energy]), known, forces, np.ones(n, bool), np.full((1, 3, 3), energy), ~known, np.ones(1)
            )
        )

    targets = pad([labelled(g, float(k)) for k, g in enumerate(graphs())], CAPACITY).targets
    assert targets.energy.tolist() == [0, 1, 2, 3, 0]
    assert targets.energy_mask.tolist() == [True] * 4 + [False]
    assert targets.forces.shape == (20, 3)
    assert targets.forces.dtype == np.float32
    assert targets.forces[6:9, 0].tolist() == [1, 4, 7]
    assert targets.forces_mask.tolist() == [True] * 14 + [False] * 6
    assert targets.stress[:, 2, 0].tolist() == [0, 1, 2, 3, 0]
    assert not targets.stress_mask.any()
    assert targets.weight.tolist() == [1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (Capacity(13, 300, 5), "14 atoms needed, capacity 13"),
        (Capacity(20, 30, 5), r"\d+ edges needed, capacity 30"),
        (Capacity(20, 300, 3), "4 structures needed, capacity 3"),
        (Capacity(2, 300, 3), "14 atoms needed, capacity 2; 4 structures needed, capacity 3"),
    ],
)
def test_overflow_names_need_and_capacity(capacity, message):
    with pytest.raises(CapacityError, match=message):
        pad(graphs(), capacity)


@few
@given(st.lists(st.integers(0, 3), max_size=25), st.integers(6, 20), st.integers(1, 5))
def test_fill_neither_loses_nor_duplicates_and_closes_groups_late(kinds, atoms, structures):
    stream, capacity = [graphs()[k] for k in kinds], Capacity(atoms, 300, structures)
    groups = list(fill(iter(stream), capacity))
    assert [id(g) for group in groups for g in group] == [id(g) for g in stream]
    used = [sum((need(g) for g in group), Capacity(0, 0, 0)) for group in groups]
    assert all(group and capacity.fits(u) for group, u in zip(groups, used, strict=True))
    for u, after in zip(used, groups[1:], strict=False):
        assert not capacity.fits(u + need(after[0]))


def test_fill_refuses_a_structure_larger_than_the_capacity():
    with pytest.raises(CapacityError, match="6 atoms needed, capacity 5"):
        list(fill(graphs(), Capacity(5, 300, 5)))


def sizes(needs):
    return np.array([n.atoms for n in needs]), np.array([n.edges for n in needs])


@few
@given(needs=needs, budget=st.integers(40, 500))
@example(needs=[Capacity(40, 0, 1)] * 3 + [Capacity(1, 900, 1)], budget=40)  # one needs more edges than the mean gives
def test_chosen_capacity_fits_each_and_is_bounded(needs, budget):
    capacity = choose(*sizes(needs), budget)
    assert all(capacity.fits(one) for one in needs)
    everything = sum(n.atoms for n in needs)
    assert min(budget, everything) <= capacity.atoms < max(1, min(budget, everything)) + 8
    assert capacity.atoms % 8 == 0
    assert capacity.edges % 64 == 0
    mean = sum(n.edges for n in needs) / max(1, sum(n.atoms for n in needs))
    assert capacity.edges <= max(1, max(n.edges for n in needs), 1.1 * mean * capacity.atoms) + 63
    assert capacity.edges < max(1, sum(n.edges for n in needs)) + 64
    smallest_first = sorted(n.atoms for n in needs)
    fitting = [k for k in range(1, len(needs) + 1) if sum(smallest_first[:k]) <= capacity.atoms]
    assert capacity.structures == max(fitting, default=1)


def test_a_budget_beyond_the_data_is_that_of_the_data():
    assert choose(np.array([10, 30, 12]), np.array([100, 250, 90]), 100_000) == Capacity(56, 448, 3)
    halves = choose(np.array([10, 30, 12]), np.array([100, 250, 90]), 100_000, Capacity(40, 350, 2))
    assert halves == Capacity(40, 384, 2)  # no split has all three


def test_choice_refuses_a_structure_larger_than_the_budget():
    with pytest.raises(CapacityError, match="41 atoms needed, capacity 40"):
        choose(np.array([41, 3]), np.array([10, 4]), 40)


@few
@given(st.integers(0, 10**6), st.integers(0, 10**7))
def test_bucket_fits_with_at_most_a_quarter_or_one_step_to_spare(atoms, edges):
    one = Capacity(atoms, edges, 3)
    size = bucket(one)
    assert size.fits(one)
    assert size.structures == 3
    for have, asked, step in ((size.atoms, atoms, 8), (size.edges, edges, 64)):
        assert have % step == 0
        assert have < 1.25 * max(asked, 1) + 2 * step
    assert bucket(size) == size


def test_buckets_are_few():
    assert len({bucket(Capacity(n, 0, 1)).atoms for n in range(1, 20_000, 50)}) < 40


def test_round_up():
    assert [round_up(n, 8) for n in (0, 1, 8, 9)] == [8, 8, 8, 16]


def test_empty_input():
    assert list(fill([], CAPACITY)) == []
    empty = from_atoms(Atoms(), 3.5)
    batch = pad([empty, *graphs()], CAPACITY)
    assert need(batch) == Capacity(14, sum(need(g).edges for g in graphs()), 5)
    assert batch.atom_structure.min() == 1


def test_nothing_and_padded_graphs_are_refused():
    graph = from_atoms(molecule(), 3.0)
    padded = pad([graph], Capacity(20, 200, 2))
    for graphs, words in (([], "no structure"), ([padded, graph], "padded already")):
        with pytest.raises(StructureError, match=words):
            pad(graphs, Capacity(60, 600, 6))
    with pytest.raises(StructureError, match="no structure"):
        choose(np.zeros(0, int), np.zeros(0, int), 10)
