"""Errors of a potential on labelled structures, in all and by element and configuration type."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import batched
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from janus_jax.data.batching import fill, pad
from janus_jax.graph import AtomGraph, Capacity
from janus_jax.models.potential import Potential
from janus_jax.prediction import Predictor, reference_energies
from janus_jax.train.loss import LossConfig, penalty
from janus_jax.units import MEV_PER_EV, QUANTITIES


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Predictions and labels of all structures, in order; labels are NaN where missing.

    Energies are totals, eV [structures]; forces eV/Å [atoms, 3], all structures one after the other;
    stress eV/Å^3 [structures, 3, 3], a label off the diagonal NaN where only the trace is known.
    """

    atoms: np.ndarray
    """Atoms of each structure."""
    numbers: np.ndarray
    """Atomic number of each atom."""
    weight: np.ndarray
    """Of each structure in the loss."""
    energy: np.ndarray
    energy_label: np.ndarray
    forces: np.ndarray
    forces_label: np.ndarray
    stress: np.ndarray
    stress_label: np.ndarray

    def differences(self) -> dict[str, np.ndarray]:
        """Prediction minus label by row, NaN where there is no label: energy per atom, forces, stress; eV, Å.

        Where only the trace of a stress is known, all nine components are a third of the trace's difference.
        """
        stress = self.stress - self.stress_label
        third = np.trace(stress, axis1=1, axis2=2)[:, None, None] / 3
        return {
            "energy": (self.energy - self.energy_label) / np.maximum(self.atoms, 1),
            "forces": self.forces - self.forces_label,
            "stress": np.where(np.isnan(self.stress_label[:, :1, 1:2]), third, stress),
        }

    def known(self) -> dict[str, np.ndarray]:
        """Which rows have a label. Only labels may be missing: a prediction that is not finite has to show."""
        return {
            "energy": np.isfinite(self.energy_label),
            "forces": np.isfinite(self.forces_label).all(1),
            "stress": np.isfinite(self.stress_label[:, 0, 0]),
        }

    def structure_of_atom(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.atoms)), self.atoms)

    def metrics(self, structures: np.ndarray | None = None) -> dict[str, float | int | None]:
        """MAE and RMSE by name with the unit in it, and counts of labels; None where no label is known.

        Args:
            structures: mask of those to look at; None: all.
        """
        chosen = np.ones(len(self.atoms), bool) if structures is None else structures
        rows = {"energy": chosen, "forces": chosen[self.structure_of_atom()], "stress": chosen}
        result: dict[str, float | int | None] = {
            "structures": int(chosen.sum()),
            "atoms": int(self.atoms[chosen].sum()),
        }
        known = self.known()
        for name, difference in self.differences().items():
            error = MEV_PER_EV * difference[known[name] & rows[name]].ravel()
            result[f"{name}_mae_{QUANTITIES[name][0]}"] = float(np.abs(error).mean()) if len(error) else None
            result[f"{name}_rmse_{QUANTITIES[name][0]}"] = float(np.sqrt((error**2).mean())) if len(error) else None
            result[f"{name}_labels"] = len(error)
        return result

    def by_element(self) -> dict[str, dict[str, float | int]]:
        """MAE and RMSE of force components, meV/Å, and number of atoms with labels, by symbol."""
        difference, known = self.differences()["forces"], self.known()["forces"]
        result = {}
        for number in np.unique(self.numbers[known]):
            error = MEV_PER_EV * difference[known & (self.numbers == number)]
            result[chemical_symbols[number]] = {
                "forces_mae_meV_per_angstrom": float(np.abs(error).mean()),
                "forces_rmse_meV_per_angstrom": float(np.sqrt((error**2).mean())),
                "atoms": len(error),
            }
        return result

    def by_group(self, names: Sequence[str]) -> dict[str, dict[str, float | int | None]]:
        """`metrics` of the structures of each name, which is a configuration type or data set."""
        array = np.array(names)
        return {name: self.metrics(array == name) for name in sorted(set(names))}

    def loss(self, config: LossConfig) -> float:
        """The training loss over all structures; terms without labels count nothing, NaN if there are none at all."""
        weights = {"energy": self.weight, "forces": np.repeat(self.weight, self.atoms), "stress": self.weight}
        terms, known = [], self.known()
        for name, difference in self.differences().items():
            weight = weights[name][known[name]]
            if weight.sum() > 0:
                errors = penalty(difference[known[name]], getattr(config, f"{name}_error"), config.huber_delta)
                term = float((weight * np.asarray(errors)).sum() / weight.sum())
                terms.append(getattr(config, name) * term)
        return sum(terms) if terms else float("nan")

    def force_errors(self) -> np.ndarray:
        """Root mean square force error of each structure, eV/Å; NaN without labels."""
        square = np.where(self.known()["forces"], (self.differences()["forces"] ** 2).mean(1), 0)
        counts = np.bincount(self.structure_of_atom(), self.known()["forces"], len(self.atoms))
        sums = np.bincount(self.structure_of_atom(), square, len(self.atoms))
        return np.sqrt(np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0))

    def save(self, path: Path) -> None:
        """Everything, as `.npz`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        np.savez_compressed(path, **arrays)

    @staticmethod
    def load(path: Path) -> "Evaluation":
        """What `save` wrote."""
        with np.load(path, allow_pickle=False) as archive:
            return Evaluation(**{name: archive[name] for name in archive.files})


def evaluate(model: Potential | Predictor, graphs: Iterable[AtomGraph], capacity: Capacity) -> Evaluation:
    """Predict all graphs, in batches of `capacity`, and collect predictions and labels.

    Args:
        model: or what predicts with it, where its parameters are elsewhere.

    Raises:
        CapacityError: a structure does not fit.
        UnknownElementError: the model does not know an element.
    """
    columns: dict[str, list[Any]] = {field.name: [] for field in dataclasses.fields(Evaluation)}
    predict = model if isinstance(model, Predictor) else Predictor(model)
    for rows in _rows(predict, graphs, capacity):
        for name, value in rows.items():
            columns[name].append(value)
    per_atom = {"numbers": (0,), "forces": (0, 3), "forces_label": (0, 3)}
    arrays = {
        name: np.concatenate(values or [np.zeros(per_atom[name])]) if name in per_atom else np.array(values)
        for name, values in columns.items()
    }
    arrays["atoms"], arrays["numbers"] = arrays["atoms"].astype(int), arrays["numbers"].astype(int)
    for name in ("stress", "stress_label"):
        arrays[name] = arrays[name].reshape(-1, 3, 3)
    return Evaluation(**arrays)


def _rows(predict: Predictor, graphs: Iterable[AtomGraph], capacity: Capacity) -> Iterator[dict[str, Any]]:
    for groups in batched(fill(graphs, capacity), predict.width):
        results = predict.many([pad(group, capacity, np.dtype(predict.model.dtype)) for group in groups])
        for group, result in zip(groups, results, strict=True):
            atom = 0
            for index, graph in enumerate(group):
                rows = slice(atom, atom := atom + len(graph.numbers))
                yield {
                    "atoms": len(graph.numbers),
                    "numbers": np.asarray(graph.numbers),
                    "energy": result.energy[index],
                    "forces": result.forces[rows],
                    "stress": result.stress[index],
                    **_labels(predict.model, graph),
                }


def _labels(model: Potential, graph: AtomGraph) -> dict[str, Any]:
    targets = graph.targets
    if targets is None:
        return {
            "weight": 1.0,
            "energy_label": np.nan,
            "forces_label": np.full((len(graph.numbers), 3), np.nan),
            "stress_label": np.full((3, 3), np.nan),
        }
    trace_only = targets.stress_trace is not None and targets.stress_trace[0]
    known = np.eye(3, dtype=bool) if trace_only else np.ones((3, 3), bool)
    energy = targets.energy[0] + reference_energies(model, graph)[0]
    return {
        "weight": float(targets.weight[0]),
        "energy_label": np.where(targets.energy_mask[0], energy, np.nan),
        "forces_label": np.where(targets.forces_mask[:, None], targets.forces, np.nan),
        "stress_label": np.where(targets.stress_mask[0] & known, targets.stress[0], np.nan),
    }
