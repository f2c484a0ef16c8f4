"""`janus-jax data ...`: inspect, split and convert data; label and sample structures with GFN-xTB."""

import argparse
import glob
import json
import logging
import os
from pathlib import Path
from typing import Any

from janus_jax.errors import ConfigError

log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.cli._logging import to_stderr

    to_stderr()
    actions = {"inspect": inspect, "split": split, "convert": convert, "label": label, "sample": sample}
    return actions[arguments.action](arguments)


ALLOWED = ("labels.", "keys.", "dataset=", "bad_frames=", "train_on_fixed_atoms=")


def settings(overrides: list[str]):
    """Label and frame keys from `labels.energy=...` and `keys.split=...`, with or without `data.` before them."""
    from janus_jax import configuration
    from janus_jax.train.config import DataConfig

    texts = [text.removeprefix("data.") for text in overrides]
    for text in texts:
        if not text.startswith(ALLOWED):
            raise ConfigError(f"{text}: allowed here are {', '.join(key.rstrip('=') + '...' for key in ALLOWED)}")
    return configuration.load(DataConfig, None, texts)


def files_and_settings(arguments: list[str]):
    """(files, label and frame keys) of a command line that takes several files."""
    files = [text for text in arguments if "=" not in text or Path(text).exists()]
    if not files:
        raise ConfigError("give at least one file, folder, glob or built-in set")
    return files, settings([text for text in arguments if text not in files])


def summarized(source, cutoff: float, config, workers: int):
    """The summary of a source, its progress shown."""
    from janus_jax.data.summary import summarize
    from janus_jax.progress import Steps

    with Steps("frame", len(source)) as shown:
        return summarize(source, cutoff, config.labels, config.keys, workers, lambda done, _: shown(done))


def inspect(arguments: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from janus_jax import system
    from janus_jax.data import inspection
    from janus_jax.data.sources import open_source

    files, config = files_and_settings(arguments.arguments)
    source = open_source(files)
    summary = summarized(source, arguments.cutoff, config, arguments.workers)
    found = inspection.suspicions(source, summary)
    usable = np.flatnonzero(summary.records["usable"])
    charge, spin = (summary.records[name][usable] for name in ("charge", "spin"))
    if text := system.unseen_of_many(charge, spin, lambda k: source.name(int(usable[k]))):
        log.warning("%s", text)
    name = Path(files[0].replace("*", "_").replace(":", "_")).stem or "data"
    plot = Path(arguments.plot or f"{name}.inspect.png")
    inspection.draw(summary, plot)
    return {
        **inspection.figures(summary),
        "cutoff_angstrom": arguments.cutoff,
        "suspicious": [{"frame": one.name, "reason": one.reason} for one in found],
        "plot": str(plot),
    }


def split(arguments: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from janus_jax.data import convert, references, split
    from janus_jax.data.labels import LabelConfig
    from janus_jax.data.sources import open_source

    fractions = arguments.fractions
    if any(f <= 0 for f in fractions) or sum(fractions) > 1 + 1e-9 or len(fractions) > 3:
        raise ConfigError(f"--fractions: {fractions}; give two or three positive numbers that add up to at most 1.")
    files, config = files_and_settings(arguments.arguments)
    if config.labels.stress_order != LabelConfig().stress_order:
        raise ConfigError("data split writes labels as they are; convert the file with stress_order first.")
    source = open_source(files)
    summary = summarized(source, 5.0, config, arguments.workers)
    rest = 1 - sum(fractions)
    shares = [*fractions, rest] if rest > 1e-9 else fractions
    part = split.assign(summary.records["group"], shares, arguments.seed)
    part[references.isolated(summary)] = 0  # training looks for reference energies in its own file
    plain = len(files) == 1 and not glob.has_magic(files[0])
    out = Path(arguments.out or (f"{Path(files[0]).with_suffix('')}-split" if plain else "split"))
    result: dict[str, Any] = {}
    suffix = arguments.suffix
    for k, name in enumerate(("train", "validation", "test")[: len(fractions)]):
        chosen = np.flatnonzero(part == k)
        path = out / f"{name}{suffix}"
        result[name] = {"out": str(path), "structures": convert.write_frames(path, (source[int(i)] for i in chosen))}
        if found := split.deviation(fractions[k], len(chosen), summary.records["group"]):
            result[name]["note"] = found.text
    if (left := int((part == len(fractions)).sum())) > 0:
        result["left_over"] = {"out": "no file (the fractions add up to less than 1)", "structures": left}
    return result


def convert(arguments: argparse.Namespace) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import track

    from janus_jax.data import convert
    from janus_jax.data.sources import open_source

    source, config = open_source(arguments.file), settings(arguments.overrides)
    frames = track(convert.frames(source, config.labels), "converting", total=len(source), console=Console(stderr=True))
    return {"out": arguments.out, "structures": convert.write_frames(arguments.out, frames)}


def label(arguments: argparse.Namespace) -> dict[str, Any]:
    from ase.io import write
    from rich.console import Console
    from rich.progress import track

    from janus_jax.data import xtb
    from janus_jax.data.sources import read_frames

    xtb.calculator(arguments.method)  # wrong names and missing packages are reported before any work
    frames = read_frames(arguments.file)
    out = Path(arguments.out or Path(arguments.file).with_suffix(".labelled.extxyz"))
    results = xtb.label_all(frames, arguments.method, arguments.workers)
    labelled = list(track(results, "labelling", total=len(frames), console=Console(stderr=True)))
    write(out, labelled, format="extxyz")
    return {"out": str(out), "structures": len(labelled), "method": arguments.method}


def sample(arguments: argparse.Namespace) -> dict[str, Any]:
    from ase.io import write
    from rich.console import Console
    from rich.progress import track

    from janus_jax import configuration
    from janus_jax.data import sampling, xtb

    config = configuration.load(sampling.SamplingConfig, arguments.config)
    out = Path(arguments.out)
    results = sampling.sample(config, arguments.workers)
    runs = list(track(results, "sampling", total=len(config.runs), console=Console(stderr=True)))
    frames = [frame for run in sorted(runs, key=lambda run: run[0].info["trajectory"]) for frame in run]
    write(out, frames, format="extxyz")
    isolated = xtb.isolated_atom_energies(["H", "O"], config.method)
    out.with_suffix(".json").write_text(
        json.dumps({"method": config.method, "isolated_atom_energies_eV": isolated}, indent=1) + os.linesep
    )
    return {"out": str(out), "structures": len(frames), "method": config.method}


def show(figures: dict[str, Any]) -> None:
    if "suspicious" in figures:
        _show_inspection(figures)
    elif "method" in figures:
        print(f"{figures['structures']} structures with {figures['method']} labels are in {figures['out']}")
    else:
        for part in [figures] if "out" in figures else figures.values():
            print(
                f"{part['structures']} structures are in {part['out']}"
                + (f" ({part['note']})" if "note" in part else "")
            )


def _show_inspection(figures: dict[str, Any]) -> None:
    from janus_jax.cli import _tables

    def shown(value: Any) -> str:
        if isinstance(value, dict) and set(value) == {"min", "median", "mean", "max"}:
            return f"{value['min']:.4g} to {value['max']:.4g} (median {value['median']:.4g}, mean {value['mean']:.4g})"
        if isinstance(value, dict):
            return ", ".join(f"{name or '(none)'} {count:,}" for name, count in value.items())
        if isinstance(value, float):
            return f"{value:.4g}"
        return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    rows = [[key.replace("_", " "), shown(value)] for key, value in figures.items() if key != "suspicious"]
    _tables.show(["", ""], rows)
    listed = figures["suspicious"]
    if listed:
        title = f"{len(listed)} suspicious frames" + (" (the first 30)" if len(listed) > 30 else "")
        _tables.show(["frame", "why"], [[one["frame"], one["reason"]] for one in listed[:30]], title)
    else:
        print("no suspicious frames")
