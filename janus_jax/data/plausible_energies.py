"""Energies far from those of the same composition, or from what all compositions explain, and their likely units."""

from collections.abc import Iterator

import numpy as np
from ase import units

from janus_jax.data import references, regression
from janus_jax.data.findings import Finding, groups
from janus_jax.data.sources import Source
from janus_jax.data.summary import Summary

FAR_ENERGY = 1.0
"""From the median of the same composition, eV/atom, and ten robust standard deviations."""
BONDS = 10.0
"""From what compositions explain, eV/atom: more than any cohesive energy."""
SEVERAL = 3
SCATTER = 3.0
"""Robust standard deviation of energies per atom about what compositions explain, eV: not one method, or one unit."""
ENERGY_UNITS = {
    "Hartree": units.Hartree, "kcal/mol": units.kcal / units.mol, "kJ/mol": units.kJ / units.mol, "meV": 1e-3,
    "Rydberg": units.Rydberg,
}  # fmt: skip


def energies(source: Source, summary: Summary) -> Iterator[Finding]:
    """Energies far from those of the same composition, or from what all compositions explain."""
    rows = summary.records
    chosen = np.flatnonzero(rows["usable"] & np.isfinite(rows["energy"]) & ~references.isolated(summary))
    atoms = np.maximum(rows["atoms"], 1)
    per_atom, expected = rows["energy"] / atoms, np.full(len(rows), np.nan)
    for group in groups(rows["composition"], chosen):
        if len(group) >= 5:
            expected[group] = _of_the_same(per_atom[group])
    left = chosen[np.isnan(expected[chosen])] if len(chosen) else chosen
    if len(left):
        kinds, which = np.unique(rows["composition"][chosen], return_inverse=True)
        amounts, _ = references.amounts([summary.compositions[kind] for kind in kinds])
        explained = regression.explained(amounts, which, rows["energy"][chosen]) / atoms[chosen]
        scatter = regression.NORMAL * float(np.median(np.abs(per_atom[chosen] - explained)))
        if scatter > SCATTER:
            explained = _of_two_units(amounts, which, rows["energy"][chosen], explained * atoms[chosen]) / atoms[chosen]
        far = _unexplained(per_atom[chosen], explained, atoms[chosen], regression.FAR * min(scatter, SCATTER))
        untold = np.isnan(expected[chosen]) & (len(chosen) >= 2 * amounts.shape[1] + 3)
        expected[chosen[untold & far]] = explained[untold & far]
    frames = np.flatnonzero(np.abs(per_atom - expected) > FAR_ENERGY)
    reasons = {}
    for k in frames:
        hint = _energy_hint(per_atom[k], expected[k], int(atoms[k]))
        reasons[int(k)] = f"energy {per_atom[k]:.4g} eV/atom where others have {expected[k]:.4g}{hint}"
    hints = sorted({hint for k in frames if (hint := _energy_hint(per_atom[k], expected[k], int(atoms[k])))})
    yield Finding(f"energies are far from those of the other frames{hints[0] if len(hints) == 1 else ''}", reasons)


def _unexplained(values: np.ndarray, explained: np.ndarray, atoms: np.ndarray, noise: float) -> np.ndarray:
    """Frames farther than bonds account for, or as far as another unit puts several of them."""
    gap = np.abs(values - explained)
    hints = np.array(["" if one < max(FAR_ENERGY, noise) else _energy_hint(value, expected, int(count))
                      for one, value, expected, count in zip(gap, values, explained, atoms, strict=True)])  # fmt: skip
    names, counts = np.unique(hints, return_counts=True)
    frequent = [name for name, count in zip(names, counts, strict=True) if name and count >= SEVERAL]
    return (gap > max(BONDS, noise)) | np.isin(hints, frequent)


def _of_the_same(values: np.ndarray) -> np.ndarray:
    """What each energy of one composition should be like: NaN where it is well, else the median of the others."""
    middle = np.median(values)
    spread = regression.NORMAL * np.median(np.abs(values - middle))
    if spread < SCATTER:
        far = np.abs(values - middle) > max(FAR_ENERGY, regression.FAR * spread)
        return np.where(far, middle, np.nan)
    order = np.argsort(values)
    cut = int(np.argmax(np.diff(values[order]))) + 1  # two groups: the smaller one is suspected
    low, high = order[:cut], order[cut:]
    few, many = (low, high) if len(low) < len(high) else (high, low)
    result = np.full(len(values), np.nan)
    result[few] = np.median(values[many])
    return result


def _of_two_units(amounts: np.ndarray, which: np.ndarray, energies: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    """Energies that the frames with the smaller half of energies per atom explain, if these agree; else `otherwise`."""
    size = np.abs(energies) / amounts.sum(1)[which]
    for share in (0.5, 0.35, 0.2):
        small = size <= np.quantile(size, share)
        if not (amounts[which[small]] > 0).any(0).all():
            continue
        solution, _ = regression.solve(amounts, which[small], energies[small])
        found = (amounts @ solution)[which]
        ratio = energies / np.where(found == 0, np.nan, found)
        known = [factor for unit in ENERGY_UNITS.values() for factor in (unit, 1 / unit)]
        near = np.any([np.abs(ratio / factor - 1) < 0.1 for factor in (1.0, *known)], axis=0)
        if near.mean() > 0.8:
            return found
    return otherwise


def _energy_hint(value: float, expected: float, atoms: int) -> str:
    ratio = value / expected if expected else np.nan
    names = (
        {"a sum over the atoms, not per atom": 1 / atoms, "an energy per atom, not the sum": atoms} if atoms > 1 else {}
    )
    for name, unit in {**ENERGY_UNITS, **names}.items():
        if abs(ratio * unit - 1) < 0.05:
            return f"; it looks like {name}" if name in names else f"; it looks like {name} among eV"
        if name in ENERGY_UNITS and abs(ratio / unit - 1) < 0.05:
            return f"; it looks like eV among {name}"
    return ""
