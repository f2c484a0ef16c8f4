"""The model contract, and the one place where forces and stress come from.

A potential is geometry -> embedding -> blocks -> readout over an `AtomGraph` (DESIGN.md section 3).
The parts are separate so that a pipeline stage can run any consecutive run of them; each stage
makes its own geometry from the positions. `exchange` extends an array of owned atoms by the halo
atoms that edges refer to; on one device it is the identity, and a model never knows which.

Energies here are those of the network, in eV, without reference energies: sums of reference
energies are large, and are added in float64 on the host (`janus_jax.predict`).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from janus_jax.graph import AtomGraph
from janus_jax.typing import Array, Float, pytree

Exchange = Callable[[Array], Array]


def no_exchange(owned: Array) -> Array:
    """The exchange of a single device: all atoms are owned."""
    return owned


@pytree
class Prediction:
    """Energies of the network and their derivatives, per structure or atom."""

    energy: Float[Array, "structures"]
    """eV, reference energies not included."""
    forces: Float[Array, "atoms 3"]
    """-dE/dx, eV/Å."""
    virial: Float[Array, "structures 3 3"]
    """dE/d(strain), eV."""
    stress: Float[Array, "structures 3 3"]
    """virial / volume, eV/Å^3, tensile positive; zero for a cell without volume."""


class Potential(nnx.Module):
    """Base of all models. Subclasses implement `geometry`, `embed`, `readout` and set `blocks`.

    Attributes:
        cutoff: Å, edges longer than this contribute nothing.
        scale: eV, factor between the readout and the energy.
        references: ((atomic number, eV), ...) in ascending order; if given, they also say which
            elements the model knows.
        blocks: modules called as `block(h, graph, geometry, exchange) -> h`.
    """

    config: Any
    cutoff: float
    scale: float
    references: tuple[tuple[int, float], ...]
    blocks: nnx.List

    def geometry(self, graph: AtomGraph, vectors: Float[Array, "edges 3"], exchange: Exchange) -> Any:
        """What blocks need besides node features: a pytree made from edge vectors (Å)."""
        raise NotImplementedError

    def embed(self, graph: AtomGraph, geometry: Any) -> Float[Array, "atoms coefficients channels"]:
        raise NotImplementedError

    def readout(self, h: Float[Array, "atoms coefficients channels"], graph: AtomGraph) -> Float[Array, "atoms"]:
        raise NotImplementedError

    @property
    def dtype(self) -> jnp.dtype:
        """Floating-point type of the parameters, and so of all computation."""
        return jax.tree.leaves(nnx.state(self, nnx.Param))[0].dtype


def edge_vectors(
    graph: AtomGraph,
    positions: Float[Array, "atoms 3"],
    strain: Float[Array, "structures 3 3"],
    cutoff: float,
    exchange: Exchange = no_exchange,
) -> Float[Array, "edges 3"]:
    """Vectors from centre to source, Å, deformed by the symmetric part of `strain`: r (1 + strain).

    Padded edges get a constant vector of the cutoff's length, where every envelope is zero.
    """
    structure = graph.atom_structure[graph.dst]
    shift = jnp.einsum("ei,eij->ej", graph.image.astype(positions.dtype), graph.cell[structure])
    r = exchange(positions)[graph.src] - positions[graph.dst] + shift
    symmetric = 0.5 * (strain + strain.swapaxes(1, 2))
    r = r + jnp.einsum("ei,eij->ej", r, symmetric[structure])
    return jnp.where(graph.edge_mask[:, None], r, jnp.asarray([[0.0, cutoff, 0.0]], r.dtype))


def propagate(
    model: Potential,
    graph: AtomGraph,
    positions: Float[Array, "atoms 3"],
    strain: Float[Array, "structures 3 3"],
    exchange: Exchange = no_exchange,
    h: Float[Array, "atoms coefficients channels"] | None = None,
) -> Float[Array, "atoms coefficients channels"]:
    """Node features after the model's blocks, from those given or, if None, from the embedding."""
    vectors = edge_vectors(graph, positions, strain, model.cutoff, exchange).astype(model.dtype)
    geometry = model.geometry(graph, vectors, exchange)
    features = model.embed(graph, geometry) if h is None else h
    for block in model.blocks:
        features = block(features, graph, geometry, exchange)
    return features


def read_out(
    model: Potential, h: Float[Array, "atoms coefficients channels"], graph: AtomGraph
) -> Float[Array, "structures"]:
    """Energy of each structure, eV, from the features of the atoms this device owns."""
    atom = jnp.where(graph.atom_mask, model.scale * model.readout(h, graph), 0.0)
    return jax.ops.segment_sum(atom, graph.atom_structure, len(graph.charge), indices_are_sorted=True)


def structure_energies(
    model: Potential,
    graph: AtomGraph,
    positions: Float[Array, "atoms 3"],
    strain: Float[Array, "structures 3 3"],
    exchange: Exchange = no_exchange,
) -> Float[Array, "structures"]:
    """Energy of each structure, eV, from the atoms this device owns."""
    return read_out(model, propagate(model, graph, positions, strain, exchange), graph)


def energy_forces_stress(model: Potential, graph: AtomGraph, exchange: Exchange = no_exchange) -> Prediction:
    """Energies, and forces and stress as one gradient with respect to positions and strain."""

    def total(positions, strain):
        energy = structure_energies(model, graph, positions, strain, exchange)
        return energy.sum(), energy

    strain = jnp.zeros(graph.cell.shape, graph.positions.dtype)
    (gradient, virial), energy = jax.grad(total, (0, 1), has_aux=True)(jnp.asarray(graph.positions), strain)
    return from_gradient(energy, gradient, virial, graph)


def from_gradient(
    energy: Float[Array, "structures"],
    gradient: Float[Array, "atoms 3"],
    virial: Float[Array, "structures 3 3"],
    graph: AtomGraph,
) -> Prediction:
    """The prediction from energies and their gradients in positions and strain."""
    a, b, c = graph.cell[:, 0], graph.cell[:, 1], graph.cell[:, 2]
    volume = jnp.abs((a * jnp.cross(b, c)).sum(-1))[:, None, None]
    stress = jnp.where(volume > 0, virial / jnp.where(volume > 0, volume, 1), 0)
    return Prediction(energy, -gradient, virial, stress)
