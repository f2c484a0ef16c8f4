"""Figures of a run: what its command prints, and results.json keeps."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from janus_jax.units import MEV_PER_EV
from md import diffusion, equilibration
from md.reading import columns

if TYPE_CHECKING:
    from md.simulation import Simulation


def drift(run: "Simulation") -> float:
    """Slope of a straight line through the conserved quantity, meV/atom/ps; not a number where none is."""
    ensemble = run.engine.ensemble
    if len(run.readings) < 2 or ensemble.ramped or ensemble.name == "minimize":
        return math.nan
    values = np.array([reading.conserved_ev for reading in run.readings])
    time_ps = np.array([reading.step for reading in run.readings]) * ensemble.timestep_fs / 1000
    return float(np.polyfit(time_ps, values - values[0], 1)[0] * MEV_PER_EV / run.engine.atoms)


def of(run: "Simulation") -> dict[str, Any]:
    """By name, with units; not a number where there is none."""
    engine, last = run.engine, run.engine.read()
    rate = run.timed / run.seconds if run.seconds else math.nan
    searches = sum(engine.rebuilds.values())
    thermo = columns([run.row(reading) for reading in run.readings])
    return {
        "atoms": engine.atoms,
        "ensemble": engine.ensemble.name,
        "devices": engine.cut.ranks,
        "cut": engine.cut.method,
        "steps": engine.step,
        "temperature_kelvin": last.temperature_kelvin,
        "mean_temperature_kelvin": float(np.mean([r.temperature_kelvin for r in run.readings or [last]])),
        "equilibrium": equilibration.said(thermo, engine.ensemble.name, engine.ensemble.ramped),
        "largest_force_ev_per_angstrom": last.largest_force,
        "converged": run.converged,
        "total_ev": last.potential_ev + last.kinetic_ev + run.references,
        "pressure_gpa": last.pressure_gpa,
        "drift_meV_per_atom_per_ps": drift(run),
        **diffusion.of(run.sampler.kinds.tolist(), run.sampler.displacements),
        "steps_per_s": rate,
        "atom_steps_per_s": rate * engine.atoms,
        "ns_per_day": rate * engine.ensemble.timestep_fs * 86400e-6,
        "rebuilds": dict(engine.rebuilds),
        "rebuilds_by_rank": engine.by_rank.tolist(),
        "lists_reused": 1 - searches / engine.step if engine.step else math.nan,
        "halo_rows": engine.halo_rows,
        "capacity_used": engine.capacity_used(),
        "compiled": list(engine.build.compiled),
        "folder": None if run.folder is None else str(run.folder),
    }
