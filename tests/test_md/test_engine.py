"""Many devices equal one: forces, stress and trajectories of sharded systems; rebuilds that change nothing."""

import os

import jax.numpy as jnp
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from flax import nnx

from janus_jax.data.neighbors import from_atoms
from janus_jax.models import build, convert
from janus_jax.models.esen import EsenConfig
from janus_jax.models.potential import energy_forces_stress
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.testing import ManyBody

SMALL = EsenConfig(cutoff_angstrom=3.5, channels=4, hidden_channels=4, edge_channels=4, num_basis=8)


@pytest.fixture(scope="module")
def model():
    return convert.cast(build(SMALL, rngs=nnx.Rngs(0)), jnp.float64)


def salt() -> Atoms:
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.1, seed=1)
    return atoms


def liquid(count: int, cell, pbc=True, seed: int = 0) -> Atoms:
    """Random atoms no closer than 0.9 Å in a part of the cell."""
    rng = np.random.default_rng(seed)
    cell = np.array(cell, float)
    cell = np.diag(cell) if cell.ndim == 1 else cell
    kept: list[np.ndarray] = []
    while len(kept) < count:
        x = rng.random(3) @ cell
        if all(np.linalg.norm(x - y) > 0.9 for y in kept):
            kept.append(x)
    return Atoms(rng.choice([1, 8], count), np.array(kept), cell=cell, pbc=pbc)


def vacuum_slab() -> Atoms:
    atoms = liquid(30, [7, 8, 5], (True, True, False))
    atoms.cell[2, 2] = 35.0
    return atoms


def water(count: int = 27) -> Atoms:
    """A liquid of molecules on a grid, turned at random."""
    rng, side = np.random.default_rng(2), 3.1
    grid = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)[:count] * side
    molecule = np.array([[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    turned = [x + molecule @ np.linalg.qr(rng.normal(size=(3, 3)))[0] for x in grid]
    return Atoms([8, 1, 1] * count, np.concatenate(turned), cell=[3 * side] * 3, pbc=True)


def half_empty() -> Atoms:
    atoms = liquid(24, [7, 7, 7])
    atoms.cell[0, 0] = 25.0
    return atoms


EVERY = os.environ.get("JANUS_JAX_EVERY") == "1"
TILTED = [[8, 0, 0], [8 * np.cos(np.pi / 6), 8 * np.sin(np.pi / 6), 0], [2, 3, 9]]
SYSTEMS = {
    "water": water,
    "rock salt": salt,
    "cell at 30 degrees": lambda: liquid(30, TILTED),
    "slab in vacuum": vacuum_slab,
    "cell thinner than the halo": lambda: liquid(12, [2.0, 7, 9]),
    "cluster": lambda: liquid(20, [8, 8, 8], False),
    "3 atoms": lambda: liquid(3, [4, 4, 4]),
    "half empty": half_empty,
}
CASES = [(name, devices, cut) for name in SYSTEMS for devices in (1, 2, 3, 5, 7, 8) for cut in ("grid", "hilbert")]
FEW = [
    ("cell at 30 degrees", 5, "hilbert"), ("3 atoms", 8, "hilbert"), ("half empty", 7, "grid"),
    ("cell thinner than the halo", 2, "hilbert"), ("slab in vacuum", 3, "grid"),
]  # fmt: skip
"""Of `CASES` in every run; all of them with JANUS_JAX_EVERY=1."""


def of_many_devices(model, atoms: Atoms, devices: int, cut: str, tolerance: float, **options) -> None:
    """Energy, forces and virial of a sharded system against the potential on one graph of all atoms, in float64."""
    atoms.positions += 100 * np.asarray(atoms.cell).sum(0)  # far outside the cell
    engine = Engine(model, atoms, EnsembleConfig(), devices=devices, cut=cut, closest_angstrom=0.0, **options)
    plain = energy_forces_stress(convert.cast(model, jnp.float64), from_atoms(atoms, model.cutoff))
    same(engine, float(plain.energy[0]), np.asarray(plain.forces), np.asarray(plain.virial[0]), tolerance)
    if model.dtype == jnp.float32:
        one = Engine(model, atoms, EnsembleConfig(), closest_angstrom=0.0)
        same(engine, float(one.motion.energy), one.forces(), np.asarray(one.motion.virial), tolerance)


def same(engine: Engine, energy: float, forces: np.ndarray, virial: np.ndarray, tolerance: float) -> None:
    assert float(engine.motion.energy) == pytest.approx(energy, rel=tolerance)
    np.testing.assert_allclose(engine.forces(), forces, atol=tolerance * max(np.abs(forces).max(), 1e-3))
    np.testing.assert_allclose(engine.motion.virial, virial, atol=tolerance * max(np.abs(virial).max(), 1e-3))


@pytest.mark.parametrize(("name", "devices", "cut"), CASES if EVERY else FEW)
def test_forces_and_stress_are_those_of_one_device(name, devices, cut):
    many_body = ManyBody(3.0, epsilon=0.1, sigma=1.2, cutoff=4.0, numbers=(1, 8, 11, 17))  # layers of 3 Å, pairs of 4 Å
    of_many_devices(many_body, SYSTEMS[name](), devices, cut, 1e-9, overlap=devices % 2 == 1)


def test_esen_on_many_devices_is_esen_on_one(model):
    of_many_devices(model, SYSTEMS["cell at 30 degrees"](), 3, "grid", 1e-9, overlap=True)
    if EVERY:
        of_many_devices(model, SYSTEMS["3 atoms"](), 8, "hilbert", 1e-9, overlap=False)
        single = convert.cast(build(SMALL, rngs=nnx.Rngs(0)), jnp.float32)
        of_many_devices(single, SYSTEMS["cell at 30 degrees"](), 3, "grid", 1e-5, overlap=True)


def test_single_precision_agrees_to_its_digits():
    single = convert.cast(ManyBody(3.0, epsilon=0.1, sigma=1.2, cutoff=4.0, numbers=(1, 8)), jnp.float32)
    of_many_devices(single, SYSTEMS["cell at 30 degrees"](), 5, "hilbert", 1e-5, overlap=True)


def test_forces_are_differences_of_energies_through_the_exchange():
    model = ManyBody(3.0, epsilon=0.1, sigma=1.2, cutoff=4.0, numbers=(1, 8))
    engine = Engine(model, liquid(20, [6, 7, 8]), EnsembleConfig(), devices=3, cut="grid")
    row = int(np.flatnonzero(np.asarray(engine.ids) == 7)[0])

    def energy(shift):  # within the skin, so the topology holds
        return float(engine.programs.evaluate(start.at[row, 1].add(shift), engine.motion.cell, engine.system).energy)

    start, h = engine.motion.state.position, 1e-3  # differences of fourth order
    slope = (8 * (energy(h) - energy(-h)) - energy(2 * h) + energy(-2 * h)) / (12 * h)
    assert engine.forces()[7, 1] == pytest.approx(-slope, rel=1e-7)


@pytest.mark.parametrize(
    ("ensemble", "temperature", "skin", "interval", "why"),
    [
        ("nve", 2000.0, 0.1, 30, "displacement"),  # steps that break the skin are made again after a rebuild
        *([("nvt", 600.0, 0.3, 10, "interval")] if EVERY else []),
        ("langevin", 600.0, 0.3, 10, "interval"),
    ],
)
def test_trajectories_of_50_steps_do_not_depend_on_devices_cut_or_rebuilds(ensemble, temperature, skin, interval, why):
    pairs = ManyBody(3.0, epsilon=0.05, sigma=2.2, cutoff=4.0, numbers=(11, 17))
    config = EnsembleConfig(name=ensemble, temperature_kelvin=temperature, timestep_fs=1.0)
    one = Engine(pairs, salt(), config, devices=1, interval=1, repartition=50)
    many = Engine(
        pairs, salt(), config, devices=4, cut="grid", skin_angstrom=skin, interval=interval, repartition=12
    )  # fmt: skip
    for _ in range(5):
        one.run(10)
        many.run(10)
        np.testing.assert_allclose(many.positions(), one.positions(), atol=1e-10)
        np.testing.assert_array_equal(many.digest(), one.digest())
        assert many.read().temperature_kelvin == pytest.approx(one.read().temperature_kelvin, rel=1e-9)
    assert one.rebuilds["interval"] == 49
    assert many.rebuilds["repartition"] == 4
    assert many.rebuilds[why] >= 1
    assert sum(many.rebuilds.values()) < 25
    assert all(text.startswith(("build", "capacity")) for text in many.build.compiled)
    assert many.by_rank.sum() == 4 * many.rebuilds["displacement"]
