"""`janus-jax evaluate MODEL FILE`: errors, optionally predictions and parity plots."""

import argparse
import logging
from pathlib import Path
from typing import Any

from janus_jax.cli._tables import show_metrics

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from janus_jax import bundle, system
    from janus_jax.cli._logging import to_stderr
    from janus_jax.cli.data import settings, summarized
    from janus_jax.cli.train import use_precision
    from janus_jax.data import batching, references
    from janus_jax.data.convert import check_new
    from janus_jax.data.dataset import Dataset, label_counts
    from janus_jax.data.sources import open_source
    from janus_jax.errors import DataError
    from janus_jax.prediction import check_elements
    from janus_jax.train import evaluate, parity
    from janus_jax.train.prepare import dataset_indices
    from janus_jax.train.splits import report_problems

    to_stderr()
    if arguments.out:
        check_new(arguments.out)
    use_precision(bundle.describe(arguments.model)["precision"])
    model, source, config = bundle.load(arguments.model), open_source(arguments.file), settings(arguments.overrides)
    summary = summarized(source, model.cutoff, config, config.workers)
    if summary.problems:
        report_problems(arguments.file, source, summary, stop=config.bad_frames == "error")
    chosen, table = np.flatnonzero(summary.records["usable"]), dict(model.references)
    if not len(chosen):
        raise DataError(f"{arguments.file}: no frame can be used.")
    check_elements(model, summary.elements())
    charge, spin = (summary.records[name][chosen] for name in ("charge", "spin"))
    unseen = None if system.reads(model) else system.unseen_of_many(charge, spin, lambda k: source.name(int(chosen[k])))
    if unseen:
        log.warning("%s", unseen)
    if table:
        references.check(table, summary, chosen, source.name)
    data = Dataset(
        source,
        summary,
        chosen,
        model.cutoff,
        table,
        labels=config.labels,
        dataset_indices=dataset_indices(model, summary, chosen, config.dataset),
        train_on_fixed_atoms=config.train_on_fixed_atoms,
    )
    if not any(count.any() for count in label_counts(data.records, config.train_on_fixed_atoms).values()):
        log.warning("%s: no frame has a label, so there are no errors to show.", arguments.file)
    budget = max(arguments.batch_atoms, int(data.atoms.max()), 1)
    evaluation = evaluate.evaluate(model, data, batching.choose(data.atoms, data.edges, budget))
    if arguments.plot:
        parity.write(evaluation, Path(arguments.plot), title=Path(arguments.file).name)
    if arguments.out:
        _write(arguments.out, data, evaluation)
    groups = [data.config_type(index) for index in range(len(data))]
    by_type = {"by_config_type": evaluation.by_group(groups)} if len(set(groups)) > 1 else {}
    return {**evaluation.metrics(), "labels": summary.names, "by_element": evaluation.by_element(), **by_type}


def _write(path: str, data, evaluation) -> None:
    import numpy as np
    from ase.stress import full_3x3_to_voigt_6_stress

    from janus_jax.data.convert import write_frames

    starts = np.concatenate([[0], np.cumsum(evaluation.atoms)])

    def frames():
        for index in range(len(data)):
            frame = data.frame(index)
            frame.info["janus_energy"] = float(evaluation.energy[index])
            if frame.cell.rank == 3:  # a molecule has no stress
                frame.info["janus_stress"] = full_3x3_to_voigt_6_stress(evaluation.stress[index])
            frame.arrays["janus_forces"] = evaluation.forces[starts[index] : starts[index + 1]]
            yield frame

    write_frames(path, frames())


def show(figures: dict[str, Any]) -> None:
    show_metrics({f"{figures['structures']} structures": figures})
    if "by_config_type" in figures:
        show_metrics({name or "(none)": metrics for name, metrics in figures["by_config_type"].items()})
