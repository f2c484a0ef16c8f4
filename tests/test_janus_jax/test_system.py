"""Charge, spin and data set: one check for all entrances, nothing stale, and what a model cannot see is said."""

import logging
from concurrent.futures import ThreadPoolExecutor

import ase.io
import numpy as np
import pytest
from ase.build import molecule
from flax import nnx

import md
from janus_jax import system
from janus_jax.calculator import JanusCalculator
from janus_jax.cli.main import main
from janus_jax.data.batching import need, pad
from janus_jax.data.neighbors import from_atoms
from janus_jax.data.sources import read_frames
from janus_jax.errors import DataError, StructureError
from janus_jax.models import convert
from janus_jax.models.esen import Esen, EsenConfig
from janus_jax.prediction import predict
from janus_jax.train.prepare import prepare
from md.engine import Engine
from md.testing import LennardJones

SMALL = EsenConfig(cutoff_angstrom=3.0, channels=4, hidden_channels=4, edge_channels=4, num_basis=4, num_layers=1,
                   charge_spin="table", datasets=("a", "b"))  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return convert.cast(Esen(SMALL, rngs=nnx.Rngs(0)), np.float64)


def water(**info):
    atoms = molecule("H2O")
    atoms.info.update(info)
    return atoms


def calculator(model, atoms, dataset):
    JanusCalculator(model, dataset=dataset).get_potential_energy(atoms)


def dynamics(model, atoms, dataset):
    Engine(model, atoms, dataset=dataset)


def prediction(model, atoms, dataset):
    graph = from_atoms(atoms, model.cutoff, dataset)
    predict(model, pad([graph], need(graph), np.float64))


def jax_md(model, atoms, dataset):
    given = system.of(atoms, dataset)
    md.energy_fn(model, 9.0, atoms.numbers, **given)


ENTRANCES = [calculator, dynamics, prediction, jax_md]


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize(
    ("info", "dataset", "message"),
    [
        ({"charge": 0.5}, 0, "charge is 0.5, which is not an integer"),
        ({"spin": "up"}, 0, "spin is up, which is not an integer"),
        ({"charge": 2**40}, 0, "charge is 1099511627776; -2147483648 to 2147483647 can be stored"),
        ({"charge": 101}, 0, "charge is 101; the model allows -100 to 100"),
        ({"spin": -1}, 0, "spin is -1; the model allows 0 to 100"),
        ({}, 2, "dataset is 2; the model allows 0 to 1"),
    ],
)
def test_every_entrance_refuses_alike(model, entrance, info, dataset, message):
    with pytest.raises(StructureError, match=message):
        entrance(model, water(**info), dataset)


def test_numbers_of_any_kind_are_read_alike_and_nothing_is_zero():
    assert system.of(water(charge=np.float64(-1.0), spin=np.int64(2))) == {"charge": -1, "spin": 2, "dataset": 0}
    assert system.of(water(charge=None)) == {"charge": 0, "spin": 0, "dataset": 0}
    with pytest.raises(StructureError, match="dataset is 1, but the model has no data sets"):
        Engine(LennardJones(0.01, 3.0, 5.0, numbers=(1, 8)), water(), dataset=1)


def test_the_calculator_follows_charge_spin_and_data_set(model):
    atoms = water(charge=0)
    atoms.calc = JanusCalculator(model)
    seen = [atoms.get_potential_energy()]
    for change in ({"charge": 2}, {"spin": 3}, {"charge": np.array(1)}):
        atoms.info |= change
        seen.append(atoms.get_potential_energy())
    atoms.info["charge"] += 3  # in place, as an array
    seen.append(atoms.get_potential_energy())
    atoms.calc.dataset = 1
    seen.append(atoms.get_potential_energy())
    assert len(set(np.round(seen, 9))) == len(seen)
    assert atoms.calc.rebuilds == 1  # the same neighbours
    fresh = atoms.copy()
    fresh.calc = JanusCalculator(model, dataset=1)
    assert seen[-1] == pytest.approx(fresh.get_potential_energy(), abs=1e-12)
    atoms.info["charge"] = 0.5
    with pytest.raises(StructureError, match="not an integer"):
        atoms.get_potential_energy()


def test_threads_may_share_a_calculator(model):
    shared = JanusCalculator(model)
    structures = [water(charge=charge) for charge in range(6)]
    for k, atoms in enumerate(structures):
        atoms.rattle(0.05, seed=k)
    expected = [JanusCalculator(model).get_property("forces", atoms) for atoms in structures]

    def many(k):
        return [shared.get_property("forces", structures[k]) for _ in range(30)]

    with ThreadPoolExecutor(len(structures)) as pool:
        for k, found in enumerate(pool.map(many, range(len(structures)))):
            for forces in found:
                np.testing.assert_allclose(forces, expected[k], atol=1e-12)


def test_a_charge_that_a_model_does_not_see_is_said_once(caplog):
    blind = LennardJones(0.01, 3.0, 5.0, numbers=(1, 8))
    blind.config = SMALL.model_copy(update={"charge_spin": "none", "datasets": ()})
    atoms = water(charge=2)
    with caplog.at_level(logging.WARNING):
        atoms.calc = JanusCalculator(blind)
        atoms.get_forces()
        atoms.positions[0, 0] += 0.1
        atoms.get_forces()
        assert [text.count("charge 2 and spin 0") for text in caplog.messages] == [1]
        caplog.clear()
        Engine(blind, atoms)
        assert [text.count("charge 2 and spin 0") for text in caplog.messages] == [1]


def test_inspection_counts_charges_and_spins_and_names_the_first(tmp_path, capsys, caplog):
    frames = [water(), water(spin=1), water(charge=1, spin=2), water(spin=3)]
    for k, frame in enumerate(frames):
        frame.rattle(0.01, seed=k)
    ase.io.write(tmp_path / "ions.xyz", frames, format="extxyz")
    with caplog.at_level(logging.WARNING):
        assert main(["data", "inspect", str(tmp_path / "ions.xyz"), "--plot", str(tmp_path / "a.png"), "--json"]) == 0
    said = [text for text in caplog.messages if "charge_spin" in text]
    assert len(said) == 1
    assert said[0].startswith("2 of 4 structures have a charge (1) or a spin multiplicity above 1 (2)")
    assert "The first is" in said[0]
    assert "ions.xyz" in said[0]


def test_training_counts_what_its_model_does_not_see_and_names_what_is_no_charge(tiny, tmp_path, caplog):
    frames = read_frames("water:train")[:6]
    frames[2].info["charge"] = frames[5].info["charge"] = 1
    ase.io.write(tmp_path / "ions.extxyz", frames)
    sources = [f"data.{name}={tmp_path / 'ions.extxyz'}" for name in ("train", "validation")]
    prepare(tiny(tmp_path, *sources, "data.test=null"))
    text = "data.train: 2 of 6 structures have a charge (2) or a spin multiplicity above 1 (0), which models with"
    assert text in caplog.text
    assert "ions.extxyz, frame 2" in caplog.text
    caplog.clear()
    prepare(tiny(tmp_path, *sources, "data.test=null", "model.charge_spin=table"))
    assert "charge" not in caplog.text
    frames[3].info["charge"] = 0.5
    ase.io.write(tmp_path / "ions.extxyz", frames)
    with pytest.raises(DataError, match=r"frame 3.*charge is 0.5, which is not an integer"):
        prepare(tiny(tmp_path, *sources, "data.test=null"))
