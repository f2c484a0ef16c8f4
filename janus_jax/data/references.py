"""Reference energies E0 per element: what is subtracted before a network learns the rest."""

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from ase.data import atomic_numbers, chemical_symbols

from janus_jax.data import regression
from janus_jax.data.summary import Summary
from janus_jax.errors import DataError, listed

log = logging.getLogger(__name__)

ABSURD_EV_PER_ATOM = 50.0
MOVED_EV = 0.5
"""Change of a reference energy by outliers that is worth a warning."""
POSITIVE_EV = 10.0
SPREAD_EV = 5.0
"""Isolated atoms of one element differ by less: spin states."""
NAMED = 5
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
    found: dict[int, list[float]] = {}
    for row in summary.records[isolated(summary)]:
        (number,) = summary.compositions[row["composition"]]
        if np.isfinite(row["energy"]):
            found.setdefault(number, []).append(float(row["energy"]))
    for number, energies in found.items():
        if (spread := max(energies) - min(energies)) > 1e-6:
            say = log.warning if spread > SPREAD_EV else log.info
            say(
                "%d isolated %s atoms with energies from %.3f to %.3f eV; the lowest is the reference",
                len(energies), chemical_symbols[number], min(energies), max(energies),
            )  # fmt: skip
    return {number: min(energies) for number, energies in found.items()}


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fitted E0, and what was odd about the fit."""

    table: dict[int, float]
    """eV by atomic number."""
    left_out: tuple[int, ...] = ()
    """Frames that the fit does without, by number, since they are far from what explains the others."""
    moved: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """E0 that a fit to all frames would have given, of the elements where it matters (by more than MOVED_EV)."""
    isolated: tuple[int, ...] = ()
    """Elements whose isolated atoms were of no use, since others have none."""

    @staticmethod
    def of(table: dict[int, float], frames: np.ndarray, far: np.ndarray, plain: Mapping[int, float]) -> "Fit":
        """Of what `fit` gives for these frames."""
        moved = {number: energy for number, energy in plain.items() if abs(energy - table[number]) > MOVED_EV}
        return Fit(table, tuple(frames[far].tolist()), moved)


def automatic(summary: Summary, chosen: np.ndarray) -> tuple[Fit, str]:
    """E0 for the elements of the chosen frames with energies, and how they were found.

    Isolated atoms if all elements have one, else least squares for all: where only some were fixed, the others
    would have to absorb the cohesion of all.
    """
    known = chosen[np.isfinite(summary.records["energy"][chosen])]
    isolated, elements = isolated_energies(summary), set(summary.elements(known).tolist())
    if elements <= set(isolated):
        return Fit(isolated), "isolated atoms in the data"
    found = least_squares(summary, chosen)
    table = {number: energy for number, energy in isolated.items() if number not in elements} | found.table
    return dataclasses.replace(found, table=table, isolated=tuple(elements & set(isolated))), "least squares"


def least_squares(summary: Summary, chosen: np.ndarray) -> Fit:
    """E0 that explain the total energies of the chosen frames best, but for a few frames that nothing explains.

    Nothing for elements that only frames without an energy have.
    """
    known = chosen[np.isfinite(summary.records["energy"][chosen])]
    if not len(known):
        return Fit({})
    rows = summary.records[known]
    kinds, which = np.unique(rows["composition"], return_inverse=True)
    table, far, plain = fit([summary.compositions[k] for k in kinds], which, rows["energy"])
    return Fit.of(table, known, far, plain)


def fit(
    compositions: Sequence[Mapping[int, int]], which: np.ndarray, energies: np.ndarray
) -> tuple[dict[int, float], np.ndarray, dict[int, float]]:
    """E0 with sum over atoms E0 = energy in the least-squares sense, outliers apart.

    The smallest solution where the compositions do not fix it; the log says so.

    Args:
        which: composition of each frame, an index into `compositions` [frames].
        energies: eV [frames].

    Returns:
        E0 by atomic number; which frames are outliers [frames]; E0 with them.
    """
    matrix, elements = amounts(compositions)
    plain, rank = regression.solve(matrix, which, energies)
    far = regression.outliers(matrix, which, energies)
    solution = regression.solve(matrix, which[~far], energies[~far])[0] if far.any() else plain
    if rank < len(elements):
        log.info(
            "the compositions do not fix each E0 of %s apart (rank %d); only their sums mean something",
            symbols(elements),
            rank,
        )
    by_number = [dict(zip(elements, values.tolist(), strict=True)) for values in (solution, plain)]
    return by_number[0], far, by_number[1]


def amounts(compositions: Sequence[Mapping[int, int]]) -> tuple[np.ndarray, list[int]]:
    """Atoms of each element in each composition [compositions, elements], and the elements, ascending."""
    elements = sorted({number for kind in compositions for number in kind})
    column, matrix = {number: k for k, number in enumerate(elements)}, np.zeros((len(compositions), len(elements)))
    for row, kind in zip(matrix, compositions, strict=True):
        for number, count in kind.items():
            row[column[number]] = count
    return matrix, elements


def warn(fit: Fit, name: Callable[[int], str]) -> None:
    """Say which frames the fit does without, which isolated atoms are of no use, and which E0 no atom can have.

    Args:
        name: of a frame by number.
    """
    if fit.isolated:
        log.warning(
            "isolated atoms of %s are in the data, but none of %s; reference energies of all come from least squares",
            symbols(fit.isolated),
            symbols(set(fit.table) - set(fit.isolated)),
        )
    if fit.left_out:
        with_them = ", ".join(
            f"{chemical_symbols[number]} {energy:.2f} eV instead of {fit.table[number]:.2f}"
            for number, energy in sorted(fit.moved.items())
        )
        say = log.warning if fit.moved else log.info
        say(
            "the fit of reference energies leaves out %d frames, whose energies are far from the others'%s: %s",
            len(fit.left_out),
            f" (with them: {with_them})" if with_them else "",
            listed([name(frame) for frame in fit.left_out], NAMED),
        )
    high = {number: energy for number, energy in fit.table.items() if energy > POSITIVE_EV}
    if high:
        log.warning(
            "the reference energy of %s: no atom has such an energy; are all energies right, and do the "
            "compositions tell these elements apart? Else give data.references",
            ", ".join(f"{chemical_symbols[number]} is {energy:+.1f} eV" for number, energy in sorted(high.items())),
        )


def symbols(numbers: Iterable[int]) -> str:
    return ", ".join(chemical_symbols[number] for number in sorted(numbers))


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


def check(table: Mapping[int, float], summary: Summary, chosen: np.ndarray, name: Callable[[int], str]) -> float:
    """Largest |E - sum E0| per atom of the chosen frames, eV; a warning if it is absurd.

    Args:
        name: of a frame by number.
    """
    rows = summary.records[chosen]
    per_atom = np.abs(rows["energy"] - sums(table, summary)[rows["composition"]]) / np.maximum(rows["atoms"], 1)
    per_atom = np.where(np.isfinite(per_atom), per_atom, 0.0)
    worst = float(per_atom.max(initial=0.0))
    if worst > ABSURD_EV_PER_ATOM:
        far = chosen[per_atom > ABSURD_EV_PER_ATOM]
        log.warning(
            "energies of %d of %d frames differ from the reference energies by up to %.0f eV per atom; do both come "
            "from the same method, and in eV? %s",
            len(far),
            len(chosen),
            worst,
            listed([name(int(frame)) for frame in far], NAMED),
        )
    return worst
