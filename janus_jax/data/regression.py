"""Linear regression of total energies on compositions that a few wild frames cannot ruin.

Frames of one composition enter as their mean: the same solution, at the cost of the compositions.
"""

import numpy as np

ITERATIONS = 40
FAR = 10.0
"""In robust standard deviations of the energy per atom."""
FAR_EV_PER_ATOM = 0.5
"""Differences below this are chemistry."""
NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def solve(amounts: np.ndarray, which: np.ndarray, energies: np.ndarray) -> tuple[np.ndarray, int]:
    """Energies of the elements, eV, and the rank: least squares, the smallest solution where there are several.

    Args:
        amounts: atoms of each element in each composition [compositions, elements].
        which: composition of each frame [frames].
        energies: eV [frames].
    """
    total = np.bincount(which, minlength=len(amounts))
    mean = np.bincount(which, energies, len(amounts)) / np.maximum(total, 1)
    root = np.sqrt(total)
    solution, _, rank, _ = np.linalg.lstsq(root[:, None] * amounts, root * mean, rcond=None)
    return solution, int(rank)


def explained(amounts: np.ndarray, which: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Energies of the fit with the least sum of absolute errors per atom, eV [frames].

    By least squares with weights that follow the errors; normal equations of what plain least squares leave, which
    cost little where compositions are many.
    """
    atoms = np.maximum(amounts.sum(1), 1)[which]
    solution = solve(amounts, which, energies)[0]
    plain, weights = (amounts @ solution)[which], 1 / atoms
    rest, change = energies - plain, np.zeros(len(which))
    for _ in range(ITERATIONS):
        total, mixed = (np.bincount(which, w, len(amounts)) for w in (weights, weights * rest))
        matrix = amounts.T @ (total[:, None] * amounts)
        change = (amounts @ np.linalg.lstsq(matrix, amounts.T @ mixed, rcond=1e-12)[0])[which]
        weights = 1 / (atoms**2 * np.maximum(np.abs(rest - change) / atoms, 1e-5))
    return plain + change


def outliers(amounts: np.ndarray, which: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Frames far from `explained`: True where so [frames].

    None if there are too few frames to tell which are right, and none whose loss would leave an element without
    any frame.
    """
    if len(which) < 2 * amounts.shape[1] + 3:
        return np.zeros(len(which), bool)
    errors = np.abs(energies - explained(amounts, which, energies)) / np.maximum(amounts.sum(1), 1)[which]
    far = errors > max(FAR * NORMAL * float(np.median(errors)), FAR_EV_PER_ATOM)
    there = amounts[which] > 0
    lost = there.any(0) & ~there[~far].any(0)
    return far & ~there[:, lost].any(1)
