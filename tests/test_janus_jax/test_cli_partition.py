"""`janus-jax partition`."""

import json

import ase.io
import numpy as np
import pytest
from ase import Atoms

from janus_jax.cli.main import main


@pytest.fixture
def structure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    positions = np.random.default_rng(0).random((300, 3)) * [14, 15, 16]
    ase.io.write("liquid.xyz", Atoms("H300", positions, cell=[14, 15, 16], pbc=True))
    return tmp_path


def test_prints_figures_and_draws(structure, capsys):
    assert main(["partition", "liquid.xyz", "--ranks", "5", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["atoms_per_rank"] == [60, 60]
    assert figures["cut"] in figures["reason"]
    assert figures["plot"] == "liquid.partition.png"
    assert (structure / "liquid.partition.png").read_bytes().startswith(b"\x89PNG")
    assert main(["partition", "liquid.xyz", "--cut", "hilbert", "--balance", "edges", "--plot", "sub/a.png"]) == 0
    assert "peers" in capsys.readouterr().out
    assert (structure / "sub" / "a.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.xyz"], "missing.xyz"),
        (["liquid.xyz", "--ranks", "0"], "0 ranks"),
        (["liquid.xyz", "--cutoff", "-1"], "--cutoff is -1; it must be a finite number, not below 0"),
        (["liquid.xyz", "--skin", "-1"], "--skin is -1; it must be a finite number, not below 0"),
        (["liquid.xyz", "--frame", "7"], "frame 7"),
        (["text.xyz"], "text.xyz"),
        (["flat.xyz"], "flat.xyz: the cell vectors lie in one plane"),
    ],
)
def test_says_in_one_sentence_what_is_wrong(structure, capsys, words, said):
    (structure / "text.xyz").write_text("abc\n")
    flat = Atoms("H", cell=[[1, 0, 0], [0, 1, 0], [1, 1, 0]], pbc=True)
    ase.io.write("flat.xyz", flat)
    assert main(["partition", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
