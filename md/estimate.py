"""Memory of a run before it is made: the step is compiled for one rank's arrays, and nothing is run."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ase import Atoms
from flax import nnx

from janus_jax.errors import DynamicsError
from janus_jax.models.potential import Potential
from janus_jax.prediction import check_elements
from md import checks, layout
from md.config import EngineConfig
from md.ensembles import EnsembleConfig
from partition import cut

MIB = 2**20


def memory(model: Potential, atoms: Atoms, ensemble: EnsembleConfig, settings: EngineConfig) -> dict[str, Any]:
    """Rows, edges and halo of a device, and MiB it needs, from the compiler's own count for this machine.

    The compiled function is the potential on one rank's rows, edges and halo; the lists of neighbours and the state
    of motion are added as they are stored.

    Raises:
        DynamicsError: what `md.checks.before` finds, or memory the devices are known not to have.
    """
    check_elements(model, atoms.numbers)
    checks.before(model, atoms, ensemble, settings, checks.moving(atoms))
    start = cut.atoms(atoms.positions, atoms.cell.array, atoms.pbc)
    placed = layout.of(model, start, layout.periodic(atoms), settings)
    made, rows, room = placed.cut, placed.rows, placed.room
    edges = room.local[0] + (room.remote[0] if made.ranks > 1 else 0)
    halo = sum(room.halo[0]) if made.ranks > 1 else 0
    temporary = _temporary(model, rows, halo, edges)
    real = 8 if jax.config.jax_enable_x64 else 4  # type: ignore[attr-defined]
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(nnx.state(model)))
    stored = weights + rows * (3 * 6 * real + 20) + 2 * edges * (5 * 4 + 1) + halo * 5
    search = room.near * (3 * real + 16) + rows * room.degree * 24
    total = (stored + max(temporary, search)) / MIB
    have = available(made.ranks) / MIB
    if total > have:
        raise DynamicsError(
            f"a device would need {total:.0f} MiB and has {have:.0f}: use more devices, a smaller model or system"
        )
    return {
        "atoms": len(atoms), "devices": made.ranks, "cut": made.method, "rows": rows, "edges": edges, "halo": halo,
        "temporary_mib": max(temporary, search) / MIB, "total_mib": total, "available_mib": have,
    }  # fmt: skip


def available(devices: int) -> float:
    """Bytes a device has; of virtual devices of a CPU, an equal part of the machine's memory."""
    known = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return known or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / devices


def _temporary(model: Potential, rows: int, halo: int, edges: int) -> float:
    """Bytes that the compiled energy and its gradient need beside their arguments."""
    from janus_jax.models.potential import structure_energies
    from janus_jax.stages import blank_graph

    graphdef, weights = nnx.split(model)
    dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]
    graph = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype), blank_graph(dtype, rows, edges)
    )

    def energy(positions, strain, weights, graph):
        def exchange(owned):  # as large as the real one
            return jnp.concatenate([owned, owned[jnp.zeros(halo, jnp.int32)]])

        return structure_energies(nnx.merge(graphdef, weights), graph, positions, strain, exchange)[0]

    strain = jax.ShapeDtypeStruct((1, 3, 3), dtype)
    compiled = jax.jit(jax.value_and_grad(energy, (0, 1))).lower(graph.positions, strain, weights, graph).compile()
    analysis = compiled.memory_analysis()
    return float(analysis.temp_size_in_bytes + analysis.output_size_in_bytes) if analysis else 0.0
