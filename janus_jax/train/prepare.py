"""From a configuration to what a run works on: data sets, reference energies, capacity, model."""

import dataclasses
import logging
from contextlib import nullcontext
from functools import partial

import jax
import numpy as np
from ase.data import chemical_symbols
from flax import nnx

from janus_jax import bundle, system
from janus_jax.data import references
from janus_jax.data.dataset import Dataset
from janus_jax.data.sources.base import digest
from janus_jax.data.summary import Summary
from janus_jax.errors import ConfigError, UnknownNameError
from janus_jax.graph import Capacity
from janus_jax.models import ModelConfig, build, convert
from janus_jax.models.potential import Potential
from janus_jax.prediction import check_elements, known_elements
from janus_jax.train import capacity, coverage, fine_tune, optimizer, splits
from janus_jax.train.config import TrainConfig
from janus_jax.train.splits import Part

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The data of a run, and the model to train on them."""

    train: Dataset
    validation: Dataset | None
    test: Dataset | None
    capacity: Capacity
    model: Potential
    data_hash: str
    """Of the content of all splits."""
    notes: tuple[str, ...]
    """What was found and used, one line each."""


def prepare(config: TrainConfig) -> Prepared:
    """Read data, split, fit reference energies and the energy scale, choose the capacity, build the model.

    Raises:
        DataError, CapacityError: with file and frame, or with need and capacity.
        UnknownElementError, StructureError: an element above `model.max_element`, a charge or spin out of range.
        ConfigError: precision float64 without JAX's 64-bit mode; nothing left to train on, or no label with a weight.
    """
    convert.check_precision(config.precision)
    pretrained = bundle.load(config.start_from) if config.start_from else None
    if pretrained is not None and config.model not in (ModelConfig(), pretrained.config):
        raise ConfigError("start_from brings its own architecture; remove the section model, or start_from.")
    cutoff = pretrained.cutoff if pretrained is not None else config.model.cutoff_angstrom
    notes: list[str] = []
    parts = splits.make(config.data, cutoff, config.seed, notes)
    _check_weights(config, parts)
    parts = _with_labels(config, parts)
    chosen = capacity.choose(config.batch, config.seed, parts, notes)
    _say_unseen(parts, pretrained)
    table = _references(config, parts, pretrained, notes)
    with jax.default_device(jax.local_devices(backend="cpu")[0]) if config.mesh.devices > 1 else nullcontext():
        model = _model(config, parts["train"], pretrained, table)  # no single device has to hold it
    optimizer.frozen(nnx.state(model, nnx.Param), config.optimizer.freeze)  # names are checked before anything is made
    datasets = {name: _dataset(config, part, model, table) for name, part in parts.items()}
    for data in datasets.values():
        _check(data, model)
    for split, part in parts.items() if not system.reads(model) else ():
        names = partial(_name, part)
        if text := system.unseen_of_many(part.records["charge"], part.records["spin"], names):
            log.warning("data.%s: %s", split, text)
    data_hash = digest(*(digest(p.summary.fingerprint, p.indices.tobytes().hex()) for p in parts.values()))
    return Prepared(
        datasets["train"], datasets.get("validation"), datasets.get("test"), chosen, model, data_hash, tuple(notes)
    )


def _with_labels(config: TrainConfig, parts: dict[str, Part]) -> dict[str, Part]:
    """The splits without training structures that have nothing to teach; warnings say what labels and weights miss."""
    data = config.data
    covered = {
        name: coverage.Coverage.of(part, _weights(config, part), data.train_on_fixed_atoms)
        for name, part in parts.items()
    }
    train = parts["train"]
    idle = coverage.without_label(config.loss, train, covered["train"])
    for text in (*coverage.check(config.loss, parts, covered), *([idle] if idle else [])):
        log.warning("%s.", text)
    return parts | {"train": dataclasses.replace(train, indices=train.indices[covered["train"].useful(config.loss)])}


def _say_unseen(parts: dict[str, Part], pretrained: Potential | None) -> None:
    """Warn of elements that a model to start from never saw, and of those that only other splits have."""

    def elements(part: Part) -> set[int]:
        return set(part.summary.elements(part.indices).tolist())

    known = elements(parts["train"]) if pretrained is None else set(known_elements(pretrained))
    for name, part in parts.items():
        for number in sorted(elements(part) - known):
            kinds = np.array([number in kind for kind in part.summary.compositions])
            having = np.flatnonzero(kinds[part.records["composition"]])
            why = (
                "which the model in start_from never saw: its parameters for it are random numbers still"
                if name == "train"
                else "which no structure that is trained on has: errors there say nothing about the training"
            )
            log.warning(
                "data.%s: %d of %d structures have %s, %s. The first is %s",
                name, len(having), len(part.indices), chemical_symbols[number], why,
                part.source.name(int(part.indices[having[0]])),
            )  # fmt: skip
        known |= elements(part) if name == "train" else set()


def _references(config: TrainConfig, parts: dict[str, Part], pretrained: Potential | None, notes: list[str]):
    train, wanted = parts["train"], config.data.references
    elements = set(train.summary.elements(train.indices).tolist())
    if isinstance(wanted, dict):
        fit, how = references.Fit(references.given(wanted)), "given"
    elif wanted == "isolated_atoms":
        fit, how = references.Fit(references.isolated_energies(train.summary)), "isolated atoms in the data"
    elif (
        pretrained is not None
        and wanted == "auto"
        and not elements <= references.isolated_energies(train.summary).keys()
    ):
        sample = _dataset(config, train, pretrained, {})
        fit = fine_tune.moved_references(pretrained, sample, config.batch.atoms)
        how = "the model's, moved to the new labels"
    elif wanted == "auto":
        fit, how = references.automatic(train.summary, train.indices)
    else:
        fit, how = references.least_squares(train.summary, train.indices), "least squares"
    references.warn(fit, train.source.name)
    labelled = {name: part.indices[np.isfinite(part.records["energy"])] for name, part in parts.items()}
    every = {n for part in parts.values() for n in part.summary.elements(part.indices).tolist()}
    table = dict.fromkeys(sorted(every), 0.0) | fit.table  # where there is no energy, no reference is needed
    if not len(labelled["train"]):
        notes.append(f"reference energies ({how}) are of no use: no training structure has an energy")
        return table
    for name, part in parts.items():
        references.require(fit.table, part.summary.elements(labelled[name]).tolist(), f"data.{name}")
    worst = max(references.check(table, part.summary, part.indices, part.source.name) for part in parts.values())
    shown = ", ".join(f"{chemical_symbols[number]} {energy:.4f}" for number, energy in sorted(table.items()))
    notes.append(f"reference energies ({how}), eV: {shown}; largest |E - sum E0| {worst:.3f} eV/atom")
    return table


def _model(config: TrainConfig, train: Part, pretrained: Potential | None, table: dict[int, float]) -> Potential:
    used = tuple(sorted(table.items()))
    if pretrained is not None:
        pretrained.references = used
        return convert.cast(pretrained, config.precision)
    rows = train.records
    labels = 3 * rows["forces"].sum(dtype=np.int64)
    # Root mean square of the force components: the natural size of an energy change over 1 Å.
    scale = float(np.sqrt(rows["force_square"].sum() / labels)) if labels else 0.0
    return convert.cast(
        build(config.model, rngs=nnx.Rngs(config.seed), scale=scale or 1.0, references=used), config.precision
    )


def _dataset(config: TrainConfig, part: Part, model: Potential, table: dict[int, float]) -> Dataset:
    data, summary = config.data, part.summary
    to_model = dataset_indices(model, summary, part.indices, data.dataset)
    return Dataset(
        part.source,
        summary,
        part.indices,
        model.cutoff,
        table,
        labels=data.labels,
        dataset_indices=to_model,
        weights=_weights(config, part),
        train_on_fixed_atoms=data.train_on_fixed_atoms,
        memory_bytes=data.memory_mib << 20,
    )


def _weights(config: TrainConfig, part: Part) -> np.ndarray:
    """Weight of the labels of each frame of a split's source, by configuration type and data set."""
    summary = part.summary
    names = [name or config.data.dataset for name in summary.datasets]
    kinds = {"config_type": summary.config_types, "dataset": names}
    weights = np.ones(len(summary.records))
    for field, chosen in (
        ("config_type", config.loss.config_type_weights),
        ("dataset", config.loss.dataset_weights),
    ):
        weights *= np.array([chosen.get(name, 1.0) for name in kinds[field]] or [1.0])[summary.records[field]]
    return weights


def dataset_indices(model: Potential, summary: Summary, chosen: np.ndarray, default: str) -> list[int]:
    """Model's index of each of `summary.datasets`, those that name none being `default`.

    Raises:
        UnknownNameError: a chosen frame is of a data set that the model does not tell apart.
    """
    names, known = [name or default for name in summary.datasets], model.config.datasets
    if known:
        for name in {names[k] for k in np.unique(summary.records["dataset"][chosen])} - set(known):
            raise UnknownNameError("data set of a frame (info 'dataset', or data.dataset)", name, known)
    return [known.index(name) if name in known else 0 for name in names]


def _check_weights(config: TrainConfig, parts: dict[str, Part]) -> None:
    """A weight for a name that no frame has is a spelling mistake."""
    for key, field in (("config_type_weights", "config_types"), ("dataset_weights", "datasets")):
        there = {name for part in parts.values() for name in getattr(part.summary, field)} | {config.data.dataset}
        for name in getattr(config.loss, key):
            if name not in there:
                raise UnknownNameError(f"name in loss.{key}", name, there)


def _name(part: Part, place: int) -> str:
    return part.source.name(int(part.indices[place]))


def _check(data: Dataset, model: Potential) -> None:
    check_elements(model, data.summary.elements(data.indices))
    rows = data.records
    to_model = np.array(data.dataset_indices or [0])
    system.check(model, rows["charge"], rows["spin"], to_model[rows["dataset"]])
