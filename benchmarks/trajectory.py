"""Does a pipeline train as one device does? Energy and force errors along whole runs, side by side.

    python benchmarks/trajectory.py [--steps 1000] [--pipe 4] [--precision float64 float32]

The paper's check (JanusPipe, section 5): mean absolute percentage difference of energy and force MAE over
1,000 steps, P=4 against P=1: 0.84 % and 0.21 %. Here also between two runs of one device that add their
micro-batches in another order: what rounding alone does. With large learning rates training is chaotic, and
rounding alone makes any two runs part: with 4e-4 by 7 % in energy after 1,000 steps in float64, with 2e-3 by
66 %. Figures go to benchmarks/results/trajectory.json.
"""

import argparse
import json
import os
from functools import reduce
from operator import add
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import numpy as np
from flax import nnx

from janus_jax.data.batching import choose
from janus_jax.data.loader import stream
from janus_jax.data.sources import read_frames
from janus_jax.models import build, convert
from janus_jax.models.esen import EsenConfig
from janus_jax.runtime.config import MeshConfig, PipelineConfig
from janus_jax.runtime.trainer import PipelineTrainer
from janus_jax.testing import dataset
from janus_jax.train.loss import LossConfig
from janus_jax.train.optimizer import OptimizerConfig
from janus_jax.train.state import Trainer
from janus_jax.versions import versions

MICRO_BATCHES = 4
RESULTS = Path(__file__).parent / "results" / "trajectory.json"


class OtherOrder(Trainer):
    """One device that adds its micro-batches from last to first."""

    def step(self, state, micro_batches, counts):
        parts = [self.gradient(state, micro, counts) for micro in micro_batches][::-1]
        gradient = reduce(lambda a, b: jax.tree.map(add, a, b), [part[0] for part in parts])
        state, report = self.update(state, gradient)
        return state, reduce(add, [part[1] for part in parts]), report


def errors(trainer, model, data, capacity, steps: int, precision: str, name: str) -> np.ndarray:
    """Energy and force errors of every step's batch before its update [steps, 2]."""
    state, found = trainer.init(model), []
    batches = stream(data, capacity, MICRO_BATCHES, 0, np.dtype(precision))
    for step in range(steps):
        batch = next(batches)
        state, terms, _ = trainer.step(state, batch.micro_batches, batch.counts)
        found.append((float(terms.energy_per_atom), float(terms.forces)))
        if (step + 1) % 100 == 0:
            print(
                f"  {name}: step {step + 1}, E {1e3 * found[-1][0]:.2f} meV/atom, F {1e3 * found[-1][1]:.1f} meV/Å",
                flush=True,
            )
    batches.close()
    return np.array(found)


def difference(one: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Mean absolute percentage difference of energy and force errors."""
    percent = 100 * (np.abs(one - other) / np.abs(other)).mean(0)
    return {"energy_percent": float(percent[0]), "forces_percent": float(percent[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pipe", type=int, default=4)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="(default: %(default)s)")
    parser.add_argument("--schedule", default="split")
    parser.add_argument("--precision", nargs="+", default=["float64", "float32"])
    settings = parser.parse_args()
    size = settings.channels
    config = EsenConfig(
        cutoff_angstrom=3.0, num_layers=4, channels=size, hidden_channels=size, edge_channels=size, num_basis=8, lmax=1
    )
    results = {
        "settings": vars(settings),
        "versions": versions(),
        "paper": {"energy_percent": 0.84, "forces_percent": 0.21},
    }
    for precision in settings.precision:
        model = convert.cast(build(config, rngs=nnx.Rngs(0), scale=1.0), precision)
        data = dataset([f for f in read_frames("water:train") if len(f) <= 24], 3.0, {1: -55.2201, 8: -27.6101})
        capacity = choose(data.atoms, data.edges, 24)
        common = (
            model,
            OptimizerConfig(method="adamw", learning_rate=settings.learning_rate),
            settings.steps,
            LossConfig(),
        )
        grid = PipelineTrainer(
            *common, MeshConfig(pipe=settings.pipe), PipelineConfig(schedule=settings.schedule), MICRO_BATCHES
        )
        runs = {"one device": Trainer(*common), "another order": OtherOrder(*common), f"P={settings.pipe}": grid}
        found = {n: errors(t, model, data, capacity, settings.steps, precision, n) for n, t in runs.items()}
        base = found.pop("one device")
        results[precision] = {name: difference(values, base) for name, values in found.items()}
        for name, values in results[precision].items():
            e, f = values["energy_percent"], values["forces_percent"]
            print(f"{precision}, {name} against one device: energy {e:.3g} %, forces {f:.3g} %", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
