"""The splits of a run: which frames of which source train, validate and test."""

import dataclasses
import logging
import time

import numpy as np

from janus_jax.data import plausibility, references, split
from janus_jax.data.sources import Source, open_source
from janus_jax.data.summary import Summary, summarize
from janus_jax.errors import ConfigError, DataError, listed
from janus_jax.train.config import DataConfig

log = logging.getLogger(__name__)

SHOWN = 10


@dataclasses.dataclass(frozen=True)
class Part:
    """A split: frames of a source."""

    source: Source
    summary: Summary
    indices: np.ndarray

    @property
    def records(self) -> np.ndarray:
        return self.summary.records[self.indices]


def make(data: DataConfig, cutoff: float, seed: int, notes: list[str]) -> dict[str, Part]:
    """Splits by name: train, validation, and test if there is one. What was found goes to `notes`.

    Isolated atoms are in none of them: they are reference energies.

    Raises:
        DataError: a file or frame cannot be used, or a label asked for is nowhere.
        ConfigError: nothing is left to train or validate on.
    """
    return _split(data, _read(data, cutoff, notes), seed, notes)


def _read(data: DataConfig, cutoff: float, notes: list[str]) -> dict[str, tuple[Source, Summary]]:
    """Source and summary of each split that has one of its own."""
    read: dict[str, tuple[Source, Summary]] = {}
    for name in ("train", "validation", "test"):
        spec = getattr(data, name)
        if spec is None or isinstance(spec, float):
            continue
        source = open_source(spec)
        summary = summarize(source, cutoff, data.labels, data.keys, data.workers, _Progress(name))
        if summary.problems:
            report_problems(f"data.{name}", source, summary, stop=data.bad_frames == "error")
        for one in plausibility.findings(source, summary):
            (log.warning if one.grave else log.info)("data.%s: %s.", name, one.sentence(source))
        found = ", ".join(f"{label} ({count})" for label, count in sorted(summary.names.items()))
        notes.append(f"{name}: {len(source)} frames; labels found (frames): {found or 'none'}")
        for label in ("energy", "forces", "stress"):
            given = getattr(data.labels, label)
            if given is not None and f"{label}={given}" not in summary.names:
                there = sorted(key.split("=")[1] for key in summary.names if key.startswith(label)) or ["none"]
                raise DataError(f"data.labels.{label}: no frame of {spec} has {given!r}; found: {', '.join(there)}.")
        read[name] = source, summary
    return read


def report_problems(name: str, source: Source, summary: Summary, stop: bool) -> None:
    """Raise DataError, or warn, with the frames of a source that cannot be used and why."""
    lines = [f"{source.name(index)}: {text}" for index, text in sorted(summary.problems.items())]
    named = listed(lines, SHOWN)
    if stop:
        raise DataError(
            f"{len(lines)} of {len(source)} frames of {name} cannot be used: {named}. "
            "Mend them, or set bad_frames=skip (in training: data.bad_frames=skip) to leave them out."
        )
    log.warning("%d of %d frames of %s are left out: %s", len(lines), len(source), name, named)


def _split(data: DataConfig, read: dict[str, tuple[Source, Summary]], seed: int, notes: list[str]) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    for name, (source, summary) in read.items():
        parts[name] = Part(source, summary, np.flatnonzero(summary.records["usable"] & ~references.isolated(summary)))
    held = {name: spec for name in ("validation", "test") if isinstance(spec := getattr(data, name), float)}
    if held:
        fractions = [*held.values(), 1 - sum(held.values())]
        if fractions[-1] <= 0:
            raise ConfigError(f"data.validation and data.test hold out {sum(held.values()):g} of the training set.")
        whole = parts["train"]
        assigned = split.assign(whole.records["group"], fractions, seed)
        for k, name in enumerate([*held, "train"]):
            parts[name] = dataclasses.replace(whole, indices=whole.indices[assigned == k])
        for name, fraction in held.items():
            found = split.deviation(fraction, len(parts[name].indices), whole.records["group"])
            if found:
                log.log(logging.WARNING if found.grave else logging.INFO, "data.%s: %s", name, found.text)
    for name in ("train", "validation"):
        if not len(parts[name].indices):
            raise ConfigError(f"data.{name}: no structure is left in it; it needs at least one.")
    for name, part in parts.items():
        rows = part.records
        counts = {"energy": np.isfinite(rows["energy"]), "forces": rows["forces"] > 0}
        counts["stress"] = np.isfinite(rows["pressure"])
        missing = [f"{(~known).sum()} without {label}" for label, known in counts.items() if not known.all()]
        notes.append(f"{name}: {len(rows)} structures used, {', '.join(missing) or 'all with all labels'}")
    return {name: parts[name] for name in ("train", "validation", "test") if name in parts}


class _Progress:
    """Says every ten seconds how far reading is."""

    def __init__(self, name: str):
        self.name, self.last = name, time.perf_counter()

    def __call__(self, done: int, total: int) -> None:
        if time.perf_counter() - self.last > 10:
            self.last = time.perf_counter()
            log.info("reading data.%s: %d of %d frames", self.name, done, total)
