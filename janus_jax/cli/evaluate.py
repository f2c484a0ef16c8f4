"""`janus-jax evaluate MODEL FILE`: errors, optionally predictions and parity plots."""

import argparse
from pathlib import Path
from typing import Any

from janus_jax.cli._tables import show_metrics


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax import bundle
    from janus_jax.cli._logging import to_stderr
    from janus_jax.data import batching, readers
    from janus_jax.prediction import check_elements
    from janus_jax.train import evaluate, plots

    to_stderr()
    model = bundle.load(arguments.model)
    frames = readers.read_frames(arguments.file)
    for frame in frames:
        check_elements(model, frame.numbers)
    graphs = readers.load_graphs(arguments.file, frames, model.cutoff, dict(model.references))
    needs = [batching.need(graph) for graph in graphs]
    budget = max(min(arguments.batch_atoms, sum(need.atoms for need in needs)), max(need.atoms for need in needs), 1)
    evaluation = evaluate.evaluate(model, graphs, batching.choose(needs, budget))
    if arguments.plot:
        plots.parity(evaluation, Path(arguments.plot), title=Path(arguments.file).name)
    if arguments.out:
        _write(arguments.out, frames, evaluation)
    return evaluation.metrics()


def _write(path: str, frames, evaluation) -> None:
    from ase.io import write
    from ase.stress import full_3x3_to_voigt_6_stress

    for index, frame in enumerate(frames):
        frame.info["janus_energy"] = float(evaluation.energy[index])
        if frame.cell.rank == 3:  # a molecule has no stress
            frame.info["janus_stress"] = full_3x3_to_voigt_6_stress(evaluation.stress[index])
        frame.arrays["janus_forces"] = evaluation.forces[index]
    write(path, frames, format="extxyz")


def show(figures: dict[str, Any]) -> None:
    show_metrics({f"{figures['structures']} structures": figures})
