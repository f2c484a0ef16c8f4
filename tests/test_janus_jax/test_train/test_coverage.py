"""Weights and labels that do not fit together: an error where nothing would be trained on, else warnings."""

import json
import logging

import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from janus_jax.data.sources import read_frames
from janus_jax.errors import ConfigError
from janus_jax.train import run
from janus_jax.train.evaluate import Evaluation
from janus_jax.train.loss import LossConfig
from janus_jax.train.prepare import prepare


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Writes water with some of its labels; `labelled(name, "energy", ...)` gives the path."""
    folder = tmp_path_factory.mktemp("labelled")

    def made(name, *labels, count=6, first=0):
        frames = read_frames("water:train")[first : first + count]
        for frame in frames:
            values = {label: frame.calc.results[label] for label in labels}
            frame.calc = SinglePointCalculator(frame, **values)
        path = folder / name
        if not path.exists():
            write(path, frames)
        return path

    return made


def prepared(tiny, tmp_path, train, validation, *changes):
    data = [f"data.train={train}", f"data.validation={validation}", "data.test=null"]
    return prepare(tiny(tmp_path, *data, *changes))


def test_a_run_without_any_label_to_learn_is_refused(tiny, tmp_path, labelled):
    energies = labelled("energies.extxyz", "energy")
    with pytest.raises(ConfigError, match=r"Nothing to train on: of 6 structures of data.train there are 6 with energ"):
        prepared(tiny, tmp_path, energies, energies, "loss.energy=0", "loss.stress=0")
    bare = labelled("bare.extxyz")
    with pytest.raises(ConfigError, match=r"Nothing to train on.* 0 with energies .* 0 with forces .* 0 with stress"):
        prepared(tiny, tmp_path, bare, energies)
    with pytest.raises(ConfigError, match="Nothing to choose a model by: of 6 structures of data.validation"):
        prepared(tiny, tmp_path, energies, bare)
    with pytest.raises(ConfigError, match="Nothing to train on"):  # every frame has the weight zero
        prepared(tiny, tmp_path, energies, energies, "loss.config_type_weights={'': 0}")


def test_weights_without_labels_and_labels_without_weights_are_counted(tiny, tmp_path, labelled, caplog):
    energies, whole = labelled("energies.extxyz", "energy"), labelled("all.extxyz", "energy", "forces", "stress")
    prepared(tiny, tmp_path, energies, whole)
    assert "loss.forces is 2, but none of the 6 training structures has forces" in caplog.text
    assert "6 validation structures have stress, which no training structure has" in caplog.text
    caplog.clear()
    prepared(tiny, tmp_path, whole, energies, "loss.stress=0")
    assert "stress of 6 training structures are not trained on, since loss.stress is 0" in caplog.text
    assert "none of the 6 validation structures has forces" in caplog.text
    caplog.clear()
    prepared(tiny, tmp_path, whole, whole)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_forces_lost_by_a_trajectory_file_are_missed(tiny, tmp_path, labelled, caplog):
    frames = read_frames(labelled("all.extxyz", "energy", "forces", "stress"))
    for frame in frames:
        frame.new_array("REF_forces", frame.get_forces())
        frame.calc = SinglePointCalculator(frame, energy=frame.get_potential_energy())
    write(tmp_path / "lost.traj", frames)
    prepared(tiny, tmp_path, tmp_path / "lost.traj", labelled("energies.extxyz", "energy"))
    assert "has forces; a .traj file keeps only what a calculator holds" in caplog.text


def test_structures_that_teach_nothing_are_left_out_by_name(tiny, tmp_path, labelled, caplog):
    mixed = f"[{labelled('energies.extxyz', 'energy')}, {labelled('two.extxyz', 'forces', count=2, first=20)}]"
    found = prepared(tiny, tmp_path, mixed, labelled("all.extxyz", "energy", "forces", "stress"), "loss.energy=0")
    assert len(found.train) == 2
    assert "6 training structures have no label with a weight and are left out: " in caplog.text
    assert "energies.extxyz, frame 4; and 1 more" in caplog.text


def test_figures_of_labels_that_do_not_exist_are_absent(tiny, tmp_path, labelled):
    energies = labelled("energies.extxyz", "energy")
    sources = [f"data.{name}={energies}" for name in ("train", "validation")]
    result = run.run(tiny(tmp_path, *sources, "data.test=null", "steps=1"))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["train_energy_mae_meV_per_atom"] > 0
    assert rows[1]["validation_energy_mae_meV_per_atom"] > 0
    assert not [key for row in rows for key in row if "force" in key and "labels" not in key]
    assert result.figures["validation"]["forces_mae_meV_per_angstrom"] is None


def test_the_loss_over_nothing_is_not_zero():
    nothing = {name: np.full(shape, np.nan) for name, shape in
               (("energy", 1), ("forces", (2, 3)), ("stress", (1, 3, 3)))}  # fmt: skip
    labels = {f"{name}_label": value for name, value in nothing.items()}
    predicted = {name: np.zeros_like(value) for name, value in nothing.items()}
    evaluation = Evaluation(np.array([2]), np.array([1, 1]), np.ones(1), **predicted, **labels)
    assert np.isnan(evaluation.loss(LossConfig()))
    known = {**labels, "energy_label": np.array([3.0])}
    evaluation = Evaluation(np.array([2]), np.array([1, 1]), np.ones(1), **predicted, **known)
    assert evaluation.loss(LossConfig(energy=2)) == pytest.approx(3.0)  # 2 x 3 eV / 2 atoms


def test_forces_alone_need_no_reference_energies(tiny, tmp_path, labelled):
    forces = labelled("forces.extxyz", "forces")
    for given in ("auto", "{H: -13}", "least_squares"):
        found = prepared(tiny, tmp_path, forces, forces, f"data.references={given}")
        assert dict(found.model.references) == {1: -13.0 if given == "{H: -13}" else 0.0, 8: 0.0}
        assert any("no training structure has an energy" in note for note in found.notes)


def test_batches_are_no_larger_than_the_data_and_the_run_says_what_was_chosen(tiny, tmp_path, labelled, caplog):
    whole, three = labelled("all.extxyz", "energy"), labelled("three.extxyz", "energy", count=3, first=30)
    found = prepared(tiny, tmp_path, whole, three, "batch.atoms=100000", "batch.micro_batches=3")
    atoms, edges = int(found.train.atoms.sum()), int(found.train.edges.sum())
    assert (found.capacity.atoms, found.capacity.structures) == (-(-atoms // 8) * 8, 6)
    assert edges <= found.capacity.edges < edges + 64
    assert any(f"batch.atoms is 100000, but no split has more than {atoms}" in note for note in found.notes)
    assert "every step goes over it 3.0 times" in caplog.text
