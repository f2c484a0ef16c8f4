"""Tables on standard output."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from janus_jax.units import QUANTITIES, number


def show_metrics(parts: dict[str, dict[str, Any]]) -> None:
    """One row per quantity and part: MAE, RMSE, number of labels."""
    show(
        ["set", "quantity", "MAE", "RMSE", "unit", "labels"],
        [
            [
                part,
                name,
                *(number(metrics[f"{name}_{kind}_{key}"]) for kind in ("mae", "rmse")),
                unit,
                metrics[f"{name}_labels"],
            ]
            for part, metrics in parts.items()
            for name, (key, unit) in QUANTITIES.items()
        ],
    )


def files_in(folder: str, names: Iterable[str]) -> str:
    """A sentence that names those of the files that exist."""
    there = [name for name in names if (Path(folder) / name).exists()]
    return f"Files are in {folder}: {', '.join(there)}" if there else f"No file has been written to {folder}"


def show(columns: list[str], rows: list[list[Any]], title: str | None = None) -> None:
    """A table of anything."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(highlight=False).print(table)
