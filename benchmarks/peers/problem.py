"""Write the problem all sides solve: one structure, its edges, weights and force targets.

    python problem.py OUT.npz        (in the environment of janus_jax)

The structure is rock salt, 2x2x2 cubic cells, 64 atoms, rattled; 1,582 directed edges. The weights
are fresh ones under fairchem's names, but the map that mixes charge and spin into the network is
zero: fairchem and janus_jax then still compute charge and spin, and mlip, which has no such inputs,
is the same function.
"""

import json
import sys

import numpy as np
from ase.build import bulk
from flax import nnx

from janus_jax.data.neighbors import from_atoms
from janus_jax.models.esen import Esen, EsenConfig, save_state

LATTICE, RATTLE, SEED, EDGES = 5.64, 0.1, 1, 1582
CONFIG = EsenConfig(
    cutoff_angstrom=5.0,
    num_layers=4,
    channels=64,
    hidden_channels=64,
    edge_channels=64,
    num_basis=64,
    lmax=2,
    mmax=2,
    activation="gate",
    feed_forward="spectral",
    charge_spin="sinusoidal",
)


def structure():
    """Rattled rock salt, 64 atoms."""
    atoms = bulk("NaCl", "rocksalt", a=LATTICE, cubic=True).repeat(2)
    atoms.rattle(RATTLE, seed=SEED)
    return atoms


def weights() -> dict[str, np.ndarray]:
    """Fresh weights; charge and spin have no effect, see the module docstring."""
    state = save_state(Esen(CONFIG, rngs=nnx.Rngs(0)))
    return {name: array * 0 if name.startswith("mix_csd") else array for name, array in state.items()}


def main(path: str) -> None:
    graph = from_atoms(structure(), CONFIG.cutoff_angstrom)
    if len(graph.src) != EDGES:
        raise SystemExit(f"the structure has {len(graph.src)} edges, expected {EDGES}")
    description = {
        "atoms": len(graph.numbers),
        "directed_edges": len(graph.src),
        "lattice_constant_angstrom": LATTICE,
        "rattle_angstrom": RATTLE,
        "rattle_seed": SEED,
    }
    np.savez(
        path,
        settings=json.dumps({"model": CONFIG.model_dump(), "structure": description}),
        positions=graph.positions,
        numbers=graph.numbers,
        cell=graph.cell[0],
        source=graph.src,
        centre=graph.dst,
        image=graph.image,
        targets=np.random.default_rng(0).normal(size=graph.positions.shape).astype(np.float32),
        **{f"w/{name}": array for name, array in weights().items()},
    )


if __name__ == "__main__":
    main(sys.argv[1])
