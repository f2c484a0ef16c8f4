"""How far long work is: on a terminal a bar with its times and a line of numbers below it, elsewhere plain lines."""

import sys
import time
from functools import cache

SECONDS = 30.0
"""Between two lines where there is no terminal."""


@cache
def _bar_class():
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.text import Text

    class Bar(Progress):
        """Steps and times on one line of any width; the text of the task below, cut at the edge."""

        def get_renderables(self):
            yield from super().get_renderables()
            for task in self.tasks:
                if task.fields["text"]:
                    yield Text(task.fields["text"], no_wrap=True, overflow="ellipsis")

        @staticmethod
        def columns(what: str):
            return (
                TextColumn(what + " {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=None),
                TimeElapsedColumn(),
                TextColumn("elapsed,"),
                TimeRemainingColumn(),
                TextColumn("left"),
            )

    return Bar


def bar(what: str, total: int, done: int, **options):
    """(a Progress of rich, its task) whose `text` may be updated.

    Args:
        what: is counted.
    """
    kind = _bar_class()
    made = kind(*kind.columns(what), expand=True, **options)
    return made, made.add_task(what, total=total, completed=done, text="")


class Steps:
    """Progress of `total` things on standard error, for a `with` statement.

    Args:
        what: is counted: "step".
        done: how many were there before.
        quiet: show nothing, as in all processes but the first.
    """

    def __init__(self, what: str, total: int, done: int = 0, quiet: bool = False, stream=None):
        from rich.console import Console

        self.what, self.total, self.quiet = what, total, quiet
        self.first, self.began = done, time.perf_counter()
        self.last = self.began
        self.console = Console(file=stream or sys.stderr, highlight=False)
        self.live = self.console.is_terminal and not quiet
        if self.live:
            self.bar, self.task = bar(what, total, done, console=self.console, transient=True)

    def __enter__(self) -> "Steps":
        if self.live:
            self.bar.start()
        return self

    def __exit__(self, *_) -> None:
        if self.live:
            self.bar.stop()

    def __call__(self, done: int, text: str = "") -> None:
        """Say that `done` of them are there, and how it goes."""
        if self.live:
            self.bar.update(self.task, completed=done, text=text)
            return
        now = time.perf_counter()
        if self.quiet or now - self.last < SECONDS:
            return
        self.last, made = now, done - self.first
        left = f"{(self.total - done) * (now - self.began) / made:.0f} s left" if made > 0 else ""
        line = "  ".join(part for part in (f"{self.what} {done}/{self.total}", text, left) if part)
        self.console.print(line, soft_wrap=True, markup=False)
