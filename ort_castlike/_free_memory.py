"""Memory that is free in the process, given back to the system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["give_back_free_memory"]


def give_back_free_memory() -> None:
    """Let glibc give the system what it keeps of freed memory; other C libraries do so by themselves.

    Making a session frees several copies of the weights, and what is freed of the heap stays the process's: up to
    three times the weights, for as long as nothing else takes it.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)
