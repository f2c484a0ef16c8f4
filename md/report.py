"""`report.html` of a run of dynamics: one page from the files of its folder."""

import html
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from ase.data import chemical_symbols

from janus_jax import plotting
from janus_jax.errors import ConfigError
from janus_jax.page import page, table
from janus_jax.units import MEV_PER_EV, finite
from janus_jax.versions import versions
from md.observables import Sampler
from md.reading import THERMO, read_thermo

RESULTS, DISTRIBUTIONS = "results.json", "distributions.npz"


def save(folder: Path, figures: dict[str, Any], sampler: Sampler) -> None:
    """The results of a run, for the report and for others."""
    (folder / RESULTS).write_text(json.dumps(finite(figures), indent=1, allow_nan=False))
    r, g = sampler.distribution()
    np.savez(
        folder / DISTRIBUTIONS, r=r, g=g, kinds=sampler.kinds, frames=sampler.frames,
        displacements=np.array(sampler.displacements).reshape(-1, 1 + len(sampler.kinds)),
    )  # fmt: skip


def write(folder: str | Path) -> Path:
    """Write `report.html` into a run's folder; a run that has not ended gets what is there.

    Raises:
        ConfigError: not the folder of a run.
    """
    folder = Path(folder)
    if not (folder / THERMO).exists():
        raise ConfigError(f"{folder}: not a run of dynamics; it has no {THERMO}.")
    thermo = read_thermo(folder)
    results = folder / RESULTS
    figures = json.loads(results.read_text()) if results.exists() else {}
    sections = {"Run": _run(figures), "Energy, temperature, pressure": _thermo(thermo, figures.get("atoms", 1))}
    if (folder / DISTRIBUTIONS).exists():
        sections |= _samples(dict(np.load(folder / DISTRIBUTIONS)))
    if figures:
        sections |= {"Searches for neighbours": _rebuilds(figures), "Arrays": _arrays(figures)}
    if (folder / "config.yaml").exists():
        sections["Configuration"] = f"<pre>{html.escape((folder / 'config.yaml').read_text())}</pre>"
    sections["Versions"] = table(["package", "version"], versions().items())
    path = folder / "report.html"
    path.write_text(page(f"Dynamics {folder.name}", sections))
    return path


def _run(figures: dict[str, Any]) -> str:
    if not figures:
        return "<p class=note>The run has not ended; what is below is what there is so far.</p>"
    shown = {
        "atoms": figures["atoms"],
        "ensemble": figures["ensemble"],
        "devices, cut": f"{figures['devices']}, {figures['cut']}",
        "steps": figures["steps"],
        "mean temperature, K": _digits(figures["mean_temperature_kelvin"]),
        "drift, meV/atom/ps": _digits(figures["drift_meV_per_atom_per_ps"]),
        "steps/s": _digits(figures["steps_per_s"]),
        "atoms x steps/s": _digits(figures["atom_steps_per_s"]),
        "ns/day": _digits(figures["ns_per_day"]),
    }
    shown |= {f"diffusion of {k}, Å²/ps": _digits(v) for k, v in figures["diffusion_angstrom2_per_ps"].items()}
    found = (figures.get(key) for key in ("equilibrium", "diffusion_note"))  # runs of before have none
    return table(["", ""], shown.items()) + "".join(_note(text) for text in found if text)


def _note(text: str) -> str:
    return f"<p class=note>{html.escape(text[0].upper() + text[1:])}.</p>"


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _thermo(thermo: dict[str, np.ndarray], atoms: int) -> str:
    time = thermo["time_fs"] / 1000
    if not len(time):
        return _note("nothing has been written yet")
    figure, axes = plotting.figure(2, 2)
    for name in ("potential_ev", "total_ev", "conserved_ev"):
        values = thermo[name]
        axes[0].plot(time, MEV_PER_EV * (values - values[0]) / atoms, label=name.removesuffix("_ev"))
    axes[0].set(xlabel="time, ps", ylabel="energy change, meV/atom")
    plotting.legend(axes[0])
    conserved = thermo["conserved_ev"]
    axes[1].plot(time, MEV_PER_EV * (conserved - conserved[0]) / atoms)
    axes[1].set(xlabel="time, ps", ylabel="conserved quantity, meV/atom")
    axes[2].plot(time, thermo["temperature_kelvin"])
    axes[2].set(xlabel="time, ps", ylabel="temperature, K")
    if np.isfinite(thermo["pressure_gpa"]).any():
        axes[3].plot(time, thermo["pressure_gpa"], label="pressure")
        density = axes[3].twinx()
        density.plot(time, thermo["density_g_per_cm3"], color="tab:orange", label="density")
        axes[3].set(xlabel="time, ps", ylabel="pressure, GPa")
        axes[3].yaxis.label.set_color("tab:blue")
        density.set_ylabel("density, g/cm³", color="tab:orange")
    else:
        plotting.nothing(axes[3], "no volume, so no pressure")
    return plotting.to_html(figure, "energy, conserved quantity, temperature, pressure over time")


SAMPLES, SPAN_PS = 10, 1.0
"""What pair distributions need to be shown."""


def _samples(data: dict[str, np.ndarray]) -> dict[str, str]:
    names = [chemical_symbols[kind] for kind in data["kinds"]]
    sections, moved, frames = {}, data["displacements"], int(data["frames"])
    span = float(moved[-1, 0] - moved[0, 0]) if len(moved) else 0.0
    if frames >= SAMPLES and span >= SPAN_PS:
        figure, (axis,) = plotting.figure(1, width=7.0)
        for a, b in itertools.combinations_with_replacement(range(len(names)), 2):
            axis.plot(data["r"], data["g"][a, b], label=f"{names[a]}-{names[b]}")
        axis.set(xlabel="distance, Å", ylabel="g", title=f"{frames} samples over {span:.3g} ps")
        plotting.legend(axis)
        sections["Pair distributions"] = plotting.to_html(figure, "pair distributions")
    elif frames:
        sections["Pair distributions"] = _note(
            f"{frames} samples over {span:.3g} ps are too few to show: it takes {SAMPLES} over {SPAN_PS:g} ps. "
            f"What was counted is in {DISTRIBUTIONS}"
        )
    if len(moved) > 1:
        figure, (axis,) = plotting.figure(1, width=7.0)
        for k, name in enumerate(names):
            axis.plot(moved[:, 0], moved[:, 1 + k], label=name)
        axis.set(xlabel="time, ps", ylabel="mean square displacement, Å²")
        plotting.legend(axis, "upper left")
        sections["Displacements"] = plotting.to_html(figure, "mean square displacements")
    return sections


def _rebuilds(figures: dict[str, Any]) -> str:
    counts = table(["reason", "searches"], figures["rebuilds"].items())
    reused = figures["lists_reused"] or 0.0
    note = f"<p class=note>Lists were kept in {100 * reused:.1f} % of the steps.</p>"
    if len(figures["rebuilds_by_rank"]) > 64 or not figures["rebuilds"].get("displacement"):
        return counts + note
    ranks = [[rank, *asked] for rank, asked in enumerate(figures["rebuilds_by_rank"])]
    return counts + note + table(["rank", "by its own displacement", "forced by another rank"], ranks)


def _arrays(figures: dict[str, Any]) -> str:
    rows = [[name, f"{100 * part:.0f} %"] for name, part in figures["capacity_used"].items()]
    compiled = table(["compiled, and why"], ([text] for text in figures["compiled"]))
    return table(["array", "used, of the fullest rank"], rows) + compiled
