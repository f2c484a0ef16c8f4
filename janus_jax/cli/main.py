"""`janus-jax`: parse arguments, run one command, turn user errors into one sentence.

Only the standard library is imported here, so that `--help` is instant.
"""

import argparse
import importlib
import json
import sys
from typing import Any


class ShowVersion(argparse.Action):
    """Prints the version, imported only when asked for."""

    def __call__(self, parser, namespace, values, option_string=None):
        from janus_jax import __version__

        print(f"janus-jax {__version__}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="janus-jax", description="Conservative machine-learned interatomic potentials in JAX."
    )
    top.add_argument("--debug", action="store_true", help="show the traceback of errors")
    top.add_argument("--version", action=ShowVersion, nargs=0, help="print the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str, parent=commands, module: str | None = None) -> argparse.ArgumentParser:
        sub = parent.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print the figures as one JSON object and nothing else")
        sub.set_defaults(module=module or name)
        return sub

    def group(name: str, text: str):
        sub = commands.add_parser(name, help=text, description=text)
        return sub.add_subparsers(dest="action", metavar="ACTION", required=True)

    overrides: dict[str, Any] = {"nargs": "*", "metavar": "key=value"}

    sub = command("train", "train a potential; without CONFIG: the built-in water set")
    sub.add_argument("--resume", metavar="RUN", help="go on with the run in this folder")
    sub.add_argument("--tune", action="store_true", help="choose the cap or unit of the pipeline first, by measurement")
    sub.add_argument(
        "arguments", nargs="*", metavar="CONFIG | key=value", help="YAML file, then overrides such as batch.atoms=256"
    )

    sub = command("evaluate", "errors of a model on labelled structures")
    sub.add_argument("model", help="model file or run folder")
    sub.add_argument("file", help="structures with labels: file, folder, glob, or a built-in set such as water:test")
    sub.add_argument("overrides", **overrides, help="how labels are called, such as labels.energy=my_energy")
    sub.add_argument("--out", help="write the structures with predictions to this new file")
    sub.add_argument("--plot", help="write parity plots to this PNG file")
    sub.add_argument("--batch-atoms", type=int, default=512, help="atoms in a batch (default: %(default)s)")

    sub = command("demo", "train, evaluate and run dynamics on water in a few minutes")
    sub.add_argument("--output", default="runs/demo", help="folder (default: %(default)s)")
    sub.add_argument("overrides", **overrides, help="changes to the training configuration")

    sub = command("report", "write report.html of a run again")
    sub.add_argument("run", help="run folder")
    sub = command("compare", "overlay runs in one page")
    sub.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    sub.add_argument("--out", default="compare.html", help="page to write (default: %(default)s)")
    sub.set_defaults(module="report")

    actions = group("model", "look at and export model files")
    sub = command("show", "what a model file holds", actions, "model")
    sub.add_argument("model", help="model file or run folder")
    sub = command("export", "write a model in another form", actions, "model")
    sub.add_argument("model", help="model file or run folder")
    sub.add_argument("out", help="file ending in .janus, .npz (weights by name) or .stablehlo (a compiled program)")
    sub.add_argument("--weights", choices=("averaged", "raw"), default="averaged", help="which, of a run's checkpoint")
    sub.add_argument("--step", type=int, help="checkpoint of the run to take (default: the best)")
    sub.add_argument("--precision", choices=("float32", "float64"), help="default: as stored")
    sub.add_argument(
        "--capacity", type=int, nargs=2, metavar=("ATOMS", "EDGES"), default=(256, 16384),
        help="array lengths of the .stablehlo program (default: %(default)s)",
    )  # fmt: skip

    actions = group("config", "templates, checks and schema of configurations")
    files: dict[str, Any] = {"nargs": "*", "metavar": "CONFIG | key=value"}
    sub = command("template", "a commented configuration with every key", actions, "config")
    sub.add_argument("arguments", **files, help="values to put in")
    sub.add_argument("--md", action="store_true", help="of dynamics")
    sub = command("validate", "check a configuration and show it resolved", actions, "config")
    sub.add_argument("arguments", **files, help="file and overrides")
    sub.add_argument("--md", action="store_true", help="of dynamics")
    sub = command("schema", "JSON schema, for editors", actions, "config")
    sub.add_argument("--md", action="store_true", help="of dynamics")

    actions = group("data", "inspect, split, convert, label or sample structures")
    several: dict[str, Any] = {"nargs": "+", "metavar": "FILE | key=value"}
    sub = command("inspect", "counts, labels, statistics, suspicious frames, histograms", actions, "data")
    sub.add_argument("arguments", **several, help="files, folders, globs, sets; labels.stress_unit=GPa")
    sub.add_argument("--cutoff", type=float, default=5.0, help="for neighbour counts, Å (default: %(default)s)")
    sub.add_argument("--plot", help="PNG to write (default: NAME.inspect.png here)")
    sub.add_argument("--workers", type=int, default=0, help="processes (default: this one)")
    sub = command("split", "write train, validation and test files", actions, "data")
    sub.add_argument("arguments", **several, help="files, ...; such as keys.split=trajectory: what must stay together")
    sub.add_argument("--fractions", type=float, nargs="+", default=[0.8, 0.1, 0.1], help="(default: %(default)s)")
    sub.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    sub.add_argument("--out", help="folder (default: FILE-split, or split)")
    sub.add_argument("--suffix", default=".xyz", help="format of the files (default: %(default)s)")
    sub.add_argument("--workers", type=int, default=0, help="processes (default: this one)")
    sub = command("convert", "any source to eV, Å and ASE's keys in one new file", actions, "data")
    sub.add_argument("file", help="file, folder, glob, or built-in set")
    sub.add_argument("out", help="new file ending in .xyz, .extxyz, .aselmdb or .db")
    sub.add_argument("overrides", **overrides, help="such as labels.energy_unit=Hartree")
    sub = command("label", "label structures with GFN-xTB (needs the extra xtb)", actions, "data")
    sub.add_argument("file", help="structures in any format ASE reads")
    sub.add_argument("--method", default="gfn2-xtb", help="gfn1-xtb or gfn2-xtb (default: %(default)s)")
    sub.add_argument("--out", help="output file (default: FILE with .labelled.extxyz)")
    sub.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    sub = command("sample", "sample liquid water with GFN-xTB, as the built-in set was made", actions, "data")
    sub.add_argument("config", help="YAML such as configs/data/water.yaml")
    sub.add_argument("--out", required=True, help="output extxyz; isolated-atom energies go beside it as .json")
    sub.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")

    actions = group("schedule", "pipeline schedules: show, compare, tune; simulated, nothing is run")
    for action, text in (
        ("show", "one schedule in time"),
        ("compare", "all schedules side by side"),
        ("tune", "unit of wavek or cap of split under a memory budget"),
    ):
        sub = command(action, text, actions, "schedule")
        if action != "compare":
            sub.add_argument("--schedule", default="split", help="by name (default: %(default)s)")
        sub.add_argument("--stages", type=int, default=4, help="(default: %(default)s)")
        sub.add_argument("--microbatches", type=int, default=12, help="(default: %(default)s)")
        sub.add_argument("--times", help="of the phases (default: FE=1,FF=1.52,BF=2.7,BE=2.2, ours)")
        sub.add_argument("--model", help="times of a model in the paper: UMA-1.2B, UMA-2.3B, eSEN-100M, eSEN-220M")
        sub.add_argument("--split", help="parts of BF and BE: BFt=1,BEh=0.55 (default: 51 and 50 %%, ours)")
        sub.add_argument("--transfer", type=float, default=0.0, help="time of a transfer (default: %(default)s)")
        sub.add_argument("--blocking", action="store_true", help="transfers keep both devices busy")
        sub.add_argument("--trials", type=int, help="of the search of split (default: about two seconds of them)")
        sub.add_argument("--seed", type=int, default=0, help="of that search (default: %(default)s)")
        if action == "tune":
            sub.add_argument("--memory", type=float, help="budget, in the unit of --sizes")
            sub.add_argument("--sizes", help="what each phase keeps: FE=1,FF=1,BF=1 (default: one unit each)")
        else:
            sub.add_argument("--unit", type=int, help="of wavek (default: the stages)")
            sub.add_argument("--cap", type=int, help="of split (default: twice the stages)")
        if action == "show":
            for name in ("svg", "trace", "csv", "text"):
                sub.add_argument(f"--{name}", metavar="FILE", help=f"write it as {name}")

    sub = command("plan", "memory, work, bubble and transfers of a training configuration; no device is used")
    sub.add_argument("arguments", nargs="*", metavar="CONFIG | key=value", help="as for train")
    sub.add_argument("--neighbors", type=float, help="edges per atom (default: from the cutoff)")
    sub.add_argument("--times", help="of the phases of a stage, ms: FE=26,FF=38,BF=82,BE=44")
    sub.add_argument("--split", help="parts of BF and BE, ms: BFt=26,BEh=24 (default: 51 and 50 %%, ours)")
    sub.add_argument("--model", help="ratios of a model in the paper: UMA-1.2B, UMA-2.3B, eSEN-100M, eSEN-220M")
    sub.add_argument("--plot", default="plan.png", help="picture to write (default: %(default)s)")

    sub = command("md", "dynamics of a structure on one or several devices")
    sub.add_argument(
        "arguments", nargs="*", metavar="CONFIG | FILE | key=value",
        help="YAML file, or a structure in any format ASE reads; then overrides such as ensemble.tau_fs=50",
    )  # fmt: skip
    sub.add_argument("--resume", metavar="RUN", help="go on with the run in this folder, --steps further or to its end")
    sub.add_argument("--dry-run", action="store_true", help="check everything and estimate memory; run nothing")
    short: tuple[tuple[str, str, Any, str], ...] = (
        ("model", "model", None, "model file or run folder"),
        ("ensemble", "ensemble.name", None, "nve, nvt, langevin, npt or minimize (default: nve)"),
        (
            "temperature",
            "ensemble.temperature_kelvin",
            None,
            "K, or 300:600 to go from one to the other (default: 300)",
        ),
        ("pressure", "ensemble.pressure_gpa", None, "GPa, or 0:1 (default: 0)"),
        ("timestep", "ensemble.timestep_fs", None, "fs (default: 0.5)"),
        ("steps", "steps", int, "(default: 1000)"),
        ("devices", "engine.devices", int, "(default: 1)"),
        ("cut", "engine.cut", None, "auto, grid, hilbert or morton (default: auto)"),
        ("skin", "engine.skin_angstrom", None, "Å (default: 0.5)"),
        ("interval", "engine.interval", int, "most steps between searches for neighbours (default: 10)"),
        ("seed", "engine.seed", int, "of velocities and noise (default: 0)"),
        ("thermo", "output.thermo", int, "steps between rows of thermo.csv (default: 10)"),
        ("frames", "output.frames", int, "steps between frames (default: 100)"),
        ("frame", "frame", int, "which of a trajectory in FILE (default: 0)"),
        ("output", "folder", None, "folder (default: runs/md-NAME)"),
    )
    for name, _key, kind, text in short:
        sub.add_argument(f"--{name}", type=kind or str, help=text)
    sub.set_defaults(keys={name: key for name, key, _, _ in short})

    sub = command("partition", "how a structure is cut among ranks, and what they would exchange")
    sub.add_argument("file", help="structure in any format ASE reads")
    sub.add_argument("--ranks", type=int, default=8, metavar="K", help="(default: %(default)s)")
    sub.add_argument(
        "--cut", choices=("auto", "grid", "hilbert", "morton"), default="auto", help="(default: %(default)s)"
    )
    sub.add_argument("--cutoff", type=float, default=5.5, help="Å (default: %(default)s)")
    sub.add_argument("--skin", type=float, default=0.0, help="Å, on top of the cutoff (default: %(default)s)")
    sub.add_argument(
        "--scheme", choices=("all-gather", "rank-box", "multi-box", "spatial-bin"), default="rank-box",
        help="how candidates are asked for (default: %(default)s)",
    )  # fmt: skip
    sub.add_argument("--balance", choices=("atoms", "edges"), default="atoms", help="(default: %(default)s)")
    sub.add_argument("--channels", type=int, default=1152, help="numbers of an atom's features (default: %(default)s)")
    sub.add_argument("--frame", type=int, default=0, help="of a trajectory (default: %(default)s)")
    sub.add_argument("--plot", help="PNG to write (default: NAME.partition.png here)")

    sub = command("launch", "run a command in several processes of this machine that work as one")
    sub.add_argument("-n", "--processes", type=int, default=2, help="(default: %(default)s)")
    sub.add_argument("words", nargs=argparse.REMAINDER, metavar="-- train ...", help="the command, after --")

    command("doctor", "versions, devices, and packages that shadow ours")
    return top


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Arguments; `key=value` may stand anywhere, which argparse alone does not allow after an option."""
    top = parser()
    arguments, rest = top.parse_known_args(argv)
    place = next((name for name in ("overrides", "arguments") if hasattr(arguments, name)), None)
    if rest and (place is None or any(word.startswith("-") or "=" not in word for word in rest)):
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    if place is not None:
        setattr(arguments, place, [*getattr(arguments, place), *rest])
    return arguments


def check_numbers(arguments: argparse.Namespace) -> None:
    """Options that take a fraction, a length, a time or a memory: none means anything below 0, infinite or NaN."""
    from janus_jax.errors import ConfigError

    for name, given in vars(arguments).items():
        for value in given if isinstance(given, list) else [given]:
            if isinstance(value, float) and not 0 <= value < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')} is {value:g}; it must be a finite number, not below 0.")


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    module = importlib.import_module(f"janus_jax.cli.{arguments.module}")
    from janus_jax.errors import JanusError

    try:
        check_numbers(arguments)
        figures = module.run(arguments)
    except JanusError as error:
        if arguments.debug:
            raise
        print(f"janus-jax: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if arguments.debug:
            raise
        print(f"janus-jax: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("janus-jax: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        from janus_jax.units import finite

        print(json.dumps(finite(figures), allow_nan=False))
    elif figures is not None:
        module.show(figures)
    return module.exit_code(figures) if hasattr(module, "exit_code") else 0


if __name__ == "__main__":
    sys.exit(main())
