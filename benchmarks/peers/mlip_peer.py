"""InstaDeep mlip's side (JAX): python mlip_peer.py PROBLEM.npz ANSWER.json

Three differences of convention are bridged, none of which changes the work: norms use epsilon 1e-5
as in fairchem (mlip: 1e-12), linear maps are stored transposed, and edge vectors point the other way,
so mlip gets the structure inverted at the origin and its forces change sign.
"""

import functools
import re
import sys

import flax.linen
import jax
import jax.numpy as jnp
import mlip.models.esen.layer
import mlip.models.esen.network
import numpy as np
from common import answer, load
from flax.traverse_util import flatten_dict, unflatten_dict
from mlip.data import DatasetInfo
from mlip.data.helpers.dummy_init_graph import get_dummy_graph_for_model_init
from mlip.graph import EdgeOrdering, Graph, GraphEdges, GraphGlobals, GraphNodes
from mlip.graph.batching_helpers import pad_with_graphs
from mlip.models.esen.config import EsenConfig
from mlip.models.predictors import ConservativePredictor
from mlip.typing.properties import Properties

EPSILON = 1e-5
NAMES = [
    (r"^params\.mlip_network\.", ""),
    (r"^embedding_block\.node_embedding\.embed\.embedding", "sphere_embedding.weight"),
    (r"^embedding_block\.(source|target)_embedding\.embed\.embedding", r"\1_embedding.weight"),
    (r"^embedding_block\.", ""),
    (r"^esen_layers_", "blocks."),
    (r"^pre_readout_norm", "norm"),
    (r"^readout_block\.ReadoutBlock_0\.MLP_0\.layers_(\d)", lambda m: f"head.energy_block.{2 * int(m[1])}"),
    (r"rad_func\.layers_(\d)", lambda m: f"rad_func.net.{3 * int(m[1])}"),
    (r"rad_func\.layer_norms_(\d)", lambda m: f"rad_func.net.{3 * int(m[1]) + 1}"),
    (r"so2_m_conv_", "so2_m_conv."),
    (r"scalar_dense", "scalar_mlp.0"),
    (r"\.(kernel|scale)$", ".weight"),
]
"""Patterns applied in turn: a path in mlip's tree becomes fairchem's name."""


def match_norms() -> None:
    """Give all of mlip's norms fairchem's epsilon."""
    for module in (mlip.models.esen.layer, mlip.models.esen.network):
        module.get_normalization_layer = functools.partial(module.get_normalization_layer, eps=EPSILON)
    original = flax.linen.LayerNorm
    flax.linen.LayerNorm = lambda epsilon: original(epsilon=EPSILON)


def predictor_of(problem) -> ConservativePredictor:
    """The model with energy and forces as outputs; elements 1 to the largest."""
    model = problem.model
    config = EsenConfig(
        num_layers=model["num_layers"],
        sphere_channels=model["channels"],
        hidden_channels=model["hidden_channels"],
        edge_channels=model["edge_channels"],
        num_rbf=model["num_basis"],
        l_max=model["lmax"],
        m_max=model["mmax"],
        act_type=model["activation"],
        add_atomic_energies=False,
    )
    elements = dict.fromkeys(range(1, model["max_element"] + 1), 0.0)
    info = DatasetInfo(atomic_energies_map=elements, graph_cutoff_angstrom=model["cutoff_angstrom"])
    network = mlip.models.esen.network.Esen(config, info)
    return ConservativePredictor(mlip_network=network, required_properties=Properties())


def weights_of(predictor: ConservativePredictor, weights: dict[str, np.ndarray]) -> dict:
    """The problem's weights in mlip's tree."""
    shapes = jax.eval_shape(predictor.init, jax.random.key(0), get_dummy_graph_for_model_init())

    def find(path: tuple[str, ...], shape: tuple[int, ...]) -> jax.Array:
        name = functools.reduce(lambda text, rule: re.sub(*rule, text), NAMES, ".".join(path))
        array = weights[name].T if path[-1] == "kernel" else weights[name]
        array = array[1:] if path[-1] == "embedding" else array  # no row for atomic number 0
        if array.shape != shape:
            raise SystemExit(f"{name}: shape {array.shape}, expected {shape}")
        return jnp.asarray(array)

    return unflatten_dict({path: find(path, leaf.shape) for path, leaf in flatten_dict(shapes).items()})


def graph_of(problem) -> Graph:
    """The inverted structure with its edges, and the one padding atom that mlip needs."""
    one = Graph(
        nodes=GraphNodes(atomic_numbers=problem.numbers, positions=-problem.positions.astype(np.float32)),
        edges=GraphEdges(shifts=problem.image.astype(np.float32)),
        globals=GraphGlobals(cell=problem.cell[None].astype(np.float32), weight=np.ones(1, np.float32)),
        n_node=np.array([len(problem.numbers)], np.int32),
        n_edge=np.array([len(problem.source)], np.int32),
        senders=problem.source,
        receivers=problem.centre,
        ordering=EdgeOrdering.RECEIVER,
    )
    padded = pad_with_graphs(one, n_node=len(problem.numbers) + 1, n_edge=len(problem.source), n_graph=2)
    return jax.tree.map(jnp.asarray, padded)


def main(problem_path: str, answer_path: str) -> None:
    match_norms()
    problem = load(problem_path)
    predictor, graph, targets = predictor_of(problem), graph_of(problem), jnp.asarray(problem.targets)
    weights = weights_of(predictor, problem.weights)

    def predict(weights, graph):
        result = predictor.apply(weights, graph)
        return result.globals.energy[0], -result.nodes.forces[: len(problem.numbers)]

    def loss(weights, graph, targets):
        energy, forces = predict(weights, graph)
        return energy / len(targets) + jnp.sqrt(((forces - targets) ** 2).sum(-1)).mean()

    predict_compiled, train_compiled = jax.jit(predict), jax.jit(jax.value_and_grad(loss))

    def train():
        value, gradients = jax.block_until_ready(train_compiled(weights, graph, targets))
        return value, flatten_dict(gradients, sep=".")

    answer(
        answer_path,
        packages=["mlip", "jax", "flax"],
        parameters=sum(array.size for array in jax.tree.leaves(weights)),
        predict=lambda: jax.block_until_ready(predict_compiled(weights, graph)),
        train=train,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
