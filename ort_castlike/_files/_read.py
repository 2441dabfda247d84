"""From what a user gives (path, bytes, ModelProto) to a ModelProto, external data left where it is."""

from __future__ import annotations

import os
from typing import TypeAlias

import google.protobuf.message
import onnx

from ort_castlike._errors import ModelError

__all__ = ["ModelSource", "base_dir", "not_a_model", "read_proto"]

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def read_proto(source: ModelSource) -> onnx.ModelProto:
    """The ModelProto behind a path, bytes, or itself; external data stays where it is.

    Raises:
        ModelError: There is no such file, or what is there is no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        return _checked(source, "the given ModelProto")
    if isinstance(source, (str, os.PathLike)):
        return _read_file(os.fspath(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "the given bytes")
    raise not_a_model(source)


def not_a_model(source: object) -> ModelError:
    """The error for what is none of the kinds of models."""
    return ModelError(
        f"a model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, and not {type(source).__name__}"
    )


def base_dir(source: object) -> str:
    """The folder that a model's external data lies in: the model's own, the current one for what has no path."""
    return os.path.dirname(os.path.abspath(source)) if isinstance(source, (str, os.PathLike)) else ""


def _read_file(path: str) -> onnx.ModelProto:
    if not os.path.isfile(path):
        raise ModelError(f"{path!r} is no file")
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ModelError(f"{path!r} cannot be read: {error}") from error
    return _parse(data, repr(path))


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    try:
        proto = onnx.load_model_from_string(data)
    except (google.protobuf.message.DecodeError, ValueError, RecursionError) as error:
        raise ModelError(f"{what} cannot be read as an ONNX model: {error}; is the file complete?") from error
    return _checked(proto, what)


def _checked(proto: onnx.ModelProto, what: str) -> onnx.ModelProto:
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{what} holds no ONNX model: it has no graph or no IR version; is the file complete?")
    return proto
