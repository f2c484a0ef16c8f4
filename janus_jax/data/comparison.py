"""Labels of a frame against each other: what its forces and stress say about its energy and volume.

Between two close frames of the same atoms the energy changes by the work of forces and stress,
`E2 - E1 = -F dx + V stress : strain` (means of both frames; exact to second order). A frame whose atoms
have no neighbour across a periodic boundary has the pressure `P V = sum r F / 3`.
"""

import dataclasses

import numpy as np
from ase import Atoms

from janus_jax.data.labels import Labels, has_volume
from janus_jax.graph import AtomGraph

CLOSE_ANGSTROM = 0.1
CLOSE_STRAIN = 0.03


@dataclasses.dataclass(frozen=True)
class Seen:
    """A frame that later ones of the same atoms are compared with."""

    index: int
    frame: Atoms
    labels: Labels


@dataclasses.dataclass(frozen=True)
class Work:
    """Work from one frame to a close one, eV."""

    forces: float
    stress: float
    scale: float
    """Root of the sum of squares of what is added: where the work is smaller, its parts cancel and it says little."""


def work(before: Seen, frame: Atoms, labels: Labels) -> Work | None:
    """Work from `before` to a frame; None if they are not close, labels are missing, or nothing works."""
    old = before.frame
    if before.labels.energy is None or labels.energy is None or not np.array_equal(old.numbers, frame.numbers):
        return None
    cells, full = (old.cell.array, frame.cell.array), has_volume(old) and has_volume(frame)
    strain = np.zeros((3, 3))
    if full:
        middle = (cells[0] + cells[1]) / 2
        strain = np.linalg.solve(middle, cells[1] - cells[0])
        step = np.linalg.solve(cells[1].T, frame.positions.T).T - np.linalg.solve(cells[0].T, old.positions.T).T
        move = (step - np.round(step) * frame.pbc) @ middle
    elif np.array_equal(*cells):
        move = frame.positions - old.positions
    else:
        return None
    strain, far = (strain + strain.T) / 2, np.abs(move).max(initial=0)
    if far > CLOSE_ANGSTROM or np.abs(strain).max() > CLOSE_STRAIN:
        return None
    by_forces, scale_forces = 0.0, 0.0
    if far > 1e-6:
        if before.labels.forces is None or labels.forces is None:
            return None
        by_forces, scale_forces = _mean(-before.labels.forces * move, -labels.forces * move)
    by_stress, scale_stress = 0.0, 0.0
    if np.abs(strain).max() > 1e-6:
        if before.labels.stress is None or labels.stress is None:
            return None
        if labels.trace_only and np.abs(strain - np.trace(strain) / 3 * np.eye(3)).max() > 0.1 * np.abs(strain).max():
            return None
        ends = before.labels.stress * old.cell.volume * strain, labels.stress * frame.cell.volume * strain
        by_stress, scale_stress = _mean(*ends)
    scale = float(np.hypot(scale_forces, scale_stress))
    return Work(by_forces, by_stress, scale) if scale else None


def _mean(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Sum of the mean of two arrays, and the root of the sum of squares of their mean size."""
    sizes = (np.abs(one) + np.abs(other)) / 2
    return float((one + other).sum() / 2), float(np.sqrt((sizes**2).sum()))


def virial(graph: AtomGraph, labels: Labels) -> float:
    """P V as the forces have it, eV; NaN without forces, or if neighbours are across a periodic boundary."""
    if labels.forces is None or len(graph.numbers) < 2 or graph.image.any():
        return np.nan
    centred = graph.positions - graph.positions.mean(0)
    return float((centred * labels.forces).sum() / 3)
