"""What a session hands to onnxruntime: a model as it was given where there is nothing to do, else a rewritten one.

Whether there is anything to do is found out without onnx_ir, which takes longer to import than a small session to make.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from typing import TYPE_CHECKING

import google.protobuf.message
import onnx

from ort_castlike._errors import ModelError
from ort_castlike._files._read import ModelSource, base_dir, read_proto
from ort_castlike._files._skeleton import read_skeleton
from ort_castlike._metadata import DOMAIN, RewriteRecord, read_record
from ort_castlike._options import Options
from ort_castlike._scan import is_settled

if TYPE_CHECKING:
    import onnx_ir as ir

    from ort_castlike._files._session_files import SessionFiles

__all__ = ["IN_MEMORY", "Original", "SessionModel", "model_for_session", "serialized", "session_model"]

IN_MEMORY = 1 << 24  # bytes; up to here a session gets a model and its data as one string of bytes


@dataclasses.dataclass(frozen=True)
class SessionModel:
    """What a session hands to onnxruntime.

    Attributes:
        model: The serialized model, or a path: the original one where nothing had to change, or one in ``files``.
        record: What a rewrite recorded: this one or an earlier one; None where there was none.
        uses_custom_ops: Whether the model has nodes of this package's domain.
        is_large: Whether it has so much data that the memory which making a session frees is worth giving back.
        files: The files behind ``model`` where the model is large. They have to be complete while a session is made
            from it, and to live as long as the session may be made anew.
    """

    model: bytes | str
    record: RewriteRecord | None
    uses_custom_ops: bool
    is_large: bool
    files: SessionFiles | None = None


@dataclasses.dataclass(frozen=True)
class Original:
    """A model that was read.

    Attributes:
        proto: The model, external data left where it is.
        folder: The folder that external data lies in.
        own_file: The name of the model's own file there, where references to it stand for the data in it.
    """

    proto: onnx.ModelProto
    folder: str
    own_file: str | None = None


def model_for_session(source: ModelSource | ir.Model, options: Options) -> SessionModel:
    """The model that onnxruntime gets for what a user gave to ``InferenceSession``.

    Raises:
        CastLikeError: As for :func:`ort_castlike.rewrite`.
        SaveError: There is no room for the temporary files that a large model needs.
    """
    made = _made(source, options)
    if made.files is not None:
        gc.collect()  # a model of onnx_ir is a cycle of references, and holds what was read of the original
    return made


def _made(source: ModelSource | ir.Model, options: Options) -> SessionModel:
    if not isinstance(source, (str, os.PathLike, bytes, onnx.ModelProto)):
        from ort_castlike._rewrite import rewritten_copy

        return rewritten_copy(source, options)
    original = _read(source)
    if not is_settled(original.proto, options, may_hold_weights=True, own_file=original.own_file):
        from ort_castlike._rewrite import rewritten_original

        rewritten = rewritten_original(original, options)
        if rewritten is not None:
            return rewritten
    if isinstance(source, onnx.ModelProto):
        return session_model(serialized(source), original.proto)
    return session_model(source if isinstance(source, bytes) else os.fspath(source), original.proto)


def _read(source: ModelSource) -> Original:
    if isinstance(source, (str, os.PathLike)) and os.path.getsize(source) > IN_MEMORY:
        skeleton = read_skeleton(source)
        if skeleton is not None:
            return Original(skeleton.proto, skeleton.folder, skeleton.location)
    return Original(read_proto(source), base_dir(source))


def session_model(model: bytes | str, proto: onnx.ModelProto, files: SessionFiles | None = None) -> SessionModel:
    """What a session hands over, with what the proto of the model says of it."""
    is_external = any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer)
    return SessionModel(
        model,
        read_record({entry.key: entry.value for entry in proto.metadata_props}),
        any(entry.domain == DOMAIN for entry in proto.opset_import),
        is_external or files is not None or (isinstance(model, bytes) and len(model) > IN_MEMORY),
        files,
    )


def serialized(proto: onnx.ModelProto) -> bytes:
    """A ModelProto as bytes.

    Raises:
        ModelError: It is larger than protobuf allows.
    """
    try:
        return proto.SerializeToString()  # type: ignore[no-any-return]
    except (google.protobuf.message.EncodeError, ValueError) as error:
        raise ModelError(
            f"the model exceeds what a protobuf holds: {error}; save it with external data and give its path"
        ) from error
