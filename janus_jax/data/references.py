"""Reference energies E0 per element: what is subtracted before a network learns the rest."""

import logging

import numpy as np
from ase import Atoms
from ase.data import atomic_numbers, chemical_symbols

from janus_jax.data.readers import LabelKeys, labels
from janus_jax.errors import DataError

log = logging.getLogger(__name__)


def composition(frames: list[Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Atomic numbers present, ascending, and counts [frames, elements]."""
    numbers = np.unique(np.concatenate([frame.numbers for frame in frames]))
    return numbers, np.array([[(frame.numbers == n).sum() for n in numbers] for frame in frames], np.float64)


def least_squares(frames: list[Atoms], keys: LabelKeys | None = None) -> dict[int, float]:
    """E0 that explain the total energies best, the smallest such where they are not unique.

    Raises:
        DataError: no frame has an energy.
    """
    energies = [labels(frame, keys or LabelKeys())["energy"] for frame in frames]
    known = [index for index, energy in enumerate(energies) if energy is not None]
    if not known:
        raise DataError("No frame has an energy to fit reference energies to; give them in data.references.")
    numbers, counts = composition(frames)
    target = np.array([energies[index] for index in known])
    solution, _, rank, _ = np.linalg.lstsq(counts[known], target, rcond=None)
    if rank < len(numbers):
        symbols = ", ".join(chemical_symbols[n] for n in numbers)
        log.info(
            "the composition does not fix each E0 of %s apart (rank %d); only their sums mean something", symbols, rank
        )
    return dict(zip(numbers.tolist(), solution.tolist(), strict=True))


def given(values: dict[str, float], frames: list[Atoms]) -> dict[int, float]:
    """E0 by symbol to E0 by atomic number.

    Raises:
        DataError: an element of the frames has none, or a symbol is unknown.
    """
    wrong = [symbol for symbol in values if symbol not in atomic_numbers]
    if wrong:
        raise DataError(f"Reference energies name unknown elements: {', '.join(wrong)}.")
    table = {atomic_numbers[symbol]: float(energy) for symbol, energy in values.items()}
    require(table, frames)
    return table


def require(table: dict[int, float], frames: list[Atoms]) -> None:
    """Raises DataError if an element of the frames has no reference energy in `table`."""
    missing = [chemical_symbols[n] for n in composition(frames)[0] if n not in table]
    if missing:
        raise DataError(
            f"No reference energy for {', '.join(missing)}; add them to data.references, or use least_squares."
        )


def check(references: dict[int, float], frames: list[Atoms], keys: LabelKeys | None = None) -> None:
    """Warn if |E - sum E0| per atom is above 50 eV: references and labels are then of different kinds."""
    worst = 0.0
    for frame in frames:
        energy = labels(frame, keys or LabelKeys())["energy"]
        if energy is not None and len(frame):
            worst = max(worst, abs(float(energy) - sum(references[int(n)] for n in frame.numbers)) / len(frame))
    if worst > 50:
        log.warning(
            "energies differ from the reference energies by up to %.0f eV per atom; do both come from the same method?",
            worst,
        )
