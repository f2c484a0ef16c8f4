"""Statistical physics of dynamics: drift of trained water, ensembles, pair distributions; minutes to an hour on a CPU.

    python benchmarks/md_physics.py MODEL [drift ensembles npt rdf shapes]

MODEL is a potential trained on water (`janus-jax train`); what is named is measured, by default everything, and kept
in results/md_physics.json. The quick forms of these tests are in tests/test_md/test_physics.py.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not benchmarks/, whose partition.py is another
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import ase.io
import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp

import janus_jax.data
from janus_jax import bundle
from janus_jax.models import convert
from janus_jax.versions import versions
from md.engine import Engine
from md.ensembles import EnsembleConfig
from md.simulation import Simulation

RESULTS = Path(__file__).parent / "results" / "md_physics.json"


def water(repeat: int = 1):
    """A frame of the built-in set."""
    atoms = ase.io.read(Path(janus_jax.data.__file__).parent / "water.extxyz", index=0)
    atoms.calc = None
    return atoms * (repeat, repeat, repeat)


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


def shapes(model) -> dict:
    """20,000 steps of water on 4 devices at 300 and 600 K: compilations after the first two epochs, list reuse."""
    found = {}
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(time.perf_counter()) if "backend_compile" in event else None
    )
    for kelvin in (300.0, 600.0):
        config = EnsembleConfig(name="nvt", temperature_kelvin=kelvin, timestep_fs=0.5)
        engine = Engine(convert.cast(model, jnp.float32), water(2), config, devices=4)
        engine.run(20)  # the first two epochs
        engine.read()
        before, named = len(compiled), len(engine.build.compiled)
        began = time.perf_counter()
        for _ in range(100):
            engine.run(200)
            engine.read()
        found[f"{kelvin:g} K"] = {
            "compilations_after_two_epochs": len(compiled) - before, "named": engine.build.compiled,
            "named_after_two_epochs": engine.build.compiled[named:], "rebuilds": dict(engine.rebuilds),
            "lists_reused": 1 - sum(engine.rebuilds.values()) / engine.step, "by_rank": engine.by_rank.tolist(),
            "steps_per_s": 20_000 / (time.perf_counter() - began), "cut": engine.cut.method,
            "temperature_kelvin": engine.read().temperature_kelvin,
        }  # fmt: skip
        print(kelvin, found[f"{kelvin:g} K"], flush=True)
    return found


def main() -> None:
    model = bundle.load(sys.argv[1])
    wanted = sys.argv[2:] or ["drift", "shapes", "npt", "rdf"]
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in wanted:
        results[name] = globals()[name](model)
        results["versions"], results["cores"] = versions(), os.cpu_count()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
