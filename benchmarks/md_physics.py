"""Statistical physics of dynamics: drift of trained water, ensembles, pair distributions; minutes to an hour on a CPU.

    python benchmarks/md_physics.py MODEL [drift npt rdf shapes]

MODEL is a potential trained on water (`janus-jax train`); what is named is measured, by default everything, and kept
in results/md_physics.json. The quick forms of these tests are in tests/test_md/test_physics.py. With ONLY=water in
the environment, `shapes` takes the systems whose name begins so.
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import ase.io
import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
from ase.build import bulk  # noqa: E402

import janus_jax.data  # noqa: E402
from janus_jax import bundle  # noqa: E402
from janus_jax.models import convert  # noqa: E402
from janus_jax.versions import versions  # noqa: E402
from md.engine import Engine  # noqa: E402
from md.ensembles import EnsembleConfig  # noqa: E402
from md.observables import Sampler  # noqa: E402
from md.simulation import Simulation  # noqa: E402
from md.testing import ARGON, LennardJones  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "md_physics.json"


def water(repeat: int = 1):
    """A frame of the built-in set."""
    atoms = ase.io.read(Path(janus_jax.data.__file__).parent / "water.extxyz", index=0)
    atoms.calc = None
    return atoms * (repeat, repeat, repeat)


def keep(name: str, found: dict) -> None:
    """Into the file of results, where earlier ones stay."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[name] = results.get(name, {}) | found
    RESULTS.write_text(json.dumps(results | {"versions": versions(), "cores": os.cpu_count()}, indent=1) + "\n")


def drift(model) -> dict:
    """NVE at 0.5 fs after 2 ps at 300 K: slope of the total energy, in both precisions and with both list modes."""
    heated = Simulation(
        convert.cast(model, jnp.float64),
        water(),
        EnsembleConfig(name="langevin", friction_per_ps=10.0, timestep_fs=0.5),
    )
    heated.run(4000)
    start, found = heated.atoms(), {}
    for name, dtype in (("float64", jnp.float64), ("float32", jnp.float32)):
        for mode, options in (("skin", {}), ("no skin", {"interval": 1, "skin_angstrom": 0.3})):
            if name == "float32" and mode == "no skin":
                continue
            run = Simulation(convert.cast(model, dtype), start, EnsembleConfig(timestep_fs=0.5), **options)
            run.run(10_000)
            total = np.array([r.conserved_ev for r in run.readings]) / len(start) * 1000
            found[f"{name}, {mode}"] = {
                "drift_meV_per_atom_per_ps": run.drift(), "std_meV_per_atom": float(total.std()), "picoseconds": 5.0,
                "mean_temperature_kelvin": run.figures()["mean_temperature_kelvin"],
                "steps_per_s": run.figures()["steps_per_s"], "rebuilds": run.figures()["rebuilds"],
            }  # fmt: skip
            print(name, mode, found[f"{name}, {mode}"], flush=True)
    return found


def shapes(_) -> dict:
    """20,000 steps of liquids on 4 devices: compilations after the first two epochs, reuse of lists.

    Water has the small model given as SMALL in the environment (one layer, 3.5 Å, 12 channels; 3,000 steps of
    training on the built-in set), for time.
    """
    small = bundle.load(os.environ["SMALL"]) if "SMALL" in os.environ else None
    argon = bulk("Ar", "fcc", a=5.4, cubic=True) * (6, 3, 3)
    systems = [("argon", LennardJones(**ARGON, cutoff=8.5), argon, kelvin, 4.0) for kelvin in (100.0, 300.0)]
    if small is not None:
        box = water() * (2, 1, 1)
        systems += [("water", convert.cast(small, jnp.float32), box, kelvin, 0.5) for kelvin in (300.0, 600.0)]
    found, compiled = {}, []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
    )
    for name, model, atoms, kelvin, timestep in systems:
        if not f"{name}, {kelvin:g} K".startswith(os.environ.get("ONLY", "")):
            continue
        config = EnsembleConfig(name="langevin", temperature_kelvin=kelvin, timestep_fs=timestep, friction_per_ps=5.0)
        engine = Engine(model, atoms, config, devices=4, cut="grid", skin_angstrom=0.6)
        engine.run(20)  # the first two epochs
        engine.read()
        before, named, began = len(compiled), len(engine.build.compiled), time.perf_counter()
        for _ in range(100):
            engine.run(200)
            engine.read()
        names = engine.build.compiled
        row = {
            "atoms": len(atoms), "programs_compiled_after_two_epochs": len(compiled) - before,
            "named_after_two_epochs": names[named:], "variants": sum(text.startswith("build") for text in names),
            "rebuilds": dict(engine.rebuilds), "lists_reused": 1 - sum(engine.rebuilds.values()) / engine.step,
            "by_rank": engine.by_rank.tolist(), "steps_per_s": 20_000 / (time.perf_counter() - began),
            "temperature_kelvin": engine.read().temperature_kelvin, "steps": engine.step,
        }  # fmt: skip
        found[f"{name}, {kelvin:g} K"] = row
        print(name, kelvin, row, flush=True)
        keep("shapes", found)
    return found


def npt(_) -> dict:
    """Density of a Lennard-Jones liquid at the pressure of a published state, and by jax-md's own integrator.

    NIST's Monte Carlo tables (Lennard-Jones Fluid Properties; truncated at 3 sigma, long-range corrections) have
    P* = 0.2406 at T* = 0.9 and rho* = 0.776. Without the correction of the pressure, 16/3 pi rho*^2 (2/3 rc^-9 -
    rc^-3), the cell must have that density.
    """
    from ase import units
    from jax_md import simulate

    import md

    epsilon, sigma = ARGON["epsilon"], ARGON["sigma"]
    density, rc = 0.776, 3.0
    correction = 16 / 3 * np.pi * density**2 * (2 / 3 * rc**-9 - rc**-3)
    pressure = (0.2406 - correction) * epsilon / sigma**3
    kelvin = 0.9 * epsilon / units.kB
    model = LennardJones(**ARGON, cutoff=rc * sigma, shift=1)
    atoms = bulk("Ar", "fcc", a=(4 / density) ** (1 / 3) * sigma, cubic=True) * (4, 4, 4)
    found = {"published": density, "pressure_gpa": pressure / units.GPa, "temperature_kelvin": kelvin}

    def mean(values):
        blocks = np.array([block.mean() for block in np.array_split(np.array(values[len(values) // 5 :]), 8)])
        return {"density": float(blocks.mean()), "error": float(blocks.std(ddof=1) / np.sqrt(8))}

    config = EnsembleConfig(name="npt", temperature_kelvin=kelvin, pressure_gpa=pressure / units.GPa, timestep_fs=8.0,
                            tau_fs=400.0, barostat_tau_fs=2000.0)  # fmt: skip
    engine = Engine(model, atoms, config, devices=2, skin_angstrom=1.2, interval=30)
    values = []
    for _ in range(400):
        engine.run(30)
        values.append(len(atoms) / engine.read().volume * sigma**3)
    found["ours, 2 devices"] = mean(values)
    print(found, flush=True)

    jax.config.update("jax_numpy_dtype_promotion", "standard")
    box = jnp.asarray(atoms.cell.array.T)
    neighbors = md.neighbor_fn(model, box, dr_threshold=1.2)
    energy = md.energy_fn(model, box, atoms.numbers)
    nbrs = neighbors.allocate(jnp.asarray(atoms.positions))
    init, apply = simulate.npt_nose_hoover(
        energy, lambda R, dR, **_: R + dR, 8 * units.fs, pressure, kelvin * units.kB,
        barostat_kwargs={"tau": 2000 * units.fs}, thermostat_kwargs={"tau": 400 * units.fs},
    )  # fmt: skip
    state = init(
        jax.random.key(1), jnp.asarray(atoms.positions), box, mass=jnp.asarray(atoms.get_masses()), neighbor=nbrs
    )

    def step(_, carry):
        state, nbrs = carry
        nbrs = nbrs.update(state.position, box=simulate.npt_box(state))
        return apply(state, neighbor=nbrs), nbrs

    run = jax.jit(lambda carry: jax.lax.fori_loop(0, 30, step, carry))
    values, carry = [], (state, nbrs)
    for _ in range(300):
        carry = run(carry)
        assert not carry[1].did_buffer_overflow
        values.append(float(len(atoms) / jnp.linalg.det(simulate.npt_box(carry[0])) * sigma**3))
    found["jax-md, plain"] = mean(values)
    print(found, flush=True)
    return found


def rdf(_) -> dict:
    """Pair distributions of a hot liquid, four runs on 8 devices and four on 1, all of different seeds.

    If the number of devices does not matter, all 35 ways to part eight runs into four and four are alike: that the
    one by devices has the largest difference happens once in 35.
    """
    atoms = bulk("Ar", "fcc", a=5.8, cubic=True) * (4, 3, 3)
    model = LennardJones(**ARGON, cutoff=8.0)

    def run(devices: int, seed: int) -> np.ndarray:
        config = EnsembleConfig(name="langevin", temperature_kelvin=150.0, timestep_fs=5.0, friction_per_ps=2.0)
        engine = Engine(model, atoms, config, devices=devices, seed=seed, skin_angstrom=0.8, interval=20)
        engine.run(600)
        sampler = Sampler(engine, atoms.numbers, bins=60)
        for _ in range(120):
            engine.run(25)
            sampler.sample()
        return sampler.distribution()[1][0, 0]

    runs = np.array([run((1, 8)[seed % 2], seed) for seed in range(8)])

    def between(some) -> float:
        """rms difference of the mean of these runs and the mean of the others."""
        others = [k for k in range(8) if k not in some]
        return float(np.sqrt(np.mean((runs[list(some)].mean(0) - runs[others].mean(0)) ** 2)))

    by_devices = between((0, 2, 4, 6))
    ways = [between((0, *more)) for more in itertools.combinations(range(1, 8), 3)]
    found = {
        "rms_between_4_runs_on_8_devices_and_4_on_1": by_devices,
        "median_of_all_35_ways_to_part_the_runs": float(np.median(ways)),
        "ways_with_a_larger_difference": sum(way > by_devices for way in ways),
        "rms_between_two_runs": float(np.sqrt(np.mean((runs[0] - runs[2]) ** 2))),
        "highest_peak": float(runs.mean(0).max()),
    }
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="model file or run folder")
    parser.add_argument("parts", nargs="*", metavar="PART", help="drift, npt, rdf, shapes (default: all)")
    arguments = parser.parse_args()
    model = bundle.load(arguments.model)
    for name in arguments.parts or ["drift", "shapes", "npt", "rdf"]:
        keep(name, globals()[name](model))


if __name__ == "__main__":
    main()
