"""Stop a run between two steps: on SIGTERM, on the first Ctrl-C, or at a time limit; all its processes at the same."""

import signal
import threading
import time

from janus_jax.runtime import multihost

GRAVITY = ("time limit", "SIGTERM", "SIGINT")


def agreed(reason: str | None) -> str | None:
    """Why to stop, the same in all processes, which must all ask: the gravest reason that one of them has."""
    reasons = [text for text in multihost.texts(reason or "") if text]
    return max(reasons, key=lambda text: GRAVITY.index(text) if text in GRAVITY else -1, default=None)


class Interruption:
    """While entered, `reason()` says whether and why to stop; a second Ctrl-C stops at once.

    Args:
        limit_minutes: None: no limit.
        began: `time.monotonic()` from which the limit counts; None: now.
    """

    def __init__(self, limit_minutes: float | None = None, began: float | None = None):
        began = time.monotonic() if began is None else began
        self.end = None if limit_minutes is None else began + 60 * limit_minutes
        self.signal: str | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _received(self, number: int, _frame) -> None:
        if number == signal.SIGINT and self.signal == "SIGINT":
            raise KeyboardInterrupt
        self.signal = signal.Signals(number).name

    def reason(self) -> str | None:
        """SIGTERM, SIGINT or "time limit"; None: go on."""
        if self.signal is None and self.end is not None and time.monotonic() > self.end:
            return "time limit"
        return self.signal
