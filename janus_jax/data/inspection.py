"""What is in a data set, and which frames look wrong: the numbers of `janus-jax data inspect`."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from janus_jax import plotting
from janus_jax.data import plausibility, references
from janus_jax.data.sources import Source
from janus_jax.data.summary import Summary


@dataclasses.dataclass(frozen=True)
class Suspicion:
    """A frame that looks wrong, and why."""

    frame: int
    name: str
    reason: str


def figures(summary: Summary) -> dict[str, Any]:
    """Counts, elements, sizes, label coverage, force and energy statistics, as JSON."""
    rows = summary.records[summary.records["usable"]]
    lone = references.isolated(summary)
    bulk = summary.records[summary.records["usable"] & ~lone]
    elements: Counter[str] = Counter()
    kinds, counts = np.unique(rows["composition"], return_counts=True)
    for kind, count in zip(kinds, counts, strict=True):
        for number, atoms in summary.compositions[kind].items():
            elements[chemical_symbols[number]] += int(count) * atoms
    components = 3 * bulk["forces"].sum(dtype=np.int64)
    result = {
        "structures": len(summary.records),
        "unusable": len(summary.problems),
        "isolated_atoms": int(lone.sum()),
        "atoms": int(rows["atoms"].sum(dtype=np.int64)),
        "edges": int(rows["edges"].sum(dtype=np.int64)),
        "elements": dict(elements.most_common()),
        "compositions": len(kinds),
        "labels": summary.names,
        "with_energy": int(np.isfinite(rows["energy"]).sum()),
        "with_forces": int((rows["forces"] > 0).sum()),
        "with_stress": int(np.isfinite(rows["pressure"]).sum()),
        "with_fixed_atoms": int((rows["fixed"] > 0).sum()),
        "charged": int((rows["charge"] != 0).sum()),
        "with_spin": int((~np.isin(rows["spin"], (0, 1))).sum()),
        "config_types": _counts(rows["config_type"], summary.config_types),
        "datasets": _counts(rows["dataset"], summary.datasets),
        "atoms_per_structure": _range(rows["atoms"]),
        "edges_per_atom": _range(rows["edges"] / np.maximum(rows["atoms"], 1)),
        "force_rms_eV_per_angstrom": float(np.sqrt(bulk["force_square"].sum() / components)) if components else None,
        "force_max_eV_per_angstrom": float(bulk["force_max"].max(initial=0)),
        "volume_per_atom_angstrom3": _range(rows["volume"] / np.maximum(rows["atoms"], 1)),
        "pressure_eV_per_angstrom3": _range(rows["pressure"]),
        "energy_above_references_eV_per_atom": _range(energies_above_references(summary)),
    }
    return result


def energies_above_references(summary: Summary) -> np.ndarray:
    """(E - sum E0) / atoms of the frames that are no isolated atoms, with E0 as training would take them."""
    chosen = np.flatnonzero(summary.records["usable"] & ~references.isolated(summary))
    table = references.automatic(summary, chosen)[0].table
    rows = summary.records[chosen]
    values = (rows["energy"] - references.sums(table, summary)[rows["composition"]]) / np.maximum(rows["atoms"], 1)
    return values[np.isfinite(values)]


def suspicions(source: Source, summary: Summary) -> list[Suspicion]:
    """Frames that look wrong, in order: those that cannot be used, and what `plausibility` finds."""
    reasons = list(summary.problems.items())
    for found in plausibility.findings(source, summary):
        reasons += found.reasons.items()
    return sorted((Suspicion(frame, source.name(frame), why) for frame, why in reasons), key=lambda one: one.frame)


def draw(summary: Summary, path: Path) -> None:
    """One page of histograms: sizes, neighbours, contacts, forces, energies, pressure."""
    rows = summary.records[summary.records["usable"]]
    figure, axes = plotting.figure(3, 2, width=4.0, height=3.2)
    atoms = np.maximum(rows["atoms"], 1)
    panels = [
        (rows["atoms"], "atoms in a structure"),
        (rows["edges"] / atoms, "neighbours of an atom"),
        (rows["contact"], "shortest distance / sum of covalent radii"),
        (np.sqrt(rows["force_square"] / np.maximum(3 * rows["forces"], 1))[rows["forces"] > 0], "force RMS, eV/Å"),
        (energies_above_references(summary), "(E - sum E0) / atoms, eV"),
        (rows["pressure"], "pressure, eV/Å$^3$"),
    ]
    for axis, (values, label) in zip(axes, panels, strict=True):
        values = np.asarray(values, float)[np.isfinite(values)]
        if len(values):
            count = min(60, max(10, len(values) // 5))
            axis.hist(values, bins=np.linspace(*plotting.limits(values), count + 1).tolist())
        else:
            plotting.nothing(axis, "none")
        axis.set(xlabel=label, ylabel="structures")
    plotting.save(figure, path)


def _counts(indices: np.ndarray, names: list[str]) -> dict[str, int]:
    which, counts = np.unique(indices, return_counts=True)
    return {names[k]: int(count) for k, count in zip(which, counts, strict=True)}


def _range(values: np.ndarray) -> dict[str, float] | None:
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return {"min": float(low), "median": float(middle), "mean": float(values.mean()), "max": float(high)}
