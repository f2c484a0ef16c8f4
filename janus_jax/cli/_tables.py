"""Tables on standard output."""

from typing import Any


def show_metrics(parts: dict[str, dict[str, Any]]) -> None:
    """One row per quantity and part: MAE, RMSE, number of labels."""
    from rich.console import Console
    from rich.table import Table

    table = Table("set", "quantity", "MAE", "RMSE", "unit", "labels")
    units = {
        "energy": ("meV_per_atom", "meV/atom"),
        "forces": ("meV_per_angstrom", "meV/Å"),
        "stress": ("meV_per_angstrom3", "meV/Å^3"),
    }
    for part, metrics in parts.items():
        for name, (key, unit) in units.items():
            values = [metrics[f"{name}_{kind}_{key}"] for kind in ("mae", "rmse")]
            shown = ["-" if value is None else f"{value:.2f}" for value in values]
            table.add_row(part, name, *shown, unit, str(metrics[f"{name}_labels"]))
    Console().print(table)
