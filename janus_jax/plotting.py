"""Figures without a window and without matplotlib's global state, and without its warnings.

Legends have a fixed place (looking for the best one is slow, and warned of) and are left out where nothing has a
label; limits never coincide; text of users (names of files and runs) is no mathematics.
"""

import base64
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np


@cache
def _figure_class():
    from matplotlib.figure import Figure

    # That a cache of fonts is being made, and where, is nothing a user asked for.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)

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


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: no formulas between dollars, and no label hidden by its underscore."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def legend(axis, place: str = "upper right", **options) -> None:
    """A legend where something has a label."""
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc=place, **{"framealpha": 0.6} | options)


@cache
def _formatter_class():
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Labels where `LogFormatter` puts them, as plain numbers."""

        def __call__(self, x, pos=None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    return Plain


def logarithmic(axis) -> None:
    """A logarithmic vertical axis with plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_formatter(_formatter_class()(labelOnlyBase=False))
    axis.yaxis.set_minor_formatter(_formatter_class()(labelOnlyBase=False, minor_thresholds=(1, 0.4)))


def limits(*values: np.ndarray) -> tuple[float, float]:
    """Lowest and highest finite value with a margin, never the same."""
    every = np.concatenate([np.ravel(one) for one in values] or [np.zeros(0)])
    every = every[np.isfinite(every)]
    if not len(every):
        return 0.0, 1.0
    low, high = float(every.min()), float(every.max())
    margin = max(0.05 * (high - low), 1e-6 * max(abs(low), abs(high)), 1e-12)
    return low - margin, high + margin


def nothing(axis, why: str) -> None:
    """An empty panel that says why it is empty."""
    axis.text(0.5, 0.5, why, ha="center", va="center", transform=axis.transAxes, color="0.4")
    axis.set(xticks=[], yticks=[])


@contextmanager
def _drawing() -> Iterator[None]:
    """Names in scripts that the font has not are drawn as boxes; a warning would not help."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def save(figure, path: Path) -> None:
    """Write `figure` as PNG, making the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _drawing():
        figure.savefig(path)


def to_png(figure) -> bytes:
    buffer = io.BytesIO()
    with _drawing():
        figure.savefig(buffer, format="png")
    return buffer.getvalue()


def to_html(figure, alt: str) -> str:
    """An HTML image with the picture inside: nothing to load."""
    data = base64.b64encode(to_png(figure)).decode()
    return f'<img alt="{alt}" src="data:image/png;base64,{data}">'
