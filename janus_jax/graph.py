"""`AtomGraph`: one or several structures as padded, masked arrays, and their neighbours' edges.

Conventions (DESIGN.md section 2): cell vectors are rows; edge e goes from source `j = src[e]` to
centre `i = dst[e]`, with vector `positions[j] + image[e] @ cell - positions[i]`; edges are sorted
by `dst`. Arrays are numpy on the host (built by `janus_jax.data`) or jax on a device.

Padding: padded atoms belong to the last structure slot and padded edges point from the last atom to
itself; both keep `atom_structure` and `dst` sorted. Their masks are False, and every model makes
their contribution exactly zero. A padded structure has the identity as cell.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from janus_jax.typing import Array, Bool, Float, Int, pytree


@pytree
class Targets:
    """Labels to learn, each with the mask of where it is known."""

    energy: Float[Array, "structures"]
    """Total energy minus the reference energies of the atoms, eV."""
    energy_mask: Bool[Array, "structures"]
    forces: Float[Array, "atoms 3"]
    """eV/Å."""
    forces_mask: Bool[Array, "atoms"]
    stress: Float[Array, "structures 3 3"]
    """eV/Å^3, tensile positive."""
    stress_mask: Bool[Array, "structures"]
    weight: Float[Array, "structures"]
    """Relative weight of a structure's labels in the loss."""
    stress_trace: Bool[Array, "structures"] | None = None
    """Where only the trace of the stress is known; None: nowhere."""

    def replace(self, **changes) -> "Targets":
        return dataclasses.replace(self, **changes)


@pytree
class AtomGraph:
    """Structures and their edges within a cutoff; see the module docstring."""

    positions: Float[Array, "atoms 3"]
    """Å; periodic directions wrapped into the cell."""
    numbers: Int[Array, "atoms"]
    """Atomic numbers."""
    atom_structure: Int[Array, "atoms"]
    """Structure each atom belongs to, ascending."""
    atom_mask: Bool[Array, "atoms"]
    src: Int[Array, "edges"]
    dst: Int[Array, "edges"]
    image: Int[Array, "edges 3"]
    """Cell of the source, in whole cell vectors."""
    edge_mask: Bool[Array, "edges"]
    cell: Float[Array, "structures 3 3"]
    pbc: Bool[Array, "structures 3"]
    structure_mask: Bool[Array, "structures"]
    charge: Int[Array, "structures"]
    """Total charge, e."""
    spin: Int[Array, "structures"]
    """Multiplicity 2S+1; 0 = not given."""
    dataset: Int[Array, "structures"]
    """Index into the model's list of data sets."""
    targets: Targets | None = None
    own_edges: int | None = None
    """Where atoms are divided among devices: so many edges have sources of this device and come first, the others
    come after them, each part sorted by `dst`, so that models can work on the first while the halo travels."""

    def replace(self, **changes) -> "AtomGraph":
        return dataclasses.replace(self, **changes)

    @property
    def edge_parts(self) -> tuple[slice, ...]:
        """Runs of edges sorted by `dst`: all of them, or those with sources of this device and the others."""
        return (slice(None),) if self.own_edges is None else (slice(self.own_edges), slice(self.own_edges, None))

    @property
    def capacity(self) -> "Capacity":
        """The array lengths, padding included."""
        return Capacity(len(self.numbers), len(self.src), len(self.charge))

    def atoms_per_structure(self) -> Int[Array, "structures"]:
        """Real atoms of each structure."""
        return jnp.zeros(self.charge.shape, jnp.int32).at[self.atom_structure].add(self.atom_mask.astype(jnp.int32))


@pytree
class LabelCounts:
    """Labels in a global batch of graphs, each counted with its structure's weight: what means are taken over."""

    energies: Float[Array, ""]
    forces: Float[Array, ""]
    """Atoms with force labels."""
    stresses: Float[Array, ""]

    @staticmethod
    def of(graphs: list["AtomGraph"], dtype: DTypeLike = np.float32) -> "LabelCounts":
        """Counts of unpadded host graphs."""
        totals = np.zeros(3)
        for graph in graphs:
            if (targets := graph.targets) is not None:
                atom_weight = np.asarray(targets.weight)[graph.atom_structure]
                totals += (
                    (targets.weight * targets.energy_mask).sum(),
                    (atom_weight * targets.forces_mask).sum(),
                    (targets.weight * targets.stress_mask).sum(),
                )
        return LabelCounts(*(np.asarray(total, dtype) for total in totals))


@dataclasses.dataclass(frozen=True, order=True)
class Capacity:
    """Array lengths of an `AtomGraph`, or its need of them: what a compiled program is fixed to."""

    atoms: int
    edges: int
    structures: int

    def __str__(self) -> str:
        return f"{self.atoms:,} atoms, {self.edges:,} edges, {self.structures:,} structures"

    def fits(self, need: "Capacity") -> bool:
        return need.atoms <= self.atoms and need.edges <= self.edges and need.structures <= self.structures

    def __add__(self, other: "Capacity") -> "Capacity":
        return Capacity(self.atoms + other.atoms, self.edges + other.edges, self.structures + other.structures)
