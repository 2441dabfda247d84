"""Holds Ctrl-C back while the runtime runs, since an exception that leaves a Python operator aborts the process."""

from __future__ import annotations

# The module behind `signal`, whose functions wrap these and cost ten times as much; this runs at every run().
import _signal  # type: ignore[import-not-found,unused-ignore]
import _thread
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

__all__ = ["deferred_interrupts", "interrupt_later"]

_SOON = 0.01  # seconds


class deferred_interrupts:  # noqa: N801 (a context manager, used as a verb like contextlib.suppress)
    """Context manager: a SIGINT that comes inside is handled when the block has ended.

    Python runs a signal handler between any two bytecodes of the main thread, so its KeyboardInterrupt can also
    come up in the few lines of onnxruntime-extensions that call an operator's body, where nothing catches it. In
    the block the handler therefore only takes a note; the handler that was there before runs at the end, and
    raises then. In other threads, where SIGINT has no Python handler, and inside another such block, the block does
    nothing.

    Args:
        notify: Called when a SIGINT comes, to make the block end soon. It must not raise.
        later: The end of the block must not raise either: the SIGINT is sent again some moments later.
    """

    __slots__ = ("_later", "_notify", "_previous", "_received")

    def __init__(self, notify: Callable[[], None] | None = None, *, later: bool = False) -> None:
        self._notify = notify
        self._later = later
        self._previous: Callable[[int, FrameType | None], object] | None = None
        self._received = False

    def __enter__(self) -> None:
        if threading.get_ident() != _MAIN.ident:
            return
        previous = _signal.getsignal(signal.SIGINT)
        if callable(previous) and not (self._later and is_deferring(previous)):
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
            if self._later:
                interrupt_later()
            else:
                previous(signal.SIGINT, None)


def is_deferring(handler: object) -> bool:
    """Whether a handler of SIGINT is that of a block of :class:`deferred_interrupts`."""
    return isinstance(getattr(handler, "__self__", None), deferred_interrupts)


def interrupt_later() -> None:
    """Let the main thread handle a SIGINT some moments from now."""
    threading.Thread(target=_interrupt, name="ort_castlike.interrupt", daemon=True).start()


def _interrupt() -> None:
    time.sleep(_SOON)
    if hasattr(signal, "pthread_kill") and _MAIN.ident is not None:  # which ends a sleep of the main thread, too
        signal.pthread_kill(_MAIN.ident, signal.SIGINT)
    else:
        _thread.interrupt_main(signal.SIGINT)


_MAIN = threading.main_thread()
