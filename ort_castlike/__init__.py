"""Run ONNX models that hold 2-bit and other sub-byte tensors on the onnxruntime you have."""

from __future__ import annotations

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
        return importlib.import_module("ort_castlike.backend")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ort_castlike' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ort_castlike.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
