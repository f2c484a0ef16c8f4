"""`janus-jax partition FILE --ranks K`: how a structure is cut among ranks, and what they would exchange."""

import argparse
import os
from pathlib import Path
from typing import Any

from janus_jax.cli._structure import read_structure
from janus_jax.errors import ConfigError, StructureError

SHOWN_ATOMS = 20_000


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ["JAX_PLATFORMS"] = "cpu"  # on the host; accelerators stay free
    from rich.console import Console
    from rich.progress import Progress

    from partition import stats
    from partition.cut import atoms, cut
    from partition.errors import PartitionError

    for name in ("cutoff", "channels"):
        if not getattr(arguments, name) > 0:
            raise ConfigError(f"--{name} {getattr(arguments, name)}: must be positive")
    structure = read_structure(arguments.file, arguments.frame)
    reach = arguments.cutoff + arguments.skin
    try:
        system = atoms(structure.positions, structure.cell.array, structure.pbc)
        made = cut(system, arguments.ranks, arguments.cut, cutoff=reach)
        console = Console(stderr=True)
        with Progress(console=console, transient=True) as bar:
            task = bar.add_task("neighbours of each rank", total=arguments.ranks)

            def summarize(made):
                return stats.summary(
                    system, made, arguments.cutoff, skin=arguments.skin, scheme=arguments.scheme,
                    numbers=arguments.channels, progress=lambda done: bar.update(task, completed=done),
                )  # fmt: skip

            figures, counts = summarize(made)
            if arguments.balance == "edges":
                weights = stats.edges_of_atoms(system, made, reach)
                made = cut(system, arguments.ranks, arguments.cut, cutoff=reach, weights=weights)
                figures, counts = summarize(made)
    except PartitionError as error:
        raise StructureError(f"{arguments.file}: {error}") from None
    plot = Path(arguments.plot or f"{Path(arguments.file).stem}.partition.png")
    draw(system, made, counts, plot)
    return {"file": arguments.file, **figures, "plot": str(plot)}


def draw(system, made, counts, path: Path) -> None:
    """Two slices through the shards, and the load of each rank."""
    import numpy as np

    from janus_jax import plotting

    figure, (first, second, load) = plotting.figure(3, 1, width=4.6, height=4.2)
    owner, positions = made.owner(), system.positions
    # slices across the axes that are cut least show most shards
    for axes, normal in zip(
        (first, second), np.argsort(made.shape if made.method == "grid" else (2, 1, 0))[:2], strict=True
    ):
        x, y = (axis for axis in range(3) if axis != normal)
        depth = np.abs(positions[:, normal] - np.median(positions[:, normal])) if len(system) else np.zeros(0)
        ids = np.argsort(depth, kind="stable")[: min(SHOWN_ATOMS, max(len(system) // 8, 500))]
        # ranks next to each other in the order get colours far apart
        axes.scatter(positions[ids, x], positions[ids, y], c=owner[ids] * 0.618034 % 1, cmap="hsv", s=3, linewidths=0)
        axes.set(xlabel=f"{'xyz'[x]}, Å", ylabel=f"{'xyz'[y]}, Å", aspect="equal")
        axes.set_title(f"atoms within {depth[ids].max(initial=0):.3g} Å of the middle in {'xyz'[normal]}", fontsize=9)
    figure.suptitle(f"{made.atoms} atoms, {made.ranks} ranks, {made.method} {'x'.join(str(k) for k in made.shape)}")
    ranks = np.arange(made.ranks)
    for name, values in (("edges", counts.edges), ("atoms", counts.atoms), ("halo", counts.halo)):
        mean = values.mean()
        load.plot(ranks, values / mean if mean else values, drawstyle="steps-mid", label=f"{name}, mean {mean:.4g}")
    load.set(xlabel="rank", ylabel="relative to the mean", ylim=(0, None))
    plotting.legend(load, "lower right", fontsize=7)
    plotting.save(figure, path)


ROWS = {
    "atoms of a rank": lambda f: "{} to {}".format(*f["atoms_per_rank"]),
    "peers, by boxes": lambda f: f"{f['peers_max']} at most, {f['peers_mean']:.1f} on average, itself included",
    "candidates per owned atom": lambda f: f"{f['candidates_per_atom']:.3f} ({f['scheme']})",
    "halo per owned atom": lambda f: f"{f['halo_per_atom']:.3f} ({f['halo_atoms_max']} atoms at most)",
    "halo of a layer": lambda f: f"{f['halo_bytes_per_layer_max'] / 2**20:.2f} MiB at most",
    "exchange": lambda f: f"{f['exchange']}, {f['slots']} slots",
    "box volume over share": lambda f: f"{f['box_inflation_mean']:.2f} ({f['box_inflation_max']:.2f} at most)",
    "edges": lambda f: f"{f['edges']}; most over mean {f['edge_imbalance']:.3f}",
    "edges within a rank": lambda f: f"{f['local_edge_fraction']:.3f} (cubes: {f['local_edge_fraction_of_cubes']:.3f})",
    "padding": lambda f: f"{100 * f['node_padding']:.1f} % of rows, {100 * f['halo_padding']:.0f} % of the halo",
    "capacity used": lambda f: (
        f"{100 * f['edge_capacity_use']:.0f} % of edges, {100 * f['halo_capacity_use']:.0f} % of the halo"
    ),
}


def show(figures: dict[str, Any]) -> None:
    from janus_jax.cli._tables import show as table

    shape = "x".join(str(k) for k in figures["shape"]) if figures["cut"] == "grid" else ""
    title = f"{figures['atoms']} atoms, {figures['ranks']} ranks, {figures['cut']} {shape}".rstrip()
    table(["", ""], [[name, text(figures)] for name, text in ROWS.items()], title=title)
    if figures["reason"]:
        print(f"Cut chosen by predicted bytes: {figures['reason']}.")
    print(f"Picture: {figures['plot']}")
