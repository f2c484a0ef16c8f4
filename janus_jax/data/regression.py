"""Linear regression of total energies on compositions that a few wild frames cannot ruin.

Frames of one composition enter as their weighted mean: the same solution, at the cost of the compositions.
"""

import numpy as np

ITERATIONS = 40
FAR = 10.0
"""In robust standard deviations of the energy per atom."""
FAR_EV_PER_ATOM = 0.5
"""Differences below this are chemistry."""
NORMAL = 1.4826
"""Standard deviation over median absolute deviation of a normal distribution."""


def solve(
    amounts: np.ndarray, which: np.ndarray, energies: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, int]:
    """Energies of the elements, eV, and the rank: least squares, the smallest solution where there are several.

    Args:
        amounts: atoms of each element in each composition [compositions, elements].
        which: composition of each frame [frames].
        energies: eV [frames].
        weights: of the squared errors [frames]; None: 1.
    """
    weights = np.ones(len(which)) if weights is None else weights
    total = np.bincount(which, weights, len(amounts))
    mean = np.divide(
        np.bincount(which, weights * energies, len(amounts)), total, where=total > 0, out=np.zeros_like(total)
    )
    root = np.sqrt(total)
    solution, _, rank, _ = np.linalg.lstsq(root[:, None] * amounts, root * mean, rcond=None)
    return solution, int(rank)


def outliers(amounts: np.ndarray, which: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Frames far from the fit with the least sum of absolute errors per atom: True where so [frames].

    None if there are too few frames to tell which are right, and none whose loss would leave an element without
    any frame.
    """
    atoms = np.maximum(amounts.sum(1), 1)[which]
    if len(which) < 2 * amounts.shape[1] + 3:
        return np.zeros(len(which), bool)
    weights = 1 / atoms
    for _ in range(ITERATIONS):  # reweighted least squares
        solution, _ = solve(amounts, which, energies, weights)
        errors = np.abs(energies - (amounts @ solution)[which]) / atoms
        weights = 1 / (atoms**2 * np.maximum(errors, 1e-5))
    far = errors > max(FAR * NORMAL * float(np.median(errors)), FAR_EV_PER_ATOM)
    there = amounts[which] > 0
    lost = there.any(0) & ~there[~far].any(0)
    return far & ~there[:, lost].any(1)
