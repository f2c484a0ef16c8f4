"""Cuts, peers, halo, search and balance of large systems on the host, beside the Tessera paper's numbers.

    python benchmarks/cuts.py [--part scale peers halo search balance] [--save FILE]

Atoms are uniform at 0.1 per cubic angstrom in a cubic periodic cell ("uniform"), or with a sphere of twice the
density in the middle ("core"). The paper measured on 64 to 512 GPUs; here one process does the work of all
ranks, so counts compare and times do not. Parts of `search` run in turn in one process.
"""

import argparse
import json
import os
import resource
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from partition import stats
from partition.cut import atoms, cut
from partition.exchange import SCHEMES, requests, traffic
from partition.offsets import offsets

CUTOFF, DENSITY = 5.5, 0.1
CUTS = ("grid", "hilbert", "morton")
# Tessera, sections 3.2 and 3.3: 25,000 atoms a GPU, largest number of source ranks, itself included
PAPER_PEERS = {"hilbert": {64: 6, 128: 11, 256: 14, 512: 19}, "morton": {64: 5, 512: 27}}
PAPER_CANDIDATES = {"hilbert rank-box, 512": 1.9e6, "spatial-bin": 0.5e6}


def uniform(count: int, rng) -> tuple[np.ndarray, np.ndarray]:
    length = (count / DENSITY) ** (1 / 3)
    return rng.random((count, 3)) * length, np.eye(3) * length


def core(count: int, rng, ratio: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """A sphere with a tenth of the volume and `ratio` times the density."""
    share = 0.1 * ratio / (0.9 + 0.1 * ratio)
    inside = round(share * count)
    length = (count / (DENSITY * (0.9 + 0.1 * ratio))) ** (1 / 3)
    radius = length * (0.1 * 3 / (4 * np.pi)) ** (1 / 3)
    outside = np.zeros((0, 3))
    while len(outside) < count - inside:
        more = rng.random((count, 3)) * length
        outside = np.concatenate([outside, more[np.linalg.norm(more - length / 2, axis=1) > radius]])
    direction = rng.normal(size=(inside, 3))
    direction *= radius * rng.random((inside, 1)) ** (1 / 3) / np.linalg.norm(direction, axis=1)[:, None]
    return np.concatenate([outside[: count - inside], direction + length / 2]), np.eye(3) * length


SYSTEMS = {"uniform": uniform, "core": core}


def scale() -> dict:
    """12.8 million atoms, 512 ranks: wrap, Hilbert codes, sort, cut, table of requests."""
    positions, cell = uniform(12_800_000, np.random.default_rng(0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    marks = [time.perf_counter()]
    system = atoms(positions, cell, np.ones(3, bool))
    marks.append(time.perf_counter())
    made = cut(system, 512, "hilbert", cutoff=CUTOFF)
    marks.append(time.perf_counter())
    table = requests(system, made, CUTOFF)
    marks.append(time.perf_counter())
    wrapping, cutting, asking = np.diff(marks)
    return {
        "atoms": len(system),
        "ranks": 512,
        "wrap_s": wrapping,
        "codes_sort_cut_s": cutting,
        "table_s": asking,
        "total_s": marks[-1] - marks[0],
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "positions_gib": positions.nbytes / 2**30,
        "peak_before_gib": before,
        "peers_max": int(table.pairs.sum(1).max()),
    }


def peers() -> dict:
    """Largest number of source ranks by boxes at 25,000 atoms a rank (uniform), and of all schemes at 6,000."""
    found = {"atoms_per_rank_25000_rank_box": {}, "atoms_per_rank_6000": {}}
    for ranks in (64, 128, 256, 512):
        system = atoms(*uniform(25_000 * ranks, np.random.default_rng(ranks)), np.ones(3, bool))
        row = {}
        for method in CUTS:
            made = cut(system, ranks, method, cutoff=CUTOFF)
            pairs = requests(system, made, CUTOFF).pairs
            row[method] = {"peers_max": int(pairs.sum(1).max()), "peers_mean": float(pairs.sum(1).mean())}
            row[method]["offsets"] = len(offsets(made.shape, pairs))
            row[method]["paper"] = PAPER_PEERS.get(method, {}).get(ranks)
        found["atoms_per_rank_25000_rank_box"][ranks] = row
    for name, make in SYSTEMS.items():
        for ranks in (64, 512):
            system = atoms(*make(6_000 * ranks, np.random.default_rng(ranks)), np.ones(3, bool))
            for method in CUTS:
                made = cut(system, ranks, method, cutoff=CUTOFF)
                for scheme in SCHEMES[1:]:
                    sent = traffic(requests(system, made, CUTOFF, scheme), scheme, stride=5)
                    found["atoms_per_rank_6000"][f"{name}, {ranks}, {method}, {scheme}"] = {
                        "peers_max": int(sent.peers.max()),
                        "candidates_per_atom_max": float(sent.candidates.max() / 6_000),
                        "candidates_per_atom_mean": float(sent.candidates.mean() / 6_000),
                        "offsets": len(offsets(made.shape, sent.atoms > 0)),
                        "metadata_bytes": sent.metadata_bytes,
                    }
    return found


def halo() -> dict:
    """True halo and candidates within the dilated box, per owned atom."""
    found = {}
    for name, make in SYSTEMS.items():
        for ranks, per_rank in ((64, 25_000), (128, 6_000)):
            system = atoms(*make(per_rank * ranks, np.random.default_rng(ranks)), np.ones(3, bool))
            for method in CUTS:
                made = cut(system, ranks, method, cutoff=CUTOFF)
                table = requests(system, made, CUTOFF)
                sampled = list(range(0, ranks, 4))
                counts = stats.count(table, CUTOFF, sampled)
                held = [len(table.candidates(rank)[0]) for rank in sampled]
                found[f"{name}, {ranks} ranks of {per_rank}, {method}"] = {
                    "halo_per_atom": float(counts.halo[sampled].mean() / per_rank),
                    "candidates_per_atom": float(np.mean(held) / per_rank),
                    "peers_max": int(table.pairs.sum(1).max()),
                    "local_edge_fraction": float(counts.local[sampled].sum() / counts.edges[sampled].sum()),
                    "formula_10": stats.local_fraction(
                        CUTOFF, per_rank, len(system) / float(np.linalg.det(system.cell))
                    ),
                    "offsets_beyond_one": beyond_one(made.shape, table.pairs),
                }
    return found


def beyond_one(shape, pairs) -> int:
    """Logical offsets with a step of more than one along some axis."""
    size = np.array(shape)
    away = np.array(offsets(shape, pairs)).reshape(-1, 3)
    return int((np.minimum(away, size - away).max(1, initial=0) > 1).sum())


def search() -> dict:
    """One rank of 25,000 atoms: vesin alone on the same points, our host search, our device search on CPU."""
    import jax
    import jax.numpy as jnp
    import vesin

    from partition import host_search
    from partition.search import search as device_search

    jax.config.update("jax_enable_x64", True)
    ranks, count = 8, 25_000
    system = atoms(*uniform(count * ranks, np.random.default_rng(0)), np.ones(3, bool))
    made = cut(system, ranks, "grid", cutoff=CUTOFF)
    ids, images = requests(system, made, CUTOFF).candidates(0)
    owned, others = system.positions[made.ids(0)], system.positions[ids]
    points = np.concatenate([owned, others + images @ system.cell])
    alone = {"box": np.zeros((3, 3)), "periodic": False, "quantities": "ijS"}
    single, cell = uniform(count, np.random.default_rng(1))
    whole = {"box": cell, "periodic": True, "quantities": "ijS"}

    def list_of(ordered):
        return vesin.NeighborList(cutoff=CUTOFF, full_list=True, sorted=ordered)

    turns = jnp.zeros((1, 3), jnp.int32)
    mask, near = jnp.ones(count, bool), jnp.ones(len(points) - count, bool)
    lengths = {"local": (count * 75,), "remote": (count * 30,)}

    @jax.jit
    def device(owned, others):
        shared = (turns, jnp.ones(1, bool), jnp.asarray(system.cell), jnp.array([CUTOFF]), CUTOFF + 1e-5)
        caps = (len(points) + 64, 120, 1600, 130)
        return device_search(owned, mask, others, near, *shared, capacity=caps, **lengths)

    arrays = (jnp.asarray(owned), jnp.asarray(points[count:]))
    programs = {
        "vesin, these points": lambda: list_of(False).compute(points=points, **alone),
        "vesin, these points, sorted": lambda: list_of(True).compute(points=points, **alone),
        "vesin, 25,000 atoms in a periodic cell": lambda: list_of(False).compute(points=single, **whole),
        "vesin, 25,000 atoms in a periodic cell, sorted": lambda: list_of(True).compute(points=single, **whole),
        "ours, host (sorted)": lambda: host_search.search(owned, others, images, system.cell, CUTOFF),
        "ours, device program on CPU (sorted)": lambda: jax.block_until_ready(device(*arrays)),
    }
    times = {name: [] for name in programs}
    for repeat in range(8):
        for name, program in programs.items():
            began = time.perf_counter()
            program()
            if repeat:
                times[name].append(time.perf_counter() - began)
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    ours = seconds["ours, host (sorted)"]
    edges = len(host_search.search(owned, others, images, system.cell, CUTOFF))
    needs = [int(found[1][4][0]) for found in device(*arrays)]
    return {
        "points": len(points),
        "edges": edges,
        "device_edges": sum(needs),
        "seconds": seconds,
        "host_over": {name: ours / value for name, value in seconds.items() if name.startswith("vesin")},
    }


def balance() -> dict:
    """A protein-like sphere (0.13 atoms per cubic angstrom, 1.4 times the edges per atom) in water at 0.1."""
    found = {}
    positions, cell = core(400_000, np.random.default_rng(0), 1.3)
    system = atoms(positions, cell, np.ones(3, bool))
    inside = np.linalg.norm(positions - cell.diagonal() / 2, axis=1) < cell[0, 0] * (0.1 * 3 / (4 * np.pi)) ** (1 / 3)
    counted = stats.edges_of_atoms(system, cut(system, 64, "grid", cutoff=CUTOFF), CUTOFF)
    weights = {"edges found": counted, "1.4 times inside": np.where(inside, 1.4, 1.0)}
    for name, cost in weights.items():
        for ranks in (8, 16, 32, 64):
            for method in ("grid", "hilbert"):
                row = {}
                for kind, given in (("equal counts", None), ("weighted", cost)):
                    made = cut(system, ranks, method, cutoff=CUTOFF, weights=given)
                    load = np.bincount(made.owner(), cost, minlength=ranks)
                    row[kind] = {
                        "edges_max_over_mean": float(load.max() / load.mean()),
                        "node_padding": float(1 - len(system) / (ranks * made.rows)),
                    }
                found[f"{name}, {ranks} ranks, {method}"] = row
    found["edges_inside_over_outside"] = float(counted[inside].mean() / counted[~inside].mean())
    return found


PARTS = {"scale": scale, "peers": peers, "halo": halo, "search": search, "balance": balance}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--save", help="JSON to write")
    options = parser.parse_args()
    record = {
        "command": "python benchmarks/cuts.py",
        "cores": len(os.sched_getaffinity(0)),
        "versions": {name: version(name) for name in ("janus-jax", "jax", "numpy", "vesin")},
        "cutoff_angstrom": CUTOFF,
        "paper_candidates": PAPER_CANDIDATES,
    }
    for name in options.part:
        began = time.perf_counter()
        record[name] = PARTS[name]() | {"took_s": time.perf_counter() - began}
        print(json.dumps({name: record[name]}, indent=1), flush=True)
    if options.save:
        Path(options.save).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
