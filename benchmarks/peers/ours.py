"""janus_jax's side: python ours.py PROBLEM.npz ANSWER.json"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from common import answer, load
from flax import nnx

from janus_jax.data.batching import need, pad, to_device
from janus_jax.data.neighbors import from_atoms
from janus_jax.models.convert import name_of
from janus_jax.models.esen import EsenConfig, load_state
from janus_jax.models.potential import energy_forces_stress


def graph_of(problem):
    """The structure as a graph on the device, without padding."""
    atoms = Atoms(problem.numbers, problem.positions, cell=problem.cell, pbc=True)
    graph = from_atoms(atoms, problem.model["cutoff_angstrom"])
    if not (np.array_equal(graph.src, problem.source) and np.array_equal(graph.image, problem.image)):
        raise SystemExit("the edges differ from the problem's")
    return to_device(pad([graph], need(graph)))


def main(problem_path: str, answer_path: str) -> None:
    problem = load(problem_path)
    graph, targets = graph_of(problem), jnp.asarray(problem.targets)
    model = load_state(EsenConfig(**problem.model), problem.weights)
    definition, weights, constants = nnx.split(model, nnx.Param, ...)

    def predict(weights, constants, graph):
        prediction = energy_forces_stress(nnx.merge(definition, weights, constants), graph)
        return prediction.energy[0], prediction.forces

    def loss(weights, constants, graph, targets):
        energy, forces = predict(weights, constants, graph)
        return energy / len(targets) + jnp.sqrt(((forces - targets) ** 2).sum(-1)).mean()

    predict_compiled, train_compiled = jax.jit(predict), jax.jit(jax.value_and_grad(loss))

    def train():
        value, gradients = jax.block_until_ready(train_compiled(weights, constants, graph, targets))
        return value, {name_of(path): variable[...] for path, variable in nnx.to_flat_state(gradients)}

    answer(
        answer_path,
        packages=["jax", "flax"],
        parameters=sum(array.size for array in jax.tree.leaves(weights)),
        predict=lambda: jax.block_until_ready(predict_compiled(weights, constants, graph)),
        train=train,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
