"""Streaming: 200,000 synthetic structures through reader, neighbour lists and batching, in flat memory.

    python benchmarks/data.py [--structures 200000] [--workers 1] [--save benchmarks/results/data.json]

Writes structures of 3 to 300 atoms (liquid-like density, random energies and forces) as shards in a
temporary folder, makes the summary that training needs, then draws every structure once through the
loader, nothing kept in memory. Reported: structures and atoms per second of each pass, resident memory
at each tenth of it, and how many times faster than training on the same two cores the stream is
(the training rate is measured in the same run, with the water recipe's model).
"""

import argparse
import json
import os
import resource
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from janus_jax.data import batching
from janus_jax.data.dataset import Dataset
from janus_jax.data.loader import plan, stream
from janus_jax.data.sources import open_source
from janus_jax.data.summary import summarize

CUTOFF, ATOMS, SHARD = 4.0, 1024, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--structures", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=1, help="processes that read (default: %(default)s)")
    parser.add_argument("--format", choices=("extxyz", "aselmdb"), default="extxyz")
    parser.add_argument("--save", help="JSON to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JANUS_JAX_CACHE"] = f"{folder}/cache"
        began = time.perf_counter()
        write(Path(folder) / "shards", options.structures, options.format)
        wrote = time.perf_counter() - began
        source = open_source(Path(folder) / "shards")
        began, memory = time.perf_counter(), Memory(len(source))
        summary = summarize(source, CUTOFF, workers=options.workers, progress=memory)
        passed = time.perf_counter() - began
        began = time.perf_counter()
        summarize(open_source(Path(folder) / "shards"), CUTOFF)
        cached = time.perf_counter() - began
        data = Dataset(source, summary, np.arange(len(source)), CUTOFF, {}, memory_bytes=0)
        record = {
            "command": "python benchmarks/data.py",
            "structures": len(source),
            "atoms": int(data.atoms.sum(dtype=np.int64)),
            "edges": int(data.edges.sum(dtype=np.int64)),
            "format": options.format,
            "workers": options.workers,
            "cores": len(os.sched_getaffinity(0)),
            "versions": {name: version(name) for name in ("janus-jax", "numpy", "ase", "vesin")},
            "write_s": round(wrote, 1),
            "summary": rates(passed, data) | {"resident_mib": memory.seen, "again_from_cache_s": round(cached, 2)},
            "stream": draw(data, options.workers),
            "training_atoms_per_s": (training := training_rate()),
        }
    record["stream_over_training"] = record["stream"]["atoms_per_s"] / training
    print(json.dumps(record, indent=1))
    if options.save:
        Path(options.save).write_text(json.dumps(record, indent=1) + "\n")


def write(folder: Path, count: int, form: str) -> None:
    """Shards of random structures; minimal distances as in a liquid, from a jittered grid."""
    from ase import Atoms
    from ase.calculators.singlepoint import SinglePointCalculator

    from janus_jax.data.sources import aselmdb

    rng = np.random.default_rng(0)
    folder.mkdir()

    def structures(n: int):
        for _ in range(n):
            atoms = int(rng.integers(3, 301))
            side = int(np.ceil(atoms ** (1 / 3)))
            sites = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
            chosen = rng.permutation(sites)[:atoms] * 2.2 + rng.uniform(-0.4, 0.4, (atoms, 3))
            yield rng.choice([1, 6, 8], atoms), chosen, 2.2 * side, rng.normal(size=(atoms, 3))

    for shard in range(-(-count // SHARD)):
        n = min(SHARD, count - shard * SHARD)
        if form == "aselmdb":

            def frames(n=n):
                for numbers, positions, side, forces in structures(n):
                    frame = Atoms(numbers, positions, cell=[side] * 3, pbc=True)
                    frame.calc = SinglePointCalculator(frame, energy=-10.0 * len(numbers), forces=forces)
                    yield frame

            aselmdb.write(folder / f"{shard:03}.aselmdb", frames())
            continue
        with open(folder / f"{shard:03}.xyz", "w") as file:
            for numbers, positions, side, forces in structures(n):
                lattice = f"{side} 0 0 0 {side} 0 0 0 {side}"
                head = f'Lattice="{lattice}" Properties=species:S:1:pos:R:3:forces:R:3 energy={-10.0 * len(numbers)}'
                rows = np.char.mod("%.6f", np.hstack([positions, forces]))
                symbols = np.array(["X", "H", "", "", "", "", "C", "", "O"])[numbers]
                lines = [f"{s} {' '.join(row)}" for s, row in zip(symbols, rows.tolist(), strict=True)]
                file.write(f"{len(numbers)}\n{head}\n" + "\n".join(lines) + "\n")


class Memory:
    """Resident memory of this process at each tenth of a pass, MiB."""

    def __init__(self, total: int):
        self.total, self.seen = total, []

    def __call__(self, done: int, _total: int = 0) -> None:
        while len(self.seen) < 10 and done >= (len(self.seen) + 1) * self.total / 10:
            self.seen.append(round(resident()))


def resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def rates(seconds: float, data: Dataset) -> dict[str, float]:
    return {
        "seconds": round(seconds, 1),
        "structures_per_s": round(len(data) / seconds, 1),
        "atoms_per_s": round(data.atoms.sum(dtype=np.int64) / seconds, 1),
    }


def draw(data: Dataset, workers: int) -> dict:
    """One epoch through the loader."""
    capacity = batching.choose(data.atoms, data.edges, ATOMS)
    began = time.perf_counter()
    batches = sum(1 for _ in plan(data.atoms, data.edges, capacity, 0, 0))
    planned = time.perf_counter() - began
    memory, used, seen, began = Memory(batches), 0, 0, time.perf_counter()
    drawn = stream(data, capacity, 1, 0, workers=workers)
    for k in range(batches):
        batch = next(drawn)
        used, seen = used + batch.atoms, seen + len(batch.members)
        memory(k + 1)
    seconds = time.perf_counter() - began
    drawn.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert seen == len(data)
    return rates(seconds, data) | {
        "batches": batches,
        "plan_s": round(planned, 1),
        "atoms_used_percent": round(100 * used / (batches * capacity.atoms), 1),
        "resident_mib": memory.seen,
    }


def training_rate() -> float:
    """Atoms per second of the water recipe's training on this machine."""
    import statistics

    from janus_jax.train import config, run

    with tempfile.TemporaryDirectory() as folder:
        settings = ["steps=40", "validate_every=40", f"output={folder}/run", "tracking.tensorboard=false"]
        result = run.run(config.load(None, settings))
        rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["atoms_per_s"] for row in rows if "atoms_per_s" in row)


if __name__ == "__main__":
    main()
