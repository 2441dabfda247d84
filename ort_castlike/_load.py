"""From what a user gives (path, bytes, ModelProto, onnx_ir.Model) to an onnx_ir model of its own, and back."""

from __future__ import annotations

import os
from typing import TypeAlias

import google.protobuf.message
import onnx
import onnx_ir as ir

from ort_castlike._errors import ModelError

__all__ = ["ModelSource", "read_proto", "to_ir", "to_proto"]

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def read_proto(source: ModelSource) -> onnx.ModelProto:
    """The ModelProto behind a path, bytes, or itself; external data stays where it is.

    Raises:
        ModelError: There is no such file, or what is there is no ONNX model.
    """
    if isinstance(source, onnx.ModelProto):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _read_file(os.fspath(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse(bytes(source), "the given bytes")
    raise ModelError(
        f"a model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, and not {type(source).__name__}"
    )


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
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{what} holds no ONNX model: it has no graph or no IR version; is the file complete?")
    return proto


def to_ir(proto: onnx.ModelProto, *, base_dir: str = "") -> ir.Model:
    """An onnx_ir model of a ModelProto, which stays as it is.

    Args:
        proto: The model.
        base_dir: The folder that external data lies in.

    Raises:
        ModelError: The model contradicts itself: a name given twice, an unknown element type.
    """
    try:
        model = ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, AssertionError, RecursionError) as error:
        raise ModelError(f"the model cannot be understood: {_innermost(error)}") from error
    for graph in (model.graph, *model.graph.subgraphs()):
        ir.external_data.set_base_dir(graph, base_dir)
    return model


def to_proto(model: ir.Model, original: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A ModelProto of an onnx_ir model, with what onnx_ir does not hold taken from the original.

    Raises:
        ModelError: The model does not fit a ModelProto (2 GiB).
    """
    try:
        proto = ir.serde.serialize_model(model)
    except (ir.serde.SerdeError, ValueError, RecursionError) as error:
        cause = _innermost(error)
        if isinstance(cause, ModelError):
            raise cause from error
        raise ModelError(f"the rewritten model cannot be serialized: {cause}") from error
    if original is not None:
        proto.training_info.extend(original.training_info)
        proto.graph.sparse_initializer.extend(original.graph.sparse_initializer)
    return proto


def _innermost(error: BaseException) -> BaseException:
    """The error that others were raised from: onnx_ir wraps one in the next for each level of a graph."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error
