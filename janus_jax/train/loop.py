"""The training loop: draw, differentiate, update, validate, checkpoint."""

import dataclasses
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from janus_jax import bundle, compilation, prediction
from janus_jax.data.loader import GlobalBatch, Position, stream
from janus_jax.errors import CheckpointError, ConfigError, TrainingError, listed
from janus_jax.models.potential import Potential
from janus_jax.prediction import Predictor
from janus_jax.runtime import multihost
from janus_jax.runtime import tune as tuning
from janus_jax.runtime.profile import Recorder
from janus_jax.runtime.trainer import PipelineTrainer
from janus_jax.schedule import Schedule, chrome_trace, simulate, svg
from janus_jax.schedule.tune import option
from janus_jax.train import optimizer
from janus_jax.train.checkpoint import Checkpoints
from janus_jax.train.config import TrainConfig
from janus_jax.train.console import Console
from janus_jax.train.evaluate import evaluate
from janus_jax.train.interruption import Interruption
from janus_jax.train.prepare import Prepared
from janus_jax.train.state import Trainer, TrainState
from janus_jax.train.trackers import JsonLines, Nowhere, Tracker
from janus_jax.units import MEV_PER_EV

log = logging.getLogger(__name__)

MAX_SKIPPED = 20
RECORDED = 3
"""Steps after the start, the timeline of which is written; the first compile."""
NAMED = 8


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a run must know, beside the state, to go on as if nothing had happened."""

    position: Position = Position()
    best_step: int = 0
    best_loss: float = float("inf")
    since_best: int = 0
    """Validations since the best one."""
    skipped: int = 0
    """Steps without a finite gradient, in a row."""
    seconds: float = 0.0
    """Spent before."""

    def to_json(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        return values | {"best_loss": self.best_loss if np.isfinite(self.best_loss) else None}

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Progress":
        best = values.get("best_loss")
        return Progress(
            **values | {"position": Position(**values["position"]), "best_loss": float("inf") if best is None else best}
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the loop ended: the model with the best averaged weights, and why it ended before its last step."""

    predictor: Predictor
    """With these weights, where they are."""
    model: Potential
    progress: Progress
    step: int
    stopped: str | None
    """SIGTERM, SIGINT or "time limit": to be resumed."""
    ended_early: str | None = None
    """There is nothing more to do."""


REASONS = (None, "time limit", "SIGTERM", "SIGINT")


def agreed(reason: str | None) -> str | None:
    """Why to stop, the same in all processes: the gravest reason that one of them has."""
    return REASONS[multihost.largest(REASONS.index(reason))]


def make_trainer(config: TrainConfig, model: Potential, schedule: Schedule | None = None) -> Trainer | PipelineTrainer:
    """What runs the steps: one device, or a grid of them.

    Args:
        schedule: of the pipeline; None: made from the configuration.

    Raises:
        MeshError, ScheduleError: model, batch, devices and schedule do not fit together.
    """
    common = model, config.optimizer, config.steps, config.loss
    if config.mesh.devices == 1:
        return Trainer(*common)
    return PipelineTrainer(*common, config.mesh, config.pipeline, config.batch.micro_batches, schedule=schedule)


def tuned(
    config: TrainConfig, prepared: Prepared, trainer: Trainer | PipelineTrainer
) -> tuple[PipelineTrainer, TrainConfig, dict[str, Any]]:
    """(trainer, configuration with the chosen cap or unit, figures) by measurement on the first global batch."""
    if isinstance(trainer, Trainer):
        raise ConfigError("--tune chooses a pipeline's schedule; set mesh.pipe above 1.")
    name, given = config.pipeline.schedule, config.pipeline.device_memory_gib
    batches = batches_of(config, prepared, trainer, Position())
    batch = next(batches)
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]
    state = trainer.init(prepared.model)
    budget = tuning.free_bytes(trainer, state) if given is None else given * 2**30
    trainer, figures = tuning.tune(trainer, state, batch.micro_batches, batch.counts, name, budget)
    chosen = option(name)
    pipeline = config.pipeline.model_copy(update={chosen: figures[chosen]})
    return trainer, config.model_copy(update={"pipeline": pipeline}), figures


def batches_of(
    config: TrainConfig, prepared: Prepared, trainer: Trainer | PipelineTrainer, position: Position
) -> Iterator[GlobalBatch]:
    """Global batches of the training set from a position on."""
    return stream(
        prepared.train,
        prepared.capacity,
        config.batch.micro_batches,
        config.seed,
        np.dtype(config.precision),
        position,
        config.data.workers,
        needs=trainer.needs,
        balance=config.batch.balance,
    )


class Loop:
    """One run in one folder; `run` does the work, and what it needs between steps is in `self`.

    A class only because a step, a validation and a checkpoint share a dozen things that do not change.
    """

    def __init__(
        self,
        config: TrainConfig,
        prepared: Prepared,
        folder: Path,
        checkpoints: Checkpoints,
        trainer: Trainer | PipelineTrainer,
    ):
        self.config, self.data, self.folder, self.checkpoints = config, prepared, folder, checkpoints
        self.rate = jax.jit(optimizer.schedule(config.optimizer, config.steps))
        self.trainer, self.primary = trainer, multihost.primary()
        self.fresh = self.trainer.init(prepared.model)
        self.labels = prepared.train.label_counts(range(len(prepared.train)))

    def restore(self) -> tuple[TrainState, Progress]:
        """State and progress of the newest readable checkpoint.

        Raises:
            CheckpointError: there is none, or the data are no longer those it was trained on.
        """
        state, about = self.checkpoints.restore(self.fresh)
        if about["data_hash"] not in (None, self.data.data_hash):
            raise CheckpointError(
                self.checkpoints.folder,
                "the data have changed since it was written, so the run cannot go on as it was; "
                "start a new run from its weights with start_from",
            )
        return state, Progress.from_json(about["progress"])

    def run(
        self, state: TrainState, progress: Progress, trackers: list[Tracker], console: Console, stop: Interruption
    ) -> Outcome:
        """Train from `state` on, to the last step or until something stops it.

        Raises:
            TrainingError: too many steps in a row whose gradient was not finite, or no finite validation loss.
        """
        config, began = self.config, time.perf_counter() - progress.seconds
        del self.fresh  # the state goes on from here; nothing else should hold its beginning
        best, first = self._best(state, progress), int(state.step)
        self.trackers, self.console = trackers, console
        self.events = JsonLines(self.folder / "events.jsonl", after=first) if self.primary else Nowhere()
        batches = batches_of(config, self.data, self.trainer, progress.position)
        self.recorded = min(first + RECORDED, config.steps) if config.pipeline.timeline else None
        reason = ended_early = None
        try:
            for step in range(first + 1, config.steps + 1):
                if config.patience is not None and progress.since_best >= config.patience:
                    ended_early = f"no better validation in {config.patience}"
                    break
                start = time.perf_counter()
                batch = next(batches)
                waited = time.perf_counter() - start
                state, finite = self._step(state, step, batch, start, waited)
                progress = dataclasses.replace(
                    progress, position=batch.position, skipped=0 if finite else progress.skipped + 1
                )
                if not finite:
                    self._note_skipped(step, batch, progress.skipped)
                due = step % config.validate_every == 0 or step == config.steps
                improved = False
                if due:
                    progress, improved = self._validate(state, step, progress)
                    best = state.ema if improved else best
                lost = progress.skipped >= MAX_SKIPPED
                reason = agreed(stop.reason())
                progress = dataclasses.replace(progress, seconds=time.perf_counter() - began)
                every = config.checkpoint.every_steps
                keep = config.checkpoint.keep_every_steps
                if due or lost or reason or any(n and step % n == 0 for n in (every, keep)):
                    self._save(state, progress, improved)
                if lost:
                    raise TrainingError(
                        f"{MAX_SKIPPED} steps in a row had no finite gradient; the last good state is in "
                        f"{self.checkpoints.folder}. Lower optimizer.learning_rate, or inspect the data."
                    )
                if reason:
                    break
        finally:
            batches.close()  # pyright: ignore[reportAttributeAccessIssue]
            self.events.close()
        if progress.best_step == 0 and first < config.steps and not reason:
            raise TrainingError("no validation loss was finite; lower optimizer.learning_rate, or inspect the data.")
        chosen = dataclasses.replace(state, ema=best)
        found = self.trainer.predictor(chosen), self.trainer.model(chosen)
        return Outcome(*found, progress, int(state.step), reason, ended_early)

    def _best(self, state: TrainState, progress: Progress):
        """Averaged weights of the best validation so far."""
        if progress.best_step in (0, int(state.step)):
            return state.ema
        try:
            return self.checkpoints.state(progress.best_step, state).ema
        except CheckpointError as error:
            if jax.process_count() > 1:
                raise
            log.warning("%s The best weights so far are lost; the present ones take their place.", error)
            return state.ema

    def _step(self, state: TrainState, step: int, batch: GlobalBatch, start: float, waited: float):
        """One update, logged. Returns (state, whether its gradient was finite)."""
        trainer, compiled, began = self.trainer, self.trainer.compilations(), time.perf_counter()
        record = Recorder(trainer.executor) if step == self.recorded and isinstance(trainer, PipelineTrainer) else None
        observed = {} if record is None else {"observe": record}
        state, terms, report = trainer.step(state, batch.micro_batches, batch.counts, **observed)
        if record is not None:
            self._timeline(step, record)
        finite = bool(report.finite)
        if trainer.compilations() > compiled:
            self._compiled(step, "gradient", time.perf_counter() - began)
        capacity, micro_batches = self.data.capacity, len(batch.micro_batches)
        numbers = {
            "train_loss": float(terms.total),
            "gradient_norm": float(report.gradient_norm),
            "learning_rate": float(self.rate(step - 1)),
            "structures": len(batch.members),
            "atoms_used": batch.atoms / (capacity.atoms * micro_batches),
            "edges_used": batch.edges / (capacity.edges * micro_batches),
            "data_wait_s": waited,
            "step_s": (seconds := time.perf_counter() - start),
            "atoms_per_s": batch.atoms / seconds,
        }
        # No labels, no figure: 0.0 would be taken for a perfect fit. NaN if only this batch has none: columns stay.
        if self.labels.energies > 0:
            numbers["train_energy_mae_meV_per_atom"] = MEV_PER_EV * float(terms.energy_per_atom)
        if self.labels.forces > 0:
            numbers["train_forces_mae_meV_per_angstrom"] = MEV_PER_EV * float(terms.forces)
        self._record(step, numbers)
        return state, finite

    def _timeline(self, step: int, record: Recorder) -> None:
        """Pictures of a step as it was, and as simulation from its phase times has it."""
        measured = record.timeline()
        if not self.primary:
            return
        folder = self.folder / "timeline"
        folder.mkdir(exist_ok=True)
        both = {"measured": measured, "simulated": simulate(measured.schedule, measured.times)}
        for name, timeline in both.items():
            (folder / f"{name}.svg").write_text(svg(timeline))
            (folder / f"{name}.trace.json").write_text(chrome_trace(timeline, 1e6))
        figures = {f"{name}_{what}": getattr(t, what) for name, t in both.items() for what in ("bubble", "makespan")}
        self.events.write({"step": step, "event": "timeline", **figures})
        parts = (f"{name} bubble {t.bubble:.1%}, {t.makespan:.3f} s" for name, t in both.items())
        self.console.note(f"step {step}: {'; '.join(parts)}; pictures in {folder}")

    def _compiled(self, step: int, what: str, seconds: float) -> None:
        capacity = self.data.capacity
        self.console.note(f"compiled {what} program ({capacity}, {seconds:.0f} s)")
        event = {"event": "compilation", "what": what, "reason": "first batch of this capacity", "seconds": seconds}
        self.events.write({"step": step, **event, **dataclasses.asdict(capacity)})

    def _note_skipped(self, step: int, batch: GlobalBatch, in_a_row: int) -> None:
        names = [self.data.train.name(index) for index in batch.members]
        skipped = f"step {step}: gradient not finite ({in_a_row} in a row); step skipped."
        self.console.note(f"{skipped} Its batch: {listed(names, NAMED)}")
        self.events.write({"step": step, "event": "skipped", "frames": names})

    def _validate(self, state: TrainState, step: int, progress: Progress) -> tuple[Progress, bool]:
        """Metrics of the averaged weights. Returns (progress, whether they are the best so far)."""
        began, compiled = time.perf_counter(), compilation.count(prediction.compiled)
        predictor = self.trainer.predictor(state)
        evaluation = evaluate(predictor, self.data.validation, self.data.capacity)
        if compilation.count(prediction.compiled) > compiled:
            self._compiled(step, "prediction", time.perf_counter() - began)
        value = evaluation.loss(self.config.loss)
        improved = value < progress.best_loss
        metrics = {f"validation_{k}": float(v) for k, v in evaluation.metrics().items() if v is not None}
        self._record(step, {**metrics, "validation_loss": value, "validation_best": float(improved)})
        if improved:
            summary, model = {"step": step, "validation_loss": value}, self.trainer.model(state)
            if self.primary:
                bundle.save(self.folder / bundle.MODEL_FILE, model, summary, self.data.data_hash)
            return dataclasses.replace(progress, best_step=step, best_loss=value, since_best=0), True
        return dataclasses.replace(progress, since_best=progress.since_best + 1), False

    def _save(self, state: TrainState, progress: Progress, improved: bool) -> None:
        about = {
            "progress": progress.to_json(),
            "config": self.config.model_dump(mode="json"),
            "data_hash": self.data.data_hash,
        }
        self.checkpoints.save(state, progress.best_loss if improved else None, about)

    def _record(self, step: int, numbers: dict[str, float]) -> None:
        for tracker in (self.console, *self.trackers):
            tracker.log(step, numbers)
