"""The function through which onnxruntime-extensions calls every Python operator, such that Ctrl-C cannot end it.

An exception that leaves this function aborts the process, and Python looks for signals when a function is entered:
before its first line, where nothing catches what a handler raises. The function here is entered without that look.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from typing import Any

from ort_castlike._interrupts import deferred_interrupts, interrupt_later

__all__ = ["Hook", "guarded"]

Hook = Callable[[int, Any, Any], Any]


def guarded(hook: Hook) -> Hook:
    """A hook that does what ``hook`` does, and has a SIGINT that comes meanwhile handled some moments later.

    What ``hook`` raises of itself is raised as before.
    """

    def guarded_hook(k_id: int, feed: Any, attributes: Any) -> Any:
        try:
            block = failure = result = None
            is_interrupted = False
            (block := deferred_interrupts(later=True)).__enter__()
        except BaseException:
            # The SIGINT that was waiting, as its handler raised it. Another may be waiting by now.
            is_interrupted = True
            try:
                (block := deferred_interrupts(later=True)).__enter__()
            except BaseException:
                block = None
        # In the block, no handler raises.
        try:
            result = hook(k_id, feed, attributes)
        except BaseException as error:
            failure = error
        try:
            if is_interrupted:
                interrupt_later()
            if block is not None:
                block.__exit__(None, None, None)
        except BaseException:
            try:  # noqa: SIM105 (in the exit of contextlib.suppress, one more SIGINT would raise)
                interrupt_later()
            except BaseException:
                pass
        if failure is not None:
            raise failure
        return result

    return _entered_without_signals(guarded_hook)


def _entered_without_signals(function: Hook) -> Hook:
    """The function without the look for signals with which it begins.

    That is what CPython's RESUME does where its argument is below 2: "at the start of a function"; 2 is "after a yield
    from", where it does not look. CPython 3.10 does not look where a function begins with a try statement; other
    interpreters do as they do.
    """
    assert isinstance(function, types.FunctionType)
    code = function.__code__
    entry = next((item for item in dis.get_instructions(code) if item.opname == "RESUME"), None)
    if entry is None or entry.arg != 0:
        return function
    instructions = bytearray(code.co_code)
    instructions[entry.offset + 1] = 2
    replaced = code.replace(co_code=bytes(instructions))
    return types.FunctionType(
        replaced, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
