"""Errors of the package. Each message says what was given, what is allowed and what to do."""


class PartitionError(ValueError):
    """Base of all errors that are about input, not about a bug."""


class CellError(PartitionError):
    """A cell or coordinates in which distances mean nothing."""


class CapacityError(PartitionError):
    """Arrays of fixed size that are too short; nothing was cut off."""

    def __init__(self, over: dict[str, tuple[int, int]]):
        self.over = over
        parts = [f"{name}: {need} needed, capacity {have}" for name, (need, have) in over.items()]
        super().__init__(f"Does not fit: {'; '.join(parts)}. Use `capacity.grow` and build again.")


class CountError(PartitionError):
    """A number that 32 bits cannot hold."""

    def __init__(self, what: str, count: int, limit: int = 2**31 - 1):
        super().__init__(f"{count} {what}, but at most {limit} can be numbered with 32 bits; use more ranks.")


def check_cutoff(cutoff: float) -> None:
    """Refuse a cutoff that no search can use.

    Raises:
        PartitionError: it is not positive and finite.
    """
    if not 0 < cutoff < float("inf"):
        raise PartitionError(f"the cutoff is {cutoff} Å; it must be positive and finite")


def checked(what: str, count: int) -> int:
    """`count`, if 32 bits can number it.

    Raises:
        CountError: they cannot.
    """
    if count > 2**31 - 1:
        raise CountError(what, count)
    return count
