"""The oracle of the other tests here: against a triple loop, and where the answer is known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from partition.testing import System, as_set, assert_exact, complete_cell, oracle_pairs, systems

# Edges of 4 angstrom, all angles 10 degrees: opposite faces are 0.6 angstrom apart
COSINE = np.cos(np.radians(10))
SLOPE = (COSINE - COSINE**2) / np.sqrt(1 - COSINE**2)
SHARP = 4 * np.array(
    [[1, 0, 0], [COSINE, np.sqrt(1 - COSINE**2), 0], [COSINE, SLOPE, np.sqrt(1 - COSINE**2 - SLOPE**2)]]
)
CELLS = {
    "cubic": np.diag([3.0, 3.0, 3.0]),
    "thin": np.diag([0.7, 4.0, 5.0]),
    "triclinic": np.array([[3.1, 0.2, -0.1], [1.6, 3.0, 0.3], [-1.1, 0.9, 4.2]]),
    "left-handed": np.array([[0.0, 3.0, 0.4], [2.5, 0.3, 0.0], [0.0, 0.5, 4.0]]),
    "sharp": SHARP,
}
PBC = list(itertools.product([False, True], repeat=3))


def triple_loop(positions, cell, pbc, cutoff, reach):
    """All pairs among the images -reach to reach."""
    pairs = set()
    for shift in itertools.product(*(range(-reach, reach + 1) if periodic else (0,) for periodic in pbc)):
        for i, j in itertools.product(range(len(positions)), repeat=2):
            d = positions[j] - positions[i] + shift[0] * cell[0] + shift[1] * cell[1] + shift[2] * cell[2]
            if d @ d < cutoff**2 and (i != j or any(shift)):
                pairs.add((i, j, *shift))
    return pairs


@pytest.mark.parametrize("pbc", PBC)
@pytest.mark.parametrize("name", CELLS)
def test_equals_a_triple_loop(name, pbc):
    cell = CELLS[name]
    positions = np.random.default_rng(0).uniform(-0.5, 1.5, (2, 3)) @ cell
    expected = triple_loop(positions, cell, pbc, 2.3, reach=8)
    must, may = oracle_pairs(positions, cell, np.array(pbc), 2.3)
    assert must == may == expected
    assert not any(max(abs(s) for s in pair[2:]) == 8 for pair in expected)  # the loop went far enough
    if name in ("thin", "sharp") and all(pbc):
        assert max(pair[2] for pair in expected) >= 3


def test_shells_of_the_simple_cubic_lattice():
    for cutoff, count in [(1.1, 6), (1.5, 6 + 12), (1.8, 6 + 12 + 8)]:
        must, may = oracle_pairs(np.zeros((1, 3)), np.eye(3), np.ones(3, bool), cutoff)
        assert len(must) == len(may) == count
    must, may = oracle_pairs(np.zeros((1, 3)), np.eye(3), np.ones(3, bool), 1.0)  # undecided: at the cutoff
    assert (len(must), len(may)) == (0, 6)


@settings(deadline=None)
@given(systems(max_atoms=8))
def test_moving_atoms_by_lattice_vectors_changes_only_the_shifts(system):
    moved = np.random.default_rng(0).integers(-20, 21, system.positions.shape) * system.pbc
    must, may = oracle_pairs(**vars(system))
    moved_must, moved_may = oracle_pairs(**vars(replace(system, positions=system.positions + moved @ system.cell)))
    # x[j] + m[j] @ cell is reached from x[i] + m[i] @ cell by S - m[j] + m[i]
    expected = {(i, j, *(np.array(shift) + moved[i] - moved[j]).tolist()) for i, j, *shift in must}
    allowed = {(i, j, *(np.array(shift) + moved[i] - moved[j]).tolist()) for i, j, *shift in may}
    assert expected <= moved_may
    assert moved_must <= allowed


@settings(deadline=None)
@given(systems())
def test_strategy_keeps_what_a_search_may_assume(system):
    assert system.positions.shape[1:] == system.cell.shape[1:] == system.pbc.shape == (3,)
    assert len(system.positions) <= 40
    assert np.isfinite(system.positions).all()
    assert abs(np.linalg.det(complete_cell(system.cell, system.pbc))) > 0
    assert system.cutoff > 0
    assert_exact(oracle_pairs(**vars(system))[0], system)


def test_wrong_results_are_noticed():
    system = System(np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), np.eye(3) * 3, np.ones(3, bool), 2.5)
    pairs, _ = oracle_pairs(**vars(system))
    assert pairs == {(0, 1, 0, 0, 0), (1, 0, 0, 0, 0), (0, 1, -1, 0, 0), (1, 0, 1, 0, 0)}
    assert_exact(pairs, system)
    with pytest.raises(AssertionError, match=r"missing 1:\n  i=0 j=1 S=\(-1, 0, 0\) 2 apart"):
        assert_exact(pairs - {(0, 1, -1, 0, 0)}, system)
    with pytest.raises(AssertionError, match=r"spurious 1:\n  i=0 j=0 S=\(0, 1, 0\) 3 apart"):
        assert_exact(pairs | {(0, 0, 0, 1, 0)}, system)
    with pytest.raises(AssertionError, match="no such atoms"):
        assert_exact(pairs | {(0, 2, 0, 0, 0)}, system)
    with pytest.raises(AssertionError, match="1 repeated pairs"):
        as_set([0, 0], [1, 1], [[0, 0, 1], [0, 0, 1]])
    assert as_set(np.array([0]), np.array([1]), np.array([[0, 0, 1]])) == {(0, 1, 0, 0, 1)}
    assert as_set([], [], []) == set()
