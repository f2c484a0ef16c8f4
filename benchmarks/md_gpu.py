"""Compiles one step's potential for 2 x 4 H100 without a GPU: order of exchanges and local work, memory by size.

    python benchmarks/md_gpu.py --tool PATH/gpu_aot.py [--atoms 10000 25000 60000] [--save FILE]

In an environment with jax-cuda13-pjrt, jax-cuda13-plugin and nvidia-cuda-nvcc, with this repository's dependencies.
Compiled and not run. `--tool` is the module that describes H100 clusters to JAX's CUDA plugin.
"""

import argparse
import importlib.util
import json
import re
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # the repository need not be installed there
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--tool", required=True)
parser.add_argument("--atoms", type=int, nargs="+", default=[10_000, 25_000, 60_000])
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--channels", type=int, default=32)
parser.add_argument("--cut", default="grid")
parser.add_argument("--save")
arguments = parser.parse_args()
spec = importlib.util.spec_from_file_location("gpu_aot", arguments.tool)
assert spec
assert spec.loader
gpu_aot = importlib.util.module_from_spec(spec)
sys.modules["gpu_aot"] = gpu_aot
spec.loader.exec_module(gpu_aot)
devices = gpu_aot.h100(hosts=2, gpus_per_host=4)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

from janus_jax.models import build  # noqa: E402
from janus_jax.models.esen import EsenConfig  # noqa: E402
from md import layout  # noqa: E402
from md.config import EngineConfig  # noqa: E402
from md.layout import AXIS  # noqa: E402
from md.programs import Programs, System  # noqa: E402
from partition import builder, cut  # noqa: E402

PERIODIC, DENSITY = (True, True, True), 0.1
EXCHANGES = ("collective-permute", "all-to-all", "ragged-all-to-all")


def program(count: int, overlap: bool):
    """The potential of `count` atoms a GPU, compiled."""
    config = EsenConfig(
        cutoff_angstrom=5.0, num_layers=arguments.layers, channels=arguments.channels,
        hidden_channels=arguments.channels, edge_channels=arguments.channels, num_basis=64,
    )  # fmt: skip
    model, ranks = build(config, rngs=nnx.Rngs(0)), len(devices)
    side = (count * ranks / DENSITY) ** (1 / 3)
    start = cut.atoms(np.random.default_rng(0).random((count * ranks, 3)) * side, np.eye(3) * side, np.ones(3, bool))
    placed = layout.of(model, start, PERIODIC, EngineConfig(devices=ranks, cut=arguments.cut))
    made, rows, lists, room = placed.cut, placed.rows, placed.lists, placed.room
    mesh = Mesh(np.array(devices), (AXIS,))
    build_lists = builder.Builder(mesh, lists, room, made.shape)
    programs = Programs(model, None, mesh, PERIODIC, made, limits=(0.0, 1.0), rows=rows, overlap=overlap)
    by_rank, all_ = NamedSharding(mesh, PartitionSpec(AXIS)), NamedSharding(mesh, PartitionSpec())

    def shape(lengths, dtype, place):
        return jax.ShapeDtypeStruct(lengths, dtype, sharding=place)

    def placed(tree, place):
        return jax.tree.map(lambda a: shape(a.shape, a.dtype, place), tree)

    positions, ids = shape((ranks * rows, 3), jnp.float32, by_rank), shape((ranks * rows,), jnp.int32, by_rank)
    cell = shape((3, 3), jnp.float32, all_)
    turns, used = shape((room.images, 3), jnp.int32, all_), shape((room.images,), jnp.bool_, all_)
    built, _ = jax.eval_shape(build_lists._program(positions), positions, ids, cell, turns, used)
    edges, _ = jax.eval_shape(programs.merge, built)
    scalars = {name: shape((), jnp.int32, all_) for name in ("charge", "spin", "dataset")}
    system = System(
        placed(built, by_rank), placed(edges, by_rank), shape((ranks * rows,), jnp.int32, by_rank), scalars,
        placed(nnx.split(model)[1], all_),
    )  # fmt: skip
    report = gpu_aot.compile(programs.evaluate.lower(positions, cell, system))
    return report, {"rows": rows, "edges": edges.src.shape[1], "halo_rows": sum(room.halo[0])}


def exchanges(timeline: list[str]) -> list[dict]:
    """Of each exchange, how many kernels are between its start and its end in the schedule."""
    open_, found, kernels = {}, [], 0
    for line in timeline:
        kind, name = line.split(" ", 1)
        if not any(kind.startswith(word) for word in EXCHANGES):
            kernels += kind in ("fusion", "custom-call")
            continue
        number = re.sub(r"^[a-z-]*(start|done)?", "", name)
        if "start" in kind:
            open_[number] = (len(found), kernels)
            found.append({"name": name, "hidden_kernels": None})
        elif "done" in kind:
            at, before = open_.pop(number, (None, None)) if number in open_ else open_.popitem()[1]
            found[at]["hidden_kernels"] = kernels - before
        else:
            found.append({"name": name, "hidden_kernels": 0})
    return found


results = {"command": "python benchmarks/md_gpu.py " + " ".join(Path(word).name for word in sys.argv[1:]),
           "jax": jax.__version__,
           "devices": "2 x 4 H100, compiled, not run",
           "model": f"eSEN, {arguments.layers} layers, {arguments.channels} channels, lmax 2, cutoff 5 Å, float32",
           "systems": []}  # fmt: skip
for count in arguments.atoms:
    for overlap in (True, False):
        report, sizes = program(count, overlap)
        found = exchanges(report.timeline)
        started = [one for one in found if one["hidden_kernels"]]
        row = {"atoms_per_gpu": count, "overlap": overlap, **sizes, "exchanges": len(found), "hidden": len(started),
               "kernels_hidden": [one["hidden_kernels"] for one in found],
               "memory_mib": {k: round(v) for k, v in report.memory_mib.items()}}  # fmt: skip
        results["systems"].append(row)
        print(json.dumps(row), flush=True)
        if overlap and count == arguments.atoms[0]:
            results["timeline"] = report.timeline
if arguments.save:
    Path(arguments.save).write_text(json.dumps(results, indent=1) + "\n")
