"""Frames and labels that look wrong: what `janus-jax data inspect` lists and training warns of.

All from the numbers of the summary, so nothing is read again. A finding is a suspicion, not a verdict:
the limits are such that clean liquids, crystals and molecules have none.
"""

from collections.abc import Iterator

import numpy as np
from ase import units
from ase.data import chemical_symbols

from janus_jax.data.findings import Finding, groups
from janus_jax.data.plausible_energies import ENERGY_UNITS, energies
from janus_jax.data.sources import Source
from janus_jax.data.summary import Summary

SHORT_CONTACT = 0.6
"""Shortest distance over the sum of covalent radii below which two atoms are suspiciously close."""
HUGE_FORCE = 50.0
"""eV/Å."""
NET_FORCE = {"least": 0.5, "share": 0.5}
"""Sum of all forces, in eV/Å and in roots of the sum of their squares (1 for forces without any relation)."""
HUGE_STRESS = {"many": 10.0, "one": 30.0, "share": 0.2}
"""Stress times volume per atom, eV (160 and 480 GPa at 10 Å^3 an atom), of a share of all frames and of any one."""
TREND = {"frames": 6, "spread": 0.01, "correlation": -0.5, "significance": 4.0}
"""Frames of one composition needed to judge the stress's sign, their relative spread in volume, and the verdict:
a correlation, and its size in standard deviations of what chance gives."""
RATIO = (0.5, 2.0)
"""Of two figures that should be equal, where neither is exact."""
TELLING = 0.5
"""Work over the root of the sum of squares of its parts, from which on its error is small beside it."""

FORCE_UNITS = {"Hartree/bohr": units.Hartree / units.Bohr, "kcal/mol/angstrom": units.kcal / units.mol}
STRESS_UNITS = {"GPa": units.GPa, "kbar": units.GPa / 10}


def findings(source: Source, summary: Summary) -> list[Finding]:
    """All suspicions about a source."""
    checks = (_contacts, _duplicates, _huge_forces, _net_forces, energies, _work, _huge_stress, _virials, _signs)
    return [found for check in checks for found in check(source, summary) if found.reasons]


def _contacts(source: Source, summary: Summary) -> Iterator[Finding]:
    rows = summary.records
    frames = np.flatnonzero(rows["usable"] & (rows["contact"] < SHORT_CONTACT))
    reasons = {int(k): f"two atoms are {100 * rows['contact'][k]:.0f} % of the sum of their covalent radii apart"
               for k in frames}  # fmt: skip
    yield Finding("two atoms are closer than any bond", reasons)


def _duplicates(source: Source, summary: Summary) -> Iterator[Finding]:
    rows = summary.records
    usable = np.flatnonzero(rows["usable"])
    _, first, inverse = np.unique(rows["structure"][usable], return_index=True, return_inverse=True)
    equal, other = {}, {}
    for frame, original in zip(usable, usable[first[inverse]], strict=True):
        if frame != original:
            gap = abs(rows["energy"][frame] - rows["energy"][original])
            text = f"the same structure as {source.name(int(original))}"
            if gap > 1e-6:
                other[int(frame)] = f"{text}, with another energy ({gap:.3g} eV apart)"
            else:
                equal[int(frame)] = text
    yield Finding("structures that are there already", equal, grave=False)
    yield Finding("structures that are there already, with another energy", other)


def _huge_forces(source: Source, summary: Summary) -> Iterator[Finding]:
    largest = summary.records["force_max"]
    reasons = {int(k): f"a force of {largest[k]:.0f} eV/Å" for k in np.flatnonzero(largest > HUGE_FORCE)}
    yield Finding(f"forces above {HUGE_FORCE:.0f} eV/Å", reasons)


def _net_forces(source: Source, summary: Summary) -> Iterator[Finding]:
    rows = summary.records
    limit = np.maximum(NET_FORCE["least"], NET_FORCE["share"] * np.sqrt(rows["force_square"]))
    frames = np.flatnonzero(rows["usable"] & (rows["net_force"] > limit))
    reasons = {int(k): f"the forces add up to {rows['net_force'][k]:.2g} eV/Å instead of 0" for k in frames}
    yield Finding("forces do not add up to 0", reasons)


def _work(source: Source, summary: Summary) -> Iterator[Finding]:
    """Energy differences of close frames against the work of forces and stress between them."""
    rows = summary.records
    after = np.flatnonzero(rows["usable"] & (rows["before"] >= 0))
    done = (rows["force_work"] + rows["stress_work"])[after].astype(float)
    change = rows["energy"][after] - rows["energy"][rows["before"][after]]
    size = np.abs(rows["energy"][after])
    telling = np.abs(done) > np.maximum(TELLING * rows["work_scale"][after], 1e-3 + 1e-6 * size)
    by_stress = np.abs(rows["stress_work"][after]) > np.abs(rows["force_work"][after])
    kinds = {
        "forces": (~by_stress, FORCE_UNITS | {f"energies in {name}": 1 / unit for name, unit in ENERGY_UNITS.items()}),
        "stress": (by_stress, STRESS_UNITS),
    }
    for kind, (mine, known) in kinds.items():
        chosen = telling & mine
        ratio = change[chosen] / done[chosen]
        bad = (ratio < RATIO[0]) | (ratio > RATIO[1])
        if bad.sum() < 3 or bad.mean() < 0.2:
            continue
        middle = float(np.median(ratio[bad]))
        text = f"energies of close frames differ by {middle:.2g} times the work of the {kind} between them" + _hint(
            middle, known, kind
        )
        yield Finding(text, dict.fromkeys(after[chosen][bad].tolist(), text))


def _hint(ratio: float, known: dict[str, float], kind: str) -> str:
    if abs(ratio + 1) < 0.2:
        return f"; is the sign of the {kind} wrong?"
    near = [name for name, factor in known.items() if abs(np.log(abs(ratio) / factor)) < 0.08]
    return f"; it looks like {near[0] if ' ' in near[0] else f'{kind} in {near[0]}'}" if near else ""


def _huge_stress(source: Source, summary: Summary) -> Iterator[Finding]:
    rows = summary.records
    per_atom = rows["stress_max"] * rows["volume"] / np.maximum(rows["atoms"], 1)
    known = rows["usable"] & np.isfinite(rows["pressure"])
    many = (per_atom[known] > HUGE_STRESS["many"]).mean() > HUGE_STRESS["share"] if known.any() else False
    frames = np.flatnonzero(known & (per_atom > HUGE_STRESS["many" if many else "one"]))
    largest = rows["stress_max"]
    reasons = {int(k): f"a stress of {largest[k]:.3g} eV/Å^3, that is {largest[k] / units.GPa:.3g} GPa" for k in frames}
    yield Finding("stress is huge in eV/Å^3; is it in GPa or kbar (data.labels.stress_unit)?", reasons)


def _virials(source: Source, summary: Summary) -> Iterator[Finding]:
    """Pressure of frames without neighbours across a boundary, where the forces say what it is."""
    rows = summary.records
    chosen = np.flatnonzero(rows["usable"] & np.isfinite(rows["pressure"]) & (np.abs(rows["virial"]) > 0.1))
    ratio = (rows["pressure"] * rows["volume"])[chosen] / rows["virial"][chosen]
    bad = (ratio < RATIO[0]) | (ratio > RATIO[1])
    if bad.sum() < 3 or bad.mean() < 0.2:
        return
    middle = float(np.median(ratio[bad]))
    text = f"the pressure is {middle:.2g} times what forces and volume give" + _hint(
        1 / middle if middle else np.nan, STRESS_UNITS, "stress"
    )
    yield Finding(text, dict.fromkeys(chosen[bad].tolist(), text))


def _signs(source: Source, summary: Summary) -> Iterator[Finding]:
    """Compositions whose pressure rises with the volume.

    A denser sample is under higher pressure (positive bulk modulus), so within one composition
    pressure and volume must correlate negatively; if stress and virial conventions were mixed up,
    they do the opposite.
    """
    rows, reasons = summary.records, {}
    known = np.flatnonzero(np.isfinite(rows["pressure"]) & np.isfinite(rows["volume"]))
    for group in groups(rows["composition"], known):
        volume, pressure = rows["volume"][group], rows["pressure"][group]
        if len(volume) < TREND["frames"] or volume.std() < TREND["spread"] * volume.mean() or pressure.std() == 0:
            continue
        correlation = -np.corrcoef(volume, pressure)[0, 1]
        sure = correlation**2 * (len(group) - 2) > TREND["significance"] ** 2 * (1 - correlation**2)
        if correlation < TREND["correlation"] and sure:
            kind = summary.compositions[rows["composition"][group[0]]]
            formula = "".join(f"{chemical_symbols[n]}{c}" for n, c in kind.items())
            text = f"the stress of {formula} frames falls when the volume grows: its sign looks wrong (stress_sign)"
            reasons[int(group[0])] = text
    yield Finding(next(iter(reasons.values()), ""), reasons)
