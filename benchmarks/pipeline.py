"""Step time of every schedule on two stages, one thread each, beside one device; and how well simulation foretells it.

    python benchmarks/pipeline.py [--layers 4] [--channels 32] [--atoms 96] [--micro-batches 16] [--rounds 3]

All run in turn in one process. Figures go to benchmarks/results/pipeline.json.

XLA runs independent parts of a program on all threads of the process, whatever its flags say. So "one thread"
means that all threads are held on one core; the two stages have two cores between them.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from flax import nnx

from janus_jax import schedule as schedules
from janus_jax.data.batching import choose
from janus_jax.data.loader import stream
from janus_jax.data.sources import read_frames
from janus_jax.models import build
from janus_jax.models.esen import EsenConfig
from janus_jax.runtime.config import MeshConfig, PipelineConfig
from janus_jax.runtime.profile import Recorder
from janus_jax.runtime.trainer import PipelineTrainer
from janus_jax.schedule import footprint, simulate
from janus_jax.testing import dataset
from janus_jax.train.loss import LossConfig
from janus_jax.train.optimizer import OptimizerConfig
from janus_jax.train.state import Trainer
from janus_jax.versions import versions

P = 2
CORES = sorted(os.sched_getaffinity(0))


def hold(cores: list[int]) -> None:
    """Let all threads of this process run on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--atoms", type=int, default=96)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    settings = parser.parse_args()
    n, c = settings.micro_batches, settings.channels
    model = build(
        EsenConfig(num_layers=settings.layers, channels=c, hidden_channels=c, edge_channels=c, num_basis=16),
        rngs=nnx.Rngs(0),
    )
    data = dataset(read_frames("water:train"), model.cutoff)
    capacity = choose(data.atoms, data.edges, settings.atoms)
    batch = next(stream(data, capacity, n, seed=0))
    graphs, counts = batch.micro_batches, batch.counts
    method = OptimizerConfig(method="adamw")
    single = Trainer(model, method, 100, LossConfig())
    start = single.init(model)
    runs = {"one thread": (single, start), "all threads": (single, start)}

    def grid(name: str, **more) -> PipelineTrainer:
        return PipelineTrainer(
            model, method, 100, LossConfig(), MeshConfig(pipe=P), PipelineConfig(schedule=name, **more), n
        )

    wave, split = grid("wavek"), grid("split", cap=2 * P)
    grids = {"1f1b_2nd": grid("1f1b_2nd"), "hanayo_2nd": grid("hanayo_2nd"), "wavek k=P": wave, "split cap 2P": split}
    state = {name: g.init(model) for name, g in grids.items()}
    timelines = {}
    for name, g in grids.items():
        began = time.perf_counter()
        for _ in range(2):  # the first compiles
            record = Recorder(g.executor)
            jax.block_until_ready(g.step(state[name], graphs, counts, record)[0])
            timelines[name] = record.timeline()
        print(f"{name}: ready after {time.perf_counter() - began:.0f} s", flush=True)
    times = timelines["wavek k=P"].times
    best, _ = schedules.tune("wavek", P, n, times)
    grids["wavek best"] = wave.with_schedule(schedules.make("wavek", P, n, unit=best.value))
    times = timelines["split cap 2P"].times
    for cap, name in ((P, "split cap P"), (2 * P, "split cap 2P")):
        grids[name] = split.with_schedule(schedules.make("split", P, n, cap=cap, times=times))
    state |= {"wavek best": state["wavek k=P"], "split cap P": state["split cap 2P"]}
    runs |= {name: (g, state[name]) for name, g in grids.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for trainer, at in runs.values():
        jax.block_until_ready(trainer.step(at, graphs, counts)[0])
    for _ in range(settings.rounds):
        for name, (trainer, at) in runs.items():
            hold(CORES[:1] if name == "one thread" else CORES)
            began = time.perf_counter()
            jax.block_until_ready(trainer.step(at, graphs, counts)[0])
            seconds[name].append(time.perf_counter() - began)
            hold(CORES)
    rows = {}
    for name, (trainer, at) in runs.items():
        row = {"step_s": float(np.median(seconds[name]))}
        if name in grids:
            found, dispatch = [], []
            for _ in range(settings.rounds):
                record = Recorder(trainer.executor)
                jax.block_until_ready(trainer.step(at, graphs, counts, record)[0])
                found.append(record.timeline())
                dispatch += np.diff(np.sort(np.concatenate(record.dispatched))).tolist()
            measured = sorted(found, key=lambda t: t.makespan)[len(found) // 2]
            foretold = simulate(trainer.schedule, measured.times)
            sizes = trainer.sizes(graphs[0])
            row |= {
                "measured_makespan_s": measured.makespan, "simulated_makespan_s": foretold.makespan,
                "measured_bubble": measured.bubble, "simulated_bubble": foretold.bubble,
                "dispatch_us_per_instruction": 1e6 * float(np.nanmedian(dispatch)),
                "peak_mib": max(float(curve.max()) for curve in footprint(trainer.schedule, sizes)) / 2**20,
            }  # fmt: skip
            if name == "wavek best":
                row["unit"] = best.value
        rows[name] = row
    base = rows["1f1b_2nd"]["step_s"], rows["one thread"]["step_s"]
    print(f"eSEN {settings.layers} x {c} channels, {capacity}, P={P}, N={n}; {os.cpu_count()} cores, {versions()}")
    head = "step_s", "x 1f1b", "x thread", "makespan s", "simulated", "bubble", "simulated", "us/instr", "MiB"
    print(f"{'':15}" + "".join(f"{word:>12}" for word in head))
    for name, row in rows.items():
        cells = [row["step_s"], base[0] / row["step_s"], base[1] / row["step_s"]]
        names = ("measured_makespan_s", "simulated_makespan_s", "measured_bubble", "simulated_bubble",
                 "dispatch_us_per_instruction", "peak_mib")  # fmt: skip
        cells += [row[key] for key in names if key in row]
        print(f"{name:15}" + "".join(f"{cell:12.3f}" for cell in cells))
    about = {"settings": vars(settings), "versions": versions(), "cores": os.cpu_count()}
    out = Path(__file__).parent / "results" / "pipeline.json"
    out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
