"""What inspection counts and what it finds suspicious."""

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write

from janus_jax.data import inspection
from janus_jax.data.sources import Frames, open_source
from janus_jax.data.summary import summarize


def crystal(scale: float, sign: float = 1.0, shift: float = 0.0, **results) -> Atoms:
    """Two atoms with a stress that grows with the volume, as every stable crystal's does."""
    atoms = Atoms("NaCl", [[0, 0, 0], [2.8 * scale, 0, shift]], cell=[5.6 * scale, 4 * scale, 4 * scale], pbc=True)
    stress = sign * 0.1 * (scale - 1) * np.array([1, 1, 1, 0, 0, 0])
    values = {"energy": -10.0 + 13.44 * (scale - 1) ** 2, "forces": np.zeros((2, 3)), "stress": stress}
    atoms.calc = SinglePointCalculator(atoms, **(values | results))
    return atoms


def suspicious(frames):
    source = Frames(frames)
    return {one.frame: one.reason for one in inspection.suspicions(source, summarize(source, 5.0))}


def test_clean_frames_are_not_suspicious():
    assert suspicious([crystal(scale) for scale in np.linspace(0.95, 1.05, 9)]) == {}
    source = open_source("water")
    assert inspection.suspicions(source, summarize(source, 3.0)) == []


def test_each_kind_of_suspicious_frame_is_found_with_its_reason():
    near = Atoms("NaCl", [[0, 0, 0], [0.9, 0, 0]])
    same = crystal(1.0, energy=-9.0)
    huge = crystal(1.01, forces=np.array([[99.0, 0, 0], [-99.0, 0, 0]]))
    bad = crystal(1.02, energy=np.nan)
    found = suspicious([crystal(1.0), near, same, huge, bad])
    assert set(found) == {1, 2, 3, 4}
    assert "covalent radii" in found[1]
    assert "the same structure as structures, frame 0, with another energy (1 eV apart)" in found[2]
    assert found[3] == "a force of 99 eV/Å"
    assert found[4] == "energy is not finite"


def test_a_stress_of_the_wrong_sign_is_found_by_its_trend():
    assert "sign looks wrong" in suspicious([crystal(scale, sign=-1) for scale in np.linspace(0.95, 1.05, 9)])[0]


def test_figures_count_what_is_there(tmp_path):
    lone = Atoms("Na", [[0, 0, 0]], info={"config_type": "IsolatedAtom"})
    lone.calc = SinglePointCalculator(lone, energy=-3.0)
    slab = crystal(1.1)
    del slab.calc.results["stress"]
    slab.info.update(config_type="slab", charge=1, dataset="d")
    frames = [crystal(1.0), lone, slab, crystal(1.2, energy=np.inf)]
    source = Frames(frames)
    summary = summarize(source, 5.0)
    figures = inspection.figures(summary)
    assert (figures["structures"], figures["unusable"], figures["isolated_atoms"]) == (4, 1, 1)
    assert (figures["with_energy"], figures["with_forces"], figures["with_stress"]) == (3, 2, 1)
    assert figures["elements"] == {"Na": 3, "Cl": 2}
    assert figures["charged"] == 1
    assert figures["config_types"]["slab"] == 1
    assert figures["datasets"]["d"] == 1
    assert figures["atoms_per_structure"]["max"] == 2
    inspection.draw(summary, tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_the_summary_is_cached_by_content_and_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("JANUS_JAX_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "a.xyz", [crystal(1.0), crystal(1.1)], format="extxyz")
    calls = []

    def summary(path, cutoff=4.0):
        seen = []
        result = summarize(open_source(path), cutoff, progress=lambda done, total: seen.append((done, total)))
        calls.append(bool(seen))
        return result

    first = summary(tmp_path / "a.xyz")
    (tmp_path / "b.xyz").write_bytes((tmp_path / "a.xyz").read_bytes())
    second = summary(tmp_path / "b.xyz")  # the same content elsewhere
    assert first.records.tobytes() == second.records.tobytes()
    assert (first.compositions, first.names) == (second.compositions, second.names)
    summary(tmp_path / "a.xyz", cutoff=5.0)
    write(tmp_path / "a.xyz", [crystal(1.0)], format="extxyz")
    assert len(summary(tmp_path / "a.xyz").records) == 1
    assert calls == [True, False, True, True]
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(b"damaged")
    assert len(summary(tmp_path / "b.xyz").records) == 2
    assert calls[-1]
