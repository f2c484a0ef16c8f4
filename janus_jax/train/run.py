"""A training run and its folder.

    result = run(load("configs/train/water.yaml"))
    result = resume("runs/water")

Everything a run produces is below its folder: `config.yaml` (resolved), `metrics.jsonl`, `train.csv`,
`validation.csv`, `tensorboard/`, `events.jsonl` (compilations, skipped steps), `checkpoints/`,
`model.janus` (averaged weights of the best validation), `results.json`, `evaluation/` (predictions),
`plots/`, `report.html`.
"""

import dataclasses
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from janus_jax import bundle, configuration, schedule
from janus_jax.errors import ConfigError, MissingPackageError
from janus_jax.models.potential import Potential
from janus_jax.runtime import multihost
from janus_jax.runtime.trainer import PipelineTrainer
from janus_jax.train import parity, plots, report, worst
from janus_jax.train.checkpoint import Checkpoints, config_from_1
from janus_jax.train.config import TrainConfig
from janus_jax.train.console import Console
from janus_jax.train.evaluate import evaluate
from janus_jax.train.interruption import Interruption
from janus_jax.train.loop import Loop, Outcome, Progress, make_trainer, tuned
from janus_jax.train.prepare import Prepared, prepare
from janus_jax.train.state import Trainer
from janus_jax.train.trackers import Csv, JsonLines, TensorBoard, Tracker, WeightsAndBiases, read_rows

START_FILE = "start.janus"
"""Copy of the model that a run was started from."""
SCHEDULE_FILE = "schedule.txt"
"""Of the pipeline, as it runs."""
REMAKE = ("mesh", "pipeline.schedule", "pipeline.unit", "pipeline.cap", "pipeline=")
"""Changes for which a resumed run makes its schedule anew."""
MAY_CHANGE = (
    "steps", "validate_every", "patience", "checkpoint", "tracking", "data.workers", "data.memory_mib", "mesh",
    "pipeline",
)  # fmt: skip
"""What a resumed run may change."""


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Where a run is, its best model, and its figures (also in `results.json`)."""

    folder: Path
    model: Potential
    figures: dict[str, Any]

    @property
    def stopped(self) -> str | None:
        """Why the run stopped before its end and can be resumed: SIGTERM, SIGINT or "time limit"."""
        return self.figures.get("stopped")


def run(config: TrainConfig, *, tune: bool = False) -> RunResult:
    """Train, evaluate the best model on validation and test sets, and write everything to a new folder.

    Args:
        tune: choose the cap or unit of the pipeline's schedule first, by measurement.

    Raises:
        ConfigError, DataError, CapacityError: before the first step; nothing has been written then.
        TrainingError: too many steps in a row whose gradient was not finite.
    """
    began = time.monotonic()
    _check_packages(config)
    prepared = prepare(config)
    trainer = make_trainer(config, prepared.model)  # what does not fit together is said before anything is written
    found = None
    if tune:
        trainer, config, found = tuned(config, prepared, trainer)
    primary = multihost.primary()
    folder = Path(multihost.text_of_primary(str(new_folder(config.output)) if primary else ""))
    if config.start_from is not None:  # the run must not change if that file does
        if primary:
            shutil.copyfile(bundle.find(config.start_from), folder / START_FILE)
        config = config.model_copy(update={"start_from": str(folder / START_FILE), "model": prepared.model.config})
    if primary:
        (folder / "config.yaml").write_text(configuration.dump(config))
        _keep_schedule(folder, trainer)
        if found is not None:
            (folder / "tune.json").write_text(json.dumps(found, indent=1) + "\n")
    multihost.wait_for_all("the run folder")
    return _go(config, prepared, folder, began, trainer)


def resume(folder: str | Path, overrides: Sequence[str] = ()) -> RunResult:
    """Go on with the run in `folder` from its newest readable checkpoint, bit for bit.

    A run that was killed before its first checkpoint starts again.

    Raises:
        ConfigError: no run there, or an override that would make it another run.
        CheckpointError: checkpoints are there, but none can be read; or the data have changed.
    """
    path = Path(folder) / "config.yaml"
    if not path.exists():
        raise ConfigError(f"{folder}: no run to resume; it has no config.yaml.")
    began = time.monotonic()
    config = read_config(path, overrides)
    if (Path(folder) / START_FILE).exists():
        config = config.model_copy(update={"start_from": str(Path(folder) / START_FILE)})
    _check_packages(config)
    prepared = prepare(config)
    kept = Path(folder) / SCHEDULE_FILE
    same = kept.exists() and not any(text.startswith(REMAKE) for text in overrides)
    trainer = make_trainer(config, prepared.model, schedule.from_text(kept.read_text()) if same else None)
    multihost.wait_for_all("the run folder")
    if overrides and multihost.primary():
        if not same:
            _keep_schedule(Path(folder), trainer)
        partial = path.with_name("config.yaml.partial")
        partial.write_text(configuration.dump(config))
        partial.replace(path)
    return _go(config, prepared, Path(folder), began, trainer)


def _keep_schedule(folder: Path, trainer: Trainer | PipelineTrainer) -> None:
    """Orders of addition are part of a run that goes on bit for bit."""
    if isinstance(trainer, PipelineTrainer):
        (folder / SCHEDULE_FILE).write_text(schedule.to_text(trainer.schedule))


def _check_packages(config: TrainConfig) -> None:
    if config.tracking.wandb_project and importlib.util.find_spec("wandb") is None:
        raise MissingPackageError("wandb", extra="wandb", purpose="tracking.wandb_project")


def read_config(path: Path, overrides: Sequence[str]) -> TrainConfig:
    """The stored configuration with changes that leave it the same run."""
    for text in overrides:
        key = text.partition("=")[0]
        if not any(key == allowed or key.startswith(allowed + ".") for allowed in MAY_CHANGE):
            raise ConfigError(
                f"{key}: a resumed run can change only {', '.join(MAY_CHANGE)}. "
                "To train on with other settings, start a new run with start_from."
            )
    values = config_from_1(configuration.read(path))
    return configuration.validate(TrainConfig, configuration.override(values, overrides))


def new_folder(wanted: str | Path) -> Path:
    """`wanted`, or the first of wanted-2, wanted-3, ... that does not exist; created."""
    folder, count = Path(wanted), 2
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder = Path(f"{wanted}-{count}")
            count += 1


def _go(
    config: TrainConfig,
    prepared: Prepared,
    folder: Path,
    began: float,
    trainer: Trainer | PipelineTrainer,
) -> RunResult:
    with ExitStack() as closing:
        checkpoints = Checkpoints(folder / "checkpoints", config.checkpoint.keep_every_steps)
        closing.callback(checkpoints.close)
        loop = Loop(config, prepared, folder, checkpoints, trainer)
        start = [loop.restore() if checkpoints.steps() else (loop.fresh, Progress())]
        done = int(start[0][0].step)
        if done < config.steps and multihost.primary():
            (folder / "results.json").unlink(missing_ok=True)  # figures of an end that is no longer the end
        quiet = None if multihost.primary() else closing.enter_context(open(os.devnull, "w"))
        console = Console(config.steps, every=50, done=done, stream=quiet)
        closing.callback(console.close)
        _introduce(console, prepared, folder, done)
        trackers = _trackers(config, folder, done)
        for tracker in trackers:
            closing.callback(tracker.close)
        stop = closing.enter_context(Interruption(config.checkpoint.time_limit_minutes, began))
        outcome = loop.run(*start.pop(), trackers, console, stop)
    if outcome.stopped:
        figures = {"run": str(folder), "stopped": outcome.stopped, "step": outcome.step}
        console.note("stopped at step {step} ({stopped}); go on with: janus-jax train --resume {run}".format(**figures))
        return RunResult(folder, outcome.model, figures)
    return _finish(config, prepared, folder, outcome)


def _introduce(console: Console, prepared: Prepared, folder: Path, done: int) -> None:
    for note in prepared.notes:
        console.note(note)
    start = f"going on after step {done}" if done else "starting"
    console.note(
        f"{bundle.parameter_count(prepared.model):,} parameters; batches of {prepared.capacity}; {start}, in {folder}"
    )


def _trackers(config: TrainConfig, folder: Path, done: int) -> list[Tracker]:
    if not multihost.primary():
        return []
    chosen: list[Tracker] = [JsonLines(folder / "metrics.jsonl", done)]
    if config.tracking.csv:
        chosen.append(Csv(folder, done))
    if config.tracking.tensorboard:
        chosen.append(TensorBoard(folder / "tensorboard", done))
    if config.tracking.wandb_project:
        chosen.append(WeightsAndBiases(config.tracking.wandb_project, folder, config.model_dump(mode="json")))
    return chosen


def _finish(config: TrainConfig, prepared: Prepared, folder: Path, outcome: Outcome) -> RunResult:
    """Evaluate the best model, and write what a run leaves behind."""
    start = time.perf_counter()
    figures: dict[str, Any] = {"run": str(folder), "best_step": outcome.progress.best_step, "steps": outcome.step}
    if outcome.ended_early:
        figures["ended_early"] = outcome.ended_early
    parts = {"validation": prepared.validation, "test": prepared.test}
    for name, data in parts.items():
        if data is None or not len(data):
            continue
        evaluation = evaluate(outcome.predictor, data, prepared.capacity)
        figures[name] = evaluation.metrics()
        if not multihost.primary():
            continue
        evaluation.save(folder / "evaluation" / f"{name}.npz")
        figures[f"{name}_by_element"] = evaluation.by_element()
        for kind, group in (("config_type", data.config_type), ("dataset", data.dataset_name)):
            groups = [group(index) for index in range(len(data))]
            if len(set(groups)) > 1:
                figures[f"{name}_by_{kind}"] = evaluation.by_group(groups)
        worst.save(evaluation, data, folder / "evaluation" / f"worst_{name}.extxyz")
        if config.tracking.report:
            parity.write(evaluation, folder / "plots" / f"parity_{name}.png", title=name)
    figures["seconds"] = round(outcome.progress.seconds + time.perf_counter() - start, 1)
    if not multihost.primary():
        return RunResult(folder, outcome.model, figures)
    events = read_rows(folder / "events.jsonl")
    figures["compilations"] = sum(row["event"] == "compilation" and row["what"] == "gradient" for row in events)
    bundle.save(folder / bundle.MODEL_FILE, outcome.model, figures, prepared.data_hash)
    (folder / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    if config.tracking.report:
        plots.learning_curves(read_rows(folder / "metrics.jsonl"), folder / "plots" / "learning_curve.png")
        report.write(folder)
    return RunResult(folder, outcome.model, figures)
