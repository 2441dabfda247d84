"""A progress bar on stderr for work that takes its time; silent where nobody watches."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

__all__ = ["Progress", "progress_bar"]

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_PATIENCE = 2.0  # seconds without a bar
_INTERVAL = 0.1
_WIDTH = 30
_GIB = float(1 << 30)


@contextlib.contextmanager
def progress_bar(title: str, stream: TextIO | None = None) -> Iterator[Progress]:
    """Give a function to call with what is done and what there is to do, and take the bar off again at the end.

    Args:
        title: What is being done.
        stream: Where to draw; stderr by default. Nothing is drawn unless it is a terminal.
    """
    bar = _Bar(title, sys.stderr if stream is None else stream)
    try:
        yield bar
    finally:
        bar.clear()


class _Bar:
    def __init__(self, title: str, stream: TextIO | None) -> None:
        self._title = title
        self._stream = stream
        self._next = time.monotonic() + _PATIENCE
        self._drawn = 0

    def __call__(self, done: int, total: int) -> None:
        """Draw, if it is time to."""
        now = time.monotonic()
        if now < self._next or self._stream is None or not self._stream.isatty():
            return
        self._next = now + _INTERVAL
        part = min(done / total, 1.0) if total else 1.0
        bar = ("#" * int(part * _WIDTH)).ljust(_WIDTH, ".")
        line = f"{self._title} [{bar}] {done / _GIB:.1f} of {total / _GIB:.1f} GiB"
        self._stream.write("\r" + line.ljust(self._drawn))
        self._stream.flush()
        self._drawn = max(self._drawn, len(line))

    def clear(self) -> None:
        """Take the line off again."""
        if self._drawn and self._stream is not None:
            self._stream.write("\r" + " " * self._drawn + "\r")
            self._stream.flush()
