"""`janus-jax data label` and `data sample`: structures with GFN-xTB labels."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from janus_jax.errors import ConfigError


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    return {"label": label, "sample": sample}[arguments.action](arguments)


def label(arguments: argparse.Namespace) -> dict[str, Any]:
    from ase.io import write
    from rich.console import Console
    from rich.progress import track

    from janus_jax.data import readers, xtb

    xtb.calculator(arguments.method)  # wrong names and missing packages are reported before any work
    frames = readers.read_frames(arguments.file)
    out = Path(arguments.out or Path(arguments.file).with_suffix(".labelled.extxyz"))
    results = xtb.label_all(frames, arguments.method, arguments.workers)
    labelled = list(track(results, "labelling", total=len(frames), console=Console(stderr=True)))
    write(out, labelled, format="extxyz")
    return {"out": str(out), "structures": len(labelled), "method": arguments.method}


def sample(arguments: argparse.Namespace) -> dict[str, Any]:
    import yaml
    from ase.io import write
    from pydantic import ValidationError
    from rich.console import Console
    from rich.progress import track

    from janus_jax.data import sampling, xtb

    try:
        config = sampling.SamplingConfig.model_validate(yaml.safe_load(Path(arguments.config).read_text()))
    except (OSError, ValidationError, yaml.YAMLError) as error:
        raise ConfigError(f"{arguments.config}: {error}") from error
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
    print(f"{figures['structures']} structures with {figures['method']} labels are in {figures['out']}")
