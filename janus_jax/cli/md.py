"""`janus-jax md CONFIG | FILE --model MODEL | --resume RUN`: dynamics on one or several devices."""

import argparse
import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from janus_jax.cli._processes import begin, ended, together
from janus_jax.cli._structure import read_structure
from janus_jax.cli._tables import files_in
from janus_jax.cli.train import exit_code as exit_code
from janus_jax.cli.train import file_and_overrides
from janus_jax.errors import ConfigError, DynamicsError

if TYPE_CHECKING:
    from md.config import MdConfig
    from md.simulation import Simulation

CONFIG, MODEL = "config.yaml", "model.janus"
FILES = (
    "thermo.csv", "trajectory.extxyz", "trajectory.h5md", "final.extxyz", "distributions.npz", "results.json",
    "report.html",
)  # fmt: skip
RAMPED = ("ensemble.temperature_kelvin", "ensemble.pressure_gpa")


def configure(arguments: argparse.Namespace) -> "MdConfig":
    """The configuration of a command line: a file, options, overrides; of a resumed run, its own first."""
    from janus_jax import configuration
    from md.config import MdConfig

    file, overrides = file_and_overrides(arguments.arguments)
    values: dict[str, Any] = {}
    if arguments.resume:
        values = configuration.read(Path(arguments.resume) / CONFIG)
        overrides += [f"model={Path(arguments.resume) / MODEL}", f"folder={arguments.resume}"]
    elif file is None:
        raise ConfigError(
            "nothing to run: give a structure and a model, as in: janus-jax md FILE --model MODEL, or a YAML "
            "configuration, or --resume RUN"
        )
    elif Path(file).suffix in (".yaml", ".yml"):
        values = configuration.read(file)
    else:
        values = {"structure": file}
    given = {key: getattr(arguments, name) for name, key in arguments.keys.items()}
    ramps = {key: value for key, value in given.items() if key in RAMPED and value is not None and ":" in value}
    overrides += [f"{key}={value}" for key, value in given.items() if value is not None and key not in ramps]
    if ramps:  # over the steps to be made, which the other options say
        plain = configuration.validate(MdConfig, configuration.override(values, overrides))
        began = _made(arguments.resume)
        end = began + (arguments.steps or plain.steps - began) if arguments.resume else plain.steps
        first, last = (step * plain.ensemble.timestep_fs / 1000 for step in (began, end))
        for key, value in ramps.items():
            low, high = value.split(":", 1)
            overrides.append(f"{key}=[[{first!r}, {low}], [{last!r}, {high}]]")
    config = configuration.validate(MdConfig, configuration.override(values, overrides))
    if not config.structure or not config.model:
        missing, how = (
            ("structure", "structure=FILE, in any format that ASE reads")
            if not config.structure
            else ("model", "--model MODEL, a model file or the folder of a training run")
        )
        raise ConfigError(f"no {missing}: give {how}, or the key {missing} in the YAML file")
    if not config.folder:
        config = config.model_copy(update={"folder": f"runs/md-{Path(config.structure).stem}"})
    return config


def _made(folder: str | None) -> int:
    """Steps of the newest checkpoint of a run; 0 without one."""
    from md.restart import FOLDER

    names = [path.name for path in (Path(folder) / FOLDER).glob("*")] if folder else []
    return max((int(name) for name in names if name.isdigit()), default=0)


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax.cli._logging import to_stderr

    to_stderr()
    logging.getLogger("jax").setLevel(logging.ERROR)
    return together(_run, arguments)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    import jax

    from janus_jax import bundle
    from md.simulation import Simulation
    from partition.errors import PartitionError

    if arguments.resume and arguments.dry_run:
        raise ConfigError(f"--dry-run is for new runs: janus-jax md {Path(arguments.resume) / CONFIG} --dry-run")
    config = configure(arguments)
    jax.config.update("jax_enable_x64", True)  # positions and integration; the model keeps its precision
    begin(config.engine.devices)
    model = bundle.load(config.model)
    options = dict(config.engine) | dict(config.output)
    try:
        if arguments.resume:
            simulation = Simulation(model, None, config.ensemble, folder=config.folder, resume=True, **options)
            steps = arguments.steps or config.steps - simulation.engine.step
            if steps < 1:
                raise ConfigError(f"the run has made its {config.steps} steps; say how many more with --steps")
            config = config.model_copy(update={"steps": simulation.engine.step + steps})
            _keep_config(config)
        else:
            structure = _structure(config)
            if arguments.dry_run:
                from md import estimate

                return ended(estimate.memory(model, structure, config.ensemble, config.engine) | {"dry_run": True})

            def keep() -> None:
                _keep_config(config)
                bundle.save(Path(config.folder) / MODEL, model)

            simulation = Simulation(
                model, structure, config.ensemble, folder=config.folder, before_files=keep, **options
            )
            steps = config.steps
        stopped = _go(simulation, steps)
    except PartitionError as error:
        raise DynamicsError(str(error)) from None
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise DynamicsError(
            f"memory does not suffice on {config.engine.devices} devices; --dry-run says what is needed"
        ) from error
    figures = simulation.figures()
    if config.output.report:
        simulation.report(figures)
    return ended(figures | ({"stopped": stopped} if stopped else {}))


def _keep_config(config: "MdConfig") -> None:
    """The configuration in the run's folder, from which it can be resumed."""
    from janus_jax import configuration, storage
    from janus_jax.runtime import multihost

    if multihost.primary():
        storage.write_text(Path(config.folder) / CONFIG, configuration.dump(config))


def _structure(config: "MdConfig"):
    """The structure of a configuration, repeated; its charge with it."""
    from janus_jax import system

    structure = read_structure(config.structure, config.frame)
    copies = config.repeat[0] * config.repeat[1] * config.repeat[2]
    given = system.of(structure)
    if copies > 1 and given["spin"]:
        raise ConfigError(f"repeat is {config.repeat}, but the structure has a spin, which copies do not add up to")
    if copies > 1 and given["charge"]:
        structure.info["charge"] = given["charge"] * copies
    structure *= config.repeat
    if config.engine.devices > len(structure):
        raise ConfigError(f"{len(structure)} atoms on {config.engine.devices} devices: give fewer devices")
    return structure


def _go(simulation: "Simulation", steps: int) -> str | None:
    """The run, its progress shown and signals heeded."""
    import time

    from janus_jax.progress import Steps
    from janus_jax.runtime import multihost
    from janus_jax.train.interruption import Interruption

    engine = simulation.engine
    first, began = engine.step, time.perf_counter()
    with Interruption() as interruption, Steps("step", first + steps, first, quiet=not multihost.primary()) as shown:
        shown(first, "compiling")

        def progress(reading) -> None:
            rate = simulation.timed / simulation.seconds if simulation.seconds else (
                (reading.step - first) / (time.perf_counter() - began)
            )  # fmt: skip
            shown(
                reading.step,
                f"{reading.temperature_kelvin:.0f} K, {rate:.3g} steps/s, {rate * engine.atoms:.3g} atoms x steps/s, "
                f"{rate * engine.ensemble.timestep_fs * 86400e-6:.3g} ns/day",
            )

        return simulation.run(steps, progress, interruption.reason)


def show(figures: dict[str, Any]) -> None:
    if figures.get("dry_run"):
        print(
            f"{figures['atoms']} atoms on {figures['devices']} devices ({figures['cut']} cut): {figures['rows']} rows, "
            f"{figures['edges']} edges and {figures['halo']} halo rows each.\n"
            f"Memory of a device: {figures['total_mib']:.0f} of {figures['available_mib']:.0f} MiB "
            f"({figures['temporary_mib']:.0f} of them while a step is computed)."
        )
        return
    if figures.get("stopped") not in (None, "converged"):
        print(f"stopped at step {figures['steps']} ({figures['stopped']}); the checkpoint is in {figures['folder']}")
    rebuilds = ", ".join(f"{count} by {why}" for why, count in figures["rebuilds"].items()) or "none"
    drift = figures["drift_meV_per_atom_per_ps"]
    moved = "" if math.isnan(drift) else f"; drift {drift:.3g} meV/atom/ps"
    state = (
        f"Temperature {figures['temperature_kelvin']:.1f} K, "
        f"on average {figures['mean_temperature_kelvin']:.1f} K{moved}."
    )
    if figures["ensemble"] == "minimize":
        end = "converged" if figures["converged"] else f"not converged; go on with --resume {figures['folder']}"
        state = f"Largest force {figures['largest_force_ev_per_angstrom']:.3g} eV/Å: {end}."
    equilibrium = f"Equilibrium: {figures['equilibrium']}.\n" if figures["equilibrium"] else ""
    print(
        f"{figures['steps']} steps of {figures['atoms']} atoms on {figures['devices']} devices ({figures['cut']} cut): "
        f"{figures['steps_per_s']:.3g} steps/s, {figures['ns_per_day']:.3g} ns/day.\n"
        f"{state}\n{equilibrium}"
        f"Lists kept in {100 * figures['lists_reused']:.1f} % of the steps; searches: {rebuilds}. "
        f"Compiled: {'; '.join(figures['compiled'])}.\n"
        f"{files_in(figures['folder'], FILES)}"
    )
