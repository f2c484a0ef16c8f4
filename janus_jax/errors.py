"""Errors a user can cause. Each message says what was given, what is allowed, what to do.

All derive from `JanusError`, which the command line prints as one sentence without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def listed(items: Sequence[str], most: int) -> str:
    """The first `most` of what is to be named, and how many more there are."""
    more = len(items) - most
    return "; ".join(items[:most]) + (f"; and {more} more" if more > 0 else "")


class JanusError(Exception):
    """Base of all errors that are about input, not about a bug."""


class UnknownNameError(JanusError, ValueError):
    """A name that is not among the allowed ones."""

    def __init__(self, what: str, given: str, allowed: Iterable[str]):
        names = sorted(str(name) for name in allowed)
        near = difflib.get_close_matches(str(given), names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"Unknown {what} {given!r}; allowed: {', '.join(names)}.{hint}")


class MissingPackageError(JanusError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, *, extra: str, purpose: str):
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'janus-jax[{extra}]'.")


class StateMismatchError(JanusError, ValueError):
    """Weights that do not belong to the configured architecture."""

    def __init__(self, missing: list[str], unknown: list[str], shapes: list[str]):
        parts = [
            f"{len(names)} {what}: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
            for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
            if names
        ]
        super().__init__("The weights do not fit the model's configuration; " + "; ".join(parts) + ".")


class StructureError(JanusError, ValueError):
    """A structure that no potential can be evaluated on."""


class CapacityError(JanusError, ValueError):
    """Structures that do not fit into the arrays meant for them."""

    def __init__(self, need, capacity, hint: str = "raise the capacity or the batch's atom budget"):
        over = [
            f"{getattr(need, name)} {name} needed, capacity {getattr(capacity, name)}"
            for name in ("atoms", "edges", "structures")
            if getattr(need, name) > getattr(capacity, name)
        ]
        super().__init__(f"Does not fit: {'; '.join(over)}. To go on, {hint}.")


class UnknownElementError(JanusError, ValueError):
    """Elements a model was not made for."""

    def __init__(self, unknown: list[str], known: list[str]):
        shown = ", ".join(known) if len(known) <= 20 else f"{known[0]} to {known[-1]}"
        super().__init__(
            f"The model does not know {', '.join(unknown)}; it knows {shown}. "
            "Use a model trained on these elements, or remove the structure."
        )


class ModelFileError(JanusError, ValueError):
    """A model file that cannot be used."""

    def __init__(self, path, reason: str):
        super().__init__(f"{path}: {reason}.")


class DataError(JanusError, ValueError):
    """A data file that cannot be used; says which file, and frame where it applies."""


class ConfigError(JanusError, ValueError):
    """A configuration that does not fit the schema; one line per problem, with its dotted path."""


class TrainingError(JanusError, RuntimeError):
    """A run that cannot go on."""


class CheckpointError(JanusError, RuntimeError):
    """A checkpoint that cannot be used."""

    def __init__(self, path, reason: str):
        super().__init__(f"{path}: {reason}.")


class RunInUseError(JanusError, RuntimeError):
    """A run folder that another process is writing into."""

    def __init__(self, folder, holder: str):
        super().__init__(f"{folder}: in use by {holder}. Wait until it ends, or stop it, and try again.")


class DiskFullError(JanusError, OSError):
    """No room for a file; what was there before is still there."""

    def __init__(self, path, need: int, free: int):
        super().__init__(
            f"{path}: no room for its {need:,} bytes ({free:,} are free, if no quota is less); "
            "what was written before is whole. Make room and try again; a run goes on with --resume."
        )


class DynamicsError(JanusError, RuntimeError):
    """Dynamics that cannot be started, or cannot go on."""


class ScheduleError(JanusError, ValueError):
    """A schedule that cannot be made, read or run; names device and position where it applies."""


class PhaseError(JanusError, ValueError):
    """A stage cannot be cut into phases as asked, or a phase was given the wrong things."""


class StageError(JanusError, ValueError):
    """A model cannot be cut into the stages asked for."""


class MeshError(JanusError, ValueError):
    """A device grid that does not fit the devices, the model or the batch."""
