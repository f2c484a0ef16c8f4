"""Charge, spin and data-set embeddings against their formulas (reference/models.md section B.2)."""

import jax
import numpy as np
import pytest

from janus_jax import testing
from janus_jax.errors import StructureError, UnknownElementError
from janus_jax.models import convert
from janus_jax.prediction import predict


def batch():
    """Three molecules with charges -2, 0, 3, spins 0 (not given), 1, 4 and data sets 1, 0, 1."""
    molecules = []
    for charge, spin, dataset in ((-2, 0, 1), (0, 1, 0), (3, 4, 1)):
        atoms = testing.molecule()
        atoms.info.update(charge=charge, spin=spin, dataset=dataset)
        molecules.append(atoms)
    return testing.padded(*molecules)


def silu_of_mix(weights, *parts):
    x = np.concatenate(parts, -1) @ weights["mix_csd.weight"].T + weights["mix_csd.bias"]
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("datasets", [(), ("first", "second")])
def test_sinusoidal_and_dataset(datasets):
    model, graph = testing.random_esen(datasets=datasets), batch()
    w = convert.save_state(model)

    def wave(frequencies, q):
        return np.concatenate(
            [np.sin(2 * np.pi * q[:, None] * frequencies), np.cos(2 * np.pi * q[:, None] * frequencies)], -1
        )

    spin = wave(w["spin_embedding.W"], graph.spin) * (graph.spin != 0)[:, None]
    parts = [wave(w["charge_embedding.W"], graph.charge), spin]
    if datasets:
        rows = np.concatenate([w[f"dataset_embedding.dataset_emb_dict.{name}.weight"] for name in datasets])
        parts.append(rows[graph.dataset])
    np.testing.assert_allclose(model.system(graph), silu_of_mix(w, *parts), rtol=1e-12)


def test_tables():
    model, graph = testing.random_esen(charge_spin="table", datasets=()), batch()
    w = convert.save_state(model)
    assert w["charge_embedding.rand_emb.weight"].shape[0] == 201
    assert w["spin_embedding.rand_emb.weight"].shape[0] == 101
    charge = w["charge_embedding.rand_emb.weight"][graph.charge + 100]
    spin = w["spin_embedding.rand_emb.weight"][graph.spin]
    np.testing.assert_allclose(model.system(graph), silu_of_mix(w, charge, spin), rtol=1e-12)


def test_data_sets_alone_and_nothing_at_all():
    graph = batch()
    only = testing.random_esen(charge_spin="none")
    w = convert.save_state(only)
    rows = np.concatenate([w[f"dataset_embedding.dataset_emb_dict.{name}.weight"] for name in ("first", "second")])
    np.testing.assert_allclose(only.system(graph), silu_of_mix(w, rows[graph.dataset]), rtol=1e-12)
    none = testing.random_esen(charge_spin="none", datasets=())
    assert none.system(graph) is None
    assert not any("mix_csd" in name or "charge" in name for name in convert.save_state(none))


def test_charge_spin_and_data_set_change_the_energy():
    model = testing.random_esen()
    energies = []
    for charge, spin, dataset in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)):
        atoms = testing.molecule()
        atoms.info.update(charge=charge, spin=spin, dataset=dataset)
        energies.append(float(testing.evaluate(model, atoms).energy[0]))
    assert len({round(energy, 9) for energy in energies}) == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(energies))


@pytest.mark.parametrize(
    ("key", "value"), [("charge", 101), ("charge", -101), ("spin", 101), ("spin", -1), ("dataset", 2)]
)
def test_values_outside_the_tables_are_refused_not_clamped(key, value):
    atoms = testing.molecule()
    atoms.info[key] = value
    with pytest.raises(StructureError, match=f"{key} is {value}; the model allows"):
        predict(testing.random_esen(charge_spin="table"), testing.padded(atoms))


def test_elements_beyond_the_table_are_refused():
    atoms = testing.molecule()
    atoms.numbers[0] = 31
    with pytest.raises(UnknownElementError, match="does not know Ga"):
        predict(testing.random_esen(max_element=30), testing.padded(atoms))
