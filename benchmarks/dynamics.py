"""Where the time of a step of dynamics goes, and the same system through ASE's loop with our and fairchem's calculator.

    python benchmarks/dynamics.py [--molecules 512 4096] [--steps 40] [--fairchem PYTHON] [--save FILE]

Water at 1 g/cm^3 with a small eSEN (fresh weights, float32): steps/s of `md.simulation` with its files, and the
parts measured alone, in turn, in this process: the potential, the search for neighbours, integrator and trigger,
output; on 4 virtual devices also the exchange and its bytes beside the plan's. ASE's VelocityVerlet runs the same
system with `JanusCalculator` and, with --fairchem (environment of benchmarks/peers), with fairchem's model. Ratios
within one run compare; times of a shared machine do not.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from ase import Atoms, units  # noqa: E402
from ase.md.verlet import VelocityVerlet  # noqa: E402
from flax import nnx  # noqa: E402

from janus_jax.calculator import JanusCalculator  # noqa: E402
from janus_jax.models import build  # noqa: E402
from janus_jax.models.esen import EsenConfig, save_state  # noqa: E402
from janus_jax.versions import versions  # noqa: E402
from md.engine import Engine  # noqa: E402
from md.ensembles import EnsembleConfig  # noqa: E402
from md.simulation import Simulation  # noqa: E402

CONFIG = EsenConfig(
    cutoff_angstrom=4.0, channels=16, hidden_channels=16, edge_channels=16, num_basis=32, mmax=2,
    charge_spin="sinusoidal",
)  # fmt: skip
DYNAMICS = EnsembleConfig(name="nve", timestep_fs=0.5)


def water(molecules: int) -> Atoms:
    """Molecules on a grid, turned at random, at 1 g/cm^3."""
    rng, side = np.random.default_rng(0), round(molecules ** (1 / 3))
    assert side**3 == molecules, "a cube of molecules"
    spacing = (18.015 * 1.66053906660) ** (1 / 3)
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3) * spacing
    molecule = np.array([[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    turned = np.concatenate([x + molecule @ np.linalg.qr(rng.normal(size=(3, 3)))[0] for x in grid])
    atoms = Atoms([8, 1, 1] * molecules, turned, cell=[side * spacing] * 3, pbc=True)
    atoms.set_momenta(rng.normal(size=(3 * molecules, 3)) * np.sqrt(atoms.get_masses() * units.kB * 300)[:, None])
    return atoms


def seconds(function, repeats: int) -> float:
    """Median time of a call, after one."""
    jax.block_until_ready(function())
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def parts(model, atoms: Atoms, steps: int) -> dict:
    """Milliseconds of a step on one device, of the whole and of its parts."""
    with tempfile.TemporaryDirectory() as folder:
        run = Simulation(
            model,
            atoms,
            DYNAMICS,
            folder=Path(folder) / "run",
            thermo=10,
            frames=100,
            checkpoint=0,
            closest_angstrom=0.0,
        )
        engine = run.engine
        engine.run(10)
        state = engine.motion.state
        repeats = max(3, steps // 10)
        model_s = seconds(lambda: engine.programs.evaluate(state.position, engine.motion.cell, engine.system), repeats)
        build_s = seconds(lambda: (engine.rebuild("measured"), engine.motion)[1], repeats)
        one = engine.step

        def epoch():
            return engine.programs.epoch(engine.motion, engine.ids, engine.system, 5)

        epoch_s = seconds(epoch, repeats) / 5
        read_s = seconds(lambda: run._read(), repeats)
        frame_s = seconds(lambda: run._frame(), 3)
        assert engine.step == one
        began = time.perf_counter()
        engine.run(steps)
        whole = (time.perf_counter() - began) / steps
    parts = {
        "model": model_s, "integrator and trigger": max(epoch_s - model_s, 0.0), "search, per step": build_s / 10,
        "output, per step": read_s / 10 + frame_s / 100,
    }  # fmt: skip
    total = sum(parts.values())
    return {
        "atoms": len(atoms), "step_ms": 1e3 * whole, "steps_per_s": 1 / whole,
        "parts_ms": {name: 1e3 * value for name, value in parts.items()},
        "sum_of_parts_ms": 1e3 * total, "all_but_the_model": 1 - model_s / total, "search_ms": 1e3 * build_s,
        "edges": int(np.asarray(engine.system.edges.mask).sum()),
    }  # fmt: skip


def exchange(model, atoms: Atoms) -> dict:
    """Bytes a rank sends in one step on 4 devices: in the compiled program, and by the plan; and its time."""
    engine = Engine(model, atoms, DYNAMICS, devices=4, cut="grid", closest_angstrom=0.0)
    state = engine.motion.state
    lowered = engine.programs.evaluate.lower(state.position, engine.motion.cell, engine.system)
    text = lowered.compile().as_text()
    sizes = {"f64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "s64": 8}
    measured = 0
    for line in text.splitlines():
        found = re.search(r"= (\(?)(.*?)\)? (collective-permute|all-to-all)(-start)?\(", line)
        if found:
            shapes = re.findall(r"(f64|f32|s32|u32|pred|s64)\[([\d,]*)\]", found[2])
            shapes = shapes[:1] if found[4] else shapes
            measured += sum(sizes[kind] * int(np.prod([int(n) for n in dims.split(",") if n])) for kind, dims in shapes)
    plan = engine.system.topology.plans[0]
    rows, real = sum(plan.lengths), float(np.asarray(plan.halo_mask).sum()) / 4
    width = (CONFIG.lmax + 1) ** 2 * CONFIG.channels * 4
    features = 2 * CONFIG.num_layers * width  # of layers, forward and backward
    once = 3 * 8 * 2 + 3 * 8 + 3 * 4 + 4  # positions and back; settled positions, cells crossed; atomic numbers
    whole = seconds(lambda: engine.programs.evaluate(state.position, engine.motion.cell, engine.system), 3)
    h = jax.device_put(np.zeros((len(state.position), width // 4), np.float32), state.position.sharding)
    from functools import partial

    from jax.sharding import PartitionSpec

    from partition import builder
    from partition.plan import exchange_halo

    @jax.jit
    @partial(jax.shard_map, mesh=engine.mesh, in_specs=(PartitionSpec("ranks"),) * 2, out_specs=PartitionSpec("ranks"),
             check_vma=False)  # fmt: skip
    def once_there_and_back(h, built):
        one = builder.unstacked(built).plans[0]
        out, back = jax.vjp(lambda owned: exchange_halo(owned, one), h)
        return back(out)[0]

    there = seconds(lambda: once_there_and_back(h, engine.system.topology), 5)
    return {
        "devices": 4, "atoms": len(atoms), "halo_rows": rows, "halo_atoms": real,
        "bytes_in_program": measured, "bytes_by_plan": rows * (features + once),
        "exchange_ms": 1e3 * there * CONFIG.num_layers, "model_ms": 1e3 * whole,
    }  # fmt: skip


def through_ase(model, atoms: Atoms, steps: int) -> float:
    """Steps per second of ASE's loop with our calculator."""
    copy = atoms.copy()
    copy.calc = JanusCalculator(model, skin=0.5)
    dynamics = VelocityVerlet(copy, DYNAMICS.timestep_fs * units.fs)
    dynamics.run(2)
    began = time.perf_counter()
    dynamics.run(steps)
    return steps / (time.perf_counter() - began)


def through_fairchem(python: str, model, atoms: Atoms, steps: int) -> dict:
    """The same with fairchem's model in its own environment: steps per second, and the first forces."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"w/{name}": np.asarray(value) for name, value in save_state(model).items()}
        np.savez(
            Path(folder) / "problem.npz", numbers=atoms.numbers, positions=atoms.positions, cell=atoms.cell.array,
            momenta=atoms.get_momenta(), settings=json.dumps({"model": CONFIG.model_dump(mode="json")}), steps=steps,
            timestep=DYNAMICS.timestep_fs, **arrays,
        )  # fmt: skip
        command = [python, str(here / "peers" / "fairchem_md.py"), f"{folder}/problem.npz", f"{folder}/answer.json"]
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"OMP_NUM_THREADS": "2"}
        subprocess.run(command, check=True, env=environment)
        return json.loads(Path(folder, "answer.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--molecules", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--fairchem", help="Python of fairchem's environment")
    parser.add_argument("--save")
    arguments = parser.parse_args()
    model = build(CONFIG, rngs=nnx.Rngs(0))
    results = {
        "command": "python benchmarks/dynamics.py " + " ".join(Path(word).name for word in sys.argv[1:]),  # no paths
        "cores": os.cpu_count(),
        "versions": versions(),
        "systems": [],
    }
    for molecules in arguments.molecules:
        atoms = water(molecules)
        steps = arguments.steps if molecules <= 512 else max(arguments.steps // 4, 10)
        found = {"parts": parts(model, atoms, steps), "exchange": exchange(model, atoms)}
        found["ase_janus_steps_per_s"] = through_ase(model, atoms, steps)
        if arguments.fairchem:
            other = through_fairchem(arguments.fairchem, model, atoms, max(steps // 4, 3))
            engine = Engine(model, atoms, DYNAMICS, closest_angstrom=0.0)
            other["largest_difference_of_forces"] = float(np.abs(engine.forces() - np.array(other.pop("forces"))).max())
            other["largest_force"] = float(np.abs(engine.forces()).max())
            found["ase_fairchem"] = other
        results["systems"].append(found)
        print(json.dumps(found, indent=1), flush=True)
    if arguments.save:
        Path(arguments.save).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
