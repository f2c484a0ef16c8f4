"""Molecular dynamics of one or many devices: potential, engine, ensembles, observables, trajectory, restart, report.

`md.energy_fn` and `md.neighbor_fn` (see `md.jaxmd`) and `md.Simulation` are imported when first asked for.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name in ("energy_fn", "neighbor_fn"):
        from md import jaxmd

        return getattr(jaxmd, name)
    if name == "Simulation":
        from md.simulation import Simulation

        return Simulation
    raise AttributeError(f"module 'md' has no attribute {name!r}")
