"""Every notebook runs from top to bottom, with the settings of its parameter cell made small."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SMALL = {"01_train_water": 'STEPS = 250\nOUTPUT = "run"'}
"""What replaces the cell tagged `parameters`."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    parameters.source = SMALL[path.stem]
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "run" / "report.html").exists()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 4
    # The recipe learns water: trajectories never seen. The whole of it (600 steps) is what `make demo` runs; its
    # figures are in benchmarks/results.
    figures = json.loads((tmp_path / "run" / "results.json").read_text())
    assert figures["test"]["structures"] >= 60
    assert figures["test"]["forces_mae_meV_per_angstrom"] < 60
    assert figures["test"]["energy_mae_meV_per_atom"] < 20
    assert figures["compilations"] == 1
