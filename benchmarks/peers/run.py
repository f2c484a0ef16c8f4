"""Compare janus_jax's eSEN with fairchem-core and mlip: same weights, structure, machine and run.

    python benchmarks/peers/run.py --fairchem PYTHON --mlip PYTHON [--rounds 3] [--json] [--save FILE]

Start it with janus_jax's environment; the two options are the interpreters of the peers'
environments (README.md). Every round starts each side in a process of its own, in turn, so that a
slow spell of the machine meets all sides. Exit status 1: the sides' numbers disagree.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from statistics import median

import numpy as np
from table import table

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
THREADS = 2
TOLERANCE = 1e-5
"""Largest difference to janus_jax, relative to the largest force, the energy, ...: float32 rounding."""


def limit_cores() -> None:
    """Bind this process and all it starts to `THREADS` cores, whatever the libraries would take."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    cores = len(os.sched_getaffinity(0))
    if cores < THREADS:
        raise SystemExit(f"{cores} core available, {THREADS} needed")


def call(python: str, script: str, *arguments: str) -> None:
    """Run a script of this folder; only janus_jax's interpreter gets this repository."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": str(THREADS)}
    environment["PYTHONPATH"] = str(ROOT) if python == sys.executable else ""
    done = subprocess.run([python, str(HERE / script), *arguments], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-4000:]}")


def collect(scripts: dict[str, tuple[str, str]], problem: str, folder: str, rounds: int) -> dict[str, list[dict]]:
    """The answers of every side, one per round."""
    answers = {side: [] for side in scripts}
    for k in range(rounds):
        for side, (python, script) in scripts.items():
            print(f"round {k + 1} of {rounds}: {side}", file=sys.stderr, flush=True)
            path = f"{folder}/answer.json"
            call(python, script, problem, path)
            answers[side].append(json.loads(Path(path).read_text()))
    return answers


def summary(rounds: list[dict]) -> dict:
    """One side: medians over rounds, and the rounds' values."""
    result = {"versions": rounds[0]["versions"], "parameters": rounds[0]["parameters"]}
    for task in ("energy_forces", "training_gradient"):
        times = [answer[task]["median_ms"] for answer in rounds]
        result[task] = {
            "median_ms": round(median(times), 1),
            "rounds_ms": [round(time, 1) for time in times],
            "min_ms": round(min(answer[task]["min_ms"] for answer in rounds), 1),
            "first_call_s": round(median(answer[task]["first_call_s"] for answer in rounds), 2),
            "other_cores": round(max(answer[task]["other_cores"] for answer in rounds), 2),
        }
    result["peak_memory_mb"] = round(median(answer["peak_memory_mb"] for answer in rounds))
    return result


def difference(ours: dict, other: dict) -> dict[str, float]:
    """Relative differences of a side's numbers to ours; forces relative to the largest component."""
    forces = np.array(ours["forces"])
    result = {"forces": np.abs(np.array(other["forces"]) - forces).max() / np.abs(forces).max()}
    for key in ("energy", "loss", "gradient_norm"):
        result[key] = abs(other[key] - ours[key]) / abs(ours[key])
    return {key: float(f"{value:.2g}") for key, value in result.items()}


def machine() -> dict:
    """The processor and the load from other programs before the first round."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"processor": model, "threads": THREADS, "load_before": round(os.getloadavg()[0], 2)}


def commit() -> str:
    """The state of this repository, "-dirty" if it has uncommitted changes."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fairchem", required=True, metavar="PYTHON", help="interpreter with fairchem-core")
    parser.add_argument("--mlip", required=True, metavar="PYTHON", help="interpreter with mlip")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--save", metavar="FILE", help="also write the JSON object to a file")
    options = parser.parse_args()
    limit_cores()
    command = f"python benchmarks/peers/run.py --fairchem PYTHON --mlip PYTHON --rounds {options.rounds}"
    result = {"command": command, "date": str(date.today()), "commit": commit(), "machine": machine()}
    scripts = {
        "janus_jax": (sys.executable, "ours.py"),
        "fairchem": (options.fairchem, "fairchem_peer.py"),
        "mlip": (options.mlip, "mlip_peer.py"),
    }
    with tempfile.TemporaryDirectory() as folder:
        problem = f"{folder}/problem.npz"
        call(sys.executable, "problem.py", problem)
        result |= json.loads(str(np.load(problem)["settings"]))
        answers = collect(scripts, problem, folder, options.rounds)
    result["sides"] = {side: summary(rounds) for side, rounds in answers.items()}
    result["difference_to_janus_jax"] = {
        side: difference(answers["janus_jax"][0], answers[side][0]) for side in ("fairchem", "mlip")
    }
    text = json.dumps(result, indent=2)
    if options.save:
        Path(options.save).write_text(text + "\n")
    print(text if options.json else table(result))
    if max(value for side in result["difference_to_janus_jax"].values() for value in side.values()) > TOLERANCE:
        raise SystemExit("the sides disagree: see the differences above")


if __name__ == "__main__":
    main()
