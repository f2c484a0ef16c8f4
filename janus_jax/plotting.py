"""Figures without a window and without matplotlib's global state."""

import base64
import io
from functools import cache
from pathlib import Path

import numpy as np


@cache
def _figure_class():
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """Shows itself in Jupyter, without pyplot."""

        def _repr_png_(self) -> bytes:
            return to_png(self)

    return NotebookFigure


def figure(columns: int, rows: int = 1, width: float = 4.5, height: float = 4.0):
    """A figure with panels side by side: (figure, flat array of axes)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    result = _figure_class()(figsize=(width * columns, height * rows), layout="constrained", dpi=120)
    FigureCanvasAgg(result)
    return result, np.atleast_1d(result.subplots(rows, columns)).ravel()


def save(figure, path: Path) -> None:
    """Write `figure` as PNG, making the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def to_png(figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def to_html(figure, alt: str) -> str:
    """An HTML image with the picture inside: nothing to load."""
    data = base64.b64encode(to_png(figure)).decode()
    return f'<img alt="{alt}" src="data:image/png;base64,{data}">'
