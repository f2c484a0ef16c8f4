"""Neighbour lists on the host (vesin), and an `AtomGraph` from an ASE `Atoms`.

The list is exact for skewed, left-handed, thin and partly periodic cells and for coordinates
outside the cell. Everything here is float64 numpy; batches are cast when they are padded.
"""

import numpy as np
import vesin
from ase import Atoms

import partition.cell
from janus_jax import system
from janus_jax.errors import StructureError
from janus_jax.graph import AtomGraph
from janus_jax.typing import Array, Bool, Float, Int
from partition import host_search
from partition.errors import CellError

COINCIDENT_ANGSTROM = 1e-4


def complete_cell(cell: Float[Array, "3 3"], pbc: Bool[Array, "3"]) -> Float[np.ndarray, "3 3"]:
    """Replace missing (zero) vectors of directions without periodicity by unit vectors normal to the rest."""
    try:
        return partition.cell.complete_cell(np.asarray(cell), np.asarray(pbc))
    except CellError as error:
        raise StructureError(str(error)) from None


def wrap(
    positions: Float[Array, "atoms 3"], cell: Float[Array, "3 3"], pbc: Bool[Array, "3"]
) -> Float[Array, "atoms 3"]:
    """Fold periodic directions into the cell and centre the others, so that float32 loses no digits."""
    if not np.isfinite(positions).all():
        raise StructureError("positions are not finite")
    cell = complete_cell(cell, pbc)
    fractional = positions @ np.linalg.inv(cell)
    centre = fractional.mean(0) if len(fractional) else 0.0
    return np.where(pbc, fractional - np.floor(fractional), fractional - centre) @ cell


def neighbor_list(
    positions: Float[Array, "atoms 3"], cell: Float[Array, "3 3"], pbc: Bool[Array, "3"], cutoff: float
) -> tuple[Int[Array, "edges"], Int[Array, "edges"], Int[Array, "edges 3"]]:
    """All pairs within `cutoff` (Å), images included: (source, centre, image of the source).

    Sorted by centre, then source, then image, so that equal structures give equal graphs.

    Raises:
        StructureError: two atoms coincide, coordinates are not finite, or the cell is degenerate.
    """
    cell = complete_cell(cell, pbc)
    if not np.isfinite(positions).all():
        raise StructureError("positions are not finite")
    positions, pbc = np.asarray(positions), np.asarray(pbc)
    if len(positions) == 0:
        return np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros((0, 3), np.int32)
    if host_search.vesin_safe(positions, cell, pbc, cutoff):
        search = vesin.NeighborList(cutoff=cutoff, full_list=True)
        centre, source, image, distance = search.compute(points=positions, box=cell, periodic=pbc, quantities="ijSd")
    else:  # long and thin: vesin divides by zero
        centre, source, image = host_search.neighbors(positions, cell, pbc, cutoff)
        distance = np.linalg.norm(positions[source] + image @ cell - positions[centre], axis=1)
    if len(distance) and distance.min() < COINCIDENT_ANGSTROM:
        k = int(distance.argmin())
        raise StructureError(f"atoms {int(centre[k])} and {int(source[k])} coincide ({distance[k]:.1e} Å apart)")
    order = np.lexsort((image[:, 2], image[:, 1], image[:, 0], source, centre))
    return source[order].astype(np.int32), centre[order].astype(np.int32), image[order].astype(np.int32)


def from_atoms(atoms: Atoms, cutoff: float, dataset: int = 0) -> AtomGraph:
    """The graph of one structure, unpadded numpy, positions wrapped.

    Charge and spin multiplicity come from `atoms.info` ("charge", "spin"; 0 if absent).

    Raises:
        StructureError: as `neighbor_list` and `system.of`.
    """
    n = len(atoms)
    pbc, cell = np.asarray(atoms.pbc), np.asarray(atoms.cell.array)
    positions = wrap(atoms.positions, cell, pbc)
    src, dst, image = neighbor_list(positions, cell, pbc, cutoff)
    given = system.of(atoms, dataset)
    return AtomGraph(
        positions=positions,
        numbers=atoms.numbers.astype(np.int32),
        atom_structure=np.zeros(n, np.int32),
        atom_mask=np.ones(n, bool),
        src=src,
        dst=dst,
        image=image,
        edge_mask=np.ones(len(src), bool),
        cell=cell[None],
        pbc=pbc[None],
        structure_mask=np.ones(1, bool),
        charge=np.array([given["charge"]], np.int32),
        spin=np.array([given["spin"]], np.int32),
        dataset=np.array([given["dataset"]], np.int32),
    )
