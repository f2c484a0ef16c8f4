"""`janus-jax md FILE --model MODEL`: dynamics on one or several devices."""

import argparse
import logging
from pathlib import Path
from typing import Any

from janus_jax.cli._structure import read_structure
from janus_jax.errors import ConfigError, DynamicsError


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    import jax
    from pydantic import ValidationError
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from janus_jax import bundle
    from janus_jax.cli._logging import to_stderr
    from janus_jax.runtime import multihost
    from md.ensembles import EnsembleConfig
    from md.simulation import Simulation
    from partition.errors import PartitionError

    to_stderr()
    logging.getLogger("jax").setLevel(logging.ERROR)
    if arguments.steps < 1 or arguments.devices < 1:
        raise ConfigError(f"--steps {arguments.steps} --devices {arguments.devices}: both must be positive")
    jax.config.update("jax_enable_x64", True)  # positions and integration; the model keeps its precision
    multihost.start(arguments.devices)
    structure, model = read_structure(arguments.file, arguments.frame), bundle.load(arguments.model)
    try:
        ensemble = EnsembleConfig(
            name=arguments.ensemble, temperature_kelvin=arguments.temperature, timestep_fs=arguments.timestep
        )
    except ValidationError as error:
        raise ConfigError("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())) from None
    folder = arguments.output or f"runs/md-{Path(arguments.file).stem}"
    try:
        simulation = Simulation(
            model, structure, ensemble, folder=folder, thermo=arguments.thermo, frames=arguments.frames,
            devices=arguments.devices, method=arguments.cut, skin=arguments.skin, interval=arguments.interval,
            seed=arguments.seed,
        )  # fmt: skip
        columns = (
            *Progress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("steps", total=arguments.steps, now="")

            def progress(reading) -> None:
                bar.update(task, completed=reading.step, now=f"{reading.temperature_kelvin:.0f} K")

            simulation.run(arguments.steps, progress)
    except PartitionError as error:
        raise DynamicsError(str(error)) from None
    return simulation.figures()


def show(figures: dict[str, Any]) -> None:
    rebuilds = ", ".join(f"{count} by {why}" for why, count in figures["rebuilds"].items()) or "none"
    print(
        f"{figures['steps']} steps of {figures['atoms']} atoms on {figures['devices']} devices ({figures['cut']} cut): "
        f"{figures['steps_per_s']:.3g} steps/s, {figures['ns_per_day']:.3g} ns/day.\n"
        f"Temperature {figures['temperature_kelvin']:.1f} K, on average {figures['mean_temperature_kelvin']:.1f} K; "
        f"energy drift {figures['drift_meV_per_atom_per_ps']:.3g} meV/atom/ps.\n"
        f"Rebuilds: {rebuilds}. Compiled: {'; '.join(figures['compiled'])}.\n"
        f"Files: {figures['folder']}/thermo.csv, trajectory.extxyz, final.extxyz"
    )
