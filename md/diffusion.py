"""Diffusion from mean square displacements, where they have come to grow as those of a walk at random do."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from ase.data import chemical_symbols

LEAST = 20
"""Samples."""
MOVED = 2.0
"""Å^2 at the end: less is rattling in place."""
EXPONENTS = (0.7, 1.4)
"""Of the growth with time over the second half; 1 is a walk at random, 2 free flight, 0 a cage."""


def of(kinds: Sequence[int], displacements: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Å^2/ps by element, a sixth of the slope over the second half; and a sentence on elements without, or None.

    Args:
        kinds: atomic numbers; displacements: rows of time (ps) and mean square displacement (Å^2) of each kind.
    """
    found, without = {}, []
    table = np.array(displacements, float).reshape(-1, 1 + len(kinds))
    if not len(table):
        return {"diffusion_angstrom2_per_ps": {}, "diffusion_note": None}
    time = table[:, 0] - (
        0.0 if table[0, 1:].any() else table[0, 0]
    )  # displacements begin at 0, or at the first sample
    half = len(time) // 2
    for k, kind in enumerate(kinds):
        moved, symbol = table[:, 1 + k], chemical_symbols[kind]
        why = _too_short(time, moved)
        if why:
            without.append(f"{symbol} {why}")
        else:
            found[symbol] = float(np.polyfit(time[half:], moved[half:], 1)[0]) / 6
    note = f"no diffusion coefficient where a longer run is needed: {'; '.join(without)}" if without else None
    return {"diffusion_angstrom2_per_ps": found, "diffusion_note": note}


def _too_short(time: np.ndarray, moved: np.ndarray) -> str | None:
    """Why displacements say nothing about diffusion, None if they do."""
    if len(time) < LEAST:
        return f"was sampled {len(time)} times, {LEAST} are needed"
    if moved[-1] < MOVED:
        return f"has a mean square displacement of {moved[-1]:.2g} Å² after {time[-1]:.3g} ps, {MOVED:g} are needed"
    half = len(time) // 2
    exponent = np.polyfit(np.log(time[half:]), np.log(np.maximum(moved[half:], 1e-12)), 1)[0]
    if not EXPONENTS[0] <= exponent <= EXPONENTS[1]:
        return f"does not move by diffusion yet: displacements grow with the power {exponent:.2g} of time"
    return None
