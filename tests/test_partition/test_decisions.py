"""Integers that a rounding decides (images, wrapping, owners, codes) are decided once, in all compiled code.

XLA makes a cheap value again beside each of its uses, and rounds it differently in some of them. Whether it does
depends on lengths and on the processor, so the compiled programs are read, and crystals, of which many atoms lie
half a cell from each other, are searched besides.
"""

import functools
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest

from partition import distributed
from partition.testing import System, as_set, make_crystal, oracle_pairs
from tests.test_partition.conftest import EVERY, PERIODIC, SHAPES, arrange, mapped, pairs_of, prepared, sharded

SLAB = (True, False, True)
CASES = [
    (2, "all_to_all", PERIODIC, "float64"), (4, "permute", PERIODIC, "float32"), (5, "all_to_all", SLAB, "float32"),
    (7, "permute", PERIODIC, "float64"),
]  # fmt: skip
if EVERY:
    CASES = list(
        itertools.product(
            SHAPES, ("permute", "all_to_all"), (PERIODIC, SLAB, (False, True, False)), ("float64", "float32")
        )
    )


def decisions(lowered) -> tuple[int, int]:
    """Roundings to integers as written and as compiled."""
    written = re.findall(r"stablehlo\.(?:floor|round_nearest_even)\b", lowered.as_text())
    compiled = re.findall(r" (?:floor|round-nearest-even)\(", lowered.compile().as_text())
    return len(written), len(compiled)


@functools.cache
def crystal(seed: int, dtype: str) -> System:
    """One that the type holds exactly."""
    made = make_crystal(np.random.default_rng(seed), 24)
    return System(made.positions.astype(dtype).astype(float), made.cell.astype(dtype).astype(float), made.pbc, 3.0)


@pytest.mark.parametrize(("ranks", "kind", "pbc", "dtype"), CASES)
def test_crystals_lose_no_pair(ranks, kind, pbc, dtype):
    build, margin = sharded(ranks, kind, pbc), 1e-7 if dtype == "float64" else 1e-4
    pairs = 0
    for seed in range(300 if EVERY else 25):
        system = crystal(seed, dtype)
        method = "grid" if kind == "permute" else ("hilbert", "morton")[seed % 2]
        host, made = prepared(system.positions, system.cell, pbc, ranks, method)
        topology, seen = build.build(system.positions, made, system.cell, np.dtype(dtype))
        found = as_set(*pairs_of(topology, seen, np.zeros((made.atoms, 3), int)))
        ids, wrapped = np.asarray(topology.ids), np.empty((made.atoms, 3))
        wrapped[ids[ids >= 0]] = np.asarray(topology.reference, float)[ids >= 0]  # what images are relative to
        must, may = oracle_pairs(wrapped, host.cell, np.array(pbc), 3.0, margin)
        assert must <= found <= may, f"crystal {seed}: {len(must - found)} missing, {len(found - may)} too many"
        pairs += len(found)
    assert pairs > 3000


@pytest.mark.parametrize(("ranks", "kind"), [(4, "permute"), (2, "all_to_all")])
def test_a_build_decides_images_once(ranks, kind):
    build, system = sharded(ranks, kind), crystal(0, "float64")
    _, made = prepared(system.positions, system.cell, PERIODIC, ranks, "grid" if kind == "permute" else "hilbert")
    placed = (*arrange(system.positions, made, build.rows), *build.placed(system.cell))
    written, compiled = decisions(build.program.lower(*placed))
    assert written == compiled == 3  # two of `wrap`, one of `together`


@pytest.mark.parametrize(("method", "count"), [("grid", 2 + 2), ("morton", 2 + 2), ("hilbert", 2 + 1)])
def test_new_owners_decide_codes_once(method, count):
    ranks, rows, shape = 2, 20, (2, 1, 1)

    def recut(positions, ids, cell):
        return distributed.recut(
            positions, positions, ids, cell, pbc=PERIODIC, method=method, shape=shape, total=32, rows=rows, axis="ranks"
        )  # fmt: skip

    arguments = jnp.zeros((ranks * rows, 3)), jnp.zeros(ranks * rows, jnp.int32), jnp.eye(3)
    assert decisions(mapped(recut, ranks, "ssr", ("s", "s", "r")).lower(*arguments)) == (count, count)
