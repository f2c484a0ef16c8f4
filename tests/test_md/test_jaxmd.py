"""Scripts with jax-md's own integrators: one device and several, lists that follow, stress by perturbation."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import units
from ase.build import bulk

import md
from janus_jax.data.neighbors import from_atoms
from janus_jax.errors import DynamicsError, UnknownElementError
from janus_jax.models.potential import energy_forces_stress
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.simulation import Simulation
from md.testing import ARGON, LennardJones

MODEL = LennardJones(**ARGON, cutoff=6.5)


@pytest.fixture
def argon():
    atoms = bulk("Ar", "fcc", a=5.3, cubic=True) * (3, 3, 3)
    atoms.rattle(0.05, seed=3)
    return atoms


def script(atoms, devices: int, steps: int):
    """What a user writes: nothing here is ours but three lines."""
    from jax_md import quantity, simulate, space

    box = jnp.asarray(atoms.cell.array.T)
    _, shift = space.periodic_general(box, fractional_coordinates=False)
    R, masses, momenta = jnp.asarray(atoms.positions), jnp.asarray(atoms.get_masses()), jnp.asarray(atoms.get_momenta())
    neighbors = md.neighbor_fn(MODEL, box, devices=devices, dr_threshold=0.3)
    energy = md.energy_fn(MODEL, box, atoms.numbers, devices=devices)
    R, masses, momenta = neighbors.scatter(R, masses, momenta)
    nbrs = neighbors.allocate(R)
    init, apply = simulate.nve(energy, shift, 2.0 * units.fs)
    state = init(jax.random.key(0), R, 0.0, mass=masses, momenta=momenta, neighbor=nbrs)

    def step(_, carry):
        state, nbrs = carry
        nbrs = nbrs.update(state.position)
        return apply(state, neighbor=nbrs), nbrs

    state, nbrs = jax.lax.fori_loop(0, steps, step, (state, nbrs))
    assert not nbrs.did_buffer_overflow
    pressure = jax.jit(lambda R: quantity.pressure(energy, R, box, neighbor=nbrs))(state.position)
    return neighbors.gather(state.position), neighbors.gather(state.force), pressure, nbrs, R


def test_a_script_of_jax_md_gives_the_engine_s_trajectory(argon):
    argon.set_momenta(np.random.default_rng(0).normal(0, 1.5, (len(argon), 3)))  # hot enough to need new lists
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        positions, forces, pressure, nbrs, start = script(argon, 4, 60)
    engine = Engine(MODEL, argon, EnsembleConfig(timestep_fs=2.0, still_center=0), skin_angstrom=0.8)
    engine.run(60)
    apart = (positions - engine.positions()) / argon.cell.lengths()  # jax-md's shift wraps
    np.testing.assert_allclose(apart, np.round(apart), atol=2e-7)  # and its steps are in 32 bits
    np.testing.assert_allclose(forces, engine.forces(), atol=2e-6)
    assert np.abs(np.asarray(nbrs.reference_position - start)).max() > 0.3  # built again on the way
    virial = -float(pressure) * argon.cell.volume * 3
    assert virial == pytest.approx(np.trace(np.asarray(engine.motion.virial)), rel=1e-5)


def test_the_example_in_the_documentation_runs_on_four_devices(argon):
    text = (Path(__file__).parents[2] / "docs" / "md.md").read_text()
    code = re.search(r"```python\n(from jax_md.*?)```", text, re.S)[1].replace("1000", "40")
    names = {
        "jax": jax, "model": MODEL, "box": jnp.asarray(argon.cell.array.T), "numbers": argon.numbers,
        "R": jnp.asarray(argon.positions), "masses": jnp.asarray(argon.get_masses()), "dt": 2 * units.fs,
        "kT": 0.003, "key": jax.random.key(0),
    }  # fmt: skip
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(code, names)
    assert len(names["state"].position.sharding.device_set) == 4
    moved = argon.copy()
    moved.positions = names["positions"]
    assert np.abs(moved.positions - argon.positions).max() > 0.01
    expected = energy_forces_stress(MODEL, from_atoms(moved, MODEL.cutoff))
    np.testing.assert_allclose(names["neighbors"].gather(names["state"].force), expected.forces, atol=1e-10)


def test_energies_of_strained_boxes_have_the_stress_as_derivative(argon):
    box = jnp.asarray(argon.cell.array.T)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        neighbors, energy = md.neighbor_fn(MODEL, box), md.energy_fn(MODEL, box, argon.numbers)
        R = jnp.asarray(argon.positions)
        nbrs = neighbors.allocate(R)
        expected = energy_forces_stress(MODEL, from_atoms(argon, MODEL.cutoff))
        assert float(energy(R, nbrs)) == pytest.approx(float(expected.energy[0]), rel=1e-12)
        virial = jax.grad(lambda eps: energy(R, nbrs, perturbation=jnp.eye(3) + eps))(jnp.zeros((3, 3)))
        np.testing.assert_allclose(virial, expected.virial[0], atol=1e-12)
        grown = 1.01
        bigger = argon.copy()
        bigger.set_cell(grown * argon.cell.array, scale_atoms=True)
        there = energy_forces_stress(MODEL, from_atoms(bigger, MODEL.cutoff)).energy[0]
        nbrs = nbrs.update(grown * R, box=grown * box)
        assert float(energy(grown * R, nbrs, box=grown * box)) == pytest.approx(float(there), rel=1e-12)


def recipe(argon, momenta, fractional: bool, energy=None):
    """The recipe of docs/md.md for constant pressure: (positions in Å, cell) after 60 steps."""
    text = (Path(__file__).parents[2] / "docs" / "md.md").read_text()
    code = re.search(r"```python\n(from jax_md import simulate, space\nimport md\n\nfractional.*?)```", text, re.S)[1]
    code = code.replace("fractional = False", f"fractional = {fractional}").replace("1000", "60")
    if energy is not None:
        code = code.replace("nbrs = neighbors.allocate(R)\n", "nbrs = neighbors.allocate(R)\nenergy = other\n")
    names = {
        "jax": jax, "model": MODEL, "box": jnp.asarray(argon.cell.array.T), "numbers": argon.numbers,
        "R": jnp.asarray(argon.get_scaled_positions() if fractional else argon.positions), "key": jax.random.key(0),
        "masses": jnp.asarray(argon.get_masses()), "momenta": jnp.asarray(momenta), "other": energy,
        "dt": 2 * units.fs, "kT": 80.0 * units.kB, "pressure": 0.3 * units.GPa, "tau": 200.0 * units.fs,
    }  # fmt: skip
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(code, names)
    cell = np.asarray(names["cell"])
    assert abs(cell[0, 0] / argon.cell.array[0, 0] - 1) > 0.003  # it has moved
    return names["positions"] @ cell if fractional else names["positions"], cell


def compare(found, expected):
    """Positions, up to vectors of the cell, and cells."""
    (positions, cell), (others, other) = found, expected
    np.testing.assert_allclose(cell, other, rtol=1e-8)
    apart = (positions - others) @ np.linalg.inv(cell)
    np.testing.assert_allclose(apart, np.round(apart), atol=1e-7)  # jax-md's steps are in 32 bits


def test_constant_pressure_by_jax_md_is_that_of_simulation(argon):
    config = EnsembleConfig(
        name="npt", temperature_kelvin=80.0, pressure_gpa=0.3, timestep_fs=2.0, still_center=0, tau_fs=200.0,
        barostat_tau_fs=200.0,
    )  # fmt: skip
    ours = Simulation(MODEL, argon, config, skin_angstrom=0.8)
    found = recipe(argon, ours.engine.momenta(), fractional=False)
    ours.run(60)
    compare(found, (ours.engine.positions(), ours.engine.cell))


def test_constant_pressure_on_fractional_positions_is_that_of_jax_md_s_own_energy(argon):
    from jax_md import smap, space

    box, (epsilon, sigma, end) = jnp.asarray(argon.cell.array.T), (ARGON["epsilon"], ARGON["sigma"], MODEL.cutoff)

    def plain(r):
        return 4 * epsilon * ((sigma / r) ** 12 - (sigma / r) ** 6)

    def pair(r, **_):
        return jnp.where(r < end, plain(r) - plain(end) - jax.grad(plain)(end) * (r - end), 0)

    displacement, _ = space.periodic_general(box, fractional_coordinates=True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        theirs = smap.pair(pair, space.metric(displacement))
    momenta = np.random.default_rng(0).normal(0, 0.5, (len(argon), 3))
    compare(recipe(argon, momenta, True), recipe(argon, momenta, True, lambda R, neighbor, **o: theirs(R, **o)))


def test_fractional_positions_give_the_same_energy_forces_and_stress(argon):
    box, R = jnp.asarray(argon.cell.array.T), jnp.asarray(argon.get_scaled_positions())
    expected = energy_forces_stress(MODEL, from_atoms(argon, MODEL.cutoff))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        neighbors = md.neighbor_fn(MODEL, box, fractional_coordinates=True, devices=2)
        energy = md.energy_fn(MODEL, box, argon.numbers, fractional_coordinates=True, devices=2)
        R = neighbors.scatter(R)
        nbrs = neighbors.allocate(R)
        value, gradient = jax.value_and_grad(energy)(R, nbrs)
        assert float(value) == pytest.approx(float(expected.energy[0]), rel=1e-12)
        np.testing.assert_allclose(-neighbors.gather(gradient), expected.forces, atol=1e-12)
        trace = jax.grad(lambda grown: energy(R, nbrs, box=grown * box))(1.0)  # positions follow the box
        assert float(trace) == pytest.approx(float(jnp.trace(expected.virial[0])), rel=1e-10)


def test_what_cannot_be_right_raises_or_is_not_a_number(argon):
    box, R = jnp.asarray(argon.cell.array.T), jnp.asarray(argon.positions)
    part = jnp.asarray(argon.get_scaled_positions())
    with pytest.raises(DynamicsError, match="108 atoms are within 1 Å of the origin .* fractional_coordinates=True"):
        md.neighbor_fn(MODEL, box).allocate(part)
    with pytest.raises(DynamicsError, match=r"positions from .* to 1\d\.\d are no fractional coordinates"):
        md.neighbor_fn(MODEL, box, fractional_coordinates=True).allocate(R)
    with pytest.raises(DynamicsError, match="dr_threshold is 0"):
        md.neighbor_fn(MODEL, box, dr_threshold=0.0)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        energy = md.energy_fn(MODEL, box, argon.numbers)
        nbrs = md.neighbor_fn(MODEL, box).allocate(R)
        for positions, there in ((part, box), (R.at[5].add(0.6), box), (R, 0.8 * box)):
            value, gradient = jax.value_and_grad(energy)(positions, nbrs, box=there)
            assert np.isnan(value)
            assert np.isnan(gradient).all()
        full = nbrs.update(0.4 * R)
        assert full.did_buffer_overflow
        assert np.isnan(energy(0.4 * R, full))
        with pytest.raises(DynamicsError, match="fractional_coordinates is False in neighbor_fn and True in energy_fn"):
            md.energy_fn(MODEL, box, argon.numbers, fractional_coordinates=True)(part, nbrs)
        with pytest.raises(DynamicsError, match="lists are on 1 devices, energies on 2"):
            md.energy_fn(MODEL, box, argon.numbers, devices=2)(R, nbrs)
        with pytest.raises(DynamicsError, match=r"107 atomic numbers, lists of 108 atoms, positions \(108, 3\)"):
            md.energy_fn(MODEL, box, argon.numbers[1:])(R, nbrs)
        with pytest.raises(DynamicsError, match=r"lists reach 6.5 Å, the model 7 Å"):
            md.energy_fn(LennardJones(**ARGON, cutoff=7.0), box, argon.numbers)(R, nbrs)


def test_lists_that_no_longer_fit_say_so(argon):
    box = jnp.asarray(argon.cell.array.T)
    neighbors = md.neighbor_fn(MODEL, box)
    nbrs = neighbors.allocate(jnp.asarray(argon.positions))
    together = jnp.asarray(0.4 * argon.positions)
    assert nbrs.update(together).did_buffer_overflow
    assert not neighbors.allocate(together).update(together).did_buffer_overflow
    assert nbrs.update(0.7 * jnp.asarray(argon.positions), box=0.7 * box).did_buffer_overflow


def test_what_cannot_be_laid_out_is_said(argon):
    box = argon.cell.lengths()
    with pytest.raises(DynamicsError, match="108 atoms on 5 devices: .* divides the atoms"):
        md.neighbor_fn(MODEL, box, devices=5).scatter(argon.positions)
    with pytest.raises(DynamicsError, match="first lay out the atoms"):
        md.neighbor_fn(MODEL, box, devices=4).allocate(jnp.asarray(argon.positions))
    with pytest.raises(DynamicsError, match="9 devices; JAX has 8"):
        md.neighbor_fn(MODEL, box, devices=9)
    with pytest.raises(UnknownElementError):
        md.energy_fn(MODEL, box, [0] * len(argon))
