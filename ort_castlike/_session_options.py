"""What a session needs to know of session options and of the format of a model."""

from __future__ import annotations

import os
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

__all__ = ["is_ort_format", "private_copy"]

# The smallest model: IR version 8, opset 13 and a graph named "g" without nodes.
_EMPTY_MODEL = b"\x08\x08\x3a\x03\x12\x01g\x42\x02\x10\x0d"


def is_ort_format(source: Any, sess_options: onnxruntime.SessionOptions | None) -> bool:
    """Whether onnxruntime reads ``source`` (a path of a file or bytes) as a model in its own format."""
    if sess_options is not None:
        try:
            return str(sess_options.get_session_config_entry("session.load_model_format")).upper() == "ORT"
        except RuntimeError:
            pass  # no such entry: the name or the content tells
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source).endswith(".ort")
    return isinstance(source, bytes) and source[4:8] == b"ORTM"


def private_copy(sess_options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Session options like ``sess_options``, to which something can be added for one model alone.

    A session takes a copy of its options, and onnxruntime has no other way to one. It leaves out custom operators
    and providers that were put into the options, so options that are known to hold some are returned themselves.
    """
    has_providers = getattr(sess_options, "has_providers", None)
    if has_providers is not None and has_providers():
        return sess_options
    profiling = sess_options.enable_profiling
    sess_options.enable_profiling = False  # a session would begin a profile of its own
    try:
        copy = state.InferenceSession(sess_options, _EMPTY_MODEL, False, False).session_options
    finally:
        sess_options.enable_profiling = profiling
    copy.enable_profiling = profiling
    return copy
