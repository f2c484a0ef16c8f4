"""Phases on several devices with collectives inside: equal to one device, or to nested grad through shard_map."""

import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from janus_jax.phases import Phases
from janus_jax.stages import Place, cut_model
from janus_jax.testing import crystal, molecule, padded, random_esen, slab
from tests.test_janus_jax.test_phases.conftest import OPTIONS, Case, worst
from tests.test_janus_jax.test_phases.test_exact import MEMORIES


def mesh_of(count: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:count]).reshape(1, count), ("data", "graph"))


def collectives(params, h, x, constants):
    """Every collective, between matrix products."""
    size = lax.axis_size("graph")
    everywhere = lax.all_gather(h, "graph", tiled=True)
    h = jnp.tanh(everywhere[constants] @ params["a"]) * jnp.exp(-(x * x).sum())
    h = h + lax.ppermute(jnp.sin(h @ params["b"]), "graph", [(k, (k + 1) % size) for k in range(size)])
    h = h * lax.psum((h * h).sum(), "graph")
    swapped = lax.all_to_all(h.reshape(size, -1, h.shape[-1]), "graph", 0, 0, tiled=False)
    return jnp.tanh(swapped.reshape(h.shape)) @ params["a"]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("memory", ["cheap", "rebuild"])
def test_collectives_inside_a_stage(count, memory):
    """The reference differentiates outside of shard_map, which knows how to transpose it."""
    mesh, rng = mesh_of(count), np.random.default_rng(count)
    params = {name: rng.normal(size=(3, 3)) / 2 for name in "ab"}
    h, x = rng.normal(size=(count, 4, 3)), rng.normal(size=(count, 2, 3)) / 3
    index = rng.integers(0, 4 * count, (count, 4))

    def whole(params, h, x, constants):
        local = lambda p, h, x, c: collectives(p, h[0], x[0], c[0])[None]  # noqa: E731
        rest = P(("data", "graph"))
        return jax.shard_map(local, mesh=mesh, in_specs=(P(), rest, rest, rest), out_specs=rest)(
            params, h, x, constants
        )

    case = Case.of(whole, params, h, x, index)
    phases = Phases(collectives, MEMORIES[memory], mesh=mesh, compiler_options=OPTIONS)
    assert worst(on_mesh(case, phases, count), case.expected()) < 1e-10


def on_mesh(case: Case, phases: Phases, count: int):
    """Results with the gradient, one entry a device, summed."""
    cut = phases.at(case.params, case.h, case.x, case.constants)
    arrives = {"FE": (case.h, case.x, case.constants), "FF": case.ct, "BFt": (case.ghb, case.gxb), "BEh": case.lam}
    gradient = jax.tree.map(lambda a: jnp.zeros((count, *a.shape), a.dtype), case.params)
    held, results = {}, {}
    for step in cut:
        out, held, gradient = step(case.params, held, arrives.get(step.name, ()), gradient)
        results[step.name] = out
    assert not held
    return {
        "out": results["FE"], "forces": results["FF"], "ctb": results["BFt"], "hb": results["BEh"],
        "gradient": jax.tree.map(lambda a: a.sum(0), gradient),
    }  # fmt: skip


def shards(graph, count: int):
    """The graph with atoms in `count` equal runs, each with the edges of its centres; leading axis: shard."""
    atoms = len(graph.numbers) // count
    owner = graph.dst // atoms
    most = max(int((owner == k).sum()) for k in range(count))

    def edges(array, k, fill):
        mine = array[owner == k]
        return np.concatenate([mine, np.full((most - len(mine), *array.shape[1:]), fill, array.dtype)])

    def part(k):
        own = slice(k * atoms, (k + 1) * atoms)
        return graph.replace(
            **{name: getattr(graph, name)[own] for name in ("positions", "numbers", "atom_structure", "atom_mask")},
            src=edges(graph.src, k, 0), dst=edges(graph.dst - k * atoms, k, atoms - 1),
            image=edges(graph.image, k, 0), edge_mask=edges(graph.edge_mask, k, False),
        )  # fmt: skip

    return jax.tree.map(lambda *leaves: np.stack(leaves), *(part(k) for k in range(count)))


gather = partial(lax.all_gather, axis_name="graph", tiled=True)


@pytest.mark.parametrize("count", [2, 4] if os.environ.get("JANUS_JAX_EVERY") else [4])
def test_graph_parallel_esen_equals_one_device(count):
    model = random_esen(num_layers=1)
    graph = padded(molecule(), crystal(), slab())
    one, many = cut_model(model, [1])[0], cut_model(model, [1], exchange=gather)[0]
    case = Case.of(one.function, one.params, (), Place.of(graph), (graph, one.fixed))
    expected = case.expected()

    def copies(a):
        return np.broadcast_to(a, (count, *np.shape(a)))

    def split(place):
        arrays = place.positions.reshape(count, -1, 3), copies(place.strain)
        return jax.tree.unflatten(jax.tree.structure(place), arrays)

    fixed = jax.tree.map(copies, many.fixed)
    on_shards = Case(
        many.function, many.params, (), split(case.x), (shards(graph, count), fixed),
        copies(case.ct), (), split(case.gxb), copies(case.lam),
    )  # fmt: skip
    results = on_mesh(on_shards, Phases(many.function, mesh=mesh_of(count), compiler_options=OPTIONS), count)
    _, gx = results["forces"]
    joined = {
        "out": results["out"].sum(0),
        "forces": ((), (gx.positions.reshape(-1, 3), gx.strain.sum(0))),
        "ctb": results["ctb"].sum(0), "hb": (), "gradient": results["gradient"],
    }  # fmt: skip
    assert worst(joined, expected) < 1e-10
