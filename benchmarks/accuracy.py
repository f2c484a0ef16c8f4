"""Force error over training time: our trainer against InstaDeep mlip's own, on the built-in water set.

    python benchmarks/accuracy.py --mlip PYTHON [--minutes 4] [--save benchmarks/results/accuracy.json]

The same structures, splits and eSEN size; each trains with its own loop and recipe, one after the
other, alone on the machine, in processes of their own (their dependencies do not fit together). Ours is
given half of the time that mlip took. Compared is the validation MAE of force components with averaged
weights against processor and wall time, validation left out on both sides; a plot goes beside the file.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from ase.io import write

from janus_jax import plotting
from janus_jax.data.sources import read_frames

HERE = Path(__file__).parent
PART = 0.5
"""Of mlip's time, for our run."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mlip", required=True, help="Python with mlip 0.2.5")
    parser.add_argument("--minutes", type=float, default=4.0, help="of mlip's training (default: %(default)s)")
    parser.add_argument("--save", help="JSON to write; the plot goes beside it")
    parser.add_argument("--mlip-record", help="use this record of an earlier run of mlip_train.py")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to our recipe")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mlip = json.loads(Path(options.mlip_record).read_text()) if options.mlip_record else run_mlip(folder, options)
        budget = PART * trained(mlip["curve"][-1])["cpu_seconds"]
        ours = run_ours(folder, budget, options.overrides)
    target = mlip["curve"][-1]["force_mae_meV_per_angstrom"]
    reached = next((p for p in ours["curve"] if p["force_mae_meV_per_angstrom"] <= target), None)
    end = trained(mlip["curve"][-1])
    record = {
        "command": "python benchmarks/accuracy.py --mlip PYTHON",
        "cores": len(os.sched_getaffinity(0)),
        "mlip": mlip,
        "janus_jax": ours,
        "mlip_final_meV_per_angstrom": target,
        "ours_final_meV_per_angstrom": ours["curve"][-1]["force_mae_meV_per_angstrom"],
        "part_of_mlips_time_to_reach_its_error": None if reached is None else {
            key: trained(reached)[key] / end[key] for key in ("cpu_seconds", "seconds")
        },
    }  # fmt: skip
    if options.save:
        Path(options.save).write_text(json.dumps(record, indent=1) + "\n")
        draw(record, Path(options.save).with_suffix(".png"))
    print(json.dumps({key: value for key, value in record.items() if key not in ("mlip", "janus_jax")}, indent=1))


def trained(point: dict) -> dict[str, float]:
    """Times of a point without validation."""
    return {
        "seconds": point["seconds"] - point["validation_seconds"],
        "cpu_seconds": point["cpu_seconds"] - point["validation_cpu_seconds"],
    }


def run_mlip(folder: str, options) -> dict:
    for split in ("train", "validation", "test"):
        write(Path(folder) / f"{split}.xyz", read_frames(f"water:{split}"), format="extxyz")
    out = Path(folder) / "mlip.json"
    script = HERE / "peers" / "mlip_train.py"
    command = [options.mlip, script, folder, out, "--minutes", str(options.minutes)]
    subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=sys.stderr)
    return json.loads(out.read_text())


def run_ours(folder: str, budget: float, overrides: list[str]) -> dict:
    """Our run in a process of its own; the number of steps is chosen to fit `budget` CPU seconds.

    A trial of two lengths, before and not counted (as in mlip_train.py), gives the time of a step.
    """

    def run(steps: int, every: int) -> dict:
        arguments = [str(steps), str(every), f"{folder}/run-{steps}", *overrides]
        command = [sys.executable, __file__, "--ours", *arguments]
        out = subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stdout=subprocess.PIPE)
        return json.loads(out.stdout.splitlines()[-1])

    short, long = (trained(run(steps, steps)["curve"][-1])["cpu_seconds"] for steps in (20, 80))
    steps = 20 + int(60 * (budget - short) / (long - short))
    return run(steps, max(1, steps // 8))


def ours(steps: str, every: str, output: str, *overrides: str) -> None:
    """Train and print the curve, with times as mlip_train.py takes them: from the start of training."""
    import time

    import numpy as np

    from janus_jax.train import config, loop, run

    def clock() -> np.ndarray:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return np.array([time.perf_counter(), usage.ru_utime + usage.ru_stime])

    curve, validation = [], np.zeros(2)
    validate, start = loop.Loop._validate, None
    make = loop.Loop.run

    def timed_run(self, *arguments):
        nonlocal start
        start = clock()
        return make(self, *arguments)

    def timed_validate(self, state, step, progress):
        nonlocal validation
        begin = clock()
        outcome = validate(self, state, step, progress)
        validation = validation + clock() - begin
        seconds, cpu = clock() - start
        curve.append({"step": step, "seconds": seconds, "cpu_seconds": cpu, "validation_seconds": validation[0],
                      "validation_cpu_seconds": validation[1]})  # fmt: skip
        return outcome

    loop.Loop.run, loop.Loop._validate = timed_run, timed_validate
    settings = [f"steps={steps}", f"validate_every={every}", f"output={output}", "tracking.tensorboard=false"]
    result = run.run(config.load(None, [*settings, *overrides]))
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    errors = {row["step"]: row for row in rows if "validation_loss" in row}
    for point in curve:
        row = errors[point["step"]]
        point["force_mae_meV_per_angstrom"] = row["validation_forces_mae_meV_per_angstrom"]
        point["energy_mae_meV_per_atom"] = row["validation_energy_mae_meV_per_atom"]
    record = {
        "versions": {name: version(name) for name in ("janus-jax", "jax", "flax")},
        "settings": {"steps": int(steps), "overrides": overrides},
        "curve": curve,
        "test": result.figures["test"],
    }
    print(json.dumps(record))


def draw(record: dict, path: Path) -> None:
    figure, axes = plotting.figure(2)
    for axis, key in zip(axes, ("cpu_seconds", "seconds"), strict=True):
        for name in ("mlip", "janus_jax"):
            points = [(trained(p)[key], p["force_mae_meV_per_angstrom"]) for p in record[name]["curve"]]
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        axis.set(xlabel=f"training, {key.replace('_', ' ')}", ylabel="validation force MAE, meV/Å", yscale="log")
        plotting.legend(axis)
    plotting.save(figure, path)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        ours(*sys.argv[2:])
    else:
        main()
