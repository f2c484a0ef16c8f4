"""The training run: draw, differentiate, update, validate, checkpoint, report.

    result = run(load("configs/train/water.yaml"))

Everything a run produces is below its folder: `config.yaml` (resolved), `metrics.jsonl`,
`tensorboard/`, `checkpoints/`, `model.janus` (averaged weights of the best validation),
`results.json`, `plots/`.
"""

import dataclasses
import json
import time
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import jax
import numpy as np

from janus_jax import bundle
from janus_jax.data.loader import stream
from janus_jax.errors import TrainingError
from janus_jax.models.potential import Potential
from janus_jax.train import config as configuration
from janus_jax.train import optimizer, plots
from janus_jax.train.checkpoint import Checkpoints
from janus_jax.train.config import TrainConfig
from janus_jax.train.evaluate import Evaluation, evaluate
from janus_jax.train.loss import LossConfig
from janus_jax.train.prepare import Prepared, prepare
from janus_jax.train.state import Trainer
from janus_jax.train.trackers import Console, JsonLines, TensorBoard
from janus_jax.units import MEV_PER_EV

MAX_SKIPPED = 20


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Where a run is, its best model, and its figures (also in `results.json`)."""

    folder: Path
    model: Potential
    figures: dict[str, Any]


def new_folder(wanted: str | Path) -> Path:
    """`wanted`, or the first of wanted-2, wanted-3, ... that does not exist; created."""
    folder, count = Path(wanted), 2
    while folder.exists():
        folder = Path(f"{wanted}-{count}")
        count += 1
    folder.mkdir(parents=True)
    return folder


def run(config: TrainConfig) -> RunResult:
    """Train, evaluate the best model on the test set, and write everything to a new folder.

    Raises:
        ConfigError, DataError, CapacityError: before the first step; nothing has been written then.
        TrainingError: too many steps in a row whose gradient was not finite.
    """
    start = time.perf_counter()
    prepared = prepare(config)
    folder = new_folder(config.output)
    (folder / "config.yaml").write_text(configuration.dump(config))
    console = Console(config.steps, every=50)
    trackers = [console, JsonLines(folder / "metrics.jsonl"), TensorBoard(folder / "tensorboard")]
    checkpoints = Checkpoints(folder / "checkpoints")
    console.note(
        f"{len(prepared.train)} training, {len(prepared.validation)} validation, {len(prepared.test)} test structures; "
        f"{bundle.parameter_count(prepared.model):,} parameters; batches of {prepared.capacity}; writing to {folder}"
    )
    try:
        best, trainer, history = _train(config, prepared, trackers, console, checkpoints)
    finally:
        for tracker in trackers:
            tracker.close()
        checkpoints.close()

    model = trainer.model(best)
    figures: dict[str, Any] = {"run": str(folder), "best_step": int(best.step)}
    parts = {"validation": prepared.validation, "test": prepared.test}
    evaluations = {name: evaluate(model, part, prepared.capacity) for name, part in parts.items() if part}
    figures |= {name: evaluation.metrics() for name, evaluation in evaluations.items()}
    figures["seconds"] = round(time.perf_counter() - start, 1)
    figures["compilations"] = trainer.compilations()
    bundle.save(folder / bundle.MODEL_FILE, model, figures)
    (folder / "results.json").write_text(json.dumps(figures, indent=1) + "\n")
    plots.learning_curves(history, folder / "plots" / "learning_curve.png")
    for name, evaluation in evaluations.items():
        plots.parity(evaluation, folder / "plots" / f"parity_{name}.png", title=name)
    return RunResult(folder, model, figures)


def _train(config: TrainConfig, prepared: Prepared, trackers, console, checkpoints):
    """The loop. Returns (state with the best averaged weights, trainer, logged numbers)."""
    method = optimizer.make(config.optimizer, config.steps)
    rate = jax.jit(optimizer.schedule(config.optimizer, config.steps))
    trainer = Trainer(prepared.model, method, config.loss, config.optimizer.ema_decay)
    state = trainer.init(prepared.model)
    dtype = np.dtype(config.precision)
    batches = stream(prepared.train, prepared.capacity, config.batch.micro_batches, config.seed, dtype)
    best, best_loss, history, skipped, compiled = state, np.inf, [], 0, 0
    last_log = time.perf_counter()

    def record(step: int, numbers: dict[str, float]) -> None:
        history.append({"step": step, **numbers})
        for tracker in trackers:
            tracker.log(step, numbers)

    for step in range(1, config.steps + 1):
        batch = next(batches)
        began = time.perf_counter()
        parts = [trainer.gradient(state, micro, batch.counts) for micro in batch.micro_batches]
        gradient = reduce(lambda a, b: jax.tree.map(add, a, b), [part[0] for part in parts])
        terms = reduce(add, [part[1] for part in parts])
        state, report = trainer.update(state, gradient)
        if trainer.compilations() > compiled:
            compiled = trainer.compilations()
            console.note(
                f"compiled gradient program {compiled} ({prepared.capacity}, {time.perf_counter() - began:.0f} s)"
            )
        skipped = 0 if bool(report.finite) else skipped + 1
        if skipped:
            console.note(f"step {step}: gradient not finite; step skipped")
        if skipped >= MAX_SKIPPED:
            raise TrainingError(
                f"{skipped} steps in a row had no finite gradient; lower optimizer.learning_rate, or inspect the data."
            )
        now = time.perf_counter()
        numbers = {
            "train_loss": float(terms.total),
            "train_energy_mae_meV_per_atom": MEV_PER_EV * float(terms.energy_per_atom),
            "train_force_norm_meV_per_angstrom": MEV_PER_EV * float(terms.force_norm),
            "gradient_norm": float(report.gradient_norm),
            "learning_rate": float(rate(step - 1)),
            "atoms_per_s": batch.atoms / (now - last_log),
        }
        last_log = now
        record(step, numbers)
        if step % config.validate_every == 0 or step == config.steps:
            evaluation = evaluate(trainer.model(state), prepared.validation, prepared.capacity)
            value = validation_loss(evaluation, config.loss)
            if value < best_loss:
                best, best_loss = jax.tree.map(np.asarray, state), value
            metrics = {f"validation_{k}": float(v) for k, v in evaluation.metrics().items() if v is not None}
            record(step, {**metrics, "validation_loss": value, "validation_best": float(value == best_loss)})
            about = {"position": dataclasses.asdict(batch.position), "config": config.model_dump(mode="json")}
            checkpoints.save(state, value, about)
            last_log = time.perf_counter()
    return best, trainer, history


def validation_loss(evaluation: Evaluation, weights: LossConfig) -> float:
    """The loss weights applied to the MAEs (eV, Å; force components); missing labels count nothing."""
    means = {name: np.abs(error).mean() / MEV_PER_EV for name, error in evaluation.errors().items() if len(error)}
    return float(sum(getattr(weights, name) * value for name, value in means.items()))
