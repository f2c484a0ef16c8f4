"""Runs with files, from ASE and back, and the command."""

import csv
import dataclasses
import json
from pathlib import Path

import ase.io
import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixAtoms, FixBondLength
from flax import nnx

from janus_jax import bundle, configuration
from janus_jax.cli._tables import files_in
from janus_jax.cli.main import main
from janus_jax.cli.md import FILES
from janus_jax.errors import ConfigError, DynamicsError, UnknownElementError
from janus_jax.models import build, convert
from janus_jax.models.esen import EsenConfig
from md import estimate
from md.config import MdConfig
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.reading import COLUMNS
from md.simulation import Simulation
from md.testing import LennardJones, ManyBody

SMALL = EsenConfig(cutoff_angstrom=3.5, channels=4, hidden_channels=4, edge_channels=4, num_basis=8)
REFERENCES = ((11, -3.0), (17, -5.0))


@pytest.fixture(scope="module")
def model():
    made = ManyBody(3.0, epsilon=0.05, sigma=2.2, cutoff=4.0, numbers=(11, 17))
    made.references = REFERENCES
    return made


@pytest.fixture(scope="module")
def esen():
    return convert.cast(build(SMALL, rngs=nnx.Rngs(0), references=REFERENCES), jnp.float64)


@pytest.fixture
def salt():
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.1, seed=1)
    return atoms


def test_files_hold_the_run_and_the_state_goes_on_from_ase(model, salt, tmp_path):
    config = EnsembleConfig(timestep_fs=1.0)
    folder = tmp_path / "run"
    simulation = Simulation(model, salt, config, folder=folder, thermo=4, frames=8)
    seen = []
    simulation.run(10, lambda reading: seen.append(reading.step))
    assert seen == [4, 8]
    with (folder / "thermo.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["step"]) for row in rows] == [0, 4, 8]
    first = {key: float(value) for key, value in rows[0].items()}
    assert first["temperature_kelvin"] == pytest.approx(300.0)
    assert first["total_ev"] == pytest.approx(first["potential_ev"] + first["kinetic_ev"])
    assert first["potential_ev"] - simulation.readings[0].potential_ev == pytest.approx(4 * -3.0 + 4 * -5.0)
    frames = ase.io.read(folder / "trajectory.extxyz", index=":")
    assert [frame.info["step"] for frame in frames] == [0, 8]
    final = ase.io.read(folder / "final.extxyz")
    assert final.info["step"] == 10
    np.testing.assert_allclose(final.positions, simulation.atoms().positions, atol=1e-7)
    again = Engine(model, simulation.atoms(), config)
    np.testing.assert_allclose(again.momenta(), simulation.engine.momenta(), atol=1e-12)
    np.testing.assert_allclose(again.forces(), simulation.engine.forces(), atol=1e-12)
    figures = simulation.figures()
    assert figures["steps"] == 10
    assert figures["ns_per_day"] == pytest.approx(figures["steps_per_s"] * 86400e-6)
    with pytest.raises(ConfigError, match="holds a run already"):
        Simulation(model, salt, config, folder=folder)
    one, total = simulation.readings[0], 3e-3  # eV in 500 steps of 1 fs
    simulation.readings = [
        dataclasses.replace(one, step=step, conserved_ev=one.conserved_ev + total * step / 500)
        for step in range(0, 501, 10)
    ]
    assert simulation.drift() == pytest.approx(1000 * total / 0.5 / 8)  # meV per ps and atom


def test_a_step_no_skin_can_take_stops_and_names_the_atom(model, salt, tmp_path):
    salt.set_momenta(np.where(np.arange(8)[:, None] == 3, 15.0, 0.0) * np.ones(3))
    simulation = Simulation(
        model, salt, EnsembleConfig(timestep_fs=2.0), folder=tmp_path / "fast", closest_angstrom=0.0
    )
    simulation.engine.motion = simulation.engine.with_state(momentum=40 * simulation.engine.motion.state.momentum)
    with pytest.raises(DynamicsError, match=r"moves an atom by more than half the skin .*shorter timestep_fs"):
        simulation.run(5)
    assert ase.io.read(tmp_path / "fast" / "final.extxyz").info["step"] == 0


def test_open_systems_keep_their_cell_and_have_no_pressure_without_a_volume(tmp_path):
    model = LennardJones(0.01, 3.4, cutoff=6.0)
    config = EnsembleConfig(timestep_fs=1.0, temperature_kelvin=30.0)
    free = Simulation(model, Atoms("Ar2", [[0, 0, 0], [0, 0, 3.8]]), config, folder=tmp_path / "free")
    assert free.readings[0].volume == 0
    assert np.isnan(free.readings[0].pressure_gpa)
    free.run(10)
    assert not ase.io.read(tmp_path / "free" / "final.extxyz").pbc.any()
    assert free.atoms().cell.rank == 0
    slab = Atoms("Ar2", [[0, 0, 0], [2.0, 0, 3.8]], cell=[5, 5, 20], pbc=[True, True, False])
    run = Simulation(model, slab, config)
    assert run.readings[0].volume == pytest.approx(500.0)
    np.testing.assert_array_equal(run.atoms().cell.array, slab.cell.array)


def test_broken_close_and_hot_states_stop_at_the_last_good_one(tmp_path):
    near = Atoms("Ar2", [[0, 0, 0], [0, 0, 3.6]], cell=[20, 20, 20], pbc=True)
    near.set_velocities([[0, 0, 0.2], [0, 0, -0.2]])
    soft = LennardJones(1e-9, 3.4, cutoff=8.0)
    config = EnsembleConfig(timestep_fs=1.0, still_center=0)
    simulation = Simulation(soft, near, config, folder=tmp_path / "close", closest_angstrom=2.0)
    with pytest.raises(DynamicsError, match=r"atoms \d and \d are 1.9\d+ Å apart, closer than closest_angstrom 2;"):
        simulation.run(200)
    final = ase.io.read(tmp_path / "close" / "final.extxyz")
    assert final.info["step"] == simulation.engine.step > 10
    assert final.get_distance(0, 1, mic=True) >= 2.0
    with pytest.raises(DynamicsError, match="hotter than hottest_kelvin 10;"):
        Engine(soft, near, config, hottest_kelvin=10.0).run(5)
    broken = LennardJones(np.nan, 3.4, cutoff=8.0)
    broken_run = Engine(soft, near, config)
    broken_run.weights = jax.tree.map(lambda leaf: leaf * np.nan, broken_run.weights)
    broken_run.system = dataclasses.replace(broken_run.system, weights=broken_run.weights)
    with pytest.raises(DynamicsError, match=r"not finite \(2 atoms: 0, 1\)"):
        broken_run.run(5)
    assert np.isfinite(broken_run.positions()).all()
    with pytest.raises(DynamicsError, match="not finite"):
        Engine(broken, near, config).run(5)


def test_an_interrupt_leaves_state_and_step_as_one(model, salt, tmp_path, monkeypatch):
    simulation = Simulation(model, salt, EnsembleConfig(timestep_fs=1.0), folder=tmp_path / "run", thermo=4)
    epoch, calls = simulation.engine.programs.epoch, []

    class Late:
        """A count that is interrupted while it is waited for."""

        def __int__(self):
            raise KeyboardInterrupt

    def interrupted(*arguments):
        calls.append(arguments)
        result = epoch(*arguments)
        return result if len(calls) < 3 else (result[0], Late(), *result[2:])

    monkeypatch.setattr(simulation.engine.programs, "epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        simulation.run(40)
    assert simulation.engine.step == int(simulation.engine.motion.step) == 8
    assert ase.io.read(tmp_path / "run" / "final.extxyz").info["step"] == 8


def test_minimisation_starts_from_atoms_on_top_of_each_other(model, salt):
    salt.positions[1] = salt.positions[0] + [0.3, 0, 0]
    engine = Engine(model, salt, EnsembleConfig(name="minimize", timestep_fs=2.0, force_tolerance=0.05))
    before = engine.read().closest_angstrom
    assert before < 0.31
    assert engine.run(2000)
    assert engine.read().closest_angstrom > 1.5


def test_what_cannot_be_run_is_said_before_anything_is_compiled(model, salt):
    with pytest.raises(DynamicsError, match="99 devices; JAX has 8"):
        Engine(model, salt, EnsembleConfig(), devices=99)
    with pytest.raises(ConfigError, match="interval: Input should be greater than 0 .given: 0."):
        Engine(model, salt, EnsembleConfig(), interval=0)
    with pytest.raises(ConfigError, match="skin: unknown key; allowed: .*skin_angstrom"):
        Engine(model, salt, EnsembleConfig(), skin=1.0)
    with pytest.raises(UnknownElementError, match="He"):
        Engine(model, Atoms("He", cell=[5, 5, 5], pbc=True), EnsembleConfig())
    with pytest.raises(ConfigError, match="thermo: Input should be greater than 0"):
        Simulation(model, salt, thermo=0)
    with pytest.raises(DynamicsError, match="npt needs a cell with three periodic axes"):
        Engine(model, Atoms("Na", cell=[5, 5, 5], pbc=[True, True, False]), EnsembleConfig(name="npt"))
    lost = salt.copy()
    lost.positions[3, 1] = np.nan
    with pytest.raises(DynamicsError, match="atom 3 is nowhere"):
        Engine(model, lost, EnsembleConfig())
    held = salt.copy()
    held.set_constraint(FixBondLength(0, 1))
    with pytest.raises(DynamicsError, match="FixBondLengths; only FixAtoms"):
        Engine(model, held, EnsembleConfig())
    held.set_constraint(FixAtoms([0]))
    with pytest.raises(DynamicsError, match="still_center is 10, but fixed atoms hold the centre"):
        Engine(model, held, EnsembleConfig(still_center=10))
    with pytest.raises(DynamicsError, match="one atom whose centre is held still"):
        Engine(model, salt[:1], EnsembleConfig())
    held.set_constraint(FixAtoms(range(8)))
    with pytest.raises(DynamicsError, match="nothing to move"):
        Engine(model, held, EnsembleConfig())
    fast = salt.copy()
    fast.set_momenta(np.where(np.arange(8)[:, None] == 3, 200.0, 0.0) * np.ones(3))
    with pytest.raises(DynamicsError, match=r"atom 3 moves [\d.]+ Å in a step of 5 fs, more than half the skin"):
        Engine(model, fast, EnsembleConfig(timestep_fs=5.0))


@pytest.fixture
def files(esen, salt, tmp_path, monkeypatch):
    """A folder with a model and a structure, to work in."""
    monkeypatch.chdir(tmp_path)
    bundle.save("model.janus", esen)
    ase.io.write("salt.extxyz", salt)
    return tmp_path


def test_the_command_runs_a_structure_on_two_devices_and_goes_on(files, capsys):
    words = [
        "md",
        "salt.extxyz",
        "--model",
        "model.janus",
        "--steps",
        "20",
        "--devices",
        "2",
        "--json",
        "--thermo",
        "5",
    ]
    options = ["output.sample=5", "output.formats=[h5md,extxyz]", "--temperature", "200:400", "--ensemble", "nvt"]
    assert main(words + options) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["steps"], figures["devices"], figures["folder"]) == (20, 2, "runs/md-salt")
    assert sum(figures["rebuilds"].values()) == 2
    assert figures["lists_reused"] == pytest.approx(0.9)
    assert figures["drift_meV_per_atom_per_ps"] is None  # nothing is conserved on a ramp
    page = Path("runs/md-salt/report.html").read_text()
    for text in ("samples over 0.0075 ps are too few to show", "Searches for neighbours", "used, of the fullest rank"):
        assert text in page
    assert figures["diffusion_angstrom2_per_ps"] == {}
    assert "Na was sampled 4 times" in figures["diffusion_note"]
    assert figures["equilibrium"] is None  # not asked of a ramp
    there = "thermo.csv, trajectory.extxyz, trajectory.h5md, final.extxyz, distributions.npz, results.json, report.html"
    assert files_in("runs/md-salt", FILES) == f"Files are in runs/md-salt: {there}"
    assert files_in("runs", FILES) == "No file has been written to runs"
    with h5py.File("runs/md-salt/trajectory.h5md") as file:
        assert file["h5md"].attrs["version"].tolist() == [1, 1]
        assert file["particles/atoms/box"].attrs["boundary"].tolist() == ["periodic"] * 3
        np.testing.assert_array_equal(file["particles/atoms/species"], [11, 17] * 4)
        assert file["particles/atoms/position/value"].shape == (1, 8, 3)
        assert file["particles/atoms/position/value"].attrs["unit"] == "Angstrom"
    assert main(words) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert main(["md", "--resume", "runs/md-salt"]) == 2
    assert "has made its 20 steps; say how many more with --steps" in capsys.readouterr().err
    assert main(["md", "--resume", "runs/md-salt", "--dry-run"]) == 2
    assert "config.yaml --dry-run" in capsys.readouterr().err
    assert main(["md", "--resume", "runs/md-salt", "--ensemble", "nve", "--steps", "7"]) == 2
    assert "ensemble.name: the checkpoint has nvt, given is nve" in capsys.readouterr().err
    again = ["md", "--resume", "runs/md-salt", "--steps", "7", "--temperature", "400:500", "--json"]
    assert main(again) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["steps"] == 27
    kept = configuration.load(MdConfig, "runs/md-salt/config.yaml")
    assert kept.steps == 27
    assert kept.ensemble.temperature_kelvin == ((0.01, 400.0), (0.0135, 500.0))  # from where it was
    assert [row["step"] for row in thermo("runs/md-salt")] == ["0", "5", "10", "15", "20", "25"]
    assert main(["report", "runs/md-salt"]) == 0


def thermo(folder) -> list[dict[str, str]]:
    with (Path(folder) / "thermo.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_configuration_says_the_same_and_a_dry_run_says_what_it_needs(files, capsys, monkeypatch):
    Path("run.yaml").write_text(
        "structure: salt.extxyz\nmodel: model.janus\nrepeat: [2, 1, 1]\nensemble: {name: minimize}\n"
        "engine: {devices: 2}\n"
    )
    assert main(["md", "run.yaml", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "16 atoms on 2 devices" in shown
    assert "Memory of a device:" in shown
    assert not Path("runs").exists()
    assert main(["md", "run.yaml", "repeat=[1,1,1]", "--steps", "3", "ensemble.force_tolerance=1e-7"]) == 0
    assert "eV/Å: not converged; go on with --resume runs/md-salt" in capsys.readouterr().out
    assert main(["md", "--resume", "runs/md-salt", "--steps", "400", "ensemble.force_tolerance=0.5"]) == 0
    assert "eV/Å: converged." in capsys.readouterr().out
    assert not ase.io.read("runs/md-salt/final.extxyz").has("momenta")  # so that dynamics from it draw their own
    monkeypatch.setattr(estimate, "available", lambda devices: 1e5)
    assert main(["md", "run.yaml", "--dry-run"]) == 2
    assert "a device would need" in capsys.readouterr().err
    assert main(["md", "run.yaml", "engine.devices=17"]) == 2
    assert "16 atoms on 17 devices: give fewer" in capsys.readouterr().err
    assert main(["config", "validate", "--md", "run.yaml"]) == 0
    assert "force_tolerance: 0.01" in capsys.readouterr().out


def test_bad_words_are_explained(files, capsys):
    for words, text in (
        (["--temperature", "-3"], "ensemble.temperature_kelvin: "),
        (["--temperature", "300:-3", "steps=50"], "all temperatures must be positive"),
        (["--ensemble", "nph"], "ensemble.name: Input should be 'nve', 'nvt', 'langevin', 'npt' or 'minimize'"),
        (["enginge.skin_angstrom=1"], "did you mean engine"),
    ):
        assert main(["md", "salt.extxyz", "--model", "model.janus", *words]) == 2
        assert text in capsys.readouterr().err
    assert main(["md", "salt.extxyz"]) == 2
    assert "no model: give --model MODEL, a model file or the folder of a training run" in capsys.readouterr().err
    assert main(["md", "--model", "model.janus"]) == 2
    assert "as in: janus-jax md FILE --model MODEL" in capsys.readouterr().err
    Path("empty.yaml").write_text("model: model.janus\n")
    assert main(["md", "empty.yaml"]) == 2
    assert "no structure: give structure=FILE" in capsys.readouterr().err
