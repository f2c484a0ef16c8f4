"""Reference energies E0 per element: what is subtracted before a network learns the rest."""

import logging
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from janus_jax.data.summary import Summary
from janus_jax.errors import DataError

log = logging.getLogger(__name__)

ABSURD_EV_PER_ATOM = 50.0
LONELY_ANGSTROM3 = 500.0
"""A single atom in a smaller cell is a stretched crystal."""
ISOLATED_NAMES = {"isolatedatom", "isolated_atom", "isolated atom"}


def isolated(summary: Summary) -> np.ndarray:
    """Frames of one neutral atom far from its images, or called IsolatedAtom: True where so [frames]."""
    records = summary.records
    named = np.array([name.lower() in ISOLATED_NAMES for name in summary.config_types] or [False])
    apart = ~(records["volume"] < LONELY_ANGSTROM3)  # NaN: no cell
    alone = (records["edges"] == 0) & (records["charge"] == 0) & apart
    return (records["atoms"] == 1) & records["usable"] & (alone | named[records["config_type"]])


def isolated_energies(summary: Summary) -> dict[int, float]:
    """Energies of the isolated atoms in a source by atomic number; the lowest where there are several."""
    table: dict[int, float] = {}
    for row in summary.records[isolated(summary)]:
        (number,) = summary.compositions[row["composition"]]
        if np.isfinite(row["energy"]):
            if number in table and abs(table[number] - row["energy"]) > 1e-6:
                log.info("several isolated %s atoms; the lowest energy is its reference", chemical_symbols[number])
            table[number] = min(table.get(number, np.inf), float(row["energy"]))
    return table


def least_squares(summary: Summary, chosen: np.ndarray, fixed: Mapping[int, float] | None = None) -> dict[int, float]:
    """E0 that explain the total energies of the chosen frames best, those in `fixed` kept.

    Frames of one composition enter as their mean with their number as weight: the same solution.

    Raises:
        DataError: no chosen frame has an energy.
    """
    rows = summary.records[chosen]
    rows = rows[np.isfinite(rows["energy"])]
    if not len(rows):
        raise DataError("No frame has an energy to fit reference energies to; give them in data.references.")
    kinds, inverse, count = np.unique(rows["composition"], return_inverse=True, return_counts=True)
    mean = np.bincount(inverse, rows["energy"]) / count
    return fit([summary.compositions[k] for k in kinds], mean, count, fixed or {})


def fit(
    compositions: Sequence[Mapping[int, int]], energies: np.ndarray, counts: np.ndarray, fixed: Mapping[int, float]
) -> dict[int, float]:
    """E0 with sum over atoms E0 = energy in the least-squares sense, each composition `counts` times.

    The smallest solution where the compositions do not fix it; the log says so.
    """
    elements = sorted({number for kind in compositions for number in kind} | set(fixed))
    free = [number for number in elements if number not in fixed]
    if not free:
        return dict(fixed)
    amounts = np.array([[kind.get(number, 0) for number in elements] for kind in compositions], np.float64)
    energies = energies - amounts @ [fixed.get(number, 0.0) for number in elements]
    matrix = amounts[:, [elements.index(number) for number in free]]
    weight = np.sqrt(counts)
    solution, _, rank, _ = np.linalg.lstsq(weight[:, None] * matrix, weight * energies, rcond=None)
    if rank < len(free):
        symbols = ", ".join(chemical_symbols[number] for number in free)
        log.info(
            "the compositions do not fix each E0 of %s apart (rank %d); only their sums mean something", symbols, rank
        )
    return {**fixed, **dict(zip(free, solution.tolist(), strict=True))}


def given(values: Mapping[str, float]) -> dict[int, float]:
    """E0 by symbol to E0 by atomic number.

    Raises:
        DataError: a symbol is unknown.
    """
    wrong = [symbol for symbol in values if symbol not in atomic_numbers]
    if wrong:
        raise DataError(f"Reference energies name unknown elements: {', '.join(wrong)}.")
    return {atomic_numbers[symbol]: float(energy) for symbol, energy in values.items()}


def require(table: Mapping[int, float], elements: Iterable[int], what: str) -> None:
    """Raises DataError if one of `elements`, found in `what`, has no reference energy."""
    missing = [chemical_symbols[n] for n in elements if n not in table]
    if missing:
        raise DataError(
            f"No reference energy for {', '.join(missing)} (in {what}); give them in data.references, "
            "or add frames with these elements to the training data."
        )


def sums(table: Mapping[int, float], summary: Summary) -> np.ndarray:
    """Sum of E0 of each of `summary.compositions`, eV; NaN where one is missing."""
    return np.array([sum(table.get(n, np.nan) * c for n, c in kind.items()) for kind in summary.compositions])


def check(table: Mapping[int, float], summary: Summary, chosen: np.ndarray) -> float:
    """Largest |E - sum E0| per atom of the chosen frames, eV; a warning if it is absurd."""
    rows = summary.records[chosen]
    per_atom = np.abs(rows["energy"] - sums(table, summary)[rows["composition"]]) / np.maximum(rows["atoms"], 1)
    worst = float(np.max(per_atom, initial=0.0, where=np.isfinite(per_atom)))
    if worst > ABSURD_EV_PER_ATOM:
        log.warning(
            "energies differ from the reference energies by up to %.0f eV per atom; do both come from the same "
            "method, and in eV?",
            worst,
        )
    return worst
