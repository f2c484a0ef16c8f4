"""The command line, as processes a user would start."""

import json
import subprocess
import sys

import numpy as np
import pytest
from ase.io import read, write
from flax import nnx

from janus_jax import bundle
from janus_jax.cli.main import main, parser
from janus_jax.data.readers import read_frames
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


@pytest.mark.parametrize("command", ["train", "evaluate", "demo", "doctor", "data label", "data sample"])
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
    assert main(arguments) == 0
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


def test_demo_trains_evaluates_and_runs_dynamics(tmp_path, capsys):
    tiny = "model={channels: 4, hidden_channels: 4, edge_channels: 4, num_basis: 8, num_layers: 1, cutoff_angstrom: 3}"
    arguments = ["demo", "--json", "--output", str(tmp_path / "demo"), tiny, "steps=4", "validate_every=2"]
    assert main(arguments) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["nve"]["picoseconds"] == 0.3
    assert np.isfinite(figures["nve"]["drift_meV_per_atom_per_ps"])
    names = {path.name for path in (tmp_path / "demo" / "plots").iterdir()}
    assert names == {"learning_curve.png", "parity_validation.png", "parity_test.png", "nve.png"}
    assert json.loads((tmp_path / "demo" / "results.json").read_text())["nve"] == figures["nve"]
