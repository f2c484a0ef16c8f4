"""Energy, forces and stress of a frame, under whatever names, units and signs its file uses.

Names are looked for in the frame's calculator results, `info` and `arrays`. Unless one is given, the
first of `CANDIDATES` that a frame has is taken; `REF_` names come first, since a file that has both
keeps the reference there. A virial W (eV, extended-XYZ and QUIP convention) gives stress = -W / V.
"""

from typing import Any, Literal

import numpy as np
from ase import Atoms, units
from ase.stress import voigt_6_to_full_3x3_stress
from pydantic import BaseModel, ConfigDict

from janus_jax.configuration import Section
from janus_jax.errors import DataError

CANDIDATES = {
    "energy": ("REF_energy", "energy", "free_energy"),
    "forces": ("REF_forces", "REF_force", "forces", "force"),
    "stress": ("REF_stress", "stress", "REF_virial", "REF_virials", "virial", "virials"),
}
UNITS = {
    "eV": 1.0,
    "meV": 1e-3,
    "Hartree": units.Hartree,
    "kcal/mol": units.kcal / units.mol,
    "kJ/mol": units.kJ / units.mol,
    "eV/angstrom": 1.0,
    "Hartree/bohr": units.Hartree / units.Bohr,
    "kcal/mol/angstrom": units.kcal / units.mol,
    "eV/angstrom^3": 1.0,
    "GPa": units.GPa,
    "kbar": 0.1 * units.GPa,
}
ASYMMETRY = 0.02
ASE_ORDER = "xx yy zz yz xz xy"
AS_WRITTEN = "as_written"
"""Parameter of a frame's calculator that lists the results which are as the file has them, not in ASE's form."""


class LabelConfig(Section):
    """Names, units and signs of the labels in the files."""

    energy: str | None = None
    """Name; null: the first found of REF_energy, energy, free_energy."""
    forces: str | None = None
    """Name; null: REF_forces, REF_force, forces, force."""
    stress: str | None = None
    """Name of a stress or virial; null: REF_stress, stress, REF_virial(s), virial(s)."""
    stress_is: Literal["auto", "stress", "virial"] = "auto"
    """What that label is; auto: a virial if its name says so."""
    energy_unit: Literal["eV", "meV", "Hartree", "kcal/mol", "kJ/mol"] = "eV"
    forces_unit: Literal["eV/angstrom", "Hartree/bohr", "kcal/mol/angstrom"] = "eV/angstrom"
    stress_unit: Literal["eV/angstrom^3", "GPa", "kbar"] = "eV/angstrom^3"
    """Virials are in energy_unit."""
    stress_sign: Literal["tensile", "compressive"] = "tensile"
    """tensile: stress positive under tension, virial = -V stress (ASE, extxyz); compressive: the opposite (VASP)."""
    stress_order: Literal["xx yy zz yz xz xy", "xx yy zz xy yz xz", "xx yy zz xy xz yz", "xx xy xz yy yz zz"] = (
        ASE_ORDER
    )
    """Order of six numbers in a file: of Voigt and ASE, VASP, LAMMPS, or the upper triangle by rows."""
    stress_components: Literal["all", "trace"] = "all"
    """trace: only the mean of xx, yy, zz is a label, and may be a single number (with compressive: a pressure)."""


class Labels(BaseModel):
    """Labels of one frame in eV and Å, None where missing, and what they were called in the file."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    energy: float | None
    forces: np.ndarray | None
    """[atoms, 3]."""
    stress: np.ndarray | None
    """[3, 3], eV/Å^3, tensile positive."""
    trace_only: bool = False
    """Whether of the stress only the trace is known; the rest is 0 then."""
    names: dict[str, str]
    """Label to name in the file."""
    unused: dict[str, tuple[str, ...]]
    """Label to other names the frame has, which were not used."""


def read_labels(frame: Atoms, config: LabelConfig = LabelConfig()) -> Labels:
    """Labels of a frame.

    Raises:
        DataError: a label is not a number, has a wrong shape, is not finite, or a stress is not symmetric.
    """
    values, names, unused = {}, {}, {}
    for label, candidates in CANDIDATES.items():
        given = getattr(config, label)
        present = [name for name in candidates if _find(frame, label, name) is not None]
        name = given if given is not None else next(iter(present), None)
        value = None if name is None else _find(frame, label, name)
        others = tuple(other for other in present if other != name)
        if others:
            unused[label] = others
        if value is None:
            continue
        assert name is not None
        shapes = _shapes(label, len(frame), config)
        values[label], names[label] = _numbers(value, label, name, shapes), name
    if "stress" in values and not has_volume(frame):
        if (np.linalg.norm(frame.cell.array, axis=1) > 0).all():
            raise DataError(f"{names['stress']} of a cell whose vectors lie in one plane means nothing")
        del values["stress"], names["stress"]
        unused["stress"] = (*unused.get("stress", ()), "stress of a frame without a full cell")
    energy, forces = values.get("energy"), values.get("forces")
    return Labels(
        energy=None if energy is None else float(energy) * UNITS[config.energy_unit],
        forces=None if forces is None else forces * UNITS[config.forces_unit],
        stress=_stress(values["stress"], names["stress"], frame, config) if "stress" in values else None,
        trace_only=config.stress_components == "trace",
        names=names,
        unused=unused,
    )


def has_volume(frame: Atoms) -> bool:
    """Whether there is a full cell: a molecule has none, and vectors in one plane make none."""
    lengths = np.linalg.norm(frame.cell.array, axis=1)
    return bool(frame.cell.volume > 1e-6 * lengths.prod()) if (lengths > 0).all() else False


def full_stress(value: np.ndarray, name: str) -> np.ndarray:
    """[3, 3] of 6 numbers (Voigt), 9, or [3, 3].

    Raises:
        DataError: it is not symmetric, beyond the noise that codes leave.
    """
    full = voigt_6_to_full_3x3_stress(value) if value.shape == (6,) else value.reshape(3, 3)
    if np.abs(full - full.T).max() > ASYMMETRY * np.abs(full).max():
        raise DataError(f"{name} is not symmetric: {full.tolist()}")
    return (full + full.T) / 2


def _find(frame: Atoms, label: str, name: str) -> Any:
    places = [frame.calc.results if frame.calc is not None else {}, frame.info]
    if label == "forces":
        places.append(frame.arrays)
    return next((place[name] for place in places if place.get(name) is not None), None)


def _as_written(frame: Atoms, name: str) -> bool:
    """Whether a label is as its file has it: what a calculator holds is in ASE's order, whatever was read."""
    if frame.calc is not None and frame.calc.results.get(name) is not None:
        return name in frame.calc.parameters.get(AS_WRITTEN, ())
    return True


def _shapes(label: str, atoms: int, config: LabelConfig) -> list[tuple[int, ...]]:
    single: list[tuple[int, ...]] = [()] if config.stress_components == "trace" else []
    return {"energy": [()], "forces": [(atoms, 3)], "stress": [*single, (6,), (9,), (3, 3)]}[label]


def _numbers(value: Any, label: str, name: str, shapes: list[tuple[int, ...]]) -> np.ndarray:
    try:
        if np.asarray(value).dtype == bool:  # in extxyz, a key without a value is True
            raise TypeError
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name} is not numeric: {str(value)[:60]!r}") from None
    if array.size == 1 and () in shapes:
        array = array.reshape(())
    if array.size == 3 and (1, 3) in shapes:
        array = array.reshape(1, 3)
    if array.shape not in shapes:
        raise DataError(f"{name} has shape {array.shape}; allowed: {' or '.join(map(str, shapes))}")
    if not np.isfinite(array).all():
        raise DataError(f"{name} is not finite")
    return array


def _stress(value: np.ndarray, name: str, frame: Atoms, config: LabelConfig) -> np.ndarray:
    if value.shape == (6,) and _as_written(frame, name):
        order = config.stress_order.split()
        value = value[[order.index(component) for component in ASE_ORDER.split()]]
    full = value * np.eye(3) if value.shape == () else full_stress(value, name)
    if config.stress_components == "trace":
        full = np.trace(full) / 3 * np.eye(3)
    virial = config.stress_is == "virial" or (config.stress_is == "auto" and "virial" in name.lower())
    full = -full * UNITS[config.energy_unit] / frame.cell.volume if virial else full * UNITS[config.stress_unit]
    return full if config.stress_sign == "tensile" else -full
