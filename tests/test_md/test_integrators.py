"""Ensembles: equal to jax-md's own where it counts rows as atoms, conserved quantities, ramps, minimisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.constraints import FixAtoms

from janus_jax.errors import ConfigError
from md import ensembles
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.testing import ARGON, LennardJones

CUTOFF, STEPS = 6.5, 20


def argon(cells: int = 3):
    return bulk("Ar", "fcc", a=5.3, cubic=True) * (cells, cells, cells)


def model(shift: int = 2) -> LennardJones:
    return LennardJones(**ARGON, cutoff=CUTOFF, shift=shift)


def reference_energy(positions, box, perturbation=1.0, **_):
    """All pairs and 27 images; the cell as rows, strained as jax-md does it."""
    images = jnp.stack(jnp.meshgrid(*[jnp.arange(-1.0, 2.0)] * 3, indexing="ij"), -1).reshape(-1, 3) @ box
    r = positions[:, None, None] - positions[None, :, None] + images
    square = (perturbation * r) ** 2
    square = square.sum(-1)
    pair = (square > 0.01) & (square < CUTOFF**2)
    r = jnp.sqrt(jnp.where(pair, square, 1.0))

    def energy(r):
        sixth = (ARGON["sigma"] / r) ** 6
        return 4 * ARGON["epsilon"] * (sixth * sixth - sixth)

    end = jnp.asarray(CUTOFF)
    shifted = energy(r) - energy(end) - jax.grad(energy)(end) * (r - end)
    return 0.5 * jnp.where(pair, shifted, 0.0).sum()


def shift(positions, moves, **_):
    return positions + moves


@pytest.mark.parametrize("name", ["nve", "nvt", "npt"])
def test_trajectories_are_those_of_jax_md_on_plain_arrays(name):
    from jax_md import simulate

    atoms = argon(3)
    config = EnsembleConfig(
        name=name, temperature_kelvin=80.0, pressure_gpa=0.2, timestep_fs=2.0, still_center=0, barostat_tau_fs=200.0
    )
    engine = Engine(model(), atoms, config, devices=3, cut="grid", interval=4, skin_angstrom=0.8)
    kT, dt = 80.0 * units.kB, 2.0 * units.fs
    masses, momenta = jnp.full((len(atoms), 1), atoms.get_masses()[0]), jnp.asarray(engine.momenta())
    cell = jnp.asarray(atoms.cell.array)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        if name == "npt":
            init, apply = simulate.npt_nose_hoover(
                reference_energy, shift, dt, 0.2 * units.GPa, kT,
                barostat_kwargs={"tau": 200.0 * units.fs}, thermostat_kwargs={"tau": 100.0 * units.fs},
            )  # fmt: skip
            state = init(jax.random.key(0), jnp.asarray(atoms.positions), cell, mass=masses, momenta=momenta)
        else:
            kinds = {
                "nve": lambda f: simulate.nve(f, shift, dt),
                "nvt": lambda f: simulate.nvt_nose_hoover(f, shift, dt, kT, tau=100.0 * units.fs),
            }
            init, apply = kinds[name](lambda positions, **_: reference_energy(positions, cell))
            options = {"kT": kT} if name == "nve" else {}
            state = init(jax.random.key(0), jnp.asarray(atoms.positions), mass=masses, momenta=momenta, **options)
        state = jax.jit(lambda s: jax.lax.fori_loop(0, STEPS, lambda _, s: apply(s), s))(state)
    engine.run(STEPS)
    np.testing.assert_allclose(engine.positions(), state.position, atol=2e-7)  # jax-md's steps are in 32 bits
    np.testing.assert_allclose(engine.momenta(), state.momentum, atol=2e-6)
    if name == "npt":
        assert engine.cell[0, 0] != atoms.cell[0, 0]
        np.testing.assert_allclose(engine.cell, simulate.npt_box(state), rtol=1e-8)


@pytest.mark.parametrize("name", ["nve", "nvt", "langevin", "npt"])
def test_what_is_conserved_stays_and_does_not_depend_on_devices(name):
    config = EnsembleConfig(name=name, temperature_kelvin=120.0, timestep_fs=2.0)
    options = {"skin_angstrom": 0.8, "repartition": 30}
    one = Engine(model(), argon(), config, **options)
    many = Engine(model(), argon(), config, devices=5, cut="hilbert", interval=3, **options)
    start = one.read()
    one.run(80)
    many.run(80)
    end = one.read()
    moved = abs(end.potential_ev - start.potential_ev)
    assert abs(end.conserved_ev - start.conserved_ev) < 2e-3 * moved
    if name != "nve":
        assert abs(end.kinetic_ev + end.potential_ev - start.kinetic_ev - start.potential_ev) > 0.02 * moved
    np.testing.assert_allclose(many.positions(), one.positions(), atol=1e-9)
    assert many.read().conserved_ev == pytest.approx(end.conserved_ev, rel=1e-10)
    np.testing.assert_allclose(many.read().stress, end.stress, atol=1e-10)


def test_temperature_follows_its_points():
    config = EnsembleConfig(name="langevin", temperature_kelvin=((0.0, 20.0), (0.6, 200.0)), friction_per_ps=20.0,
                            timestep_fs=2.0)  # fmt: skip
    engine = Engine(model(), argon(), config, skin_angstrom=0.8)
    assert engine.read().temperature_kelvin == pytest.approx(20.0)
    engine.run(300)
    hot = []
    for _ in range(10):
        engine.run(20)
        hot.append(engine.read().temperature_kelvin)
    spread = 200.0 * np.sqrt(2 / engine.degrees)  # of one reading; ten of them, not independent
    assert abs(np.mean(hot) - 200.0) < 2 * spread
    assert float(config.kT(150) / units.kB) == pytest.approx(110.0)
    with pytest.raises(ValueError, match="ascending time"):
        EnsembleConfig(temperature_kelvin=((1.0, 20.0), (0.5, 200.0)))
    with pytest.raises(ValueError, match="must be positive"):
        EnsembleConfig(temperature_kelvin=((0.0, 20.0), (0.5, -200.0)))


def test_minimisation_ends_where_forces_are_small_on_any_number_of_devices():
    atoms = argon()
    atoms.rattle(0.2, seed=1)
    atoms.set_constraint(FixAtoms([0, 5]))
    found = []
    for devices in (1, 4):
        engine = Engine(
            model(), atoms, EnsembleConfig(name="minimize", timestep_fs=2.0, force_tolerance=1e-3),
            devices=devices, skin_angstrom=0.6,
        )  # fmt: skip
        before = engine.read().potential_ev
        assert engine.run(500)
        after = engine.read()
        assert after.potential_ev < before - 0.5
        assert after.largest_force <= 1e-3
        assert engine.step < 500
        found.append(engine.positions())
    np.testing.assert_allclose(found[0][[0, 5]], atoms.positions[[0, 5]], atol=1e-14)
    np.testing.assert_allclose(found[1], found[0], atol=1e-8)


def test_degrees_of_freedom_and_the_motion_of_the_centre():
    atoms = argon(2)
    count = 3 * len(atoms)
    assert EnsembleConfig(name="nvt").degrees(len(atoms), fixed=False) == count - 3
    assert EnsembleConfig(name="nvt", still_center=0).degrees(len(atoms), fixed=False) == count
    assert EnsembleConfig(name="nvt").degrees(len(atoms) - 2, fixed=True) == count - 6
    assert EnsembleConfig(name="langevin").degrees(len(atoms), fixed=False) == count
    atoms.set_momenta(np.ones((len(atoms), 3)))
    kept = Engine(LennardJones(**ARGON, cutoff=4.5), atoms, EnsembleConfig(still_center=0))
    np.testing.assert_allclose(kept.momenta(), 1.0)
    still = Engine(
        LennardJones(**ARGON, cutoff=4.5), atoms, EnsembleConfig(name="langevin", still_center=5, timestep_fs=1.0)
    )
    np.testing.assert_allclose(still.momenta().sum(0), 0.0, atol=1e-10)
    still.run(4)
    assert np.abs(still.momenta().sum(0)).max() > 1e-3  # noise has moved it
    still.run(1)
    np.testing.assert_allclose(still.momenta().sum(0), 0.0, atol=1e-10)


def test_steps_between_removals_are_a_count():
    from janus_jax import configuration

    with pytest.raises(ConfigError, match="still_center"):
        configuration.validate(EnsembleConfig, {"still_center": -1})
    assert ensembles.EnsembleConfig(temperature_kelvin=((0.0, 1.0), (1.0, 2.0))).ramped
