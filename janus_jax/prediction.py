"""`predict`: total energies, forces and stress of a batch, compiled once per model and capacity."""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np
from ase.data import chemical_symbols
from flax import nnx

from janus_jax import system
from janus_jax.errors import UnknownElementError
from janus_jax.graph import AtomGraph
from janus_jax.models.potential import Potential, Prediction, energy_forces_stress


@partial(jax.jit, static_argnums=0)
def compiled(graphdef, state, graph: AtomGraph) -> Prediction:
    """The program behind `predict`: one compilation a model structure and capacity."""
    return energy_forces_stress(nnx.merge(graphdef, state), graph)


def known_elements(model: Potential) -> frozenset[int]:
    """Atomic numbers the model can be used for."""
    every = frozenset(range(1, model.config.max_element + 1))
    return every & {number for number, _ in model.references} if model.references else every


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


class Predictor:
    """`predict` for many batches with one model, which must not change meanwhile.

    Attributes:
        width: batches best given to `many` together.
    """

    width = 1

    def __init__(self, model: Potential):
        self.model = model
        self._parts = nnx.split(model)

    def __call__(self, graph: AtomGraph) -> Prediction:
        return self.many([graph])[0]

    def many(self, graphs: Sequence[AtomGraph]) -> list[Prediction]:
        """One prediction a batch; all batches have one capacity."""
        for graph in graphs:
            numbers, mask = np.asarray(graph.numbers), np.asarray(graph.atom_mask)
            real = np.asarray(graph.structure_mask)
            check_elements(self.model, numbers[mask])
            system.check(self.model, *(np.asarray(x)[real] for x in (graph.charge, graph.spin, graph.dataset)))
        results = self.compute([graph.replace(targets=None) for graph in graphs])
        return [self._total(result, graph) for result, graph in zip(results, graphs, strict=True)]

    def compute(self, graphs: Sequence[AtomGraph]) -> list[Prediction]:
        """What the network gives, as numpy arrays."""
        return [jax.tree.map(np.asarray, compiled(*self._parts, graph)) for graph in graphs]

    def _total(self, result: Prediction, graph: AtomGraph) -> Prediction:
        energy = np.where(graph.structure_mask, result.energy + reference_energies(self.model, graph), 0.0)
        return Prediction(energy, result.forces, result.virial, result.stress)


def predict(model: Potential, graph: AtomGraph) -> Prediction:
    """Energies (reference energies included, float64), forces and stress, as numpy arrays.

    Args:
        graph: a batch, from `janus_jax.data.batching.pad`; its floating-point arrays should have the
            model's dtype (positions may be float64).

    Raises:
        UnknownElementError: the model was not made for one of the elements.
        StructureError: a charge, spin or data set is outside the model's embeddings.
    """
    return Predictor(model)(graph)
