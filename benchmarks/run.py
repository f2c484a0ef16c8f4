"""`make bench`: cost of our own programs, as ratios between things run in turn in this process.

    python benchmarks/run.py [--json] [--repeats 10]

Water boxes cut from the built-in set and the model of the training recipe: energy alone, energy with
forces and stress, one training gradient; in float32 and float64; with the arrays exactly full and
padded by a half. Comparisons with other implementations are in benchmarks/peers.
"""

import argparse
import json
import os
import statistics
import time
from importlib.metadata import version

import jax
import numpy as np
from flax import nnx

from janus_jax.data import batching
from janus_jax.data.dataset import Dataset
from janus_jax.data.sources import open_source
from janus_jax.data.summary import summarize
from janus_jax.graph import Capacity, LabelCounts
from janus_jax.models import build, convert
from janus_jax.models.potential import energy_forces_stress, structure_energies
from janus_jax.train import config
from janus_jax.train.state import Trainer


def problem(settings: config.TrainConfig, padding: float, dtype):
    """One micro-batch of the recipe, its arrays longer by the factor 1 + padding."""
    source, cutoff = open_source("water:test"), settings.model.cutoff_angstrom
    data = Dataset(source, summarize(source, cutoff), np.arange(8), cutoff, {1: -13.0, 8: -100.0})
    graphs = list(data)
    need = sum((batching.need(graph) for graph in graphs[:4]), Capacity(0, 0, 0))
    capacity = Capacity(*(round((1 + padding) * n) for n in (need.atoms, need.edges, need.structures)))
    return batching.pad(graphs[:4], capacity, dtype), LabelCounts.of(graphs[:4], dtype)


def programs(settings: config.TrainConfig, dtype):
    """Compiled functions of a graph and its label counts, by name."""
    model = convert.cast(build(settings.model, rngs=nnx.Rngs(0)), dtype)
    trainer = Trainer(model, settings.optimizer, 10, settings.loss)
    state = trainer.init(model)
    graphdef, variables = nnx.split(model)

    def energy(variables, graph):
        strain = jax.numpy.zeros(graph.cell.shape, dtype)
        return structure_energies(nnx.merge(graphdef, variables), graph, graph.positions, strain)

    energy = jax.jit(energy)
    forces = jax.jit(lambda variables, graph: energy_forces_stress(nnx.merge(graphdef, variables), graph))
    return {
        "energy": lambda graph, counts: energy(variables, graph),
        "energy, forces, stress": lambda graph, counts: forces(variables, graph),
        "training gradient": lambda graph, counts: trainer.gradient(state, graph, counts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    settings = config.TrainConfig()
    cases, rows = {}, []
    for dtype in (np.float32, np.float64):
        functions = programs(settings, dtype)
        for padding in (0.0, 0.5):
            graph, counts = problem(settings, padding, dtype)
            for name, function in functions.items():
                cases[np.dtype(dtype).name, padding, name] = lambda f=function, g=graph, c=counts: f(g, c)
    times = {key: [] for key in cases}
    for _ in range(arguments.repeats + 1):  # in turn, so that a disturbance hits all alike; the first compiles
        for key, run in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            times[key].append(1e3 * (time.perf_counter() - start))
    base = statistics.median(times["float32", 0.0, "energy"][1:])
    for (dtype, padding, name), samples in times.items():
        median = statistics.median(samples[1:])
        rows.append(
            {
                "program": name, "dtype": dtype, "padding": padding, "ms": round(median, 2),
                "ratio": round(median / base, 2), "first_call_s": round(samples[0] / 1e3, 2),
            }
        )  # fmt: skip
    need = batching.need(problem(settings, 0.0, np.float32)[0])
    versions = {name: version(name) for name in ("janus-jax", "jax", "jaxlib", "flax")}
    report = {"cores": os.cpu_count(), "versions": versions, "atoms": need.atoms, "edges": need.edges, "rows": rows}
    if arguments.json:
        print(json.dumps(report))
        return
    print(
        f"{need.atoms} atoms, {need.edges} edges, {os.cpu_count()} cores, {versions}; ratio: to energy alone in float32"
    )
    for row in rows:
        print(
            f"{row['program']:24}{row['dtype']:9}padding {row['padding']:.0%}  {row['ms']:8.1f} ms"
            f"  ratio {row['ratio']:5.2f}  first call {row['first_call_s']:5.1f} s"
        )


if __name__ == "__main__":
    main()
