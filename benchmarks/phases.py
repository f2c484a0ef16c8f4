"""Time and memory of phases beside one program for all, and beside programs that pass jax.vjp objects.

    python benchmarks/phases.py [--channels 64] [--layers 2] [--atoms 66] [--json FILE]

A middle stage of eSEN in float32 on a box of random "water". Times are the least of runs taken in turn in this
process; bytes are those of unique buffers held between FF and BF, without parameters, graph and positions.
"""

import argparse
import json
import os
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx

from janus_jax.data.batching import pad
from janus_jax.data.neighbors import from_atoms
from janus_jax.graph import Capacity
from janus_jax.models import esen
from janus_jax.phases import Memory, Phases
from janus_jax.phases.tracing import all_results
from janus_jax.stages import Place, cut_model

MEMORIES = {
    "keep everything": Memory(repeat_intensity=0.0),
    "keep": Memory(),
    "keep, repeat products over 16": Memory(repeat_intensity=32.0),
    "rebuild_forces": Memory(mode="rebuild_forces"),
    "rebuild": Memory(mode="rebuild"),
}
MIB = 2**20


def box(molecules: int) -> Atoms:
    """Atoms of water at its density, at random."""
    side = (molecules * 29.9) ** (1 / 3)
    scaled = np.random.default_rng(0).random((3 * molecules, 3))
    return Atoms("OH2" * molecules, scaled * side, cell=[side] * 3, pbc=True)


def problem(channels: int, layers: int, atoms: int):
    """(function, params, h, place, constants, (ct, ghb, gxb, lam)) of a middle stage."""
    config = esen.EsenConfig(channels=channels, hidden_channels=channels, edge_channels=channels, num_layers=layers + 2)
    part = cut_model(esen.Esen(config, rngs=nnx.Rngs(0)), [1, layers, 1])[1]
    graph = from_atoms(box(atoms // 3), config.cutoff_angstrom)
    graph = jax.tree.map(jnp.asarray, pad([graph], Capacity(*(n + 1 for n in (len(graph.numbers), len(graph.src), 1)))))
    print(f"eSEN, {layers} layers of {channels} channels, {len(graph.numbers)} atoms, {len(graph.src)} edges")
    rng = np.random.default_rng(1)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    features = (len(graph.numbers), (config.lmax + 1) ** 2, channels)
    place = jax.tree.map(jnp.asarray, Place.of(graph))
    late = normal(*features), normal(*features), jax.tree.map(lambda a: normal(*a.shape), place), normal(*features)
    return part.function, part.params, normal(*features), place, (graph, part.fixed), late


def vjp_objects(function, params, h, x, constants, late):
    """The four phases as programs that hand each other what jax.vjp returns; (run, bytes held between FF and BF)."""
    ct, ghb, gxb, lam = late

    def energy_pass(params, h, x):
        return jax.vjp(lambda h, x: function(params, h, x, constants), h, x)

    fe = jax.jit(lambda params, h, x: jax.vjp(energy_pass, params, h, x))
    ff = jax.jit(lambda pullback, ct: jax.vjp(lambda pullback, ct: pullback(ct), pullback, ct))
    bf = jax.jit(lambda vjp, bars: vjp(bars))
    be = jax.jit(lambda vjp, bars: vjp(bars))

    def forward():
        (out, pullback), energy_vjp = fe(params, h, x)
        forces, force_vjp = ff(pullback, ct)
        return out, forces, energy_vjp, force_vjp

    def run():
        out, forces, energy_vjp, force_vjp = forward()
        pullback_bar, ctb = bf(force_vjp, (ghb, gxb))
        return out, forces, ctb, be(energy_vjp, (lam, pullback_bar))

    given = {a.unsafe_buffer_pointer() for a in jax.tree.leaves((params, x, constants))}
    *_, energy_vjp, force_vjp = forward()
    held = {
        a.unsafe_buffer_pointer(): a.nbytes for a in jax.tree.leaves((energy_vjp, force_vjp)) if hasattr(a, "nbytes")
    }
    return run, sum(size for pointer, size in held.items() if pointer not in given)


def one_program(function, params, h, x, constants, late):
    """The same results from one program."""
    compiled = jax.jit(lambda params, h, x, *late: all_results(function)(params, h, x, constants, *late))
    return lambda: compiled(params, h, x, *late)


def phased(cut, params, h, x, constants, late, clock):
    """All phases one after the other; time of each is added to `clock`."""
    ct, ghb, gxb, lam = late
    arrives = {"FE": (h, x, constants), "FF": ct, "BFt": (ghb, gxb), "BEh": lam}
    gradient, held = jax.block_until_ready(jax.tree.map(jnp.zeros_like, params)), {}
    for step in cut:
        start = time.perf_counter()
        _, held, gradient = jax.block_until_ready(step(params, held, arrives.get(step.name, ()), gradient))
        clock.setdefault(step.name, []).append(time.perf_counter() - start)


def seconds(run) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def measure(args) -> dict:
    function, params, h, x, constants, late = given = problem(args.channels, args.layers, args.atoms)
    whole = one_program(*given)
    objects, object_bytes = vjp_objects(*given)
    cuts = {name: Phases(function, memory).at(params, h, x, constants) for name, memory in MEMORIES.items()}
    rest = (params, h, x, constants, late)
    clocks: dict[str, dict[str, list[float]]] = {name: {} for name in cuts}
    times: dict[str, list[float]] = {"one program": [], "vjp objects": []}
    for repeat in range(args.repeats + 1):
        single = seconds(whole), seconds(objects)
        for name, cut in cuts.items():
            phased(cut, *rest, clocks[name])
        if repeat:
            times["one program"].append(single[0])
            times["vjp objects"].append(single[1])
    for clock in clocks.values():
        for name in clock:
            clock[name] = clock[name][1:]
    one = min(times["one program"])
    print(
        f"one program {1e3 * one:.1f} ms; vjp objects {min(times['vjp objects']) / one:.2f} of that, "
        f"hold {object_bytes / MIB:.1f} MiB"
    )
    rows = {}
    for name, cut in cuts.items():
        total = sum(min(ts) for ts in clocks[name].values())
        between = cut.held_bytes(cut["FF"].program)
        rows[name] = {
            "time_to_one_program": total / one,
            "bytes_to_vjp_objects": between / object_bytes,
            "held_mib": between / MIB,
            "phase_ms": {phase: 1e3 * min(ts) for phase, ts in clocks[name].items()},
        }
        print(
            f"\n{name}: time {total / one:.2f} of one program, holds {between / MIB:.1f} MiB = "
            f"{between / object_bytes:.2f} of vjp objects"
        )
        print("  " + "  ".join(f"{phase} {ms:.1f} ms" for phase, ms in rows[name]["phase_ms"].items()))
        print(cut.table())
    return {
        "jax": jax.__version__, "python": platform.python_version(), "cores": os.cpu_count(),
        "device": jax.devices()[0].device_kind, "settings": {k: v for k, v in vars(args).items() if k != "json"},
        "one_program_ms": 1e3 * one, "vjp_objects_mib": object_bytes / MIB, "phases": rows,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--atoms", type=int, default=66)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    figures = measure(args)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
