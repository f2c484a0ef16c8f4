"""What a run of dynamics says of itself: only what it is long enough for, and a start that is not in equilibrium."""

import csv
import json
import re

import numpy as np
import pytest

from md import diffusion, equilibration, report
from md.reading import COLUMNS


def walk(n: int, memory: float, seed: int = 0) -> np.ndarray:
    """Correlated values of mean 0 and standard deviation 1 that forget in `memory` steps."""
    rng, keep = np.random.default_rng(seed), np.exp(-1 / memory)
    values = [rng.normal()]
    for _ in range(n - 1):
        values.append(keep * values[-1] + np.sqrt(1 - keep**2) * rng.normal())
    return np.array(values)


TIME = np.arange(1, 41) * 0.5


@pytest.mark.parametrize(
    ("moved", "found", "why"),
    [
        (6 * 0.25 * TIME, 0.25, None),
        (6 * 0.25 * TIME + 0.8, 0.25, None),  # after the rattling in place
        (0.5 + 0.01 * walk(40, 2.0), None, r"O has a mean square displacement of 0.5\d* Å² after 20 ps, 2 are needed"),
        (0.3 * TIME**2, None, "O does not move by diffusion yet: displacements grow with the power 2 of time"),
        ((6 * 0.25 * TIME)[:5], None, "O was sampled 5 times, 20 are needed"),
        (np.zeros(40), None, "O has a mean square displacement of 0 Å²"),
    ],
)
def test_diffusion_is_given_where_atoms_diffuse(moved, found, why):
    rows = np.stack([TIME[: len(moved)], moved, 6 * 2.0 * TIME[: len(moved)]], 1).tolist()
    result = diffusion.of([8, 1], rows)
    assert result["diffusion_angstrom2_per_ps"].get("O") == (None if found is None else pytest.approx(found))
    if len(moved) > 20:
        assert result["diffusion_angstrom2_per_ps"]["H"] == pytest.approx(2.0)
    assert bool(result["diffusion_note"]) == bool(why)
    if why:
        assert re.search(why, result["diffusion_note"])
    assert diffusion.of([8, 1], []) == {"diffusion_angstrom2_per_ps": {}, "diffusion_note": None}


def columns(temperature, potential=None, volume=None) -> dict[str, np.ndarray]:
    n = len(temperature)
    potential = walk(n, 1.0, 7) if potential is None else potential
    every = {name: np.ones(n) for name in COLUMNS}
    every |= {"step": 10.0 * np.arange(n), "time_fs": 10.0 * np.arange(n), "temperature_kelvin": temperature}
    return every | {"potential_ev": potential, "volume_angstrom3": np.ones(n) if volume is None else volume}


def test_a_start_that_is_not_in_equilibrium_is_said():
    still, moving = walk(300, 2.0, 1), np.exp(-np.arange(300) / 15)
    assert equilibration.said(columns(300 + 20 * still), "nve", False) is None
    said = equilibration.said(columns(300 + 20 * still + 200 * moving), "nve", False)
    found = re.fullmatch(r"the first ([\d.]+) of 2.99 ps are not in equilibrium \(temperature\); the averages .*", said)
    assert 0.1 < float(found[1]) < 1.0
    said = equilibration.said(columns(300 + 20 * still, -5 + still - 10 * moving), "langevin", False)
    assert "(potential energy)" in said
    volume = 500 + still + 20 * moving
    assert equilibration.said(columns(300 + 20 * still, volume=volume), "nve", False) is None  # it is not let go
    assert "(volume)" in equilibration.said(columns(300 + 20 * still, volume=volume), "npt", False)
    assert equilibration.said(columns(np.linspace(100, 900, 300)), "nvt", True) is None  # a ramp is meant to move
    assert equilibration.said(columns(np.linspace(100, 0, 300)), "minimize", False) is None
    falling = equilibration.said(columns(np.linspace(400, 300, 300) + still), "nve", False)
    assert re.match("not in equilibrium|too short to tell", falling)
    for n in (0, 1, 5):
        assert "too short to tell" in equilibration.said(columns(300 + walk(max(n, 1), 2.0)[:n]), "nve", False)


def test_false_alarms_are_rare():
    runs = [equilibration.said(columns(walk(300, 2.0, seed)), "nve", False) for seed in range(60)]
    assert sum(said is not None for said in runs) <= 6


def folder_of(tmp_path, thermo, frames: int, span: float):
    """The files of a run with so many samples over so many ps."""
    with (tmp_path / "thermo.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(np.stack([thermo[name] for name in COLUMNS], 1).tolist())
    g, r = np.ones((2, 2, 10)), np.linspace(0, 5, 10)
    moved = np.stack([np.linspace(0, span, max(frames, 1)), *np.zeros((2, max(frames, 1)))], 1)
    np.savez(tmp_path / "distributions.npz", r=r, g=g, kinds=[1, 8], frames=frames, displacements=moved)
    return tmp_path


@pytest.mark.parametrize(("frames", "span"), [(50, 5.0), (50, 0.3), (2, 5.0), (0, 0.0)])
def test_pair_distributions_are_shown_where_they_mean_something(tmp_path, frames, span):
    page = report.write(folder_of(tmp_path, columns(walk(30, 2.0)), frames, span)).read_text()
    assert ('alt="pair distributions"' in page) == (frames == 50 and span == 5.0)
    said = f"{frames} samples over {span:.3g} ps are too few to show: it takes 10 over 1 ps."
    assert (said in page) == (0 < frames < 50 or span == 0.3)


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_report_of_almost_nothing(tmp_path, rows):
    thermo = columns(walk(3, 2.0)) | {"pressure_gpa": np.full(3, np.nan), "density_g_per_cm3": np.full(3, np.nan)}
    thermo = {name: values[:rows] for name, values in thermo.items()}
    page = report.write(folder_of(tmp_path, thermo, 1, 0.0)).read_text()
    assert ("Nothing has been written yet." in page) == (rows == 0)
    assert "The run has not ended" in page


def test_what_a_run_says_is_in_its_report(tmp_path):
    folder = folder_of(tmp_path, columns(walk(30, 2.0)), 0, 0.0)
    figures = {
        "atoms": 3, "ensemble": "nve", "devices": 1, "cut": "grid", "steps": 5, "mean_temperature_kelvin": 300.0,
        "drift_meV_per_atom_per_ps": None, "steps_per_s": 1.0, "atom_steps_per_s": 3.0, "ns_per_day": 0.1,
        "diffusion_angstrom2_per_ps": {"O": 0.25}, "diffusion_note": "no diffusion coefficient: H <none>",
        "equilibrium": "the first 0.3 of 2 ps are not in equilibrium", "rebuilds": {}, "rebuilds_by_rank": [],
        "lists_reused": None, "capacity_used": {}, "compiled": [],
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(figures))
    page = report.write(folder).read_text()
    assert "No diffusion coefficient: H &lt;none&gt;." in page
    assert "The first 0.3 of 2 ps are not in equilibrium." in page
