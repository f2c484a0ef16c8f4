"""What a person sees of a run: a bar and a table of validations on a terminal, plain lines elsewhere."""

import math
import sys
import time

from janus_jax.progress import bar

ROWS = 8
HEADS = {
    "energy_mae_meV_per_atom": "E, meV/atom",
    "forces_mae_meV_per_angstrom": "F, meV/Å",
    "stress_mae_meV_per_angstrom3": "stress, meV/Å^3",
}


def _shown(value: float | None) -> str:
    """Three digits, all those before the point; "-" where there is no label."""
    return "-" if value is None or math.isnan(value) else f"{value:.{2 if abs(value) < 100 else 0}f}"


def _errors(part: str, numbers: dict[str, float]) -> str:
    """Mean absolute errors of a batch or of the validation set; forces by component in both."""
    known = ((head, numbers.get(f"{part}_{name}")) for name, head in HEADS.items())
    parts = (head.replace(",", f" {_shown(value)}") for head, value in known if value is not None)
    return "  ".join(parts)


class Console:
    """Progress on standard error.

    Args:
        every: steps between lines where there is no terminal.
        done: steps already done before a resume.
    """

    def __init__(self, steps: int, every: int, done: int = 0, stream=None):
        from rich.console import Console as RichConsole

        self.console = RichConsole(file=stream or sys.stderr, highlight=False)
        self.steps, self.every, self.done, self.first = steps, every, done, None
        self.rows: list[tuple[str, ...]] = []
        self.live = None
        if self.console.is_terminal:
            self._start()

    def _start(self) -> None:
        from rich.live import Live

        self.progress, self.task = bar("step", self.steps, self.done)
        self.live = Live(self._view(), console=self.console, refresh_per_second=4)
        self.live.start()

    def _view(self):
        from rich.console import Group
        from rich.table import Table

        if not self.rows:
            return self.progress
        table = Table("step", "loss", *HEADS.values(), "", title="validation: loss and mean absolute errors")
        for row in self.rows[-ROWS:]:
            table.add_row(*row)
        return Group(table, self.progress)

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        now = time.perf_counter()
        self.first = self.first or (step, now)
        if "validation_loss" in numbers:
            self._validation(step, numbers)
        elif "train_loss" in numbers:
            speed = f"{numbers['atoms_per_s']:.0f} atoms/s"
            text = f"loss {numbers['train_loss']:.3f}  {_errors('train', numbers)}  {speed}"
            if self.live is not None:
                self.progress.update(self.task, completed=step, text=text)
            elif step % self.every == 0:
                done = step - self.first[0]
                eta = f"  {(self.steps - step) * (now - self.first[1]) / done:.0f} s left" if done else ""
                self.note(f"step {step}/{self.steps}  {text}{eta}")

    def _validation(self, step: int, numbers: dict[str, float]) -> None:
        mark = "best so far" if numbers.get("validation_best") else ""
        if self.live is not None:
            shown = (_shown(numbers.get(f"validation_{name}")) for name in HEADS)
            self.rows.append((str(step), f"{numbers['validation_loss']:.4f}", *shown, mark))
            self.live.update(self._view())
        else:
            loss = f"{numbers['validation_loss']:.3f}"
            self.note(f"step {step}  validation: loss {loss}  {_errors('validation', numbers)}  {mark}".rstrip())

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
