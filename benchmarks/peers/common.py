"""What the sides share: reading the problem, timing, writing the answer. Needs only numpy."""

import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np

WARM_UP, REPEATS = 2, 15


def load(path: str) -> SimpleNamespace:
    """The arrays of `problem.py`; `weights` by fairchem's names, `model` = the settings."""
    arrays = dict(np.load(path))
    weights = {name[2:]: arrays.pop(name) for name in list(arrays) if name.startswith("w/")}
    model = json.loads(str(arrays.pop("settings")))["model"]
    return SimpleNamespace(weights=weights, model=model, **arrays)


def busy_seconds() -> float:
    """Processor time used by everything on this machine so far."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def measure(function: Callable[[], object]) -> tuple[object, dict]:
    """Result of `function`, seconds of its first call (compilation included), later calls in ms.

    `other_cores` is how many cores other programs used during the later calls: near 0 in a clean run.
    `function` must return only when its result is there.
    """
    start = time.perf_counter()
    result = function()
    first = time.perf_counter() - start
    for _ in range(WARM_UP):
        function()
    samples, others, begin = [], busy_seconds() - time.process_time(), time.perf_counter()
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        samples.append(1e3 * (time.perf_counter() - start))
    others = (busy_seconds() - time.process_time() - others) / (time.perf_counter() - begin)
    times = {"first_call_s": first, "median_ms": statistics.median(samples), "min_ms": min(samples)}
    return result, times | {"other_cores": max(0.0, others)}


def norm(arrays: Iterable[np.ndarray]) -> float:
    """Euclidean norm of all arrays together, in float64."""
    return float(np.sqrt(sum(np.square(np.asarray(array, np.float64)).sum() for array in arrays)))


def answer(path: str, packages: list[str], parameters: int, predict: Callable, train: Callable) -> None:
    """Time both functions and write the side's answer.

    Args:
        parameters: number of trained values.
        predict: () -> (energy, forces).
        train: () -> (loss, gradients): loss = energy per atom + mean over atoms of |force - target|,
            gradients with respect to all weights as {name: array}.
    """
    (energy, forces), predict_time = measure(predict)
    (loss, gradients), train_time = measure(train)
    record = {
        "versions": {name: version(name) for name in packages},
        "parameters": parameters,
        "energy_forces": predict_time,
        "training_gradient": train_time,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "energy": float(energy),
        "forces": np.asarray(forces, np.float64).tolist(),
        "loss": float(loss),
        # mlip has no mix_csd, so the norm leaves it out everywhere.
        "gradient_norm": norm(array for name, array in gradients.items() if "mix_csd" not in name),
    }
    with open(path, "w") as file:
        json.dump(record, file)
