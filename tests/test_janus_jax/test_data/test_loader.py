"""The stream of batches: complete, deterministic, resumable, packed, the same from threads and processes."""

import numpy as np
import pytest

from janus_jax.data.batching import choose
from janus_jax.data.dataset import Dataset
from janus_jax.data.loader import WINDOW, Position, plan, stream
from janus_jax.data.sources import open_source
from janus_jax.data.summary import summarize
from janus_jax.errors import CapacityError
from janus_jax.graph import Capacity


@pytest.fixture(scope="module")
def data():
    source = open_source("water:validation")
    chosen = np.array([0, 3, 7, 21, 22, 30, 41, 44, 50, 58, 59])
    return Dataset(source, summarize(source, 3.0), chosen, 3.0, {1: 0.0, 8: 0.0})


def members(batch):
    return list(batch.members)


def test_stream_is_deterministic_resumable_and_complete(data):
    capacity = choose(data.atoms, data.edges, 100)
    batches = stream(data, capacity, 2, seed=7)
    first = [next(batches) for _ in range(9)]
    batches.close()
    drawn = [k for batch in first for k in members(batch)]
    assert sorted(drawn[:11]) == sorted(drawn[11:22]) == list(range(11))
    assert drawn[:11] != drawn[11:22]
    again = stream(data, capacity, 2, seed=7, start=first[3].position)
    for expected in first[4:]:
        batch = next(again)
        assert members(batch) == members(expected)
        assert batch.position == expected.position
        for a, b in zip(batch.micro_batches, expected.micro_batches, strict=True):
            np.testing.assert_array_equal(a.positions, b.positions)
            np.testing.assert_array_equal(a.targets.forces, b.targets.forces)
    assert members(next(stream(data, capacity, 2, seed=8))) != members(first[0])
    assert first[0].position == Position(0, 2)
    assert float(first[0].counts.energies) == len(members(first[0]))
    assert first[0].atoms == sum(int(m.atom_mask.sum()) for m in first[0].micro_batches)
    assert first[0].edges == sum(int(m.edge_mask.sum()) for m in first[0].micro_batches)


def test_worker_processes_give_the_same_batches(data):
    capacity = choose(data.atoms, data.edges, 100)
    here, there = stream(data, capacity, 1, seed=1), stream(data, capacity, 1, seed=1, workers=1)
    for _ in range(5):
        a, b = next(here), next(there)
        assert (a.members, a.position) == (b.members, b.position)
        np.testing.assert_array_equal(a.micro_batches[0].src, b.micro_batches[0].src)
        np.testing.assert_array_equal(a.micro_batches[0].targets.energy, b.micro_batches[0].targets.energy)
    here.close()
    there.close()


def test_a_plan_packs_every_structure_once_and_tightly():
    rng = np.random.default_rng(0)
    atoms = rng.integers(3, 300, 3000)
    edges = atoms * rng.integers(20, 60, 3000)
    capacity = choose(atoms, edges, 1024)
    groups = list(plan(atoms, edges, capacity, seed=3, epoch=2))
    assert sorted(k for group in groups for k in group) == list(range(3000))
    for group in groups:
        assert capacity.fits(Capacity(int(atoms[group].sum()), int(edges[group].sum()), len(group)))
    # In the order of drawing alone (next fit), a sixth of the batches would be padding.
    lower = max(atoms.sum() / capacity.atoms, edges.sum() / capacity.edges)
    assert len(groups) < 1.1 * lower + 3000 / WINDOW + 1
    assert groups == list(plan(atoms, edges, capacity, seed=3, epoch=2))
    assert groups != list(plan(atoms, edges, capacity, seed=3, epoch=3))


def test_a_structure_that_fits_nowhere_is_named_before_the_first_batch(data):
    with pytest.raises(CapacityError, match=r"36 atoms needed, capacity 32.*frame"):
        next(stream(data, Capacity(32, 10_000, 4), 1, seed=0))


def test_graphs_are_kept_in_memory_only_if_all_fit():
    source = open_source("water:validation")
    summary = summarize(source, 3.0)
    small, none = (Dataset(source, summary, np.arange(4), 3.0, {}, memory_bytes=n) for n in (1 << 24, 1000))
    assert small[1] is small[1]
    assert none[1] is not none[1]
    assert not none._kept


def test_micro_batches_of_more_structures_than_a_window_are_filled():
    atoms = np.full(6 * WINDOW, 3)
    capacity = choose(atoms, 4 * atoms, 2 * WINDOW * 3)
    used = [int(atoms[group].sum()) for group in plan(atoms, 4 * atoms, capacity, seed=0, epoch=0)]
    assert used == [capacity.atoms] * 3
