"""The public functions that rewrite: ``rewrite``, ``rewrite_file`` and ``inspect``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TypeVar, cast

import onnx
import onnx_ir as ir

from ort_castlike._context import DOMAIN
from ort_castlike._errors import CastLikeError
from ort_castlike._legalize import legalize
from ort_castlike._load import ModelSource, read_proto, to_ir, to_proto
from ort_castlike._metadata import RewriteRecord, read_record
from ort_castlike._options import Options, resolve_options
from ort_castlike._report import Report

__all__ = ["SessionModel", "inspect", "rewrite", "rewrite_file", "rewrite_for_session"]

_M = TypeVar("_M", bound="ModelSource | ir.Model")


def rewrite(
    model: _M, *, target: str | None = None, lowering: str = "custom", rounding: str = "nearest_even"
) -> _M | onnx.ModelProto:
    """Rewrite a model that holds 2-bit or other emulated types so that stock onnxruntime runs it.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, a path or the bytes of a model. It is not changed.
        target: The onnxruntime release that must run the result, "1.20"; None is the installed one. It decides
            the opset and the IR version and nothing else.
        lowering: "custom" narrows with this package's ``CastLike`` (a session needs :func:`register`), "standard"
            with stock operators alone.
        rounding: How a float becomes a 2- or 4-bit integer: "nearest_even" (ONNX), "toward_zero" (the reference
            evaluator) or "half_away" (stock onnxruntime).

    Returns:
        A new model of the kind that was given; a ``ModelProto`` for a path or bytes, external data included.

    Raises:
        OptionError: An option has a value that it does not take.
        ModelError: The model is broken.
        UnsupportedOperatorError: An operator that takes an emulated type has no rule.
        TargetError: The target cannot run some node of the model.
    """
    options = resolve_options(target=target, lowering=lowering, rounding=rounding)
    if isinstance(model, ir.Model):
        clone = model.clone()
        legalize(clone, options)
        return cast(_M, clone)
    proto = read_proto(model)
    legalized, report = _legalized(model, proto, options)
    if isinstance(model, (str, os.PathLike)):
        ir.external_data.load_to_model(legalized)
    elif not report.changed:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        return copy
    return to_proto(legalized, proto)


def rewrite_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    target: str | None = None,
    lowering: str = "custom",
    rounding: str = "nearest_even",
) -> Report:
    """Rewrite the model at ``source`` into ``destination`` and say what was done.

    The destination appears whole or not at all.

    Args:
        source: Path of the model.
        destination: Path of the rewritten model.
        target: As for :func:`rewrite`.
        lowering: As for :func:`rewrite`.
        rounding: As for :func:`rewrite`.

    Raises:
        CastLikeError: As for :func:`rewrite`.
    """
    options = resolve_options(target=target, lowering=lowering, rounding=rounding)
    proto = read_proto(source)
    legalized, report = _legalized(source, proto, options)
    ir.external_data.load_to_model(legalized)
    rewritten = to_proto(legalized, proto)
    path = os.fspath(destination)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        onnx.save_model(rewritten, temporary)
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    return report


def inspect(model: ModelSource | ir.Model, *, target: str | None = None) -> Report:
    """What is emulated in a model, what a rewrite would change, and what blocks it.

    Args:
        model: As for :func:`rewrite`. It is not changed.
        target: As for :func:`rewrite`.

    Returns:
        The report of the rewrite; what would make it fail is in ``blockers``.

    Raises:
        ModelError: The model cannot be read at all.
        TargetError: The target is no supported release.
    """
    options = resolve_options(target=target, lowering="custom", rounding="nearest_even")
    copy = model.clone() if isinstance(model, ir.Model) else to_ir(read_proto(model), base_dir=_base_dir(model))
    versions = (copy.opset_imports.get("", 1), copy.ir_version)
    try:
        return legalize(copy, options)
    except CastLikeError as error:
        report = Report(str(options.target), (versions[0], versions[0]), (versions[1], versions[1]))
        report.blockers.append(str(error))
        return report


@dataclasses.dataclass(frozen=True)
class SessionModel:
    """What a session hands to onnxruntime.

    Attributes:
        model: The serialized model, or the original path where nothing had to change.
        initializers: Initializers that are left out of ``model``, for SessionOptions.add_external_initializers.
        record: What a rewrite recorded: this one or an earlier one; None where there was none.
        uses_custom_ops: Whether the model has nodes of this package's domain.
    """

    model: bytes | str
    initializers: Mapping[str, ir.TensorProtocol]
    record: RewriteRecord | None
    uses_custom_ops: bool


def rewrite_for_session(source: ModelSource | ir.Model, options: Options) -> SessionModel:
    """The model that onnxruntime gets for what a user gave to ``InferenceSession``.

    Raises:
        CastLikeError: As for :func:`rewrite`.
    """
    if isinstance(source, ir.Model):
        model, proto = source.clone(), None
        report = legalize(model, options)
    else:
        proto = read_proto(source)
        model, report = _legalized(source, proto, options)
        if not report.changed and isinstance(source, (str, os.PathLike)):
            record, uses_custom_ops = read_record(model.metadata_props), DOMAIN in model.opset_imports
            return SessionModel(os.fspath(source), {}, record, uses_custom_ops)
    ir.external_data.load_to_model(model)
    rewritten = proto if proto is not None and not report.changed else to_proto(model, proto)
    record, uses_custom_ops = read_record(model.metadata_props), DOMAIN in model.opset_imports
    return SessionModel(rewritten.SerializeToString(), {}, record, uses_custom_ops)


def _legalized(source: ModelSource, proto: onnx.ModelProto, options: Options) -> tuple[ir.Model, Report]:
    model = to_ir(proto, base_dir=_base_dir(source))
    return model, legalize(model, options)


def _base_dir(source: ModelSource) -> str:
    return os.path.dirname(os.path.abspath(source)) if isinstance(source, (str, os.PathLike)) else ""
