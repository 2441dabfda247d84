"""Holds Ctrl-C back while the runtime runs, since an exception that leaves a Python operator aborts the process."""

from __future__ import annotations

# The module behind `signal`, whose functions wrap these and cost ten times as much; this runs at every run().
import _signal  # type: ignore[import-not-found,unused-ignore]
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

__all__ = ["deferred_interrupts"]


class deferred_interrupts:  # noqa: N801 (a context manager, used as a verb like contextlib.suppress)
    """Context manager: a SIGINT that comes inside is handled when the block has ended.

    Python runs a signal handler between any two bytecodes of the main thread, so its KeyboardInterrupt can also
    come up in the few lines of onnxruntime-extensions that call an operator's body, where nothing catches it. In
    the block the handler therefore only takes a note; the handler that was there before runs at the end, and
    raises then. In other threads, and where SIGINT has no Python handler, the block does nothing.

    Args:
        notify: Called when a SIGINT comes, to make the block end soon. It must not raise.
    """

    __slots__ = ("_notify", "_previous", "_received")

    def __init__(self, notify: Callable[[], None] | None = None) -> None:
        self._notify = notify
        self._previous: Callable[[int, FrameType | None], object] | None = None
        self._received = False

    def __enter__(self) -> None:
        if threading.get_ident() != _MAIN.ident:
            return
        previous = _signal.getsignal(signal.SIGINT)
        if self._notify is None and getattr(previous, "__func__", None) is deferred_interrupts._note:
            return  # a block around this one holds it back already
        if callable(previous):
            _signal.signal(signal.SIGINT, self._note)
            self._previous = previous

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._received = True
        if self._notify is not None:
            self._notify()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        previous, self._previous = self._previous, None
        if previous is None:
            return
        _signal.signal(signal.SIGINT, previous)
        if self._received:
            previous(signal.SIGINT, None)


_MAIN = threading.main_thread()
