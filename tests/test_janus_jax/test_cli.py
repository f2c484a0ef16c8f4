"""The command line, as processes a user would start."""

import json
import subprocess
import sys

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write
from flax import nnx

from janus_jax import bundle
from janus_jax.cli.main import main, parser
from janus_jax.data.sources import read_frames
from janus_jax.models.esen import Esen, EsenConfig

CONFIG = EsenConfig(cutoff_angstrom=3.0, num_layers=1, channels=4, hidden_channels=4, edge_channels=4, num_basis=4)


@pytest.fixture
def model(tmp_path):
    bundle.save(tmp_path / "m.janus", Esen(CONFIG, rngs=nnx.Rngs(0), references=((1, -13.0), (8, -100.0))))
    return tmp_path / "m.janus"


def test_help_imports_none_of_the_heavy_packages():
    code = (
        "import sys; from janus_jax.cli.main import parser; parser().format_help(); "
        "print([m for m in ('jax', 'numpy', 'ase', 'pydantic', 'rich', 'yaml') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [
    "train", "evaluate", "demo", "doctor", "report", "compare", "model show", "model export", "config template",
    "config validate", "config schema", "data inspect", "data split", "data convert", "data label", "data sample",
])  # fmt: skip
def test_every_command_has_help_and_json(command, capsys):
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_evaluate_prints_one_json_object_and_writes_predictions(model, tmp_path, capsys):
    frames = read_frames("water:test")[:3]
    write(tmp_path / "f.xyz", frames, format="extxyz")
    arguments = [
        "evaluate",
        str(model),
        str(tmp_path / "f.xyz"),
        "--out",
        str(tmp_path / "p.xyz"),
        "--plot",
        str(tmp_path / "p.png"),
    ]
    assert main([*arguments, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    predicted = read(tmp_path / "p.xyz", ":")
    error = np.concatenate([f.arrays["janus_forces"] - f.get_forces() for f in predicted])
    np.testing.assert_allclose(figures["forces_mae_meV_per_angstrom"], 1000 * np.abs(error).mean(), rtol=1e-4)
    error = [(f.info["janus_energy"] - f.get_potential_energy()) / len(f) for f in predicted]
    np.testing.assert_allclose(figures["energy_mae_meV_per_atom"], 1000 * np.abs(error).mean(), rtol=1e-4)
    error = [f.info["janus_stress"] - f.get_stress() for f in predicted]
    xx, yy, zz, yz, xz, xy = np.abs(error).T
    mae = 1000 * np.mean([xx, yy, zz, yz, yz, xz, xz, xy, xy])
    np.testing.assert_allclose(figures["stress_mae_meV_per_angstrom3"], mae, rtol=1e-4)
    assert (tmp_path / "p.png").stat().st_size > 5000
    assert main(arguments) == 2  # predictions are not overwritten
    assert "exists already" in capsys.readouterr().err
    assert main(arguments[:3]) == 0
    assert "meV/atom" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evaluate", "none.janus", "water"], "none.janus: no such file"),
        (["train", "none.yaml"], "none.yaml: no such configuration file"),
        (["train", "a.yaml", "b.yaml"], "One configuration file is allowed"),
        (["train", "steps=many"], "steps: Input should be a valid integer"),
        (["data", "label", "water", "--method", "dft"], "Unknown xTB method 'dft'"),
    ],
)
def test_errors_are_one_sentence_on_standard_error(arguments, words, capsys):
    assert main(arguments) == 2
    out = capsys.readouterr()
    assert words in out.err
    assert out.out == ""
    assert "Traceback" not in out.err


def test_label_writes_labels(tmp_path, capsys):
    frames = read_frames("water:test")[:1]
    frames[0].calc = None
    write(tmp_path / "f.xyz", frames, format="extxyz")
    out = tmp_path / "out.xyz"
    code = [
        "data",
        "label",
        str(tmp_path / "f.xyz"),
        "--method",
        "gfn1-xtb",
        "--out",
        str(out),
        "--workers",
        "1",
        "--json",
    ]
    subprocess.run([sys.executable, "-m", "janus_jax.cli.main", *code], check=True, capture_output=True)
    assert np.isfinite(read(out).get_forces()).all()
    assert read(out).get_stress().shape == (6,)


def test_doctor_reports_versions_and_devices(capsys):
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["shadowed"] == {}
    assert len(report["devices"]) == 8
    assert report["versions"]["jax"]


def test_demo_trains_evaluates_and_runs_dynamics(tmp_path, capsys, monkeypatch):
    for name in ("JAX_NUMPY_DTYPE_PROMOTION", "JAX_NUMPY_RANK_PROMOTION", "JAX_ENABLE_X64", "XLA_FLAGS"):
        monkeypatch.delenv(name)  # dynamics are a process of their own, as users have it
    monkeypatch.setattr("janus_jax.cli.demo.STEPS", 40)  # what four steps of training make is no potential for more
    tiny = "model={channels: 4, hidden_channels: 4, edge_channels: 4, num_basis: 8, num_layers: 1, cutoff_angstrom: 3}"
    arguments = ["demo", "--json", "--output", str(tmp_path / "demo"), tiny, "steps=4", "validate_every=2"]
    assert main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["nve"]["steps"] == 40
    assert np.isfinite(figures["nve"]["drift_meV_per_atom_per_ps"])
    assert (tmp_path / "demo" / "md" / "report.html").exists()
    names = {path.name for path in (tmp_path / "demo" / "plots").iterdir()}
    assert names == {"learning_curve.png", "parity_validation.png", "parity_test.png"}
    assert json.loads((tmp_path / "demo" / "results.json").read_text())["nve"] == figures["nve"]


def as_json(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_evaluate_takes_other_label_names_and_warns_of_another_method(model, tmp_path, capsys, caplog):
    frames = read_frames("water:test")[:2]
    for frame in frames:
        frame.info["E"] = frame.get_potential_energy() - 60 * len(frame)
        frame.calc = None
    write(tmp_path / "f.xyz", frames, format="extxyz")
    figures = as_json(capsys, "evaluate", str(model), str(tmp_path / "f.xyz"), "labels.energy=E")
    assert figures["energy_labels"] == 2
    assert figures["forces_mae_meV_per_angstrom"] is None
    assert "do both come from the same method" in caplog.text
    figures = as_json(capsys, "evaluate", str(model), str(tmp_path / "f.xyz"))
    assert (figures["energy_labels"], figures["energy_mae_meV_per_atom"]) == (0, None)
    assert "f.xyz: no frame has a label, so there are no errors to show" in caplog.text


def test_inspect_prints_statistics_and_draws_a_page(tmp_path, capsys):
    plot = tmp_path / "page.png"
    figures = as_json(capsys, "data", "inspect", "water:test", "--plot", str(plot), "--cutoff", "3")
    assert figures["structures"] == 80
    assert figures["suspicious"] == []
    assert plot.stat().st_size > 10_000
    assert main(["data", "inspect", "water:test", "--plot", str(plot), "--cutoff", "3"]) == 0
    assert "no suspicious frames" in capsys.readouterr().out


def test_split_keeps_groups_together_and_loses_nothing(tmp_path, capsys):
    out = tmp_path / "parts"
    figures = as_json(capsys, "data", "split", "water", "keys.split=trajectory", "--out", str(out))
    parts = {name: read_frames(out / f"{name}.xyz") for name in figures}
    for name, asked in (("train", 384), ("validation", 48), ("test", 48)):
        said = f"{len(parts[name])} of 480 structures, where {asked / 480} of them ({asked}) was asked for: they are 24"
        assert figures[name].get("note", "").startswith(said) == (len(parts[name]) != asked)
    assert sum(map(len, parts.values())) == 480
    trajectories = [{frame.info["trajectory"] for frame in part} for part in parts.values()]
    assert sum(map(len, trajectories)) == 24
    assert all(np.isfinite(frame.get_forces()).all() for part in parts.values() for frame in part)


def test_key_value_may_stand_after_options_and_files_may_be_many(tmp_path, capsys):
    frames = read_frames("water:test")[:4]
    write(tmp_path / "a.xyz", frames[:2], format="extxyz")
    write(tmp_path / "b.xyz", frames[2:], format="extxyz")
    files = [str(tmp_path / name) for name in ("a.xyz", "b.xyz")]
    plot = str(tmp_path / "p.png")
    figures = as_json(capsys, "data", "inspect", *files, "--plot", plot, "data.labels.stress_unit=GPa")
    assert figures["structures"] == 4
    assert main(["data", "inspect", *files, "--plot", plot, "steps=3"]) == 2
    assert "steps=3: allowed here are labels." in capsys.readouterr().err
    assert main(["data", "inspect", files[0], "--plot", str(tmp_path / "none" / "x" / "p.png")]) == 0
    assert main(["evaluate", "none.janus", files[0], "--plot", plot, "labels.energy=E"]) == 2
    assert "none.janus" in capsys.readouterr().err


def test_isolated_atoms_stay_with_the_training_file(tmp_path, capsys):
    frames = read_frames("water:test")[:8]
    lone = [Atoms(symbol, [[0, 0, 0]], info={"config_type": "IsolatedAtom"}) for symbol in "HO"]
    for atom in lone:
        atom.calc = SinglePointCalculator(atom, energy=-1.0)
    write(tmp_path / "all.xyz", [*frames, *lone], format="extxyz")
    for seed in range(4):
        out = tmp_path / f"parts{seed}"
        command = ["data", "split", str(tmp_path / "all.xyz"), "--seed", str(seed), "--out", str(out)]
        figures = as_json(capsys, *command, "--fractions", "0.5", "0.3")
        assert sum(part["structures"] for part in figures.values()) == 10
        assert sum(len(frame) == 1 for frame in read_frames(out / "train.xyz")) == 2


def test_convert_brings_units_and_names_to_one_convention(tmp_path, capsys):
    frame = read_frames("water:test")[0]
    energy, forces = frame.get_potential_energy(), frame.get_forces()
    frame.calc = None
    frame.info["REF_energy"], frame.arrays["REF_forces"] = energy / 27.211386024367243, forces
    write(tmp_path / "f.xyz", frame, format="extxyz")
    out = tmp_path / "o.aselmdb"
    figures = as_json(capsys, "data", "convert", str(tmp_path / "f.xyz"), str(out), "labels.energy_unit=Hartree")
    assert figures["structures"] == 1
    found = read_frames(out)[0]
    np.testing.assert_allclose(found.get_potential_energy(), energy, rtol=1e-12)
    np.testing.assert_allclose(found.get_forces(), forces, atol=1e-7)
    assert main(["data", "convert", "water:test", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_config_commands(tmp_path, capsys):
    assert main(["config", "template", "steps=7"]) == 0
    (tmp_path / "c.yaml").write_text(capsys.readouterr().out)
    assert as_json(capsys, "config", "validate", str(tmp_path / "c.yaml"))["valid"]
    assert main(["config", "validate", str(tmp_path / "c.yaml"), "batch.atom=3"]) == 2
    assert "did you mean batch.atoms?" in capsys.readouterr().err
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "TrainConfig"


def test_a_run_from_the_command_line_to_its_report(tmp_path, capsys):
    tiny = "model={channels: 4, hidden_channels: 4, edge_channels: 4, num_basis: 8, num_layers: 1, cutoff_angstrom: 3}"
    run = tmp_path / "run"
    settings = [tiny, "steps=4", "validate_every=2", f"output={run}", "checkpoint.time_limit_minutes=1e-9"]
    stopped = as_json(capsys, "train", *settings, "data.train=water:validation", "data.validation=0.2")
    assert stopped["stopped"] == "time limit"
    assert main(["report", str(run)]) == 0
    assert "has not ended" in (run / "report.html").read_text()
    capsys.readouterr()
    figures = as_json(capsys, "train", "--resume", str(run), "checkpoint.time_limit_minutes=null")
    assert figures["steps"] == 4
    shown = as_json(capsys, "model", "show", str(run))
    assert shown["elements"] == ["H", "O"]
    assert shown["parameters"] == bundle.parameter_count(bundle.load(run))
    assert main(["model", "show", str(run)]) == 0
    assert f"{shown['parameters']:,}" in capsys.readouterr().out
    raw = as_json(capsys, "model", "export", str(run), str(tmp_path / "raw.janus"), "--weights", "raw")["out"]
    averaged = as_json(capsys, "model", "export", str(run), str(tmp_path / "a.npz"), "--step", "4")["out"]
    raw, shipped = bundle.convert.save_state(bundle.load(raw)), bundle.convert.save_state(bundle.load(run))
    assert any((raw[name] != shipped[name]).any() for name in raw)
    if figures["best_step"] == 4:
        with np.load(averaged) as archive:
            assert all((archive[name] == shipped[name]).all() for name in shipped)
    assert main(["model", "export", str(run), str(tmp_path / "b.npz"), "--step", "3"]) == 2
    assert "no checkpoint of step 3" in capsys.readouterr().err
    figures = as_json(capsys, "compare", str(run), str(run), "--out", str(tmp_path / "c.html"))
    assert list(figures["runs"]) == [str(run)]
