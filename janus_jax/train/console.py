"""What a person sees of a run: a bar and a table of validations on a terminal, plain lines elsewhere."""

import sys
import time

from janus_jax.units import number

ROWS = 8


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
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(), TextColumn("{task.fields[text]}"))
        self.progress = Progress(*columns, TimeElapsedColumn(), TextColumn("/"), TimeRemainingColumn())
        self.task = self.progress.add_task("train", total=self.steps, completed=self.done, text="")
        self.live = Live(self._view(), console=self.console, refresh_per_second=4)
        self.live.start()

    def _view(self):
        from rich.console import Group
        from rich.table import Table

        if not self.rows:
            return self.progress
        table = Table("step", "validation loss", "E, meV/atom", "F, meV/Å", "stress, meV/Å^3", "", title="MAE")
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
            energy = number(numbers.get("train_energy_mae_meV_per_atom"), 1)
            force = number(numbers.get("train_force_norm_meV_per_angstrom"), 0)
            text = (
                f"loss {numbers['train_loss']:.3f}  E {energy} meV/atom  "
                f"F {force} meV/Å  {numbers['atoms_per_s']:.0f} atoms/s"
            )
            if self.live is not None:
                self.progress.update(self.task, completed=step, text=text)
            elif step % self.every == 0:
                done = step - self.first[0]
                eta = f"  {(self.steps - step) * (now - self.first[1]) / done:.0f} s left" if done else ""
                self.note(f"step {step}/{self.steps}  {text}{eta}")

    def _validation(self, step: int, numbers: dict[str, float]) -> None:
        names = ("energy_mae_meV_per_atom", "forces_mae_meV_per_angstrom", "stress_mae_meV_per_angstrom3")
        energy, forces, stress = (
            f"{value:.2f}" if (value := numbers.get(f"validation_{name}")) is not None else "-" for name in names
        )
        mark = "best so far" if numbers.get("validation_best") else ""
        if self.live is not None:
            self.rows.append((str(step), f"{numbers['validation_loss']:.4f}", energy, forces, stress, mark))
            self.live.update(self._view())
        else:
            self.note(
                f"step {step}  validation: loss {numbers['validation_loss']:.3f}  "
                f"E {energy} meV/atom  F {forces} meV/Å  {mark}".rstrip()
            )

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
