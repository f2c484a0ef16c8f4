"""`predict`: total energies, forces and stress of a batch, compiled once per model and capacity."""

from functools import partial

import jax
import numpy as np
from ase.data import chemical_symbols
from flax import nnx

from janus_jax import compilation
from janus_jax.errors import UnknownElementError
from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Potential, Prediction, energy_forces_stress


@partial(jax.jit, static_argnums=0)
def _run(graphdef, state, graph: AtomGraph) -> Prediction:
    return energy_forces_stress(nnx.merge(graphdef, state), graph)


def known_elements(model: Potential) -> frozenset[int]:
    """Atomic numbers the model can be used for."""
    if model.references:
        return frozenset(number for number, _ in model.references)
    return frozenset(range(1, model.config.max_element + 1))


def check_elements(model: Potential, numbers: np.ndarray) -> None:
    """Raises UnknownElementError if the model does not know one of `numbers`."""
    unknown = {int(number) for number in np.unique(numbers)} - known_elements(model)
    if unknown:
        raise UnknownElementError(
            [chemical_symbols[n] for n in sorted(unknown)], [chemical_symbols[n] for n in sorted(known_elements(model))]
        )


def reference_energies(model: Potential, graph: AtomGraph) -> np.ndarray:
    """Sum of reference energies of each structure's atoms, eV, float64 [structures]."""
    table = np.zeros(model.config.max_element + 1)
    for number, energy in model.references:
        table[number] = energy
    atoms = table[np.asarray(graph.numbers)] * np.asarray(graph.atom_mask)
    return np.bincount(np.asarray(graph.atom_structure), atoms, len(graph.charge))


def predict(model: Potential, graph: AtomGraph) -> Prediction:
    """Energies (reference energies included, float64), forces and stress, as numpy arrays.

    Args:
        graph: a batch, from `janus_jax.data.batching.pad`; its floating-point arrays should have the
            model's dtype (positions may be float64).

    Raises:
        UnknownElementError: the model was not made for one of the elements.
    """
    numbers, mask = np.asarray(graph.numbers), np.asarray(graph.atom_mask)
    check_elements(model, numbers[mask])
    result = jax.tree.map(np.asarray, _run(*nnx.split(model), graph.replace(targets=None)))
    energy = np.where(graph.structure_mask, result.energy + reference_energies(model, graph), 0.0)
    return Prediction(energy, result.forces, result.virial, result.stress)


def compilations() -> int:
    """Programs compiled so far for prediction: one per model architecture and capacity."""
    return compilation.count(_run)
