"""Every file of every checkpoint in turn is emptied, truncated, changed by a bit, removed: something is always gone on
from, with the numbers that were written."""

import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from janus_jax.errors import CheckpointError
from janus_jax.train import items
from janus_jax.train.checkpoint import Checkpoints
from janus_jax.train.state import TrainState

HOW = {
    "emptied": lambda path, data: path.write_bytes(b""),
    "truncated": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "flipped": lambda path, data: path.write_bytes(flipped(data)),
    "removed": lambda path, data: path.unlink(),
}
EVERY = os.environ.get("JANUS_JAX_EVERY") == "1"


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]


def state(step):
    """Weights too many for Orbax to keep them inside its indices, which have checksums."""
    params = nnx.State({"w": nnx.Param(np.random.default_rng(step).normal(size=(40, 40)).astype(np.float32))})
    params = jax.tree.map(jnp.asarray, params)
    return TrainState(params, jax.tree.map(jnp.copy, params), nnx.State({}), (jnp.zeros(()),), jnp.int32(step))


def about(best):
    return {"progress": {"best_step": best}, "config": {}, "data_hash": None}


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Checkpoints 1 (the best) and 3."""
    folder = tmp_path_factory.mktemp("written") / "checkpoints"
    checkpoints = Checkpoints(folder)
    for step in (1, 3):
        checkpoints.save(state(step), about(1))
    checkpoints.close()
    return folder


@pytest.mark.parametrize("how", HOW if EVERY else ["emptied", "flipped", "removed"])
def test_no_damaged_file_stands_in_the_way(written, tmp_path, how, caplog):
    paths = [path.relative_to(written) for path in sorted(written.rglob("*")) if path.is_file()]
    assert len(paths) > 20
    seen = set()
    for number, path in enumerate(paths):
        folder = tmp_path / str(number)
        shutil.copytree(written, folder)
        HOW[how](folder / path, (folder / path).read_bytes())
        checkpoints = Checkpoints(folder)
        caplog.clear()
        found, described = checkpoints.restore(state(0))
        step = int(found.step)
        seen.add(step)
        assert step == 3 or (step == 1 and path.parts[0] == "3"), path
        assert same(found, state(step)), path
        assert described["progress"]["best_step"] == 1
        assert all(record.getMessage().count("\n") == 0 for record in caplog.records), path
        if step == 1:
            assert f"{folder / '3'}: " in caplog.text
            if path.name in ("commit_success.txt", "metadata", "_METADATA"):
                checkpoints.save(state(3), about(1))  # made again
                checkpoints.manager.wait_until_finished()
                assert (folder / "3.unreadable").is_dir()
                assert same(checkpoints.state(3, state(0)), state(3)), path
        checkpoints.close()
    assert seen == {1, 3}


def test_a_flipped_bit_of_a_weight_is_noticed(written, tmp_path):
    folder = tmp_path / "checkpoints"
    shutil.copytree(written, folder)
    big = max((folder / "3" / "state").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    big.write_bytes(flipped(big.read_bytes()))
    with pytest.raises(CheckpointError, match="damaged: its numbers are not those that were written"):
        Checkpoints(folder).state(3, state(0))


def test_the_best_of_the_last_two_are_kept(tmp_path):
    """Falling back by one, the best weights of that one must still be there."""
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for step, best in ((1, 1), (2, 1), (3, 1), (4, 4)):
        checkpoints.save(state(step), about(best))
    checkpoints.manager.wait_until_finished()
    assert items.steps(checkpoints.folder) == [1, 3, 4]
    checkpoints.save(state(5), about(4))
    checkpoints.close()
    assert items.steps(checkpoints.folder) == [4, 5]
