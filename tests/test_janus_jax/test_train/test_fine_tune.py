"""Fine-tuning: the weights start from a model file, reference energies follow the new labels."""

import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from flax import nnx

from janus_jax import bundle
from janus_jax.data.batching import choose
from janus_jax.errors import ConfigError, UnknownNameError
from janus_jax.models import convert
from janus_jax.models.esen import Esen, EsenConfig
from janus_jax.testing import dataset
from janus_jax.train import config, run
from janus_jax.train.evaluate import evaluate
from janus_jax.train.fine_tune import moved_references
from janus_jax.train.prepare import prepare

MODEL = EsenConfig(cutoff_angstrom=3.0, num_layers=1, channels=8, hidden_channels=8, edge_channels=8, num_basis=8)
OLD, SHIFT = {1: -13.0, 8: -100.0}, {1: 3.0, 8: -40.0}


@pytest.fixture(scope="module")
def model():
    return convert.cast(Esen(MODEL, rngs=nnx.Rngs(2), references=tuple(OLD.items())), np.float64)


@pytest.fixture(scope="module")
def relabelled(model, files):
    """Structures of several compositions, labelled by the model itself and then moved by a sum over atoms."""
    frames = read(files / "train.xyz", ":")
    frames = [frame[: len(frame) - k] for k, frame in enumerate(frames)]
    data = dataset(frames, 3.0, OLD)
    energies = evaluate(model, data, choose(data.atoms, data.edges, 64)).energy
    for frame, energy in zip(frames, energies, strict=True):
        moved = energy + sum(SHIFT[n] for n in frame.numbers)
        frame.calc = SinglePointCalculator(frame, energy=moved, forces=np.zeros((len(frame), 3)))
    return frames


def test_references_move_by_what_the_new_labels_differ(model, relabelled):
    table = moved_references(model, dataset(relabelled, 3.0), 64).table
    assert table == pytest.approx({number: OLD[number] + SHIFT[number] for number in OLD}, abs=1e-8)
    assert dict(model.references) == OLD  # the model itself is as before


def test_a_run_starts_from_the_weights_and_freezes_what_it_is_told(model, relabelled, tiny, tmp_path):
    bundle.save(tmp_path / "m.janus", convert.cast(model, np.float32))
    write(tmp_path / "new.xyz", relabelled, format="extxyz")
    sources = [f"data.{split}={tmp_path / 'new.xyz'}" for split in ("train", "validation")]
    changes = [f"start_from={tmp_path / 'm.janus'}", *sources, "data.test=null", "model={}"]
    settings = tiny(tmp_path, *changes, "optimizer.freeze=[blocks.*]", "optimizer.weight_decay=0.5", "steps=3")
    prepared = prepare(settings)
    assert dict(prepared.model.references) == pytest.approx({n: OLD[n] + SHIFT[n] for n in OLD}, abs=1e-3)
    for name, array in convert.save_state(prepared.model).items():
        np.testing.assert_array_equal(array, convert.save_state(convert.cast(model, np.float32))[name])
    trained = convert.save_state(bundle.load(run.run(settings).folder))
    before = convert.save_state(bundle.load(tmp_path / "m.janus"))
    changed = {name for name in before if (before[name] != trained[name]).any()}
    assert changed
    assert not any(name.startswith("blocks.") for name in changed)
    assert bundle.load(tmp_path / "run").scale == model.scale
    stored = config.load(tmp_path / "run" / "config.yaml")
    assert stored.model == MODEL  # the architecture used, not the default
    (tmp_path / "m.janus").unlink()  # the run has its own copy
    assert run.resume(tmp_path / "run", ["steps=4"]).figures["steps"] == 4


@pytest.mark.parametrize("fresh", [False, True])
def test_elements_that_were_never_trained_on_are_named(model, relabelled, tiny, tmp_path, caplog, fresh):
    frames = [frame.copy() for frame in relabelled]
    frames[2].numbers[0], frames[4].numbers[:2] = 17, 17
    for frame, old in zip(frames, relabelled, strict=True):
        frame.calc = SinglePointCalculator(frame, **old.calc.results)
    write(tmp_path / "new.xyz", frames, format="extxyz")
    write(tmp_path / "old.xyz", relabelled, format="extxyz")
    bundle.save(tmp_path / "m.janus", convert.cast(model, np.float32))
    changes = [f"data.train={tmp_path / 'new.xyz'}", f"start_from={tmp_path / 'm.janus'}", "model={}"]
    if fresh:
        changes = [f"data.train={tmp_path / 'old.xyz'}", f"data.validation={tmp_path / 'new.xyz'}"]
    prepare(tiny(tmp_path, *changes, "data.test=null", "data.references={H: -13, O: -100, Cl: -400}"))
    (said,) = [record.getMessage() for record in caplog.records if " Cl, " in record.getMessage()]
    split, why = ("validation", "no structure that is trained on has") if fresh else ("train", "never saw")
    assert said.startswith(f"data.{split}: 2 of 6 structures have Cl, which ")
    assert why in said
    assert said.endswith("new.xyz, frame 2")
    assert not [record for record in caplog.records if " H, " in record.getMessage()]


def test_a_pattern_that_freezes_nothing_and_a_second_architecture_are_refused(tiny, tmp_path):
    with pytest.raises(UnknownNameError, match=r"optimizer.freeze 'blocs.\*'"):
        run.run(tiny(tmp_path, "optimizer.freeze=['blocs.*']"))
    bundle.save(tmp_path / "m.janus", Esen(MODEL, rngs=nnx.Rngs(0)))
    with pytest.raises(ConfigError, match="start_from brings its own architecture"):
        run.run(tiny(tmp_path, f"start_from={tmp_path / 'm.janus'}", "model.channels=4"))
    assert not (tmp_path / "run").exists()
