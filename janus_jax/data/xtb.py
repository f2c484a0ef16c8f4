"""Labels from semi-empirical quantum chemistry (tblite: GFN1-xTB, GFN2-xTB).

Owns the connection to tblite, which is the optional extra ``xtb``. Energies are total energies in
eV, forces in eV/Å, stress in eV/Å^3 (ASE sign, tensile positive). Nothing here imports JAX.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import atomic_numbers, chemical_symbols, ground_state_magnetic_moments

from janus_jax import system
from janus_jax.errors import MissingPackageError, UnknownNameError

METHODS = {"gfn1-xtb": "GFN1-xTB", "gfn2-xtb": "GFN2-xTB"}


def calculator(method: str, *, spin: int = 0, charge: int = 0):
    """An ASE calculator for `method` (a key of `METHODS`).

    Args:
        spin: multiplicity 2S+1; 0 means not given, taken as the lowest possible.
        charge: total charge in units of e.

    Raises:
        UnknownNameError: the method is not one of `METHODS`.
        MissingPackageError: tblite is not installed.
    """
    if method.lower() not in METHODS:
        raise UnknownNameError("xTB method", method, METHODS)
    try:
        from tblite.ase import TBLite
    except ImportError as error:
        raise MissingPackageError("tblite", extra="xtb", purpose="labelling with GFN-xTB") from error
    return TBLite(method=METHODS[method.lower()], verbosity=0, multiplicity=spin or None, charge=charge)


def label(atoms: Atoms, method: str) -> Atoms:
    """A copy of `atoms` that carries energy, forces and, if periodic in 3-D, stress of `method`."""
    result = atoms.copy()
    given = system.of(atoms)
    result.calc = calculator(method, spin=given["spin"], charge=given["charge"])
    labels = {"energy": result.get_potential_energy(), "forces": result.get_forces()}
    if result.pbc.all():
        labels["stress"] = result.get_stress()
    result.calc = SinglePointCalculator(result, **labels)
    return result


def label_all(frames: Sequence[Atoms], method: str, workers: int = 1) -> Iterator[Atoms]:
    """Label frames in order, `workers` at a time, each on one thread."""
    with pool(workers) as executor:
        yield from executor.map(label, frames, [method] * len(frames))


def pool(workers: int) -> ProcessPoolExecutor:
    """Worker processes that do not share this process's threads and use one thread each."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_one_thread)


def _one_thread() -> None:
    # Read by the OpenMP runtime when tblite is first imported, so set before any task runs.
    os.environ["OMP_NUM_THREADS"] = "1"


def isolated_atom_energies(elements: Sequence[str], method: str) -> dict[str, float]:
    """Energies of free atoms in their ground-state spin, eV: reference energies for training."""
    energies = {}
    for symbol in sorted(elements, key=chemical_symbols.index):
        spin = int(ground_state_magnetic_moments[atomic_numbers[symbol]]) + 1
        atom = Atoms(symbol)
        atom.calc = calculator(method, spin=spin)
        energies[symbol] = float(atom.get_potential_energy())
    return energies
