"""`janus-jax`: parse arguments, run one command, turn user errors into one sentence.

Only the standard library is imported here, so that `--help` is instant.
"""

import argparse
import importlib
import json
import sys


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

    def command(name: str, text: str, parent=commands) -> argparse.ArgumentParser:
        sub = parent.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print the figures as one JSON object and nothing else")
        sub.set_defaults(module=name)
        return sub

    sub = command("train", "train a potential; without CONFIG: the built-in water set")
    sub.add_argument(
        "arguments", nargs="*", metavar="CONFIG | key=value", help="YAML file, then overrides such as batch.atoms=256"
    )

    sub = command("evaluate", "errors of a model on labelled structures")
    sub.add_argument("model", help="model file or run folder")
    sub.add_argument("file", help="structures with labels, or a built-in set such as water:test")
    sub.add_argument("--out", help="write the structures with predictions to this extxyz file")
    sub.add_argument("--plot", help="write parity plots to this PNG file")
    sub.add_argument("--batch-atoms", type=int, default=512, help="atoms in a batch (default: %(default)s)")

    sub = command("demo", "train, evaluate and run dynamics on water in a few minutes")
    sub.add_argument("--output", default="runs/demo", help="folder (default: %(default)s)")
    sub.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the training configuration")

    data = commands.add_parser("data", help="label or sample structures with quantum chemistry")
    actions = data.add_subparsers(dest="action", metavar="ACTION", required=True)
    sub = command("label", "label structures with GFN-xTB (needs the extra xtb)", actions)
    sub.add_argument("file", help="structures in any format ASE reads")
    sub.add_argument("--method", default="gfn2-xtb", help="gfn1-xtb or gfn2-xtb (default: %(default)s)")
    sub.add_argument("--out", help="output file (default: FILE with .labelled.extxyz)")
    sub.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    sub.set_defaults(module="data")
    sub = command("sample", "sample liquid water with GFN-xTB, as the built-in set was made", actions)
    sub.add_argument("config", help="YAML such as configs/data/water.yaml")
    sub.add_argument("--out", required=True, help="output extxyz; isolated-atom energies go beside it as .json")
    sub.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    sub.set_defaults(module="data")

    command("doctor", "versions, devices, and packages that shadow ours")
    return top


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    module = importlib.import_module(f"janus_jax.cli.{arguments.module}")
    from janus_jax.errors import JanusError

    try:
        figures = module.run(arguments)
    except JanusError as error:
        if arguments.debug:
            raise
        print(f"janus-jax: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("janus-jax: interrupted", file=sys.stderr)
        return 130
    if arguments.json:
        print(json.dumps(figures))
    elif figures is not None:
        module.show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
