"""Where the numbers of a run go: terminal, `metrics.jsonl`, TensorBoard.

A tracker has `log(step, numbers)` and `close()`. All output for people goes to standard error;
standard output is for results.
"""

import json
import math
import sys
import time
from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    def log(self, step: int, numbers: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line, flushed at once, so that a killed run keeps its history."""

    def __init__(self, path: Path):
        self.file = path.open("a", buffering=1)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        finite = {key: value if math.isfinite(value) else None for key, value in numbers.items()}
        self.file.write(json.dumps({"step": step, **finite}) + "\n")

    def close(self) -> None:
        self.file.close()


class TensorBoard:
    def __init__(self, folder: Path):
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def log(self, step: int, numbers: dict[str, float]) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key.replace("_", "/", 1), value, step)

    def close(self) -> None:
        self.writer.close()


class Console:
    """A progress bar on a terminal, plain lines elsewhere (every `every` steps and for each validation)."""

    def __init__(self, steps: int, every: int, stream=None):
        from rich.console import Console as RichConsole

        self.console = RichConsole(file=stream or sys.stderr, highlight=False)
        self.steps, self.every, self.start, self.first = steps, every, time.perf_counter(), None
        self.bar = None
        if self.console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            text = TextColumn("{task.fields[text]}")
            self.bar = Progress(
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                text,
                TimeRemainingColumn(),
                console=self.console,
            )
            self.task = self.bar.add_task("train", total=steps, text="")
            self.bar.start()

    def note(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        now = time.perf_counter()
        self.first = self.first or (step, now)
        if "train_loss" in numbers:
            text = (
                f"loss {numbers['train_loss']:.3f}  E {numbers['train_energy_mae_meV_per_atom']:.1f} meV/atom  "
                f"F {numbers['train_force_norm_meV_per_angstrom']:.0f} meV/Å  {numbers['atoms_per_s']:.0f} atoms/s"
            )
            if self.bar is not None:
                self.bar.update(self.task, completed=step, text=text)
            elif step % self.every == 0:
                done = step - self.first[0]
                eta = f"  {(self.steps - step) * (now - self.first[1]) / done:.0f} s left" if done else ""
                self.note(f"step {step}/{self.steps}  {text}{eta}")
        if "validation_loss" in numbers:
            self.note(
                f"step {step}  validation: loss {numbers['validation_loss']:.3f}  "
                f"E {numbers['validation_energy_mae_meV_per_atom']:.2f} meV/atom  "
                f"F {numbers['validation_forces_mae_meV_per_angstrom']:.1f} meV/Å"
                + ("  best so far" if numbers.get("validation_best") else "")
            )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
