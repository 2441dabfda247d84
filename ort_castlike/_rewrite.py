"""The public functions that rewrite: ``rewrite``, ``rewrite_file`` and ``inspect``."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import TypeGuard, TypeVar, cast

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from ort_castlike import _constants, _session_model
from ort_castlike._errors import CastLikeError, ModelError, SaveError, TargetError, innermost
from ort_castlike._files import _protos, _save
from ort_castlike._files._external import Pending, tensor_of
from ort_castlike._files._load import to_ir, to_proto
from ort_castlike._files._progress import progress_bar
from ort_castlike._files._read import ModelSource, base_dir, not_a_model, read_proto
from ort_castlike._files._session_files import SessionFiles
from ort_castlike._files._streams import StreamedTensor
from ort_castlike._legalize import legalize
from ort_castlike._options import Options, resolve_options
from ort_castlike._report import ModelFile, Report
from ort_castlike._scan import is_settled
from ort_castlike._session_model import Original, SessionModel, serialized, session_model
from ort_castlike._stock import notes_on_refused_layers, releases_that_load, releases_that_run, releases_that_take
from ort_castlike._targets import TARGETS

__all__ = ["inspect", "rewrite", "rewrite_file", "rewritten_copy", "rewritten_original"]

_SMALL = 1 << 10  # bytes; smaller tensors are never external data
_STRUCTURE = 1 << 26  # bytes that are left for a model's graph beside its data

_M = TypeVar("_M", bound="ModelSource | ir.Model")


def rewrite(
    model: _M,
    *,
    target: str | None = None,
    lowering: str = "custom",
    rounding: str = "nearest_even",
    weights: str = "auto",
) -> _M | onnx.ModelProto:
    """Rewrite a model that holds 2-bit or other emulated types so that stock onnxruntime runs it.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, a path or the bytes of a model. It is not changed.
        target: The onnxruntime release that must run the result, "1.20"; None is the installed one. It decides
            the opset and the IR version, what ``weights="auto"`` means, and nothing else.
        lowering: "custom" narrows with this package's ``CastLike`` (a session needs :func:`register`), "standard"
            with stock operators alone.
        rounding: How a float becomes a 2- or 4-bit integer: "nearest_even" (ONNX), "toward_zero" (the reference
            evaluator) or "half_away" (stock onnxruntime).
        weights: What becomes of the 2-bit layers that onnxruntime has operators of its own for
            (com.microsoft::MatMulNBits and GatherBlockQuantized with bits=2): "pack4" makes each the equal layer of
            4 bits, which takes about twice the memory; "keep" leaves them; "auto" makes them 4-bit ones where the
            target refuses 2 bits or is clearly slower on them.

    Returns:
        A new model of the kind that was given; a ``ModelProto`` for a path or bytes, external data included.

    Raises:
        OptionError: An option has a value that it does not take.
        ModelError: The model is broken.
        UnsupportedOperatorError: An operator that takes an emulated type has no rule.
        TargetError: The target cannot run some node of the model.
    """
    options = resolve_options(target=target, lowering=lowering, rounding=rounding, weights=weights)
    if isinstance(model, ir.Model):
        clone = _clone(model)
        legalize(clone, options)
        return cast(_M, clone)
    proto = read_proto(model)
    rewritten = None if is_settled(proto, options) else _legalized(proto, options, base_dir(model))[0]
    with_data = isinstance(model, (str, os.PathLike))
    if rewritten is None:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
    else:
        _check_size(sum(_sizes(rewritten, external=with_data)))
        copy = to_proto(rewritten, proto)
    if with_data:
        _load_external_data(copy, base_dir(model))
    return copy


def rewrite_file(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    target: str | None = None,
    lowering: str = "custom",
    rounding: str = "nearest_even",
    weights: str = "auto",
) -> Report:
    """Rewrite the model at ``source`` into ``destination`` and say what was done.

    The destination appears whole or not at all; it may be the source itself. The weights are streamed and never whole
    in memory. External data that does not change stays where it is if the destination is in the same folder, that of
    tensors below a kilobyte aside, which go into the file. What else there is of external data goes into one file
    beside the destination, named after it and a digest of the data. The report's ``files`` are those that belong
    together.

    Args:
        source: Path of the model.
        destination: Path of the rewritten model.
        target: As for :func:`rewrite`.
        lowering: As for :func:`rewrite`.
        rounding: As for :func:`rewrite`.
        weights: As for :func:`rewrite`.

    Raises:
        SaveError: The destination cannot be written; what was there is unchanged.
        CastLikeError: As for :func:`rewrite`.
    """
    options = resolve_options(target=target, lowering=lowering, rounding=rounding, weights=weights)
    proto = read_proto(source)
    folder = base_dir(source)
    if is_settled(proto, options):
        model, report = None, _settled_report(proto, options, folder)
    else:
        model, report = _legalized(proto, options, folder)
    pending = Pending()
    if model is not None:
        was_external = next(_protos.external_tensors(proto), None) is not None
        _load_tensors(model, below=_SMALL)
        _move_out_data(model, pending, was_external)
        rewritten = to_proto(model, proto)
    elif _is_same_place(source, destination):
        return report
    else:
        rewritten = onnx.ModelProto()
        rewritten.CopyFrom(proto)
    with progress_bar(f"writing {os.path.basename(destination)}") as progress:
        sizes = _save.save(rewritten, pending, destination, base_dir=folder, progress=progress)
    report.files = [ModelFile(name, size) for name, size in sizes.items()]
    return report


def inspect(model: ModelSource | ir.Model, *, target: str | None = None, weights: str = "auto") -> Report:
    """What is emulated in a model, what a rewrite would change, and what blocks it.

    Args:
        model: As for :func:`rewrite`. It is not changed.
        target: As for :func:`rewrite`.
        weights: As for :func:`rewrite`.

    Returns:
        The report of the rewrite; what would make it fail is in ``blockers``.

    Raises:
        OptionError: An option has a value that it does not take.
        ModelError: The model cannot be read at all.
        TargetError: The target is no supported release.
    """
    options = resolve_options(target=target, lowering="custom", rounding="nearest_even", weights=weights)
    if isinstance(model, ir.Model):
        new_copy = functools.partial(_clone, model)
        opset, ir_version = model.opset_imports.get("", 1), model.ir_version
    else:
        proto = read_proto(model)
        opset, ir_version = _opset_of(proto), proto.ir_version
        if is_settled(proto, options):
            return _settled_report(proto, options, base_dir(model))
        new_copy = functools.partial(to_ir, proto, base_dir=base_dir(model))
    report = Report(str(options.target), (opset, opset), (ir_version, ir_version))
    try:
        legalize(new_copy(), options, report)
    except CastLikeError as error:
        report.blockers.extend(error.reasons or (str(error),))
        report.changed = False
    report.runs_on_after = _reachable(new_copy, options)
    return report


def _reachable(new_copy: Callable[[], ir.Model], options: Options) -> tuple[str, ...]:
    """The releases that a model can be rewritten for: all from the oldest on that takes it."""
    tried: set[tuple[int, int]] = set()
    for target in TARGETS:
        if (target.opset, target.ir_version) in tried:
            continue
        tried.add((target.opset, target.ir_version))
        try:
            report = legalize(new_copy(), dataclasses.replace(options, target=target))
        except TargetError:
            continue
        except CastLikeError:
            break
        if report.runs_on_after:
            return report.runs_on_after
    return ()


def rewritten_copy(source: ir.Model, options: Options) -> SessionModel:
    """A copy of a model of onnx_ir, rewritten for a session.

    Raises:
        CastLikeError: As for :func:`rewrite`.
        SaveError: There is no room for the temporary files that a large model needs.
    """
    if not isinstance(source, ir.Model):
        raise not_a_model(source)
    model = _clone(source)
    legalize(model, options)
    return _handed_over(model, None)


def rewritten_original(original: Original, options: Options) -> SessionModel | None:
    """A model that was read, rewritten for a session; None where it stays as it is.

    Raises:
        CastLikeError: As for :func:`rewrite`.
        SaveError: There is no room for the temporary files that a large model needs.
    """
    model = to_ir(original.proto, base_dir=original.folder)
    return _handed_over(model, original) if legalize(model, options).changed else None


def _handed_over(model: ir.Model, original: Original | None) -> SessionModel:
    size = sum(_sizes(model, external=True))
    if size > _session_model.IN_MEMORY:
        try:
            return _in_files(model, original)
        except SaveError:
            if size > _save.PROTOBUF_LIMIT:
                raise
    return _in_memory(model, original)


def _in_memory(model: ir.Model, original: Original | None) -> SessionModel:
    _load_tensors(model)
    proto = to_proto(model, original.proto if original else None)
    return session_model(serialized(proto), proto)


def _in_files(model: ir.Model, original: Original | None) -> SessionModel:
    pending = Pending()
    _load_tensors(model, below=_SMALL)
    for value in _initializers(model):
        tensor = value.const_value
        assert tensor is not None
        # An onnx_ir.Model may have its tensors in several folders; and in a model file, data is not aligned.
        if isinstance(tensor, ir.ExternalTensor):
            is_held = original is None or tensor.location == original.own_file
        else:
            is_held = _is_movable(tensor, _SMALL)
        if is_held:
            pending.hold(value)
    try:
        proto = to_proto(model, original.proto if original else None)
        files = SessionFiles(proto, pending, original.folder if original else "")
    finally:
        pending.put_back()
    return session_model(files.path, proto, files)


def _clone(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except (RuntimeError, ValueError, KeyError) as error:
        raise ModelError(f"the model cannot be copied: {innermost(error)}") from error


def _legalized(proto: onnx.ModelProto, options: Options, folder: str) -> tuple[ir.Model | None, Report]:
    """The model rewritten, None where it stays as it is, and what was done."""
    model = to_ir(proto, base_dir=folder)
    report = legalize(model, options)
    return (model if report.changed else None), report


def _opset_of(proto: onnx.ModelProto) -> int:
    return max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def _settled_report(proto: onnx.ModelProto, options: Options, folder: str) -> Report:
    opset = _opset_of(proto)
    versions = (opset, proto.ir_version)
    report = Report(str(options.target), (opset, opset), (proto.ir_version, proto.ir_version), notes=[*options.notes])
    try:
        model = to_ir(proto, base_dir=folder)
    except ModelError:  # it has what onnx_ir does not hold, such as a map; of such a model the versions alone are known
        report.runs_on_before = report.runs_on_after = releases_that_take(versions)
        return report
    report.notes += notes_on_refused_layers(model, options.target)
    report.runs_on_before = releases_that_run(model, versions, {})
    report.runs_on_after = releases_that_load(model, versions)
    return report


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every tensor of a model's graphs: initializers and attributes."""
    yield from (value.const_value for value in _initializers(model) if value.const_value is not None)
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.as_tensor()


def _sizes(model: ir.Model, *, external: bool) -> Iterator[int]:
    """The bytes of data of each tensor, of external ones on request."""
    return (tensor.nbytes for tensor in _tensors(model) if external or not isinstance(tensor, ir.ExternalTensor))


def _check_size(size: int) -> None:
    if size > _save.PROTOBUF_LIMIT:
        raise ModelError(
            f"the rewritten model takes {size} bytes and a ModelProto holds {_save.PROTOBUF_LIMIT}; use rewrite_file, "
            "which writes such a model with external data"
        )


def _load_external_data(proto: onnx.ModelProto, folder: str) -> None:
    """Read a model's external data into it."""
    references = [(reference, tensor_of(reference, folder)) for reference in _protos.external_tensors(proto)]
    _check_size(sum(tensor.nbytes for _, tensor in references))
    for reference, tensor in references:
        reference.raw_data = _constants.payload(tensor).tobytes()
        reference.ClearField("data_location")
        del reference.external_data[:]


def _move_out_data(model: ir.Model, pending: Pending, was_external: bool) -> None:
    """Leave out of a model what belongs into external data.

    That is what was encoded anew, where the model had any; and, of a model that exceeds what a protobuf holds, all.
    """
    exceeds = sum(_sizes(model, external=False)) > _save.PROTOBUF_LIMIT - _STRUCTURE
    if exceeds:
        common_passes.LiftConstantsToInitializersPass(size_limit=_SMALL)(model)
    for value in _initializers(model):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor) or tensor is None or not _is_movable(tensor, _SMALL):
            continue
        if exceeds or (was_external and isinstance(tensor, ir.LazyTensor)):
            pending.hold(value)


def _load_tensors(model: ir.Model, *, below: float = math.inf) -> None:
    """Let external data be read when the model is serialized, that of tensors of fewer than ``below`` bytes.

    onnxruntime refuses a shape, axes or the like in external data, as some writers leave them.
    """

    def is_meant(tensor: object) -> TypeGuard[ir.ExternalTensor]:
        return isinstance(tensor, ir.ExternalTensor) and tensor.nbytes < below

    for value in _initializers(model):
        if is_meant(value.const_value):
            value.const_value = _loaded(value.const_value)
    for node in model.graph.all_nodes():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and is_meant(attribute.value):
                node.attributes[name] = ir.AttrTensor(name, _loaded(attribute.value), doc_string=attribute.doc_string)


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from (value for value in graph.initializers.values() if value.const_value is not None)


def _is_movable(tensor: ir.TensorProtocol, size: int) -> bool:
    return tensor.dtype != ir.DataType.STRING and tensor.nbytes >= size


def _loaded(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    _constants.check_payload(tensor)
    shape = tensor.shape.numpy()
    return StreamedTensor(lambda: _constants.payload_blocks(tensor), tensor.dtype, shape, name=tensor.name, like=tensor)


def _is_same_place(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> bool:
    """Whether a model that stays as it is has nowhere to go."""
    try:
        return os.path.samefile(source, destination) and os.path.samefile(
            os.path.dirname(os.path.abspath(source)), os.path.dirname(os.path.abspath(destination))
        )
    except OSError:
        return False
