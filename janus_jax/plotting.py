"""Figures without a window and without matplotlib's global state."""

from pathlib import Path

import numpy as np


def figure(columns: int):
    """A figure with `columns` panels side by side: (figure, array of axes)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    result = Figure(figsize=(4.5 * columns, 4), layout="constrained", dpi=120)
    FigureCanvasAgg(result)
    return result, np.atleast_1d(result.subplots(1, columns))


def save(figure, path: Path) -> None:
    """Write `figure` as PNG, making the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
