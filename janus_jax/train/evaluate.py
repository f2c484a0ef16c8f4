"""Errors of a potential on labelled structures."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from janus_jax.data.batching import fill, pad
from janus_jax.graph import AtomGraph, Capacity
from janus_jax.models.potential import Potential
from janus_jax.prediction import Predictor, reference_energies
from janus_jax.units import MEV_PER_EV


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Predictions and labels of every structure, in order; labels are NaN where missing.

    Energies are totals, eV [structures]; forces eV/Å, one array [atoms, 3] a structure; stress
    eV/Å^3 [structures, 3, 3].
    """

    atoms: np.ndarray
    energy: np.ndarray
    energy_label: np.ndarray
    forces: list[np.ndarray]
    forces_label: list[np.ndarray]
    stress: np.ndarray
    stress_label: np.ndarray

    def errors(self) -> dict[str, np.ndarray]:
        """Flat errors of all known labels: energy per atom (meV), forces (meV/Å), stress (meV/Å^3)."""
        none = [np.zeros((0, 3))]
        pairs = {
            "energy": (self.energy / np.maximum(self.atoms, 1), self.energy_label / np.maximum(self.atoms, 1)),
            "forces": (np.concatenate(self.forces or none), np.concatenate(self.forces_label or none)),
            "stress": (self.stress, self.stress_label),
        }
        # Only labels may be missing: a prediction that is not finite has to show.
        return {name: MEV_PER_EV * (p - t)[np.isfinite(t)] for name, (p, t) in pairs.items()}

    def metrics(self) -> dict[str, float | int | None]:
        """MAE and RMSE by name with the unit in it, and counts of labels; None where no label is known."""
        result: dict[str, float | int | None] = {"structures": len(self.atoms), "atoms": int(self.atoms.sum())}
        units = {"energy": "meV_per_atom", "forces": "meV_per_angstrom", "stress": "meV_per_angstrom3"}
        for name, error in self.errors().items():
            known = len(error) > 0
            result[f"{name}_mae_{units[name]}"] = float(np.abs(error).mean()) if known else None
            result[f"{name}_rmse_{units[name]}"] = float(np.sqrt((error**2).mean())) if known else None
            result[f"{name}_labels"] = len(error)
        return result


def evaluate(model: Potential, graphs: Sequence[AtomGraph], capacity: Capacity) -> Evaluation:
    """Predict all graphs, in batches of `capacity`, and collect predictions and labels.

    Raises:
        CapacityError: a structure does not fit.
        UnknownElementError: the model does not know an element.
    """
    columns: dict[str, Any] = {field.name: [] for field in dataclasses.fields(Evaluation)}
    predict = Predictor(model)
    for group in fill(graphs, capacity):
        batch = pad(group, capacity, np.dtype(model.dtype))
        result = predict(batch)
        atom = 0
        for index, graph in enumerate(group):
            rows = slice(atom, atom := atom + len(graph.numbers))
            for name, value in _labels(model, graph).items():
                columns[name].append(value)
            columns["atoms"].append(len(graph.numbers))
            columns["energy"].append(result.energy[index])
            columns["forces"].append(result.forces[rows])
            columns["stress"].append(result.stress[index])
    for name in set(columns) - {"forces", "forces_label"}:
        columns[name] = np.array(columns[name])
    return Evaluation(**columns)


def _labels(model: Potential, graph: AtomGraph) -> dict[str, np.ndarray]:
    targets = graph.targets
    if targets is None:
        return {
            "energy_label": np.array(np.nan),
            "forces_label": np.full((len(graph.numbers), 3), np.nan),
            "stress_label": np.full((3, 3), np.nan),
        }
    energy = targets.energy[0] + reference_energies(model, graph)[0]
    return {
        "energy_label": np.where(targets.energy_mask[0], energy, np.nan),
        "forces_label": np.where(targets.forces_mask[:, None], targets.forces, np.nan),
        "stress_label": np.where(targets.stress_mask[0], targets.stress[0], np.nan),
    }
