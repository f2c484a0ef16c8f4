"""Graphs with targets by number, made from a source when asked for.

    data = Dataset(source, summary, indices, cutoff, references)
    data[3], data.name(3), data.atoms, data.edges

Graphs are kept in memory once made, as long as they fit into `memory_bytes`; otherwise nothing but
the summary's numbers stays, so memory does not grow with the data.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from ase import Atoms
from numpy.typing import DTypeLike

from janus_jax.data.labels import LabelConfig, Labels, read_labels
from janus_jax.data.neighbors import from_atoms
from janus_jax.data.sources.base import Source
from janus_jax.data.summary import Summary, fixed_atoms
from janus_jax.errors import DataError, StructureError
from janus_jax.graph import AtomGraph, Capacity, LabelCounts, Targets

BYTES_PER_EDGE, BYTES_PER_ATOM, BYTES_PER_GRAPH = 21, 90, 3000


class Dataset(Sequence[AtomGraph]):
    """Some frames of a source as unpadded graphs; see the module docstring.

    Args:
        indices: frames of the source that belong to it.
        references: reference energies by atomic number, eV.
        dataset_indices: model's index of each of `summary.datasets`.
        weights: of each frame's labels in the loss, by frame of the source (1 if None).
        train_on_fixed_atoms: whether forces on atoms held by a constraint count as labels.
        memory_bytes: how much may be kept; 0: nothing.
    """

    def __init__(
        self,
        source: Source,
        summary: Summary,
        indices: np.ndarray,
        cutoff: float,
        references: Mapping[int, float],
        *,
        labels: LabelConfig = LabelConfig(),
        dataset_indices: Sequence[int] = (),
        weights: np.ndarray | None = None,
        train_on_fixed_atoms: bool = False,
        memory_bytes: int = 0,
    ):
        self.source, self.summary, self.indices = source, summary, np.asarray(indices, np.int64)
        self.cutoff, self.references, self.labels = cutoff, dict(references), labels
        self.dataset_indices, self.train_on_fixed_atoms = tuple(dataset_indices), train_on_fixed_atoms
        self.weights = np.ones(len(summary.records)) if weights is None else weights
        self._kept: dict[int, AtomGraph] = {}
        size = BYTES_PER_EDGE * self.edges.sum(dtype=np.int64) + BYTES_PER_ATOM * self.atoms.sum(dtype=np.int64)
        size += BYTES_PER_GRAPH * len(self.indices)
        self.in_memory = bool(size <= memory_bytes)

    def __getstate__(self):
        return {**self.__dict__, "_kept": {}, "in_memory": False}  # else each worker would have the whole budget

    @property
    def records(self) -> np.ndarray:
        """Rows of the summary (see `janus_jax.data.summary.RECORD`)."""
        return self.summary.records[self.indices]

    @property
    def atoms(self) -> np.ndarray:
        """Atoms of each structure."""
        return self.summary.records["atoms"][self.indices]

    @property
    def edges(self) -> np.ndarray:
        """Edges of each structure."""
        return self.summary.records["edges"][self.indices]

    def need(self, index: int) -> Capacity:
        """What one structure needs, without reading it."""
        row = self.summary.records[self.indices[index]]
        return Capacity(int(row["atoms"]), int(row["edges"]), 1)

    def label_counts(self, members: Sequence[int], dtype: DTypeLike = np.float32) -> LabelCounts:
        """`LabelCounts.of` these structures, without reading them."""
        numbers = self.indices[list(members)]
        counts = label_counts(self.summary.records[numbers], self.train_on_fixed_atoms)
        weight = self.weights[numbers]
        return LabelCounts(*(np.asarray((weight * count).sum(), dtype) for count in counts.values()))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def frame(self, index: int) -> Atoms:
        """The structure as ASE object."""
        return self.source[int(self.indices[index])]

    def config_type(self, index: int) -> str:
        """Configuration type, "" if the frame names none."""
        return self.summary.config_types[self.summary.records["config_type"][self.indices[index]]]

    def dataset_name(self, index: int) -> str:
        """Data set, "" if the frame names none."""
        return self.summary.datasets[self.summary.records["dataset"][self.indices[index]]]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[AtomGraph]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index) -> AtomGraph:
        """The graph with targets.

        Raises:
            DataError: the frame cannot be used; names file, frame and reason.
        """
        if index in self._kept:
            return self._kept[index]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        number = int(self.indices[index])
        frame = self.source[number]
        row = self.summary.records[number]
        try:
            dataset = self.dataset_indices[row["dataset"]] if self.dataset_indices else 0
            graph = labelled_graph(frame, self.cutoff, self.references, read_labels(frame, self.labels), dataset)
        except (StructureError, DataError) as error:
            raise DataError(f"{self.name(index)}: {error}.") from error
        assert graph.targets is not None
        targets = graph.targets.replace(weight=np.array([self.weights[number]]))
        held = fixed_atoms(frame)
        if len(held) and not self.train_on_fixed_atoms:
            mask = targets.forces_mask.copy()
            mask[held] = False
            targets = targets.replace(forces_mask=mask)
        graph = graph.replace(targets=targets)
        if self.in_memory:
            self._kept[index] = graph
        return graph


def label_counts(rows: np.ndarray, train_on_fixed_atoms: bool = False) -> dict[str, np.ndarray]:
    """Labels of each row of a summary by term of the loss: energies and stresses (0 or 1), atoms with forces."""
    held = 0 if train_on_fixed_atoms else rows["fixed"]
    return {
        "energy": np.isfinite(rows["energy"]).astype(int),
        "forces": np.maximum(rows["forces"] - held, 0),
        "stress": np.isfinite(rows["pressure"]).astype(int),
    }


def labelled_graph(
    frame: Atoms, cutoff: float, references: Mapping[int, float], labels: Labels, dataset: int = 0
) -> AtomGraph:
    """Graph of a frame with its targets; reference energies are subtracted here, in float64."""
    n, known = len(frame), labels.energy is not None
    offset = sum(references.get(int(number), 0.0) for number in frame.numbers) if known else 0.0
    targets = Targets(
        energy=np.array([(labels.energy or 0.0) - offset]),
        energy_mask=np.array([known]),
        forces=np.zeros((n, 3)) if labels.forces is None else labels.forces,
        forces_mask=np.full(n, labels.forces is not None),
        stress=np.zeros((1, 3, 3)) if labels.stress is None else labels.stress[None],
        stress_mask=np.array([labels.stress is not None]),
        weight=np.ones(1),
        stress_trace=np.ones(1, bool) if labels.trace_only else None,
    )
    return from_atoms(frame, cutoff, dataset).replace(targets=targets)
