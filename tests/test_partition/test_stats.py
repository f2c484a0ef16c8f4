"""Figures of a cut against counting by hand, and the example of docs/partition.md."""

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from partition import host_search, stats
from partition.cut import atoms, cut
from partition.exchange import requests

ROOT = Path(__file__).parents[2]
CUBE = np.ones(3, bool)


@pytest.fixture(scope="module")
def system():
    return atoms(np.random.default_rng(0).random((1500, 3)) * 25.0, np.eye(3) * 25.0, CUBE)


@pytest.mark.parametrize("method", ["grid", "hilbert"])
def test_counts_are_those_of_the_pairs(system, method):
    made = cut(system, 6, method, cutoff=4.0)
    figures, counts = stats.summary(system, made, 3.5, skin=0.5)
    i, j, _ = host_search.neighbors(system.positions, system.cell, CUBE, 4.0)
    owner = made.owner()
    np.testing.assert_array_equal(counts.edges, np.bincount(owner[i], minlength=6))
    np.testing.assert_array_equal(counts.local, np.bincount(owner[i][owner[i] == owner[j]], minlength=6))
    for rank in range(6):
        halo = np.unique(j[(owner[i] == rank) & (owner[j] != rank)])
        assert counts.halo[rank] == len(halo)
        np.testing.assert_array_equal(counts.sent[rank], np.bincount(owner[halo], minlength=6))
    assert figures["edges"] == len(i)
    assert figures["halo_atoms_max"] == counts.halo.max()
    assert figures["halo_bytes_per_layer_max"] == counts.halo.max() * 4 * 9 * 128
    assert figures["edge_imbalance"] == pytest.approx(counts.edges.max() / counts.edges.mean())
    assert 0.95 < figures["box_inflation_mean"] < (1.05 if method == "grid" else 3)
    np.testing.assert_array_equal(stats.edges_of_atoms(system, made, 4.0), np.bincount(i, minlength=1500))


def test_the_local_fraction_of_cubes_is_formula_10():
    system = atoms(np.random.default_rng(1).random((64_000, 3)) * 86.18, np.eye(3) * 86.18, CUBE)
    made = cut(system, 8, "hilbert", cutoff=4.0)  # octants
    counts = stats.count(requests(system, made, 4.0), 4.0, [0, 5])
    measured = counts.local.sum() / counts.edges.sum()
    # the formula leaves out terms of second order in r / L = 0.093
    assert measured == pytest.approx(stats.local_fraction(4.0, 8000.0, 0.1), abs=0.01)


def test_weights_balance_edges():
    rng = np.random.default_rng(2)
    dense = 7 + rng.normal(size=(700, 3)) * 2.5
    system = atoms(np.concatenate([rng.random((1400, 3)) * 24, dense]), np.eye(3) * 24.0, CUBE)
    first = cut(system, 4, "hilbert", cutoff=4.0)
    weights = stats.edges_of_atoms(system, first, 4.0)
    made = cut(system, 4, "hilbert", cutoff=4.0, weights=weights, rows=1700)
    before, after = (stats.summary(system, each, 4.0)[0] for each in (first, made))
    assert before["edge_imbalance"] > 1.5
    assert after["edge_imbalance"] < 1.02


def test_the_example_in_the_documentation_counts_neighbours():
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "partition.md").read_text(), re.S)
    assert code
    positions = np.random.default_rng(3).random((400, 3)) * 16.0
    names = {"positions": positions, "cell": np.eye(3) * 16.0, "pbc": CUBE}
    exec(code[1], names)
    counted = np.asarray(names["neighbours"](names["found"], names["x"], names["cell"]))
    i, _, _ = host_search.neighbors(positions, np.eye(3) * 16.0, CUBE, 5.0)
    np.testing.assert_array_equal(names["made"].gather(counted.reshape(4, -1)), np.bincount(i, minlength=400))


def test_the_package_needs_numpy_jax_and_vesin_only():
    for path in (ROOT / "partition").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        foreign = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
        allowed = {"numpy", "jax", "vesin", "partition"}
        assert foreign <= allowed | ({"hypothesis"} if path.name == "testing.py" else set()), path
