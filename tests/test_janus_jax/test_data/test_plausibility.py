"""Clean sets have no finding; each kind of wrong unit, sign or frame has one that names its frames and the unit."""

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator
from ase.cluster import Octahedron
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet

from janus_jax.data import plausibility
from janus_jax.data.findings import Finding
from janus_jax.data.sources import Frames, open_source
from janus_jax.data.summary import summarize


def labelled(atoms: Atoms, calculator) -> Atoms:
    frame = atoms.copy()
    frame.calc = calculator
    values = {"energy": frame.get_potential_energy(), "forces": frame.get_forces()}
    if frame.cell.rank == 3:
        values["stress"] = frame.get_stress()
    frame.calc = SinglePointCalculator(frame, **values)
    return frame


@pytest.fixture(scope="module")
def crystals():
    """Strained crystals of an alloy and of pure copper, two sizes."""
    rng, frames = np.random.default_rng(0), []
    for cells in (1, 2):
        for scale in np.linspace(0.96, 1.04, 9):
            atoms = bulk("Cu", cubic=True).repeat(cells)
            atoms.set_cell(atoms.cell.array @ (scale * np.eye(3) + 0.005 * rng.normal(size=(3, 3))), scale_atoms=True)
            frames.append(labelled(atoms, EMT()))
    for count in range(4, 12):
        atoms = bulk("Cu", cubic=True).repeat((1, 1, 3))
        atoms.numbers[rng.permutation(12)[:count]] = 79
        atoms.set_cell(atoms.cell * (1 + 0.13 * count / 12), scale_atoms=True)
        atoms.rattle(0.05, seed=count)
        frames.append(labelled(atoms, EMT()))
    return frames


@pytest.fixture(scope="module")
def liquid():
    """Frames of a hot metal, close in time."""
    atoms = bulk("Cu", cubic=True).repeat(2)
    atoms.rattle(0.2, seed=0)
    atoms.calc = EMT()
    thermalize_momenta(atoms, 3000, rng=np.random.default_rng(0))
    dynamics = VelocityVerlet(atoms, 2 * units.fs)
    dynamics.run(30)
    frames = []
    for _ in range(20):
        dynamics.run(2)
        frames.append(labelled(atoms, EMT()))
    return frames


@pytest.fixture(scope="module")
def clusters():
    """Rattled clusters in a wide box, a slab, dimers, molecules."""
    frames = []
    for seed in range(8):
        atoms = Octahedron("Cu", 4, cutoff=1)
        atoms.center(vacuum=6)
        atoms.pbc = True
        atoms.rattle(0.1, seed=seed)
        frames.append(labelled(atoms, EMT()))
    for seed in range(6):
        atoms = fcc111("Cu", (2, 2, 3), vacuum=6)
        atoms.rattle(0.05, seed=seed)
        frames.append(labelled(atoms, LennardJones(sigma=2.3, epsilon=0.4, rc=5.0)))
    frames = frames[:8] + [labelled(f, EMT()) for f in frames[8:]]
    for distance in np.linspace(2.1, 2.7, 7):  # far above the energy of bulk copper
        frames.append(labelled(Atoms("Cu2", [[0, 0, 0], [0, 0, distance]]), EMT()))
    for name in ("N2", "CO", "H2O", "CH4", "C2H2", "NH3"):
        for seed in range(2):
            atoms = molecule(name)
            atoms.rattle(0.02, seed=seed)
            frames.append(labelled(atoms, EMT()))
    return frames


def found(frames) -> list[Finding]:
    source = Frames(frames)
    return plausibility.findings(source, summarize(source, 5.0))


def changed(frames, which=slice(None), **factors):
    """Copies whose labels of the frames `which` are multiplied."""
    result = []
    for frame in frames:
        copy = frame.copy()
        copy.calc = SinglePointCalculator(copy, **frame.calc.results)
        result.append(copy)
    for frame in result[which]:
        for name, factor in factors.items():
            if name in frame.calc.results:
                frame.calc.results[name] = frame.calc.results[name] * factor
    return result


def test_clean_sets_have_no_finding(crystals, liquid, clusters):
    for frames in (crystals, liquid, clusters, [*crystals, *liquid, *clusters]):
        assert [(one.text, list(one.reasons)[:3]) for one in found(frames)] == []
    source = open_source("water")
    assert plausibility.findings(source, summarize(source, 3.0)) == []


GPA, KBAR, HARTREE = 1 / units.GPa, 10 / units.GPa, 1 / units.Hartree


@pytest.mark.parametrize(
    ("kind", "which", "factors", "text", "frames"),
    [
        ("crystals", slice(None), {"stress": KBAR}, "stress is huge", 20),
        ("crystals", slice(None), {"stress": KBAR}, "the stress between them; it looks like stress in kbar", 10),
        ("crystals", slice(None), {"stress": GPA}, "it looks like stress in GPa", 10),
        ("crystals", slice(None), {"stress": -1}, "is the sign of the stress wrong?", 10),
        ("clusters", slice(0, 8), {"stress": KBAR}, "what forces and volume give; it looks like stress in kbar", 8),
        ("clusters", slice(0, 8), {"stress": -1}, "what forces and volume give; is the sign of the stress wrong?", 8),
        ("liquid", slice(None), {"forces": -1}, "is the sign of the forces wrong?", 6),
        ("liquid", slice(None), {"forces": units.Bohr / units.Hartree}, "it looks like forces in Hartree/bohr", 6),
        ("liquid", slice(None), {"energy": HARTREE}, "it looks like energies in Hartree", 6),
        ("crystals", slice(0, 9), {"energy": HARTREE}, "energies are far", 9),
        ("liquid", slice(12, 20), {"energy": units.mol / units.kcal}, "energies are far", 8),
        ("liquid", slice(3, 4), {"energy": 30}, "energies are far", 1),
    ],
)  # fmt: skip
def test_wrong_units_signs_and_frames_are_found(request, kind, which, factors, text, frames):
    right = request.getfixturevalue(kind)
    if "energy" in factors:  # EMT's energies are near zero: totals of a code are not
        for_all = [*changed(right)]
        for frame in for_all:
            frame.calc.results["energy"] -= 3.5 * len(frame)
        right = for_all
    there = [one for one in found(changed(right, which, **factors)) if text in one.text]
    assert len(there) == 1
    assert len(there[0].reasons) >= frames
    if which != slice(None):
        assert set(there[0].reasons) == set(range(len(right))[which])


def test_half_a_set_of_many_compositions_in_another_unit():
    rng = np.random.default_rng(1)
    frames, right = [], {"H": -13.0, "C": -1030.0, "O": -2040.0}
    for k in range(60):
        symbols = ["H"] * rng.integers(1, 9) + ["C"] * rng.integers(1, 7) + ["O"] * rng.integers(0, 5)
        frame = Atoms(symbols, rng.uniform(0, 12, (len(symbols), 3)))
        energy = sum(right[symbol] for symbol in symbols) - 4.0 * len(symbols) + 0.1 * rng.normal()
        frame.calc = SinglePointCalculator(frame, energy=energy if k % 2 else energy / units.Hartree)
        frames.append(frame)
    (one,) = [one for one in found(frames) if "energies are far" in one.text]
    assert "Hartree" in one.text
    assert len(one.reasons) == 30
