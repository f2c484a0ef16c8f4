"""`janus-jax model show|export`."""

import argparse
from typing import Any


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    from janus_jax import bundle, export
    from janus_jax.cli.train import use_precision

    header = bundle.describe(arguments.model)
    if arguments.action == "show":
        use_precision(header["precision"])
        return {"parameters": bundle.parameter_count(bundle.load(arguments.model)), **header}
    use_precision("float64" if "float64" in (header["precision"], arguments.precision) else "float32")
    out = export.export(
        arguments.model,
        arguments.out,
        weights=arguments.weights,
        step=arguments.step,
        precision=arguments.precision,
        capacity=arguments.capacity,
    )
    return {"out": str(out)}


def show(figures: dict[str, Any]) -> None:
    from janus_jax.cli import _tables

    if "out" in figures:
        print(f"written: {figures['out']}")
        return
    model = {f"model.{key}": value for key, value in figures.pop("model").items()}
    summary = figures.pop("summary")
    rows = [[key, _short(value)] for key, value in {**model, **figures}.items()]
    rows += [[f"training.{key}", _short(value)] for key, value in summary.items() if not isinstance(value, dict)]
    _tables.show(["", ""], rows)
    _tables.show_metrics({name: summary[name] for name in ("validation", "test") if name in summary})


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
