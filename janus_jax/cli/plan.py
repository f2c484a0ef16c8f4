"""`janus-jax plan CONFIG`: what a training run will need, before any device is used."""

import argparse
import os
from pathlib import Path
from typing import Any

GIB = 2**30
PARTS = ("parameters", "averages", "gradients", "optimizer", "activations")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    os.environ["JAX_PLATFORMS"] = "cpu"  # shapes only: accelerators stay free
    from janus_jax import schedule
    from janus_jax.cli.schedule import numbers
    from janus_jax.cli.train import configure, use_precision
    from janus_jax.errors import ScheduleError
    from janus_jax.progress import Steps
    from janus_jax.runtime.plan import plan
    from janus_jax.schedule import PhaseTimes

    config = configure(arguments.arguments)
    use_precision(config.precision)
    if arguments.times and arguments.model:
        raise ScheduleError("give --times or --model, not both")
    if arguments.split and not arguments.times:
        raise ScheduleError("--split gives parts of --times; give both")
    times = None
    if arguments.times:
        times = PhaseTimes(numbers(arguments.times), numbers(arguments.split))
    elif arguments.model:
        times = schedule.paper(arguments.model)
    with Steps("stage", config.mesh.pipe) as shown:
        found = plan(config, arguments.neighbors, times, shown)
    figures = found.figures
    if arguments.model:  # the paper's ratios have no unit
        figures = {key: value for key, value in figures.items() if key not in ("step_s", "atoms_per_s")}
    if arguments.plot:
        draw(found, Path(arguments.plot))
        figures["plot"] = arguments.plot
    return figures


def draw(found, path: Path) -> None:
    """Memory of each device, and the schedule in time."""
    from janus_jax import plotting
    from janus_jax.schedule.instructions import COMPUTE
    from janus_jax.schedule.render import COLORS

    figure, (memory, time) = plotting.figure(1, 2, width=11.0, height=3.2)
    rows = found.figures["device_rows"]
    ranks, low = range(len(rows)), [0.0] * len(rows)
    for part in PARTS:
        values = [row[part] / GIB for row in rows]
        memory.bar(ranks, values, bottom=low, label=part)
        low = [a + b for a, b in zip(low, values, strict=True)]
    memory.set(xlabel="pipeline rank", ylabel="GiB on a device", xticks=list(ranks))
    plotting.legend(memory, fontsize=7, ncols=len(PARTS))
    timeline = found.timeline
    used = set()
    for device, instructions in enumerate(timeline.schedule.devices):
        for k, (op, _, _) in enumerate(instructions):
            if op in COMPUTE:
                start, end = timeline.start[device][k], timeline.end[device][k]
                style = {"color": COLORS[op], "edgecolor": "white", "linewidth": 0.3}
                time.barh(device, end - start, left=start, label=None if op in used else op, **style)
                used.add(op)
    title = f"{timeline.schedule.name}: bubble {100 * timeline.bubble:.1f} %"
    time.set(xlabel="time", ylabel="pipeline rank", yticks=list(ranks), title=title)
    time.invert_yaxis()
    plotting.legend(time, fontsize=7, ncols=8)
    plotting.save(figure, path)


def show(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    mesh, capacity = figures["mesh"], figures["capacity"]
    console = Console(highlight=False)
    console.print(
        f"{figures['parameters']:,} parameters in {mesh['pipe']} stages of {figures['blocks']} blocks; "
        f"{figures['devices']} devices (pipe {mesh['pipe']} x data {mesh['data']} x graph {mesh['graph']})"
    )
    console.print(
        f"micro-batches of {capacity['atoms']} atoms and {capacity['edges']:,} edges "
        f"({figures['edges_per_atom']:.0f} an atom; --neighbors sets it)"
    )
    table = Table("rank", *PARTS, "sum", "work", title="GiB on each device")
    work = sum(row["flop"] for row in figures["device_rows"])
    for rank, row in enumerate(figures["device_rows"]):
        cells = [f"{row[part] / GIB:.3f}" for part in PARTS]
        table.add_row(str(rank), *cells, f"{row['bytes'] / GIB:.2f}", f"{100 * row['flop'] / work:.1f} %")
    console.print(table)
    moved = figures["transferred_bytes"] / GIB
    console.print(
        f"schedule {figures['schedule']}: bubble {100 * figures['bubble']:.1f} % "
        f"(simulated; {figures['shares']}); "
        f"{figures['transfers']} transfers a step on each data rank, {moved:.2f} GiB in all; "
        f"{figures['flop_per_step'] / 1e12:.2f} TFLOP a step"
    )
    for shares, bubble in figures.get("bubble_with_other_shares", {}).items():
        console.print(f"bubble if {shares}: {100 * bubble:.1f} %")
    if "step_s" in figures:
        console.print(f"{figures['step_s']:.3f} s a step, {figures['atoms_per_s']:,.0f} atoms/s with these times")
    else:
        console.print("no throughput without times: --times FE=26,FF=38,BF=82,BE=44 gives those of a stage, in ms")
    if "plot" in figures:
        console.print(f"picture: {figures['plot']}")
