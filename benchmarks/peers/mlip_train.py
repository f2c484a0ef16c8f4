"""Train mlip's eSEN with mlip's own training loop and record its errors over time.

    python mlip_train.py FOLDER OUT.json [--minutes M | --epochs N] [--learning-rate L] ...

Start it with mlip's environment. FOLDER holds `train.xyz`, `validation.xyz` and `test.xyz` (extxyz with
energies and forces; stress is ignored, which is mlip's default). All is mlip's: reader, batches, loss,
optimizer, EMA, validation after every epoch, choice of the best weights. Defaults are mlip's, but for
four that did better on the water set: small batches, the Huber loss, warm-up, and a learning rate that
falls over the whole run. Force errors are means over all components; mlip's own figure weights atoms of
small structures more.

Times in the answer are since the start of training, with compilation and validation; validation alone
is there too. `setup_seconds` (reading, neighbour lists, initial weights) came before.
"""

import argparse
import json
import os
import resource
import time
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np
from mlip.data import ExtxyzReader, GraphDatasetBuilder
from mlip.models import Esen, ForceField
from mlip.models.loss import HuberLoss, MSELoss
from mlip.training import OptimizerConfig, TrainingIOHandler, TrainingLoop, get_default_mlip_optimizer
from mlip.training.training_io_handler import LogCategory

SPLITS = ("train", "validation", "test")
TIMES = ("seconds", "cpu_seconds", "validation_seconds", "validation_cpu_seconds")
WARMUP_STEPS, FIRST_FACTOR, LAST_FACTOR = 50, 0.1, 0.01
"""Of the learning rate: steps to its peak (a tenth of a short run), first and last value by the peak."""


def with_sums(loss: type) -> type:
    """The loss with two more metrics, whose ratio over a whole set is the error per force component."""

    class WithSums(loss):
        def _compute_eval_metrics(self, pred_graph, ref_graph):
            atoms, structures = ref_graph.node_mask(), ref_graph.graph_mask().sum()
            error = jnp.abs(pred_graph.nodes.forces - ref_graph.nodes.forces).sum(-1)
            sums = {"force_error": jnp.where(atoms, error, 0).sum(), "components": 3 * atoms.sum()}
            # Per structure, because mlip weights what it gets here by the structures of each batch.
            sums = {name: value / structures for name, value in sums.items()}
            return super()._compute_eval_metrics(pred_graph, ref_graph) | sums

    return WithSums


def clock() -> np.ndarray:
    """Wall and processor seconds."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([time.perf_counter(), sum(use.ru_utime + use.ru_stime for use in uses)])


class Recorder:
    """A logger for mlip's training loop: times and errors of every validation, errors of the test."""

    def __init__(self):
        self.curve, self.test = [], {}
        self.start = self.begin = clock()
        self.validation = np.zeros(2)

    def __call__(self, category: LogCategory, values: dict, epoch: int) -> None:
        if category == LogCategory.SYSTEM_METRICS:  # the last report of an epoch before its validation
            self.begin = clock()
        elif category == LogCategory.EVAL_METRICS:
            now = clock()
            self.validation = self.validation + now - self.begin
            times = np.concatenate([now - self.start, self.validation]).round(3).tolist()
            self.curve.append(dict(zip(TIMES, times, strict=True)) | {"epoch": epoch} | errors(values))
        elif category == LogCategory.TEST_METRICS:
            self.test = errors(values)


def errors(metrics: dict) -> dict[str, float]:
    return {
        "force_mae_meV_per_angstrom": 1e3 * float(metrics["force_error"] / metrics["components"]),
        "energy_mae_meV_per_atom": 1e3 * float(metrics["mae_e_per_atom"]),
    }


def train(data: dict, force_field: ForceField, epochs: int, options: argparse.Namespace) -> tuple:
    """Run mlip's loop. Returns it and what was recorded."""
    steps, peak = epochs * len(data["train"]), options.learning_rate
    warmup = min(WARMUP_STEPS, steps // 10)
    schedule = OptimizerConfig(
        init_learning_rate=FIRST_FACTOR * peak,
        peak_learning_rate=peak,
        final_learning_rate=LAST_FACTOR * peak,
        warmup_steps=warmup,
        transition_steps=steps - warmup,
    )
    loss = with_sums({"mse": MSELoss, "huber": HuberLoss}[options.loss])(extended_metrics=True)
    optimizer = get_default_mlip_optimizer(schedule)
    config = TrainingLoop.Config(num_epochs=epochs, ema_decay=options.ema_decay)
    handler, recorder = TrainingIOHandler(), Recorder()
    handler.attach_logger(recorder)
    loop = TrainingLoop(data["train"], data["validation"], force_field, loss, optimizer, config, handler)
    loop.run()
    if loop.training_diverged:
        raise SystemExit("training diverged")
    return loop, recorder


def epochs_within(seconds: float, data: dict, force_field: ForceField, options: argparse.Namespace) -> int:
    """How many epochs fit, by a run of two: one with compilation, one without."""
    state = data["train"].state
    _, trial = train(data, force_field, 2, options)
    data["train"].state = state  # the order of the structures
    first, second = (record["seconds"] for record in trial.curve[1:])
    return max(1, 1 + int((seconds - first) / (second - first)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=4.0, help="of training, as measured in a trial run before")
    parser.add_argument("--epochs", type=int, help="instead of --minutes")
    parser.add_argument("--loss", choices=("mse", "huber"), default="huber")
    sizes = {"layers": 2, "channels": 32, "num-basis": 64, "lmax": 2, "cutoff": 4.0}
    for name, value in (sizes | {"batch-size": 2, "learning-rate": 0.01, "ema-decay": 0.99, "seed": 42}).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    options = parser.parse_args()

    begin = time.perf_counter()
    readers = {name: ExtxyzReader(os.path.join(options.folder, f"{name}.xyz")) for name in SPLITS}
    batches = GraphDatasetBuilder.Config(graph_cutoff_angstrom=options.cutoff, batch_size=options.batch_size)
    builder = GraphDatasetBuilder(readers, batches)
    data = builder.get_datasets()
    channels = {f"{name}_channels": options.channels for name in ("sphere", "hidden", "edge")}
    model = {"num_layers": options.layers, "num_rbf": options.num_basis, "l_max": options.lmax, "m_max": options.lmax}
    network = Esen(Esen.Config(**model, **channels), builder.dataset_info)
    force_field = ForceField.from_mlip_network(network, seed=options.seed)
    setup = time.perf_counter() - begin
    epochs = options.epochs or epochs_within(60 * options.minutes, data, force_field, options)
    loop, recorder = train(data, force_field, epochs, options)
    loop.test(data["test"])
    settings = {name: value for name, value in vars(options).items() if name not in ("folder", "out", "minutes")}
    record = {
        "implementation": "mlip",
        "versions": {name: version(name) for name in ("mlip", "jax", "flax")},
        "cores": len(os.sched_getaffinity(0)),
        "parameters": sum(array.size for array in jax.tree.leaves(force_field.params)),
        "settings": settings | {"epochs": epochs, "steps_per_epoch": len(data["train"])},
        "setup_seconds": round(setup, 3),
        "curve": recorder.curve,
        "best_epoch": loop.best_evaluation_epoch,
        "test": recorder.test,
    }
    with open(options.out, "w") as file:
        json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
