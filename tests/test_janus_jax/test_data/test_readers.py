"""Sources, splits, labels, and the built-in water set."""

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from janus_jax.data import readers, references
from janus_jax.data.batching import choose, need
from janus_jax.data.loader import Position, split_by_fraction, stream
from janus_jax.errors import DataError, UnknownNameError


def labelled(**results):
    atoms = Atoms("OH", [[0, 0, 0], [0, 0, 1.0]], cell=[5, 6, 7], pbc=True)
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def test_water_set_is_what_it_says():
    frames = readers.read_frames("water")
    splits = {name: readers.read_frames(f"water:{name}") for name in readers.SPLITS}
    assert sum(map(len, splits.values())) == len(frames) >= 400
    trajectories = {name: {frame.info["trajectory"] for frame in part} for name, part in splits.items()}
    assert not trajectories["train"] & (trajectories["test"] | trajectories["validation"])
    assert not trajectories["test"] & trajectories["validation"]
    assert {len(frame) // 3 for frame in frames} <= set(range(8, 17))
    assert len({len(f) for f in frames}) >= 3
    assert {f.info["temperature_kelvin"] for f in frames} == {300, 400, 500, 600}
    assert len({f.info["density_g_cm3"] for f in frames}) >= 3
    forces = np.concatenate([frame.get_forces() for frame in frames])
    assert 0.5 < np.sqrt((forces**2).mean()) < 2
    assert max(np.abs(frame.get_forces().sum(0)).max() for frame in frames) < 1e-3
    assert all(np.isfinite(frame.get_stress()).all() and frame.pbc.all() for frame in frames)
    assert readers.BUILT_IN["water"].stat().st_size < 2.5e6
    binding = [
        frame.get_potential_energy() - sum(readers.built_in_references("water")[s] for s in frame.symbols)
        for frame in frames
    ]
    per_molecule = np.array(binding) / [len(frame) / 3 for frame in frames]
    assert per_molecule.min() > -20
    assert per_molecule.max() < -5


def test_unknown_splits_and_files_are_named(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'tset'.*did you mean 'test'|'tset'.*Did you mean 'test'"):
        readers.read_frames("water:tset")
    with pytest.raises(DataError, match="no such file; built-in sets are: water"):
        readers.read_frames(tmp_path / "none.xyz")
    (tmp_path / "empty.xyz").touch()
    with pytest.raises(DataError, match="empty.xyz: the file is empty"):
        readers.read_frames(tmp_path / "empty.xyz")
    (tmp_path / "bad.xyz").write_text("3\ncomment\nO 0 0 0\n")
    with pytest.raises(DataError, match="bad.xyz: ASE cannot read it"):
        readers.read_frames(tmp_path / "bad.xyz")


def test_labels_survive_a_file_and_missing_ones_are_masked(tmp_path):
    stress = np.array([[1.0, 0.3, 0.2], [0.3, 2.0, 0.1], [0.2, 0.1, 3.0]])
    forces = np.arange(6.0).reshape(2, 3)
    full = labelled(energy=-5.0, forces=forces, stress=stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]])
    write(tmp_path / "a.xyz", [full, labelled(forces=forces)], format="extxyz")
    frames = readers.read_frames(tmp_path / "a.xyz")
    graphs = readers.load_graphs("a.xyz", frames, 3.0, {1: -1.0, 8: -2.0})
    first, second = (graph.targets for graph in graphs)
    assert first.energy[0] == pytest.approx(-5.0 + 3.0)
    assert first.energy_mask.all()
    np.testing.assert_allclose(first.forces, forces)
    np.testing.assert_allclose(first.stress[0], stress)
    assert not second.energy_mask.any()
    assert not second.stress_mask.any()
    assert second.forces_mask.all()
    assert second.energy[0] == 0


def test_labels_under_other_keys_and_of_nine_numbers():
    atoms = Atoms("OH", [[0, 0, 0], [0, 0, 1.0]], cell=[5, 6, 7], pbc=True)
    atoms.info.update(REF_energy=-3.0, REF_stress=np.arange(9.0))
    atoms.arrays["REF_forces"] = np.ones((2, 3))
    found = readers.labels(atoms, readers.LabelKeys(energy="REF_energy", forces="REF_forces", stress="REF_stress"))
    assert found["energy"] == -3.0
    assert found["forces"].shape == (2, 3)
    np.testing.assert_array_equal(found["stress"], np.arange(9.0).reshape(3, 3))
    assert all(value is None for value in readers.labels(atoms, readers.LabelKeys()).values())


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ({"energy": np.inf}, "energy is not finite"),
        ({"forces": np.full((2, 3), np.nan)}, "forces is not finite"),
        ({"stress": np.zeros(5)}, r"stress has shape \(5,\)"),
    ],
)
def test_bad_labels_name_source_frame_and_label(results, words):
    with pytest.raises(DataError, match=f"f.xyz, frame 1: {words}"):
        readers.load_graphs("f.xyz", [labelled(energy=1.0), labelled(**results)], 3.0, {})


def test_least_squares_references_recover_exact_ones_and_warn_of_absurd_ones(caplog):
    frames = []
    for k, symbols in enumerate(("OH", "OH2", "H3", "O2")):
        atoms = Atoms(symbols, np.random.default_rng(k).normal(size=(len(Atoms(symbols)), 3)))
        atoms.calc = SinglePointCalculator(atoms, energy=sum({"O": -10.0, "H": -1.5}[s] for s in atoms.symbols))
        frames.append(atoms)
    table = references.least_squares(frames)
    assert table == pytest.approx({1: -1.5, 8: -10.0})
    assert references.given({"H": -1.5, "O": -10.0, "Au": 0.0}, frames)[79] == 0
    with pytest.raises(DataError, match="No reference energy for O"):
        references.given({"H": -1.5}, frames)
    with pytest.raises(DataError, match="unknown elements: Hx"):
        references.given({"Hx": -1.5}, frames)
    references.check(table, frames)
    assert not caplog.records
    references.check({1: 0.0, 8: -2000.0}, frames)
    assert "eV per atom" in caplog.text


def test_stream_is_deterministic_resumable_and_complete():
    graphs = readers.load_graphs("water", readers.read_frames("water:validation")[:11], 3.0, {1: 0.0, 8: 0.0})
    graphs = [graph.replace(charge=np.array([k], np.int32)) for k, graph in enumerate(graphs)]  # names them
    capacity = choose([need(graph) for graph in graphs], 100)

    def members(batch):
        return [int(q) for m in batch.micro_batches for q, real in zip(m.charge, m.structure_mask, strict=True) if real]

    batches = stream(graphs, capacity, 2, seed=7)
    first = [next(batches) for _ in range(9)]
    drawn = [k for batch in first for k in members(batch)]
    assert sorted(drawn[:11]) == sorted(drawn[11:22]) == list(range(11))
    assert drawn[:11] != drawn[11:22]
    again = stream(graphs, capacity, 2, seed=7, start=first[3].position)
    for expected in first[4:]:
        batch = next(again)
        assert members(batch) == members(expected)
        assert batch.position == expected.position
    assert members(next(stream(graphs, capacity, 2, seed=8))) != members(first[0])
    assert first[0].position == Position(0, len(members(first[0])))
    assert float(first[0].counts.energies) == len(members(first[0]))


def test_splitting_by_fraction_is_seeded_and_complete():
    train, held = split_by_fraction(list(range(10)), 0.3, seed=1)
    assert sorted(train + held) == list(range(10))
    assert len(held) == 3
    assert split_by_fraction(list(range(10)), 0.3, seed=1) == (train, held)
