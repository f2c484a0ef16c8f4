"""Helpers of the tests: small structures and models, fixtures, an independent neighbour search.

Not imported by the library. `SMALL` and `CAPACITY` are shared by all tests, so that the programs
`evaluate` and `weighted_gradient` compile once per model and not once per structure.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx

from janus_jax.data.batching import pad
from janus_jax.data.dataset import Dataset
from janus_jax.data.neighbors import from_atoms
from janus_jax.data.sources import Frames
from janus_jax.data.summary import summarize
from janus_jax.graph import AtomGraph, Capacity
from janus_jax.models import esen
from janus_jax.models.convert import name_of
from janus_jax.models.potential import Potential, Prediction, energy_forces_stress
from janus_jax.typing import Array

CAPACITY = Capacity(atoms=24, edges=512, structures=3)
SMALL = {
    "cutoff_angstrom": 3.5,
    "num_layers": 2,
    "channels": 8,
    "hidden_channels": 12,
    "edge_channels": 10,
    "num_basis": 6,
    "charge_spin": "sinusoidal",
    "datasets": ("first", "second"),
    "max_element": 30,
}


def rel_error(value, reference) -> float:
    """Largest difference as a part of the reference's largest entry (absolute if that is zero)."""
    value, reference = np.asarray(value, np.float64), np.asarray(reference, np.float64)
    if value.shape != reference.shape:
        raise ValueError(f"shape {value.shape} is compared with {reference.shape}")
    if not reference.size:
        return 0.0
    return float(np.abs(value - reference).max() / (np.abs(reference).max() or 1.0))


# Structures


def molecule() -> Atoms:
    """Two water molecules, charged, not periodic."""
    positions = [
        [0.0, 0.1, 0.0],
        [0.9, -0.4, 0.2],
        [-0.7, -0.6, 0.1],
        [0.5, 2.3, 1.1],
        [1.2, 2.9, 0.7],
        [0.1, 1.6, 0.7],
    ]
    return Atoms("OH2OH2", positions, info={"charge": -1, "spin": 2, "dataset": 1})


def crystal() -> Atoms:
    """Three atoms in a strongly skewed cell thinner than the cutoff."""
    cell = [[3.1, 0.2, -0.1], [1.6, 3.0, 0.3], [-1.1, 0.9, 4.2]]
    fractional = np.array([[0.1, 0.2, 0.15], [0.62, 0.55, 0.4], [0.33, 0.81, 0.85]])
    return Atoms([14, 8, 26], fractional @ np.array(cell), cell=cell, pbc=True, info={"charge": 1})


def slab() -> Atoms:
    """Four atoms, periodic in the first two, oblique directions."""
    cell = [[2.9, 0.3, 0.1], [-1.2, 3.3, 0.2], [0.7, -0.4, 9.0]]
    fractional = np.array([[0.05, 0.1, 0.4], [0.52, 0.45, 0.42], [0.1, 0.48, 0.63], [0.49, 0.9, 0.61]])
    return Atoms([12, 8, 8, 12], fractional @ np.array(cell), cell=cell, pbc=[True, True, False])


def rotated(atoms: Atoms, rotation: np.ndarray) -> Atoms:
    """`atoms` with positions and cell vectors turned by `rotation`."""
    turned = atoms.copy()
    turned.cell = atoms.cell.array @ rotation.T
    turned.positions = atoms.positions @ rotation.T
    return turned


def random_rotation(seed: int) -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return q * np.linalg.det(q)


# Neighbours


def brute_force_edges(positions, cell, pbc, cutoff: float) -> tuple[np.ndarray, np.ndarray]:
    """All pairs within `cutoff`: rows (source, centre, image) sorted by centre, source, image; distances.

    O(N^2 x images) in float64. The number of images comes from the distances between lattice planes
    of the periodic vectors alone: component k of a vector shorter than the cutoff, in units of
    vector k, is at most cutoff * |dual vector k|.
    """
    positions, cell, pbc = np.asarray(positions, np.float64), np.asarray(cell, np.float64), np.asarray(pbc)
    reach = np.zeros(3, int)
    if pbc.any() and len(positions):
        dual = np.linalg.pinv(cell[pbc])
        extent = np.ptp(positions @ dual, axis=0)
        reach[pbc] = np.ceil(cutoff * np.linalg.norm(dual, axis=0) + extent).astype(int)
    rows, distances = [np.zeros((0, 5), int)], [np.zeros(0)]
    for image in itertools.product(*(range(-n, n + 1) for n in reach)):
        shift = np.array(image) @ np.where(pbc[:, None], cell, 0.0)
        r = np.linalg.norm(positions[None] + shift - positions[:, None], axis=-1)
        close = r <= cutoff
        if not any(image):
            np.fill_diagonal(close, False)
        centre, source = np.nonzero(close)
        rows.append(np.column_stack([source, centre, np.tile(image, (len(source), 1))]))
        distances.append(r[close])
    edges, distance = np.concatenate(rows), np.concatenate(distances)
    order = np.lexsort((edges[:, 4], edges[:, 3], edges[:, 2], edges[:, 0], edges[:, 1]))
    return edges[order], distance[order]


def edge_rows(src, dst, image) -> np.ndarray:
    """Edges as rows (source, centre, image), in the order of `brute_force_edges`."""
    edges = np.column_stack([src, dst, image])
    return edges[np.lexsort((edges[:, 4], edges[:, 3], edges[:, 2], edges[:, 0], edges[:, 1]))]


def dataset(frames: Sequence[Atoms], cutoff: float, references: Mapping[int, float] | None = None) -> Dataset:
    """Frames in memory as a data set."""
    source = Frames(frames)
    summary = summarize(source, cutoff)
    return Dataset(source, summary, np.arange(len(frames)), cutoff, references or {}, memory_bytes=1 << 30)


# Fixtures


def fixture_system(data: Mapping[str, np.ndarray], system: str) -> dict[str, np.ndarray]:
    """The arrays of one system, by the name after its prefix `system/`."""
    prefix = f"{system}/"
    return {key.removeprefix(prefix): data[key] for key in data if key.startswith(prefix)}


def fixture_config(config_json: str) -> esen.EsenConfig:
    """The `EsenConfig` of a fixture's settings."""
    given = json.loads(config_json)
    return esen.EsenConfig(
        cutoff_angstrom=given["cutoff"],
        num_layers=given["num_layers"],
        channels=given["sphere_channels"],
        hidden_channels=given["hidden_channels"],
        edge_channels=given["edge_channels"],
        num_basis=given["num_distance_basis"],
        lmax=given["lmax"],
        mmax=given["mmax"],
        activation=given["act_type"],
        feed_forward=given["ff_type"],
        charge_spin={"pos_emb": "sinusoidal", "rand_emb": "table"}[given["chg_spin_emb_type"]],  # pyright: ignore
        max_element=given["max_num_elements"] - 1,
    )


def fixture_graph(arrays: Mapping[str, np.ndarray]) -> AtomGraph:
    """The graph of one system with the stored edges, sorted by centre and not padded."""
    order = np.argsort(arrays["edge_tgt"], kind="stable")
    atoms, edges = len(arrays["numbers"]), len(order)
    one = {name: np.asarray(arrays[name], np.int32).reshape(1) for name in ("charge", "spin")}
    return AtomGraph(
        positions=arrays["positions"],
        numbers=arrays["numbers"],
        atom_structure=np.zeros(atoms, np.int32),
        atom_mask=np.ones(atoms, bool),
        src=arrays["edge_src"][order],
        dst=arrays["edge_tgt"][order],
        image=arrays["edge_image"][order],
        edge_mask=np.ones(edges, bool),
        cell=arrays["cell"][None],
        pbc=arrays["pbc"][None],
        structure_mask=np.ones(1, bool),
        dataset=np.zeros(1, np.int32),
        **one,  # pyright: ignore[reportArgumentType]
    )


def fixture_atoms(arrays: Mapping[str, np.ndarray]) -> Atoms:
    """One system as an ASE object."""
    info = {name: int(arrays[name]) for name in ("charge", "spin")}
    return Atoms(arrays["numbers"], arrays["positions"], cell=arrays["cell"], pbc=arrays["pbc"], info=info)


# Models


def random_esen(seed: int = 0, dtype=np.float64, **settings) -> esen.Esen:
    """A small eSEN whose every parameter is random: no scale of one, no bias of zero hides anything."""
    config = esen.EsenConfig(**(SMALL | settings))
    state = nnx.state(nnx.eval_shape(lambda: esen.Esen(config, rngs=nnx.Rngs(0))))
    rng = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return 0.25 * rng.normal(size=shape) + name.endswith("weight")
        if "affine_weight" in name:
            return 1 + 0.25 * rng.normal(size=shape)
        return rng.normal(size=shape) * (0.5 if "embedding.weight" in name else shape[-1] ** -0.5)

    names = {name_of(path): variable.shape for path, variable in nnx.to_flat_state(state)}
    return esen.load_state(config, {name: draw(name, shape).astype(dtype) for name, shape in sorted(names.items())})


VARIANTS = {
    "gate": {},
    "s2": {"activation": "s2", "feed_forward": "grid"},
    "lmax1": {"lmax": 1, "num_layers": 1},
    "lmax3_mmax1": {"lmax": 3, "mmax": 1, "num_layers": 1},
    "lmax4_mmax2": {"lmax": 4, "mmax": 2, "num_layers": 1},
}


@cache
def variant(name: str) -> esen.Esen:
    """One of the models of `VARIANTS`, the same in all tests."""
    return random_esen(**VARIANTS[name])


quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""`jax.jit` for programs that run a few times: half the compilation."""

predict = quick_jit(energy_forces_stress)


def padded(*atoms: Atoms, cutoff: float = SMALL["cutoff_angstrom"], dtype=np.float64) -> AtomGraph:
    """Structures in one graph of `CAPACITY`, each of the data set in its `info`."""
    return pad([from_atoms(a, cutoff, dataset=a.info.get("dataset", 0)) for a in atoms], CAPACITY, dtype)


def evaluate(model: Potential, *atoms: Atoms) -> Prediction:
    """Prediction for structures in one batch, as numpy without the padding."""
    count = sum(len(a) for a in atoms)
    out = jax.tree.map(np.asarray, predict(model, padded(*atoms)))
    n = len(atoms)
    return Prediction(out.energy[:n], out.forces[:count], out.virial[:n], out.stress[:n])


@quick_jit
def weighted_gradient(model: Potential, graph: AtomGraph, weights: Prediction) -> tuple[Array, dict[str, Array]]:
    """The sum of predictions times `weights`, and its gradient with respect to all variables by name.

    With energies and forces in it, this is the derivative every loss needs: a second-order one.
    """
    graphdef, state = nnx.split(model)

    def loss(state):
        out = energy_forces_stress(nnx.merge(graphdef, state), graph)
        return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(weights), strict=True))

    value, gradient = jax.value_and_grad(loss)(state)
    return value, {name_of(path): variable[...] for path, variable in nnx.to_flat_state(gradient)}
