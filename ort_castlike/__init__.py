"""Run ONNX models that hold 2-bit and other sub-byte tensors on the onnxruntime you have."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

from ort_castlike._errors import CastLikeError
from ort_castlike._version import __version__

if TYPE_CHECKING:
    import ort_castlike.backend as backend
    from ort_castlike._custom_ops import register
    from ort_castlike._legalize import LegalizePass
    from ort_castlike._rewrite import inspect, rewrite, rewrite_file
    from ort_castlike._session import InferenceSession

__all__ = [
    "CastLikeError",
    "InferenceSession",
    "LegalizePass",
    "__version__",
    "backend",
    "inspect",
    "register",
    "rewrite",
    "rewrite_file",
]

# Where each name lives: it is imported when it is first asked for, so that `import ort_castlike` stays light.
_HOMES = {
    "InferenceSession": "_session",
    "LegalizePass": "_legalize",
    "inspect": "_rewrite",
    "register": "_custom_ops",
    "rewrite": "_rewrite",
    "rewrite_file": "_rewrite",
}


def __getattr__(name: str) -> object:
    if name == "backend":
        _refuse_sub_interpreter()
        return importlib.import_module("ort_castlike.backend")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ort_castlike' has no attribute {name!r}")
    _refuse_sub_interpreter()
    value = getattr(importlib.import_module(f"ort_castlike.{home}"), name)
    globals()[name] = value
    return value


def _refuse_sub_interpreter() -> None:
    """Raise where onnxruntime, once imported, would wait for ever."""
    for module in ("_interpreters", "_xxsubinterpreters"):
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(module)
            # Python 3.13 gives an identifier with a note of who owns the interpreter.
            current, main = (
                known[0] if isinstance(known, tuple) else known
                for known in (interpreters.get_current(), interpreters.get_main())
            )
            if current != main:
                raise CastLikeError(
                    "ort_castlike runs in the main interpreter alone, since numpy and onnxruntime do; use a thread or "
                    "a process in place of this sub-interpreter"
                )
            return


def __dir__() -> list[str]:
    return sorted(__all__)
