"""Linear regression of total energies on compositions that a few wild frames cannot ruin.

Frames of one composition enter as their mean: the same solution, at the cost of the compositions.
"""

import numpy as np

ITERATIONS = 40
SAMPLE, EACH = 5000, 20
"""Frames that robust fits look at: at least so many of each element."""
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
    basis, triangle = np.linalg.qr(root[:, None] * amounts)  # much less work than lstsq where compositions are many
    solution, _, rank, _ = np.linalg.lstsq(triangle, basis.T @ (root * mean), rcond=None)
    return solution, int(rank)


def explained(amounts: np.ndarray, which: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Energies of the fit with the least sum of absolute errors per atom, eV [frames].

    By least squares with weights that follow the errors, from a SAMPLE of the frames in which each element is.
    """
    atoms = np.maximum(amounts.sum(1), 1)
    some = _sample(amounts, which)
    kinds, mine = np.unique(which[some], return_inverse=True)
    used, size = amounts[kinds], atoms[which[some]]
    start = solve(used, mine, energies[some])[0]
    rest, change, weights = energies[some] - (used @ start)[mine], np.zeros_like(start), 1 / size
    for _ in range(ITERATIONS):
        total, mixed = (np.bincount(mine, w, len(used)) for w in (weights, weights * rest))
        change = np.linalg.lstsq(used.T @ (total[:, None] * used), used.T @ mixed, rcond=1e-12)[0]
        weights = 1 / (size**2 * np.maximum(np.abs(rest - (used @ change)[mine]) / size, 1e-5))
    return (amounts @ (start + change))[which]


def _sample(amounts: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Frames evenly through the data, and EACH of each element."""
    if len(which) <= SAMPLE:
        return np.arange(len(which))
    there = [np.flatnonzero(column[which] > 0)[:EACH] for column in amounts.T]
    return np.unique(np.concatenate([np.linspace(0, len(which) - 1, SAMPLE).astype(int), *there]))


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
