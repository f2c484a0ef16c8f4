"""Units. Inside: eV, Å, amu, fs at the interfaces; stress eV/Å^3, tensile positive (ASE sign)."""

import math
from typing import Any

MEV_PER_EV = 1000.0

QUANTITIES = {
    "energy": ("meV_per_atom", "meV/atom"),
    "forces": ("meV_per_angstrom", "meV/Å"),
    "stress": ("meV_per_angstrom3", "meV/Å^3"),
}
"""What errors are reported of: unit in the names of figures, unit for people."""


def number(value: float | None, digits: int = 2) -> str:
    """For people: "-" where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def finite(value: Any) -> Any:
    """Numbers that JSON has no word for become null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
