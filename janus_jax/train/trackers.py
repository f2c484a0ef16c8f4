"""Where the numbers of a run go: terminal, JSON lines, CSV, TensorBoard, Weights & Biases.

A tracker has `log(step, numbers)` and `close()`. All output for people goes to standard error;
standard output is for results.
"""

import json
import math
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from janus_jax.errors import MissingPackageError


@runtime_checkable
class Tracker(Protocol):
    def log(self, step: int, numbers: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Nowhere:
    """What processes other than the first log to."""

    def log(self, step: int, numbers: dict[str, float]) -> None: ...

    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line, flushed at once, so that a killed run keeps its history.

    Args:
        after: rows of later steps, from before a resume, are dropped.
    """

    def __init__(self, path: Path, after: int = 0):
        if path.exists():
            rows = [json.dumps(row) + "\n" for row in read_rows(path) if row["step"] <= after]
            _replace(path, "".join(rows))
        self.file = path.open("a", buffering=1)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.write({"step": step, **{key: value if math.isfinite(value) else None for key, value in numbers.items()}})

    def write(self, row: dict[str, Any]) -> None:
        """Any row that JSON can hold."""
        self.file.write(json.dumps(row) + "\n")

    def close(self) -> None:
        self.file.close()


def read_rows(path: Path) -> list[dict]:
    """Rows of a file of JSON lines; one that a killed process left half written is dropped."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def _replace(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    partial.replace(path)


class Csv:
    """`train.csv` and `validation.csv`, one row a step or validation; a new name makes a new column."""

    def __init__(self, folder: Path, after: int = 0):
        self.folder, self.columns, self.files = folder, {}, {}
        for name in ("train", "validation"):
            path = folder / f"{name}.csv"
            if path.exists():
                head, *rows = path.read_text().splitlines() or [""]
                kept = [row for row in rows if row.count(",") == head.count(",") and int(row.split(",")[0]) <= after]
                _replace(path, "\n".join([head, *kept]) + "\n")
                self.columns[name] = head.split(",")

    def log(self, step: int, numbers: dict[str, float]) -> None:
        name = "validation" if "validation_loss" in numbers else "train"
        row = {"step": step, **numbers}
        if name not in self.files:
            self.files[name] = (self.folder / f"{name}.csv").open("a", buffering=1)
        if new := [key for key in row if key not in self.columns.get(name, [])]:
            self._widen(name, new)
        self.files[name].write(",".join(str(row.get(column, "")) for column in self.columns[name]) + "\n")

    def _widen(self, name: str, new: list[str]) -> None:
        """Add columns, empty in the rows that are there."""
        path, columns = self.folder / f"{name}.csv", [*self.columns.get(name, []), *new]
        self.files[name].close()
        rows = path.read_text().splitlines()[1:]
        _replace(path, "".join(f"{line}\n" for line in [",".join(columns), *(row + "," * len(new) for row in rows)]))
        self.columns[name], self.files[name] = columns, path.open("a", buffering=1)

    def close(self) -> None:
        for file in self.files.values():
            file.close()


class TensorBoard:
    def __init__(self, folder: Path, after: int = 0):
        from tensorboardX import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=after + 1 if folder.exists() else None)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        for key, value in numbers.items():
            self.writer.add_scalar(key.replace("_", "/", 1), value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, continued on resume.

    Raises:
        MissingPackageError: wandb is not installed.
    """

    def __init__(self, project: str, folder: Path, config: dict):
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise MissingPackageError("wandb", extra="wandb", purpose="tracking.wandb_project") from None
        marker = folder / "wandb_run_id"
        known = marker.read_text().strip() if marker.exists() else None
        self.run = wandb.init(
            project=project, dir=str(folder), name=folder.name, config=config, id=known, resume="allow"
        )
        marker.write_text(str(self.run.id))

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()
