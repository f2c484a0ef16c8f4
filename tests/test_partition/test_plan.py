"""The exchange of halos: what arrives, its transpose, derivatives of any order, plans as arguments; ragged tables."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partition.builder import stacked, unstacked
from partition.cell import displacements, squared
from partition.plan import accumulate_halo, exchange_halo, halo
from partition.testing import System, as_set, assert_exact, oracle_pairs
from partition.topology import active, continuous
from tests.test_partition.conftest import PERIODIC, arrange, liquid, mapped, prepared, put, sharded

CASES = [(1, "permute"), (5, "all_to_all"), (8, "permute"), (8, "all_gather")]
CUTOFF = 3.0
PAIRS = 4096  # rows of the dense reference


def example(ranks: int, seed: int):
    """A small liquid: positions, cell, the system and its cut."""
    positions, cell = liquid(22, np.random.default_rng(seed))
    return (positions, cell, *prepared(positions, cell, PERIODIC, ranks, "grid"))


def leaves(rng, ids):
    """Rows of several shapes and types, the padding included."""
    shape = ids.shape
    return {
        "vectors": rng.normal(size=(*shape, 3)),
        "scalars": rng.normal(size=shape),
        "tensors": rng.normal(size=(*shape, 2, 2)),
        "single": (rng.normal(size=(*shape, 4)).astype(np.float32), rng.normal(size=shape).astype(np.float32)),
        "numbers": rng.integers(-9, 9, (*shape, 2)).astype(np.int32),
        "flags": rng.random(shape) < 0.5,
    }


@functools.cache
def measure(ranks: int, kind: str):
    """Everything that is compared, compiled once."""
    del kind  # plans know it

    def energy(positions, topology, cell):
        plan, (near, *_) = topology.plans[0], continuous(topology, positions, cell)
        points, total = exchange_halo(near, plan), jnp.zeros((), positions.dtype)
        for edges in (plan.local, plan.remote):
            on = active(edges, points, cell, CUTOFF)
            distance = squared(displacements(points, edges.src, edges.dst, edges.image, cell))
            length = jnp.sqrt(jnp.where(on, distance, 1))
            total += jnp.where(on, (1 - length / CUTOFF) ** 4, 0).sum() / 2
        return total

    def run(topology, positions, features, cotangent, cell):
        topology = unstacked(topology)
        plan = topology.plans[0]
        force = jax.grad(energy)
        stiffness = jax.grad(lambda x: (force(x, topology, cell) ** 2).sum())
        ids = exchange_halo(topology.ids, plan)
        moved, other = exchange_halo(features, plan), halo(features, plan)
        back = accumulate_halo(cotangent, plan)
        own = positions.shape[0]
        cotangent_of = jax.vjp(lambda x: exchange_halo(x, plan), jnp.zeros((own, 2)))[1]
        return stacked((
            ids, moved, other, back, cotangent_of(cotangent["b"])[0],
            energy(positions, topology, cell), force(positions, topology, cell), stiffness(positions),
        ))  # fmt: skip

    return mapped(run, ranks, "ssssr", "s")


@jax.jit
def dense(positions, i, j, image, real, cell):
    """Energy, its gradient and the gradient of the sum of squared forces, on one device."""

    def energy(x):
        vectors = x[j] - x[i] + jnp.matmul(image.astype(x.dtype), cell)
        length = jnp.sqrt(jnp.where(real, (vectors**2).sum(1), 1))
        return jnp.where(real, (1 - length / CUTOFF) ** 4, 0).sum() / 2

    force = jax.grad(energy)
    return energy(positions), force(positions), jax.grad(lambda x: (force(x) ** 2).sum())(positions)


def measured(ranks: int, kind: str, seed: int):
    """What `measure` gives for an example, with what went in."""
    positions, cell, system, made = example(ranks, seed)
    build, rng = sharded(ranks, kind), np.random.default_rng(seed)
    topology, _ = build.build(positions, made, cell)
    ids = made.table(build.rows)
    features = leaves(rng, ids)
    rows = build.rows + topology.plans[0].halo
    cotangent = {
        "a": rng.integers(-9, 9, (ranks, rows)).astype(np.float32),
        "b": rng.integers(-9, 9, (ranks, rows, 2)) * 1.0,
    }
    on_devices = jax.tree.map(lambda leaf: put(leaf, ranks), (features, cotangent))
    placed, _ = arrange(positions, made, build.rows)
    results = measure(ranks, kind)(topology, placed, *on_devices, jnp.asarray(system.cell))
    return (positions, cell, made, ids), features, cotangent, jax.device_get(results), topology


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_halo_rows_hold_what_their_owners_have(ranks, kind):
    sent = 0
    for seed in range(3):
        (_, _, made, ids), features, _, (everyone, moved, other, *_), topology = measured(ranks, kind, seed)
        own, real = ids.shape[1], np.asarray(topology.plans[0].halo_mask)
        assert (everyone[:, :own] == ids).all()
        assert (everyone[:, own:][real] >= 0).all()
        assert (made.owner()[everyone[:, own:]] != np.arange(ranks)[:, None])[real].all()
        for before, after, apart in zip(*map(jax.tree.leaves, (features, moved, other)), strict=True):
            assert after.dtype == before.dtype
            assert (after[:, :own] == before).all()
            assert (after[:, own:] == apart).all()
            by_atom = made.gather(before)
            assert (apart[real] == by_atom[everyone[:, own:][real]]).all()
            assert not apart[~real].any()
        sent += real.sum()
    assert (sent > 0) == (ranks > 1)


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_accumulation_is_the_transposed_matrix_of_the_exchange(ranks, kind):
    for seed in range(2):
        (_, _, made, ids), _, cotangent, (everyone, _, _, back, pulled, *_), topology = measured(ranks, kind, seed)
        own, real = ids.shape[1], np.asarray(topology.plans[0].halo_mask)
        matrix = np.zeros((ranks, everyone.shape[1], ranks, own))
        for rank in range(ranks):
            matrix[rank, np.arange(own), rank, np.arange(own)] = 1
            rows = own + np.flatnonzero(real[rank])
            atoms = everyone[rank, rows]
            matrix[rank, rows, made.owner()[atoms], made.row()[atoms]] = 1
        for name, array in cotangent.items():
            expected = np.einsum("arbs,ar...->bs...", matrix, array)
            assert (back[name] == expected).all()  # integers: no rounding
            assert back[name].dtype == array.dtype
        assert (pulled == back["b"]).all()


@pytest.mark.parametrize(("ranks", "kind"), CASES)
def test_first_and_second_derivatives_are_those_of_one_device(ranks, kind):
    for seed in range(2):
        (positions, cell, made, _), _, _, (*_, energies, forces, stiffness), _ = measured(ranks, kind, seed)
        pairs = np.array(sorted(oracle_pairs(positions, cell, np.ones(3, bool), CUTOFF)[1]))
        assert len(pairs) > 100
        padded = np.pad(pairs, ((0, PAIRS - len(pairs)), (0, 0)))
        real = np.arange(PAIRS) < len(pairs)
        expected = dense(positions, padded[:, 0], padded[:, 1], padded[:, 2:], real, cell)
        assert np.allclose(energies.sum(), expected[0], rtol=1e-12)
        assert np.abs(made.gather(forces) - expected[1]).max() < 1e-10
        assert np.abs(made.gather(stiffness) - expected[2]).max() < 1e-10
        assert np.abs(expected[2]).max() > 0.1


@pytest.mark.parametrize(("ranks", "kind"), [(8, "permute"), (8, "all_to_all")])
def test_another_plan_of_the_same_lengths_compiles_nothing(ranks, kind):
    measured(ranks, kind, 0)
    function, build = measure(ranks, kind), sharded(ranks, kind)
    before = function._cache_size(), build.program._cache_size()
    plans = [measured(ranks, kind, seed)[-1].plans[0] for seed in (0, 3, 4)]
    assert (function._cache_size(), build.program._cache_size()) == before
    assert not (np.asarray(plans[1].send) == np.asarray(plans[2].send)).all()


def test_derivatives_from_outside_of_shard_map_are_the_same():
    ranks, kind = 8, "permute"
    _, _, cotangent, (_, _, _, back, *_), topology = measured(ranks, kind, 0)
    build = sharded(ranks, kind)

    def one(topology, values):
        return exchange_halo(values, unstacked(topology).plans[0])

    weights = put(cotangent["b"], ranks)
    exchanged = mapped(one, ranks, "ss", "s")
    pulled = jax.jit(jax.grad(lambda values: (exchanged(topology, values) * weights).sum()))
    assert (np.asarray(pulled(jnp.zeros((ranks * build.rows, 2)))).reshape(ranks, build.rows, 2) == back["b"]).all()


# ragged: no CPU runs it, so its tables are followed in numpy


def ragged(seed: int):
    positions, cell, system, made = example(5, seed)
    topology, _ = sharded(5, "ragged").build(positions, made, cell)
    return positions, cell, system, made, topology


def ragged_all_to_all(buffers, tables):
    """What `jax.lax.ragged_all_to_all` does, on all ranks [K, h, ...]; also which rows were written."""
    output, written = np.zeros_like(buffers), np.zeros(buffers.shape[:2], int)
    for rank in range(len(buffers)):
        for peer in range(len(buffers)):
            size = tables.send_sizes[rank, peer]
            start, to = tables.input_offsets[rank, peer], tables.output_offsets[rank, peer]
            assert size == tables.receive_sizes[peer, rank]
            assert start + size <= buffers.shape[1]
            assert to + size <= buffers.shape[1]
            output[peer, to : to + size] = buffers[rank, start : start + size]
            written[peer, to : to + size] += 1
    return output, written


def test_ragged_tables_bring_the_right_rows_there_and_back():
    for seed in range(4):
        positions, cell, system, made, topology = ragged(seed)
        ids = made.table(sharded(5, "ragged").rows)
        for k, cutoff in enumerate((3.0, 2.0)):
            plan = jax.device_get(topology.plans[k])
            out, back = plan.ragged
            lanes = np.arange(5)[:, None]
            buffer = np.where(plan.send_mask, ids[lanes, plan.send], -1)
            arrived, written = ragged_all_to_all(buffer, out)
            assert (written == plan.halo_mask).all()
            assert written.sum() == plan.send_mask.sum() > 0
            assert (np.diff(plan.halo_mask.astype(int), axis=1) <= 0).all()  # no padding between ranks

            everyone, parts = np.concatenate([ids, np.where(plan.halo_mask, arrived, -1)], 1), []
            for edges in (plan.local, plan.remote):
                i, j = ids[lanes, edges.dst][edges.mask], everyone[lanes, edges.src][edges.mask]
                vectors = system.positions[j] - system.positions[i] + edges.image[edges.mask] @ system.cell
                on = np.linalg.norm(vectors, axis=1) < cutoff
                image = edges.image[edges.mask] + system.turns[i] - system.turns[j]
                parts.append((i[on], j[on], image[on]))
            found = as_set(*(np.concatenate(part) for part in zip(*parts, strict=True)))
            assert_exact(found, System(positions, cell, np.ones(3, bool), cutoff))

            cotangent = np.random.default_rng(seed).integers(-9, 9, buffer.shape)
            pulled, written = ragged_all_to_all(cotangent, back)
            assert (written == plan.send_mask).all()
            expected, total = np.zeros(len(positions), int), np.zeros(len(positions), int)
            np.add.at(expected, arrived[plan.halo_mask], cotangent[plan.halo_mask])
            np.add.at(total, buffer[plan.send_mask], pulled[plan.send_mask])
            assert (total == expected).all()


RAGGED = {
    "exchange": lambda x, plan: exchange_halo(x, plan),
    "second derivative": lambda x, plan: jax.grad(
        lambda y: (jax.grad(lambda z: (exchange_halo(z, plan) ** 4).sum())(y) ** 2).sum()
    )(x),
    "accumulation": lambda x, plan: accumulate_halo(jnp.zeros((len(x) + plan.halo, 3)), plan),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_exchange_and_its_derivatives_lower_for_gpus(name):
    positions, _, _, made, topology = ragged(0)
    placed, _ = arrange(positions, made, sharded(5, "ragged").rows)
    function = mapped(lambda topology, x: RAGGED[name](x, unstacked(topology).plans[0]), 5, "ss", "s")
    text = function.trace(topology, placed).lower(lowering_platforms=("cuda",)).as_text()
    assert "ragged_all_to_all" in text


def test_ragged_exchange_is_refused_by_cpus():
    positions, _, _, made, topology = ragged(0)
    placed, _ = arrange(positions, made, sharded(5, "ragged").rows)
    function = mapped(lambda topology, x: exchange_halo(x, unstacked(topology).plans[0]), 5, "ss", "s")
    with pytest.raises(jax.errors.JaxRuntimeError, match="ragged-all-to-all.*not supported by XLA:CPU"):
        function(topology, placed)
