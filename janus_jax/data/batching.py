"""Put structures into arrays of fixed capacity.

`pad` joins structures into one padded graph; `fill` groups a stream of them by budget; `choose`
picks the capacities from the data. Compiled programs see only capacities, so a training run needs
as many compilations as there are capacities.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np
from numpy.typing import DTypeLike

from janus_jax.errors import CapacityError, StructureError
from janus_jax.graph import AtomGraph, Capacity, Targets

ATOM_FIELDS = {"positions", "numbers", "atom_structure", "atom_mask"}
EDGE_FIELDS = {"src", "dst", "image", "edge_mask"}


def need(graph: AtomGraph) -> Capacity:
    """Real atoms, edges and structures of a host graph."""
    return Capacity(int(graph.atom_mask.sum()), int(graph.edge_mask.sum()), int(graph.structure_mask.sum()))


def pad(graphs: Sequence[AtomGraph], capacity: Capacity, dtype: DTypeLike = np.float32) -> AtomGraph:
    """Join unpadded host graphs into one of exactly `capacity`; floating-point arrays become `dtype`.

    Raises:
        CapacityError: they do not fit; names each exceeded capacity and the need.
        StructureError: there are none, or one is padded already.
    """
    if not graphs:
        raise StructureError("there is no structure to pad")
    if any(need(graph) != graph.capacity for graph in graphs):
        raise StructureError("a graph is padded already; pad takes single structures, as from_atoms makes them")
    total = sum((graph.capacity for graph in graphs), Capacity(0, 0, 0))
    if not capacity.fits(total):
        raise CapacityError(total, capacity)
    first_atom = np.cumsum([0] + [len(graph.numbers) for graph in graphs])

    def joined(field: str, offsets=None):
        arrays = [np.asarray(getattr(graph, field)) for graph in graphs]
        if offsets is not None:
            arrays = [array + array.dtype.type(offset) for array, offset in zip(arrays, offsets, strict=False)]
        rows = (
            capacity.atoms if field in ATOM_FIELDS else capacity.edges if field in EDGE_FIELDS else capacity.structures
        )
        return _resized(arrays, rows, _padding(field, capacity), dtype)

    offsets = {"src": first_atom, "dst": first_atom, "atom_structure": range(len(graphs))}
    names = [field.name for field in dataclasses.fields(AtomGraph) if field.name not in ("targets", "own_edges")]
    arrays = {name: joined(name, offsets.get(name)) for name in names}
    labelled = all(graph.targets is not None for graph in graphs)
    return AtomGraph(**arrays, targets=_pad_targets(graphs, capacity, dtype) if labelled else None)  # pyright: ignore


def _padding(field: str, capacity: Capacity):
    if field in ("src", "dst"):
        return capacity.atoms - 1
    if field == "atom_structure":
        return capacity.structures - 1
    return np.eye(3) if field == "cell" else 0


def _resized(arrays: list[np.ndarray], rows: int, fill, dtype: DTypeLike) -> np.ndarray:
    tail, kind = arrays[0].shape[1:], arrays[0].dtype
    kind = dtype if np.issubdtype(kind, np.floating) else kind
    out = np.empty((rows, *tail), kind)
    used = sum(len(array) for array in arrays)
    np.concatenate(arrays, out=out[:used], casting="same_kind")
    out[used:] = fill
    return out


def _pad_targets(graphs: Sequence[AtomGraph], capacity: Capacity, dtype: DTypeLike) -> Targets:
    arrays = {}
    for field in dataclasses.fields(Targets):
        if any(getattr(graph.targets, field.name) is None for graph in graphs):
            continue
        rows = capacity.atoms if field.name.startswith("forces") else capacity.structures
        arrays[field.name] = _resized([getattr(g.targets, field.name) for g in graphs], rows, 0, dtype)
    return Targets(**arrays)


def fill(graphs: Iterable[AtomGraph], capacity: Capacity) -> Iterator[list[AtomGraph]]:
    """Group graphs in order, as many to a group as fit into `capacity`.

    Raises:
        CapacityError: a single structure does not fit.
    """
    group, used = [], Capacity(0, 0, 0)
    for graph in graphs:
        one = need(graph)
        if not capacity.fits(one):
            raise CapacityError(one, capacity)
        if group and not capacity.fits(used + one):
            yield group
            group, used = [], Capacity(0, 0, 0)
        group.append(graph)
        used = used + one
    if group:
        yield group


def choose(atoms: np.ndarray, edges: np.ndarray, atom_budget: int, most: Capacity | None = None) -> Capacity:
    """One capacity for groups of about `atom_budget` atoms of structures with these sizes.

    Edges are provided for the mean number per atom and a margin of 10 %, never less than the largest
    structure needs and never more than all structures have; all lengths are rounded up to multiples of 8 (atoms)
    and 64 (edges).

    Args:
        atoms, edges: sizes [structures].
        most: what a group can need at most, where not all of these structures can be in one; None: all of them.

    Raises:
        CapacityError: a structure has more atoms than the budget.
    """
    if not len(atoms):
        raise StructureError("there is no structure to choose a capacity for")
    largest = Capacity(int(atoms.max()), int(edges.max()), 1)
    if largest.atoms > atom_budget:
        raise CapacityError(largest, Capacity(atom_budget, largest.edges, 1), hint="raise batch.atoms")
    most = total(atoms, edges) if most is None else most
    budget = round_up(min(atom_budget, most.atoms), 8)
    per_atom = edges.sum(dtype=np.int64) / max(1, atoms.sum(dtype=np.int64))
    edge_budget = max(largest.edges, min(most.edges, int(1.1 * per_atom * budget)))
    smallest_first = np.cumsum(np.sort(atoms))
    structures = min(most.structures, int(np.searchsorted(smallest_first, budget, side="right")))
    return Capacity(budget, round_up(edge_budget, 64), max(1, structures))


def total(atoms: np.ndarray, edges: np.ndarray) -> Capacity:
    """What all structures with these sizes need together."""
    return Capacity(int(atoms.sum(dtype=np.int64)), int(edges.sum(dtype=np.int64)), len(atoms))


def round_up(count: int, multiple: int) -> int:
    return max(multiple, -(-count // multiple) * multiple)


def bucket(one: Capacity) -> Capacity:
    """The smallest of a geometric series of capacities (steps of at most 25 %) that fits `one`."""

    def up(count: int, multiple: int) -> int:
        size = multiple
        while size < count:
            size = round_up(int(size * 1.25), multiple)
        return size

    return Capacity(up(one.atoms, 8), up(one.edges, 64), one.structures)


def to_device(graph: AtomGraph) -> AtomGraph:
    return jax.tree.map(jax.numpy.asarray, graph)
