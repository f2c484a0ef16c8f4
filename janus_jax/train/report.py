"""`report.html` of a run, and of several runs side by side: one page, nothing to load, from the folder alone."""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from janus_jax import plotting
from janus_jax.errors import ConfigError
from janus_jax.page import page, table
from janus_jax.train import parity, plots, worst
from janus_jax.train.evaluate import Evaluation
from janus_jax.train.trackers import read_rows
from janus_jax.units import QUANTITIES, number
from janus_jax.versions import versions


def write(folder: str | Path) -> Path:
    """Write `report.html` into a run folder; a run that has not ended gets what is there.

    Raises:
        ConfigError: not a run folder.
    """
    folder = Path(folder)
    run = _read(folder)
    sections = {
        "Errors": _errors(run),
        "Learning curves": plotting.to_html(plots.learning_curves_figure(run["rows"]), "learning curves"),
        **_evaluations(folder, run["figures"]),
        "Batches and speed": _batches(run["rows"]),
        "Compilations and skipped steps": _events(run["events"]),
        "Configuration": f"<pre>{html.escape(run['config'])}</pre>",
        "Versions": table(["package", "version"], versions().items()),
    }
    path = folder / "report.html"
    path.write_text(page(f"Training run {folder.name}", sections))
    return path


def compare(folders: Sequence[str | Path], path: str | Path) -> dict[str, Any]:
    """Write a page that overlays runs to `path`; returns the figures of each run by name.

    Raises:
        ConfigError: one of them is not a run folder.
    """
    runs = {str(folder): _read(Path(folder)) for folder in folders}
    results = {name: run["figures"] for name, run in runs.items()}
    rows = []
    for name, figures in results.items():
        cells = [number(figures.get(part, {}).get(f"{q}_mae_{unit}"))
                 for part in ("validation", "test") for q, (unit, _) in QUANTITIES.items()]  # fmt: skip
        rows.append([name, *cells, number(figures.get("seconds"), 0), figures.get("best_step", "-")])
    head = [f"{part} {q}, {shown}" for part in ("validation", "test") for q, (_, shown) in QUANTITIES.items()]
    sections = {
        "MAE": table(["run", *head, "seconds", "best step"], rows),
        "Learning curves": plotting.to_html(plots.compare_figure(_short(runs)), "curves"),
        "Differing settings": _differences({name: run["config"] for name, run in runs.items()}),
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(page(" and ".join(Path(name).name for name in runs), sections))
    return results


def _short(runs: Mapping[str, Any]) -> dict[str, Any]:
    """Rows of each run by the name of its folder, or by its path where names are equal."""
    names = [Path(path).name for path in runs]
    return {name if names.count(name) == 1 else path[-40:]: run["rows"]
            for name, (path, run) in zip(names, runs.items(), strict=True)}  # fmt: skip


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder}: not a run folder; it has no config.yaml.")

    def rows(name):
        return read_rows(folder / name) if (folder / name).exists() else []

    results = folder / "results.json"
    return {
        "config": (folder / "config.yaml").read_text(),
        "rows": rows("metrics.jsonl"),
        "events": rows("events.jsonl"),
        "figures": json.loads(results.read_text()) if results.exists() else {},
    }


def _errors(run: Mapping[str, Any]) -> str:
    figures = run["figures"]
    if not figures:
        done = max((row["step"] for row in run["rows"]), default=0)
        return f"<p class=note>The run has not ended (step {done}); what is below is what there is so far.</p>"
    rows = [
        [part, name, number(figures[part][f"{name}_mae_{unit}"]), number(figures[part][f"{name}_rmse_{unit}"]), shown,
         figures[part][f"{name}_labels"]]
        for part in ("validation", "test") if part in figures
        for name, (unit, shown) in QUANTITIES.items()
    ]  # fmt: skip
    ended = f", ended early: {html.escape(figures['ended_early'])}" if "ended_early" in figures else ""
    note = f"<p class=note>Averaged weights of step {figures['best_step']}; {figures['seconds']:.0f} s{ended}.</p>"
    return table(["set", "quantity", "MAE", "RMSE", "unit", "labels"], rows) + note


def _evaluations(folder: Path, figures: Mapping[str, Any]) -> dict[str, str]:
    sections = {}
    for part in ("validation", "test"):
        path = folder / "evaluation" / f"{part}.npz"
        if not path.exists():
            continue
        evaluation = Evaluation.load(path)
        sections[f"Parity: {part}"] = plotting.to_html(parity.figure(evaluation, part), f"parity {part}")
        sections[f"Force errors: {part}"] = plotting.to_html(
            plots.force_errors_figure(evaluation), f"force errors {part}"
        )
        elements = figures.get(f"{part}_by_element", {})
        if elements:
            sections[f"By element: {part}"] = _by_name(elements, ["forces"], "atoms")
        for kind, title in (("config_type", "configuration type"), ("dataset", "data set")):
            groups = figures.get(f"{part}_by_{kind}", {})
            if groups:
                sections[f"By {title}: {part}"] = _by_name(groups, list(QUANTITIES), "structures")
        frames = worst.load(folder / "evaluation" / f"worst_{part}.extxyz")
        if frames:
            rows = [
                [f.info["name"], f.info["config_type"], number(f.info["force_rmse_meV_per_angstrom"], 0)]
                for f in frames
            ]
            names = table(["frame", "configuration type", "force RMSE, meV/Å"], rows)
            sections[f"Worst frames: {part}"] = plotting.to_html(plots.worst_figure(frames), "worst frames") + names
    return sections


def _by_name(groups: Mapping[str, Any], quantities: list[str], count: str) -> str:
    keys = [(q, f"{q}_mae_{QUANTITIES[q][0]}") for q in quantities]
    head = ["", *(f"{q} MAE, {QUANTITIES[q][1]}" for q, _ in keys), count]
    rows = [[name or "(none)", *(number(g[key]) for _, key in keys), g[count]] for name, g in groups.items()]
    forces = "forces_mae_meV_per_angstrom"
    bars = {name or "(none)": group[forces] for name, group in groups.items() if group[forces] is not None}
    return table(head, rows) + (plotting.to_html(plots.bars_figure(bars, "force MAE, meV/Å"), "bars") if bars else "")


def _batches(rows: Sequence[Mapping[str, Any]]) -> str:
    train = [row for row in rows if "train_loss" in row]
    if not train:
        return "<p class=note>No step yet.</p>"

    def mean(key):
        values = [row[key] for row in train if row.get(key) is not None]
        return float(np.mean(values)) if values else float("nan")

    waiting = 100 * mean("data_wait_s") / max(mean("step_s"), 1e-12)
    fastest = np.median([row["atoms_per_s"] for row in train if row.get("atoms_per_s")])
    use = table(
        ["", "mean used", "padding"],
        [[name, f"{100 * mean(key):.0f} %", f"{100 - 100 * mean(key):.0f} %"]
         for name, key in (("atoms", "atoms_used"), ("edges", "edges_used"))],
    )  # fmt: skip
    note = f"<p class=note>Median {fastest:.0f} atoms/s; {waiting:.1f} % of the time spent waiting for data.</p>"
    return use + note + plotting.to_html(plots.batches_figure(rows), "batches")


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    compiled = [
        [e["step"], e["what"], e["reason"], f"{e['atoms']} atoms, {e['edges']} edges", f"{e['seconds']:.1f}"]
        for e in events
        if e["event"] == "compilation"
    ]
    skipped = [[e["step"], "; ".join(e["frames"])] for e in events if e["event"] == "skipped"]
    text = table(["step", "program", "reason", "capacity", "seconds"], compiled)
    return text + (table(["skipped step", "frames"], skipped) if skipped else "<p class=note>No step was skipped.</p>")


def _differences(configs: Mapping[str, str]) -> str:
    flat = {name: dict(_flatten(yaml.safe_load(text))) for name, text in configs.items()}
    keys = sorted({key for values in flat.values() for key in values})
    rows = [[key, *(values.get(key, "-") for values in flat.values())] for key in keys]
    return table(["key", *flat], [row for row in rows if len({str(value) for value in row[1:]}) > 1])


def _flatten(values: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(values, dict) and values:
        for key, value in values.items():
            yield from _flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, values
