"""One pass over a source: what every frame holds, as numbers. No structure is kept.

Training needs it for capacities, reference energies and splits; `janus-jax data inspect` prints it.
The pass costs one neighbour list a frame, runs in several processes if asked, and is cached under the
hash of the content, the cutoff and the label settings (about 140 bytes a frame).
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from typing import Any

import numpy as np
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian
from ase.data import covalent_radii

from janus_jax.configuration import Section
from janus_jax.data import cache, comparison
from janus_jax.data.labels import LabelConfig, Labels, has_volume, read_labels
from janus_jax.data.neighbors import from_atoms
from janus_jax.data.sources.base import Source, digest
from janus_jax.errors import DataError, StructureError
from janus_jax.graph import AtomGraph

VERSION = 2
CHUNK = 128

RECORD = np.dtype(
    [
        ("atoms", "i4"),
        ("edges", "i4"),
        ("energy", "f8"),  # eV, NaN: no label
        ("forces", "i4"),  # atoms with a force label
        ("force_square", "f8"),  # sum of squares of the components, (eV/Å)^2
        ("force_max", "f8"),  # longest, eV/Å
        ("pressure", "f8"),  # -trace(stress)/3, eV/Å^3, NaN: no label
        ("stress_max", "f4"),  # largest component, eV/Å^3
        ("net_force", "f4"),  # length of the sum of all forces, eV/Å; 0 if atoms are held
        ("virial", "f4"),  # pressure times volume by the forces, eV, NaN: cannot be known
        ("before", "i4"),  # an earlier frame of the same atoms close to this one, -1: none
        ("force_work", "f4"),  # done from there to here, eV
        ("stress_work", "f4"),
        ("work_scale", "f4"),  # root of the sum of squares of the parts of both, eV
        ("volume", "f8"),  # Å^3, NaN: no full cell
        ("contact", "f4"),  # shortest distance / sum of covalent radii, inf: no neighbour
        ("fixed", "i4"),  # atoms held by a constraint
        ("charge", "i4"),
        ("spin", "i4"),
        ("composition", "i4"),  # index into Summary.compositions
        ("config_type", "i4"),  # index into Summary.config_types
        ("dataset", "i4"),  # index into Summary.datasets
        ("structure", "u8"),  # hash of elements, positions, cell, charge and spin
        ("group", "u8"),  # hash of info[split_key], else of the structure
        ("usable", "?"),
    ]
)


class FrameKeys(Section):
    """Names in `info` of what a frame is, beside its labels."""

    config_type: str = "config_type"
    """Configuration type: weights and metrics go by it."""
    dataset: str = "dataset"
    """Data set (task) of a frame, by name."""
    split: str | None = None
    """Frames that share this value (a trajectory, a molecule) stay in one split; null: split by structure."""


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a source holds; index k of `records` is frame k."""

    records: np.ndarray
    compositions: list[dict[int, int]]
    """Atoms by atomic number."""
    config_types: list[str]
    datasets: list[str]
    names: dict[str, int]
    """Frames by "label=name", with " (unused)" for a name that was there and not used."""
    problems: dict[int, str]
    """Frames that cannot be used, and why."""
    fingerprint: str

    def elements(self, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Atomic numbers in the chosen frames, ascending."""
        rows = self.records[chosen]
        used = np.unique(rows["composition"][rows["usable"]])
        return np.unique([number for k in used for number in self.compositions[k]]).astype(int)


def summarize(
    source: Source,
    cutoff: float,
    labels: LabelConfig = LabelConfig(),
    keys: FrameKeys = FrameKeys(),
    workers: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Summary:
    """The summary of a source, from the cache if it has been made before.

    Args:
        cutoff: Å, for the edge counts.
        workers: processes; 0: this one.
        progress: called with (frames done, frames in all).
    """
    fingerprint = source.fingerprint()
    versions = " ".join(f"{name} {version(name)}" for name in ("janus-jax", "ase", "vesin"))
    settings = f"{VERSION} {versions} {cutoff!r} {labels.model_dump_json()} {keys.model_dump_json()}"
    name = f"summary-{digest(fingerprint, settings)}.npz"
    if (stored := cache.load(name)) is not None:
        return _from_arrays(stored)
    ranges = [range(k, min(k + CHUNK, len(source))) for k in range(0, len(source), CHUNK)]
    parts, done = [], 0
    for part in _map(workers, (source, cutoff, labels, keys), ranges):
        parts.append(part)
        done += len(part.records)
        progress(done, len(source))
    summary = dataclasses.replace(_merge(parts), fingerprint=fingerprint)
    cache.save(name, _to_arrays(summary))
    return summary


def _map(workers: int, arguments: Any, ranges: list[range]) -> Iterator[Summary]:
    if workers < 1 or len(ranges) < 2:
        _set_arguments(arguments)
        yield from map(_part_in_worker, ranges)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _set_arguments, (arguments,)) as pool:
        yield from pool.map(_part_in_worker, ranges)


_arguments: Any = None
"""Source, cutoff, label settings and frame keys of the pass at hand: set once a process, not sent with every chunk."""


def _set_arguments(arguments: tuple) -> None:
    global _arguments
    _arguments = arguments


def _part_in_worker(frames: range) -> Summary:
    source, cutoff, labels, keys = _arguments
    return _part(source, cutoff, labels, keys, frames)


def _part(source: Source, cutoff: float, labels: LabelConfig, keys: FrameKeys, frames: range) -> Summary:
    records = np.zeros(len(frames), RECORD)
    tables: tuple[dict, dict, dict] = ({}, {}, {})
    names: Counter[str] = Counter()
    problems: dict[int, str] = {}
    seen: dict[int, comparison.Seen] = {}
    for row, index in zip(records, frames, strict=True):
        for field in ("energy", "pressure", "volume", "virial"):
            row[field] = np.nan
        row["before"] = -1
        try:
            frame = source[index]
            graph = _describe(row, frame, cutoff, keys, tables)
            found = read_labels(frame, labels)
            _describe_labels(row, found, names)
            _compare(row, comparison.Seen(index, frame, found), graph, seen)
            row["usable"] = True
        except (DataError, StructureError) as error:
            problems[index] = str(error).removeprefix(source.name(index)).lstrip(":, ").rstrip(".")
    compositions = [dict(key) for key in tables[0]]
    return Summary(records, compositions, list(tables[1]), list(tables[2]), dict(names), problems, "")


def _describe(row: np.void, frame: Atoms, cutoff: float, keys: FrameKeys, tables: tuple[dict, dict, dict]) -> AtomGraph:
    numbers, counts = np.unique(frame.numbers, return_counts=True)
    composition = tuple(zip(numbers.tolist(), counts.tolist(), strict=True))
    kinds = (composition, str(frame.info.get(keys.config_type, "")), str(frame.info.get(keys.dataset, "")))
    for field, table, kind in zip(("composition", "config_type", "dataset"), tables, kinds, strict=True):
        row[field] = table.setdefault(kind, len(table))
    row["atoms"] = len(frame)
    row["volume"] = frame.cell.volume if has_volume(frame) else np.nan
    row["fixed"] = len(fixed_atoms(frame))
    state = f"{frame.info.get('charge', 0)} {frame.info.get('spin', 0)}".encode()
    rounded = [np.round(x, 6) + 0.0 for x in (frame.positions, frame.cell.array)]  # + 0.0: no negative zeros
    content = [state, frame.numbers.tobytes(), *(x.tobytes() for x in rounded)]
    row["structure"] = row["group"] = int(digest(*(part.hex() for part in content))[:16], 16)
    if keys.split is not None:
        if keys.split not in frame.info:
            raise DataError(f"it has no {keys.split!r} in its info, which data.keys.split asks for")
        row["group"] = int(digest(str(frame.info[keys.split]))[:16], 16)
    graph = from_atoms(frame, cutoff)
    row["charge"], row["spin"] = int(graph.charge[0]), int(graph.spin[0])
    row["edges"], row["contact"] = len(graph.src), np.inf
    if len(graph.src):
        vectors = graph.positions[graph.src] - graph.positions[graph.dst] + graph.image @ frame.cell.array
        radii = covalent_radii[graph.numbers]
        row["contact"] = (np.linalg.norm(vectors, axis=1) / (radii[graph.src] + radii[graph.dst])).min()
    return graph


def _describe_labels(row: np.void, found: Labels, names: Counter[str]) -> None:
    names.update(f"{label}={name}" for label, name in found.names.items())
    names.update(f"{label}={name} (unused)" for label, others in found.unused.items() for name in others)
    if found.energy is not None:
        row["energy"] = found.energy
    if found.forces is not None:
        row["forces"], row["force_square"] = len(found.forces), (found.forces**2).sum()
        row["force_max"] = np.linalg.norm(found.forces, axis=1).max(initial=0)
    if found.stress is not None:
        row["pressure"] = -np.trace(found.stress) / 3
        row["stress_max"] = np.abs(found.stress).max()


def _compare(row: np.void, this: comparison.Seen, graph: AtomGraph, seen: dict[int, comparison.Seen]) -> None:
    """Labels against each other, and against the last frame of the same composition in this chunk."""
    if this.labels.forces is not None and not row["fixed"]:
        row["net_force"] = np.linalg.norm(this.labels.forces.sum(0))
    row["virial"] = comparison.virial(graph, this.labels)
    before, seen[int(row["composition"])] = seen.get(int(row["composition"])), this
    if before is not None and (done := comparison.work(before, this.frame, this.labels)) is not None:
        row["before"], row["force_work"], row["stress_work"] = before.index, done.forces, done.stress
        row["work_scale"] = done.scale


def fixed_atoms(frame: Atoms) -> np.ndarray:
    """Indices of atoms that a constraint holds in all directions."""
    held = [
        np.atleast_1d(constraint.index)
        for constraint in frame.constraints
        if isinstance(constraint, FixAtoms) or (isinstance(constraint, FixCartesian) and np.all(constraint.mask))
    ]
    return np.unique(np.concatenate(held)).astype(int) if held else np.zeros(0, int)


def _merge(parts: list[Summary]) -> Summary:
    """One summary of consecutive ones; indices into their tables become indices into the joint ones."""
    tables: list[dict] = [{}, {}, {}]
    for part in parts:
        kinds = ([tuple(c.items()) for c in part.compositions], part.config_types, part.datasets)
        for field, table, values in zip(("composition", "config_type", "dataset"), tables, kinds, strict=True):
            to = np.array([table.setdefault(value, len(table)) for value in values], np.int32)
            if len(to):
                part.records[field] = to[part.records[field]]
    names = sum((Counter(part.names) for part in parts), Counter())
    problems = {index: text for part in parts for index, text in part.problems.items()}
    compositions = [dict(key) for key in tables[0]]
    records = np.concatenate([part.records for part in parts])
    return Summary(records, compositions, list(tables[1]), list(tables[2]), dict(names), problems, "")


def _to_arrays(summary: Summary) -> dict[str, np.ndarray]:
    rest = {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}
    records = rest.pop("records")
    rest["compositions"] = [list(c.items()) for c in summary.compositions]
    return {"records": records, "rest": np.array(json.dumps(rest))}


def _from_arrays(arrays: dict[str, np.ndarray]) -> Summary:
    rest = json.loads(str(arrays["rest"]))
    rest["compositions"] = [{int(n): int(c) for n, c in pairs} for pairs in rest["compositions"]]
    rest["problems"] = {int(index): text for index, text in rest["problems"].items()}
    return Summary(records=arrays["records"], **rest)
