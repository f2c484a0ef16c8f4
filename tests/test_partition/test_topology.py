"""The cached graph: the same active pairs whenever it was built, on however many ranks; when it must be rebuilt."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from partition.builder import stacked, unstacked
from partition.cell import wrap
from partition.plan import exchange_halo
from partition.testing import System, as_set, assert_exact, oracle_pairs
from partition.topology import active, continuous, current_images, digest, stale
from tests.test_partition.conftest import AXIS, PERIODIC, arrange, liquid, mapped, prepared, random_system, sharded

ATOMS, STEPS, INTERVAL, SKIN = 96, 60, 10, 0.5
EXACT = sharded(4, "permute", atoms=ATOMS, near=512, edges=768, images=160)
CACHED = sharded(4, "permute", atoms=ATOMS, near=512, edges=768, images=160, skin=SKIN)
OTHERS = {
    "hilbert": sharded(8, "all_to_all", atoms=ATOMS, near=384, edges=384, images=160, skin=SKIN),
    "morton": sharded(1, "permute", atoms=ATOMS, near=768, edges=3072, images=160, skin=SKIN),
}


@functools.cache
def looker(ranks: int):
    """What a rank knows of its topology at later positions; compiled for each kind of topology."""

    def look(topology, positions, cell):
        topology, pairs = unstacked(topology), []
        near, turns, _ = continuous(topology, positions, cell)
        for plan, cutoff in zip(topology.plans, topology.settings.cutoffs, strict=True):
            points, everyone = exchange_halo((near, topology.ids), plan)
            for edges in (plan.local, plan.remote):
                on = active(edges, points, cell, cutoff)
                image = current_images(topology, edges, plan, turns)
                pairs.append((topology.ids[edges.dst], everyone[edges.src], image, on))
        mine = stale(topology, positions, cell)
        anyone = jax.lax.pmax(mine.astype(jnp.int32), AXIS)
        return digest(topology, positions, cell), stacked((mine, anyone, pairs))

    return mapped(look, ranks, "ssr", ("r", "s"))


@dataclasses.dataclass
class View:
    """`looker` on the host."""

    digest: list
    stale: np.ndarray  # [K]
    agreed: np.ndarray  # [K]
    raw: list

    def pairs(self, k: int):
        """Active pairs of a cutoff, relative to the positions that were looked at."""
        parts = [[array[on] for array in arrays] for *arrays, on in self.raw[2 * k : 2 * k + 2]]
        return as_set(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def look(build, topology, positions, made, cell) -> View:
    placed, _ = arrange(positions, made, build.rows)
    digested, (mine, agreed, raw) = jax.device_get(looker(build.ranks)(topology, placed, jnp.asarray(cell)))
    return View(digested.tolist(), mine, agreed, raw)


def fresh(build, positions, made, cell) -> View:
    """The view of a topology that is built right here."""
    return look(build, build.build(positions, made, cell)[0], positions, made, cell)


def walk(kind: str):
    """Positions, wrapped at every step, and cells of a random walk."""
    rng = np.random.default_rng(len(kind))
    positions, start = liquid(ATOMS, rng)
    strain = rng.uniform(-1, 1, (3, 3))
    strain *= 0.03 / np.abs(strain).max()
    cell = start
    for step in range(STEPS):
        yield positions, cell
        moves = rng.normal(scale=0.035, size=positions.shape)
        if kind == "wrapping":
            moves += [0.02, -0.01, 0.01]
            moves[7] += [0.12, 0.15, -0.1]  # one fast atom
        else:
            new = start @ (np.eye(3) + np.sin((step + 1) / 6) * strain)
            positions, cell = positions @ np.linalg.inv(cell) @ new, new
        positions, _ = wrap(positions + moves, cell, np.array(PERIODIC))


@pytest.mark.parametrize("kind", ["wrapping", "deforming"])
def test_active_pairs_are_the_same_for_every_interval_and_every_cut(kind):
    topology = never = unwrapped = before = made = None
    due = False  # for `never`, which is built once
    early = kept = missed = some = 0
    for step, (positions, cell) in enumerate(walk(kind)):
        if made is None:
            _, made = prepared(positions, cell, PERIODIC, EXACT.ranks, "grid")
            never, _ = CACHED.build(positions, made, cell)
            topology, unwrapped, before = never, positions, positions
        exact = fresh(EXACT, positions, made, cell)

        cached = look(CACHED, topology, positions, made, cell)
        assert (cached.agreed == cached.stale.any()).all()
        some += cached.stale.any() and not cached.stale.all()
        if cached.agreed[0] or step % INTERVAL == 0:
            early += step % INTERVAL != 0
            topology, _ = CACHED.build(positions, made, cell)
            cached = look(CACHED, topology, positions, made, cell)
            assert not cached.stale.any()
        else:
            kept += 1
        assert cached.digest == exact.digest

        ignored = look(CACHED, never, positions, made, cell)
        due |= bool(ignored.stale.any())
        missed += ignored.digest != exact.digest
        assert due or not missed

        if step % 9 == 0:
            for method, build in OTHERS.items():
                _, other = prepared(positions, cell, PERIODIC, build.ranks, method)
                assert fresh(build, positions, other, cell).digest == exact.digest
        if step % 9 == 5:
            for k, cutoff in enumerate(EXACT.cutoffs):
                found = cached.pairs(k)
                assert found == exact.pairs(k)
                assert_exact(found, System(positions, cell, np.ones(3, bool), cutoff))
        change = (positions - before) @ np.linalg.inv(cell)
        unwrapped, before = unwrapped + (change - np.round(change)) @ cell, positions
    assert early > 0
    assert kept > STEPS / 4
    assert missed > 0
    assert some > 0
    if kind == "wrapping":  # the same atoms, followed through the faces
        assert np.abs(unwrapped - positions).max() > 5
        later = look(CACHED, topology, unwrapped, made, cell)
        assert later.digest == fresh(EXACT, unwrapped, made, cell).digest == cached.digest
        assert later.pairs(0) != cached.pairs(0)  # other images


def test_every_edge_counts_in_the_digest():
    positions, cell = liquid(ATOMS, np.random.default_rng(5))
    _, made = prepared(positions, cell, PERIODIC, EXACT.ranks, "grid")
    topology, _ = EXACT.build(positions, made, cell)
    whole = look(EXACT, topology, positions, made, cell)
    rng, seen = np.random.default_rng(0), {str(whole.digest)}
    for trial in range(12):
        rank, k, remote = int(rng.integers(EXACT.ranks)), trial % 2, trial % 4 > 1
        name = "remote" if remote else "local"
        plan, on = topology.plans[k], whole.raw[2 * k + remote][-1][rank]
        edges = getattr(plan, name)
        dropped = edges.mask.at[rank, int(rng.choice(np.flatnonzero(on)))].set(False)
        plans = list(topology.plans)
        plans[k] = dataclasses.replace(plan, **{name: dataclasses.replace(edges, mask=dropped)})
        other = look(EXACT, dataclasses.replace(topology, plans=tuple(plans)), positions, made, cell).digest
        assert other[1 - k] == whole.digest[1 - k]
        assert other[k] != whole.digest[k]
        seen.add(str(other))
    assert len(seen) == 13


def test_images_between_wrapped_positions_count_in_the_digest():
    positions, cell = liquid(ATOMS, np.random.default_rng(5))
    _, made = prepared(positions, cell, PERIODIC, EXACT.ranks, "grid")
    inverse = np.linalg.inv(cell)
    first = (positions @ inverse)[:, 0].min()  # the next atom to leave through a face if all move along
    inside, outside = (positions - (first + by) * cell[0] for by in (-1e-9, 1e-9))
    a, b = fresh(EXACT, inside, made, cell), fresh(EXACT, outside, made, cell)
    assert a.pairs(0) == b.pairs(0)
    assert (np.array(a.digest) != np.array(b.digest)).any(1).all()
    wrapped, _ = wrap(outside, cell, np.array(PERIODIC))
    assert fresh(EXACT, wrapped, made, cell).digest == b.digest


def test_one_pair_across_the_cutoff_changes_the_digest():
    positions, cell = liquid(ATOMS, np.random.default_rng(6))
    _, made = prepared(positions, cell, PERIODIC, EXACT.ranks, "grid")
    pairs, _ = oracle_pairs(positions, cell, np.ones(3, bool), 3.0)
    i, j, *shift = max(pairs, key=lambda p: np.linalg.norm(positions[p[1]] - positions[p[0]] + np.array(p[2:]) @ cell))
    vector = positions[j] - positions[i] + np.array(shift) @ cell
    moved = positions.copy()
    moved[j] += vector * ((3.0 + 1e-9) / np.linalg.norm(vector) - 1)
    lost = pairs - oracle_pairs(moved, cell, np.ones(3, bool), 3.0, margin=1e-12)[0]
    assert lost == {(i, j, *shift), (j, i, *(-s for s in shift))}
    before, after = fresh(EXACT, positions, made, cell), fresh(EXACT, moved, made, cell)
    assert before.digest[0] != after.digest[0]
    assert before.digest[1] == after.digest[1]


# When to rebuild

ONE = OTHERS["morton"]
BOX = np.array([[20.0, 0.0, 0.0], [3.0, 21.0, 0.0], [-2.0, 4.0, 19.0]])


def unit(rng):
    vector = rng.normal(size=3)
    return vector / np.linalg.norm(vector)


def is_stale(start, cell, later, new) -> bool:
    _, made = prepared(start, cell, PERIODIC, 1, "morton")
    topology, _ = ONE.build(start, made, cell)
    return bool(look(ONE, topology, later, made, new).stale[0])


def test_no_pair_comes_within_a_cutoff_unnoticed():
    rng, entered, quiet, by_cell = np.random.default_rng(0), 0, 0, 0
    for trial in range(150):
        cutoff, direction = rng.choice([3.0, 2.0]), unit(rng)
        first = rng.uniform(0, 20, 3)
        start = np.stack([first, first + direction * (cutoff + SKIN + rng.uniform(1e-6, 0.05))])
        deformation = np.eye(3)
        if trial % 3:
            deformation -= rng.uniform(0, 0.15) * direction[:, None] * direction
            deformation += rng.uniform(0, 0.05) * rng.uniform(-1, 1, (3, 3))
        if trial % 3 == 2:
            deformation @= np.linalg.qr(rng.normal(size=(3, 3)))[0]
        towards = rng.uniform(0.05, 0.35) * direction @ deformation
        later = start @ deformation + np.stack([towards, -towards]) * rng.uniform(0.7, 1.0, (2, 1))
        inside = np.linalg.norm(later[1] - later[0]) < cutoff
        noticed = is_stale(start, BOX, later, BOX @ deformation)
        assert noticed or not inside
        entered += inside
        by_cell += inside and np.linalg.norm(towards) < SKIN / 2
        quiet += not noticed
    assert entered > 30
    assert by_cell > 5
    assert quiet > 20


def test_half_the_skin_may_be_moved_without_a_rebuild():
    rng = np.random.default_rng(1)
    start = rng.uniform(0, 1, (30, 3)) @ BOX
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    directions = np.stack([unit(rng) for _ in start])
    turns = rng.integers(-3, 4, start.shape)
    for turn, cell in ((np.eye(3), BOX), (rotation, BOX @ rotation)):
        later = (start + directions * 0.249) @ turn
        assert not is_stale(start, BOX, later, cell)
        assert not is_stale(start, BOX, later + turns @ cell, cell)
        later[11] += 0.002 * directions[11] @ turn
        assert is_stale(start, BOX, later, cell)
        assert is_stale(start, BOX, later + turns @ cell, cell)


def test_small_strains_leave_some_of_the_skin_and_large_ones_do_not():
    start = np.random.default_rng(2).uniform(0, 1, (10, 3)) @ BOX
    for strain, expected in ((0.005, False), (0.02, False), (-0.02, False), (-0.15, True)):
        cell = BOX @ np.diag([1 + strain, 1, 1])
        assert is_stale(start, BOX, start @ np.diag([1 + strain, 1, 1]), cell) == expected
    shear = np.eye(3) + 0.03 * np.eye(3, k=1)
    assert not is_stale(start, BOX, start @ shear, BOX @ shear)
    moved = start @ shear
    moved[3] += [0.2, 0, 0]
    assert is_stale(start, BOX, moved, BOX @ shear)  # though less than half the skin


def test_padding_rows_are_never_stale():
    start = np.random.default_rng(3).uniform(0, 1, (5, 3)) @ BOX
    _, made = prepared(start, BOX, PERIODIC, 1, "morton")
    topology, _ = ONE.build(start, made, BOX)
    placed, _ = arrange(start, made, ONE.rows)
    placed = jnp.asarray(np.where(made.table(ONE.rows).reshape(-1, 1) >= 0, placed, 7.0))
    _, (mine, *_) = looker(1)(topology, placed, jnp.asarray(BOX))
    assert not np.asarray(mine).any()


def test_hard_systems_have_one_digest_on_any_number_of_ranks():
    rng, checked = np.random.default_rng(4), 0
    for _ in range(15):
        system = random_system(rng, PERIODIC, most_images=64, shift=rng.choice(["none", "near", "far"]))
        if len(system.positions) == 0:
            continue
        digests = []
        for ranks, kind, method in ((1, "permute", "grid"), (8, "permute", "grid"), (8, "all_to_all", "hilbert")):
            build = sharded(ranks, kind)
            host, made = prepared(system.positions, system.cell, PERIODIC, ranks, method)
            try:
                digests.append(fresh(build, system.positions, made, host.cell).digest)
            except ValueError:  # does not fit
                break
        else:
            assert digests[0] == digests[1] == digests[2]
            checked += 1
    assert checked > 5
