"""ASE calculator: any of our potentials as `atoms.calc`."""

import logging
import os
import threading
from typing import cast

import numpy as np
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes
from ase.stress import full_3x3_to_voigt_6_stress

from janus_jax import bundle, system
from janus_jax.data.batching import bucket, need, pad
from janus_jax.data.neighbors import from_atoms
from janus_jax.graph import Capacity
from janus_jax.models.potential import Potential
from janus_jax.prediction import Predictor, check_elements

log = logging.getLogger(__name__)

EDGE_MARGIN = 1.1
"""Room for neighbours to come, so that the first rebuilds of a trajectory do not recompile."""


class JanusCalculator(Calculator):
    """Energy, free_energy (the same), forces and stress of a potential for one structure.

    The neighbour list is built at cutoff + skin and kept until an atom could have crossed the
    cutoff unseen. Arrays grow in steps of at most 25 %, so that changing numbers of neighbours do
    not recompile each time; `compiled_capacities` lists the sizes used so far. Threads may share one calculator: each
    property is computed under a lock, so they wait for each other.

    Args:
        model: a potential, or the path of a model file or run folder.
        skin: Å.
        dataset: index of the data-set embedding to use, for models that have one.

    Raises:
        UnknownElementError, StructureError: on `calculate`, for structures the model cannot treat.
    """

    implemented_properties = ["energy", "free_energy", "forces", "stress"]  # noqa: RUF012 (ASE's convention)

    def __init__(self, model: Potential | str | os.PathLike, *, skin: float = 0.3, dataset: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.model = model if isinstance(model, Potential) else bundle.load(model)
        self.skin, self.dataset = skin, dataset
        self._predict = Predictor(self.model)
        self.compiled_capacities: list = []
        self.rebuilds = 0
        self._list: _NeighborList | None = None
        self._given: dict[str, int] | None = None
        self._said = False
        self._lock = threading.RLock()

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state):
        vars(self).update(state, _lock=threading.RLock())

    def get_property(self, name, atoms=None, allow_calculation=True):
        """As ASE's; another thread's structure cannot come between the calculation and its result."""
        with self._lock:
            return super().get_property(name, atoms, allow_calculation)

    def calculate_properties(self, atoms, properties):
        with self._lock:
            return super().calculate_properties(atoms, properties)

    def check_state(self, atoms, tol=1e-15):
        """What has changed since the last calculation: ASE does not look at charge, spin and data set."""
        changes = super().check_state(atoms, tol)
        return changes if system.of(atoms, self.dataset) == self._given else [*changes, *system.NAMES]

    def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
        with self._lock:
            self._calculate(atoms, properties, system_changes)

    def _calculate(self, atoms, properties, system_changes):
        super().calculate(atoms, properties, system_changes)
        atoms = cast(Atoms, self.atoms)
        self._given = given = system.of(atoms, self.dataset)
        if not self._said and (text := system.unseen(self.model, given)):
            self._said = True
            log.warning("%s", text)
        if len(atoms) == 0:
            self.results = {"energy": 0.0, "free_energy": 0.0, "forces": np.zeros((0, 3)), "stress": np.zeros(6)}
            return
        if self._list is None or not self._list.valid_for(atoms, self.model.cutoff, self.skin):
            self._list = self._rebuilt(atoms)
        result = self._predict(self._list.graph_of(atoms, given, self.model.dtype))
        energy = float(result.energy[0])
        self.results = {
            "energy": energy,
            "free_energy": energy,
            "forces": np.asarray(result.forces[: len(atoms)], np.float64),
        }
        if atoms.cell.rank == 3:
            self.results["stress"] = full_3x3_to_voigt_6_stress(np.asarray(result.stress[0], np.float64))
        elif "stress" in properties:
            raise PropertyNotImplementedError("stress needs a cell with three vectors; this structure has none")

    def _rebuilt(self, atoms: Atoms) -> "_NeighborList":
        check_elements(self.model, atoms.numbers)  # before the search, for the clearer error
        graph = from_atoms(atoms, self.model.cutoff + self.skin)
        wanted = need(graph)
        capacity = bucket(Capacity(wanted.atoms, int(EDGE_MARGIN * wanted.edges), 1))
        if self._list is not None and self._list.capacity.fits(wanted):
            capacity = self._list.capacity
        if capacity not in self.compiled_capacities:
            log.info("neighbour list needs %s; arrays of %s are compiled", wanted, capacity)
            self.compiled_capacities.append(capacity)
        self.rebuilds += 1
        return _NeighborList(atoms.copy(), graph, capacity)


class _NeighborList:
    """The edges found for one set of positions, and whether they still do for another."""

    def __init__(self, atoms, graph, capacity):
        self.atoms, self.capacity = atoms, capacity
        self.padded = pad([graph], capacity, np.float64)
        self.shift = graph.positions - atoms.positions  # wrapping: lattice vectors of the cell at build time

    def _deformation(self, atoms) -> np.ndarray:
        """F with cell = cell at build time @ F; the identity if there is no full cell."""
        if atoms.cell.rank < 3:
            return np.eye(3)
        return np.linalg.solve(self.atoms.cell.array, atoms.cell.array)

    def valid_for(self, atoms, cutoff: float, skin: float) -> bool:
        """No unlisted pair can be within the cutoff.

        An unlisted pair was at least cutoff + skin apart. The cell's deformation F shrinks that at most
        by its smallest singular value, and the motion beside F by twice the largest displacement.
        """
        old = self.atoms
        if len(old) != len(atoms) or (old.numbers != atoms.numbers).any() or (old.pbc != atoms.pbc).any():
            return False
        if atoms.cell.rank != old.cell.rank or (atoms.cell.rank < 3 and (atoms.cell != old.cell).any()):
            return False
        if not (np.isfinite(atoms.positions).all() and np.isfinite(atoms.cell.array).all()):
            return False
        deformation = self._deformation(atoms)
        displacement = np.linalg.norm(atoms.positions - old.positions @ deformation, axis=1).max()
        shrink = np.linalg.svd(deformation, compute_uv=False).min()
        return bool(shrink * (cutoff + skin) - 2 * displacement >= cutoff)

    def graph_of(self, atoms, given: dict[str, int], dtype):
        """The padded graph of these positions; `given`: charge, spin, dataset."""
        positions = np.zeros_like(self.padded.positions)
        positions[: len(atoms)] = atoms.positions + self.shift @ self._deformation(atoms)
        cell = np.where(self.padded.structure_mask[:, None, None], atoms.cell.array[None], self.padded.cell)
        conditions = {
            name: np.where(self.padded.structure_mask, value, 0).astype(np.int32) for name, value in given.items()
        }
        return self.padded.replace(positions=positions.astype(dtype), cell=cell.astype(dtype), **conditions)
