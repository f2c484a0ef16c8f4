"""eSEN against numbers of the public implementation: every system of both fixture files.

Each fixture has one capacity, so that its systems and the batch run in one compiled program.
"""

import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from janus_jax.data.batching import pad
from janus_jax.data.neighbors import from_atoms
from janus_jax.errors import StateMismatchError
from janus_jax.graph import Capacity
from janus_jax.models import esen, so3
from janus_jax.models.esen import add_system
from janus_jax.models.potential import Prediction, edge_vectors, energy_forces_stress, no_exchange
from janus_jax.testing import (
    brute_force_edges,
    edge_rows,
    fixture_atoms,
    fixture_config,
    fixture_graph,
    fixture_system,
    quick_jit,
    rel_error,
    weighted_gradient,
)

pytestmark = pytest.mark.core

FIXTURES = Path(__file__).parents[2] / "fixtures"
GATE, GRID = "esen_gate_spectral.npz", "esen_mmax1_grid.npz"
SYSTEMS = [(GATE, "", s) for s in "abcd"] + [(GRID, v, s) for v in ("gate/", "s2/") for s in "ab"]
CAPACITY = {GATE: Capacity(11, 276, 2), GRID: Capacity(10, 192, 1)}
OUTPUTS = ("energy", "forces", "virial", "stress")


@cache
def load(file: str) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / file) as data:
        return {key: data[key] for key in data.files}


@cache
def model_of(file: str, variant: str = "", dtype=np.float64, **options) -> esen.Esen:
    data = load(file)
    weights = {name: w.astype(dtype) for name, w in fixture_system(data, f"{variant}w").items()}
    return esen.load_state(fixture_config(str(data[f"{variant}config_json"])), weights, **options)


@quick_jit
def run(model, graph):
    """The prediction, and every stored stage of the network."""
    vectors = edge_vectors(graph, graph.positions, jnp.zeros_like(graph.cell), model.cutoff)
    geometry = model.geometry(graph, vectors.astype(model.dtype), no_exchange)
    h = model.embed(graph, geometry)
    stages = {"csd": geometry.system, "node_embed": h, "node_atom": h - model.edge_degree_embedding(graph, geometry)}
    for k, block in enumerate(model.blocks):
        x = add_system(block.norm_1(h), graph, geometry)
        message = block.edge_wise(x, graph, geometry, no_exchange)
        norm2 = block.norm_2(h + message)
        h = block(h, graph, geometry, no_exchange)
        new = {"edgewise_in": x, "edgewise": message, "norm2": norm2, "atomwise": block.atom_wise(norm2), "out": h}
        stages |= {f"block{k}_{name}": value for name, value in new.items()}
    return energy_forces_stress(model, graph), stages | {
        "node_final": model.norm(h),
        "atom_energy": model.readout(h, graph),
    }


def errors(arrays, prediction, stages, count: int, scale: float = 1.0) -> dict[str, float]:
    """Relative error of everything stored, padding cut off."""
    values = {name: np.asarray(getattr(prediction, name)) / scale for name in OUTPUTS} | stages
    stored = {name: arrays[name] for name in values if name in arrays}
    if arrays["cell"].ndim == 2:
        stored = {name: a[None] if name in ("energy", "virial", "stress", "csd") else a for name, a in stored.items()}
    rows = {name: len(stored[name]) for name in stored}
    assert len(stored) >= count
    return {name: rel_error(values[name][: rows[name]], stored[name]) for name in stored}


@pytest.mark.parametrize(("file", "variant", "system"), SYSTEMS)
def test_outputs_and_stages(file, variant, system):
    arrays = fixture_system(load(file), variant + system)
    graph = pad([fixture_graph(arrays)], CAPACITY[file], np.float64)
    found = errors(arrays, *run(model_of(file, variant), graph), count=19)
    assert max(found.values()) < 1e-10, found


def test_batch_built_by_our_own_search():
    data = load(GATE)
    graphs = [from_atoms(fixture_atoms(fixture_system(data, s)), 5.0) for s in "ac"]
    found = errors(
        fixture_system(data, "batch_ac"), *run(model_of(GATE), pad(graphs, CAPACITY[GATE], np.float64)), count=7
    )
    assert max(found.values()) < 1e-10, found


def test_float32_and_scale():
    arrays = fixture_system(load(GATE), "a_f32")
    model = model_of(GATE, dtype=np.float32, scale=1.5)
    prediction, stages = run(model, pad([fixture_graph(arrays)], CAPACITY[GATE]))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves((prediction, stages)))
    found = errors(arrays, prediction, stages, count=19, scale=1.5)
    assert max(found.values()) < 1e-4, found


@pytest.mark.parametrize(("file", "variant", "system"), SYSTEMS)
def test_edges_are_the_stored_ones(file, variant, system):
    arrays = fixture_system(load(file), variant + system)
    graph = from_atoms(fixture_atoms(arrays), 5.0)
    stored = edge_rows(arrays["edge_src"], arrays["edge_tgt"], arrays["edge_image"])
    np.testing.assert_array_equal(edge_rows(graph.src, graph.dst, graph.image), stored)
    oracle, _ = brute_force_edges(arrays["positions"], arrays["cell"], arrays["pbc"], 5.0)
    np.testing.assert_array_equal(oracle, stored)
    vectors = edge_vectors(graph, graph.positions, np.zeros((1, 3, 3)), 5.0)
    order = np.lexsort((*arrays["edge_image"].T[::-1], arrays["edge_src"], arrays["edge_tgt"]))
    assert rel_error(vectors, arrays["edge_vec"][order]) < 1e-12


def test_parameter_gradients_through_forces():
    data = load(GATE)
    arrays = fixture_system(data, "c")
    zero = np.zeros((1, 3, 3))
    weights = Prediction(np.ones(1), arrays["grad/force_direction"], zero, zero)
    loss, gradient = weighted_gradient(model_of(GATE), fixture_graph(arrays), weights)
    assert rel_error(loss, arrays["grad/loss"]) < 1e-10
    stored = fixture_system(arrays, "grad")
    names = stored.keys() - {"loss", "force_direction"}
    found = {name: rel_error(gradient[name], stored[name]) for name in names}
    assert len(found) == 12
    assert max(found.values()) < 1e-10, found


@pytest.mark.parametrize("system", "ab")
def test_edge_rotations(system):
    arrays = fixture_system(load(GRID), f"s2/{system}")
    r = arrays["edge_vec"]
    unit = r / np.linalg.norm(r, axis=1, keepdims=True)
    assert rel_error(so3.rotation_to_y(jnp.asarray(unit)), arrays["edge_rot"]) < 1e-12


@pytest.mark.parametrize(("mmax", "name"), [(2, "lmax"), (1, "mmax")])
def test_grid_matrices(mmax, name):
    to_grid, from_grid = so3.sphere_grid(2, mmax)
    for matrix, way in ((to_grid, "to"), (from_grid, "from")):
        stored = load(GRID)[f"s2/const/{way}_grid_lmax_{name}"]
        assert rel_error(matrix, stored.reshape(-1, stored.shape[-1])) < 1e-12


def test_weights_round_trip():
    data = fixture_system(load(GATE), "w")
    saved = esen.save_state(model_of(GATE))
    assert saved.keys() == data.keys()
    assert all(saved[name].dtype == np.float64 and (saved[name] == data[name]).all() for name in data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"norm.affine_bias": None}, "1 missing: norm.affine_bias."),
        ({"head.energy_block.9.weight": np.zeros(3)}, "1 unknown: head.energy_block.9.weight."),
        ({"norm.affine_bias": np.zeros(15)}, "1 of another shape: norm.affine_bias: (15,), expected (16,)."),
        ({"norm.affine_bias": None, "a": np.zeros(1)}, "1 missing: norm.affine_bias; 1 unknown: a."),
    ],
)
def test_weights_of_another_model_are_refused(changes, message):
    data = load(GATE)
    weights = {name: w for name, w in (fixture_system(data, "w") | changes).items() if w is not None}
    with pytest.raises(StateMismatchError, match=re.escape(message)):
        esen.load_state(fixture_config(str(data["config_json"])), weights)
