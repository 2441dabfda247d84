"""From a ModelProto to an onnx_ir model of its own, and back, with what onnx_ir does not hold kept on the side."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from ort_castlike._context import DOMAIN
from ort_castlike._errors import ModelError, innermost
from ort_castlike._files import _protos
from ort_castlike._files._external import tensor_of
from ort_castlike._types import element_type
from ort_castlike._walk import subgraphs
from ort_castlike._wellformed import check_proto

__all__ = ["add_sparse_types", "to_ir", "to_proto"]

# The key in a graph's meta under which the GraphProto that it was read from is kept.
_ORIGINAL = "ort_castlike.original"


def to_ir(proto: onnx.ModelProto, *, base_dir: str = "") -> ir.Model:
    """An onnx_ir model of a ModelProto, which stays as it is.

    Args:
        proto: The model.
        base_dir: The folder that external data lies in.

    Raises:
        ModelError: The model contradicts itself: a name given twice, an unknown element type.
    """
    check_proto(proto)
    for reference in _protos.external_tensors(proto):
        tensor_of(reference, base_dir)
    sparse = any(graph.sparse_initializer for graph in _protos.graphs(proto.graph))
    try:
        with _unheard() if sparse else contextlib.nullcontext():
            model = ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, AssertionError, RecursionError) as error:
        raise ModelError(f"the model cannot be understood: {innermost(error)}") from error
    # onnx_ir walks over graphs in the order of the protos that they were read from.
    for graph, graph_proto in zip(model.graphs(), _protos.graphs(proto.graph), strict=True):
        graph.meta[_ORIGINAL] = graph_proto
    if sparse:
        _type_sparse_initializers(model.graph, {})
    for graph in model.graphs():
        ir.external_data.set_base_dir(graph, base_dir)
    for function in model.functions.values():
        ir.external_data.set_base_dir(function.graph, base_dir)
    return model


def to_proto(model: ir.Model, original: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A ModelProto of an onnx_ir model, with what onnx_ir does not hold taken from the original.

    Raises:
        ModelError: The model does not fit a ModelProto (2 GiB).
    """
    try:
        proto = ir.serde.serialize_model(model)
    except (ir.serde.SerdeError, ValueError, RecursionError) as error:
        cause = innermost(error)
        if isinstance(cause, ModelError):
            raise cause from error
        raise ModelError(f"the rewritten model cannot be serialized: {cause}") from error
    if original is not None:
        proto.training_info.extend(original.training_info)
        order = {entry.domain: index for index, entry in enumerate(original.opset_import)}
        proto.opset_import.sort(key=lambda entry: order.get(entry.domain, len(order)))
    for graph, graph_proto in zip(model.graphs(), _protos.graphs(proto.graph), strict=True):
        graph_proto.sparse_initializer.extend(_sparse_initializers(graph))
        graph_original = graph.meta.get(_ORIGINAL)
        if graph_original is not None:
            _restore(graph_proto, graph_original)
            if graph is model.graph:
                _restore_types(graph_proto, graph_original)
    for tensor in _protos.tensors(proto):
        _drop_repeated_metadata(tensor)
    return proto


def add_sparse_types(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Write the types of sparse initializers into a model that was serialized for inference.

    They are those of the dense tensors that nodes see; ONNX's inference takes a sparse initializer for another kind.
    """
    for graph, graph_proto in zip(model.graphs(), _protos.graphs(proto.graph), strict=True):
        graph_proto.value_info.extend(
            onnx.helper.make_tensor_value_info(sparse.values.name, sparse.values.data_type, sparse.dims)
            for sparse in _sparse_initializers(graph)
        )


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Without onnx_ir's warnings: it takes a sparse initializer for a value that nothing gives."""
    logger = logging.getLogger(ir.serde.__name__)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _sparse_initializers(graph: ir.Graph) -> Sequence[onnx.SparseTensorProto]:
    original = graph.meta.get(_ORIGINAL)
    return () if original is None else original.sparse_initializer


def _type_sparse_initializers(graph: ir.Graph, outer: dict[str, onnx.SparseTensorProto]) -> None:
    """Give the values that are read from sparse initializers their types."""
    tensors = dict(outer)
    for sparse in _sparse_initializers(graph):
        element = element_type(sparse.values.data_type)
        if element.is_emulated:
            raise ModelError(f"sparse initializer {sparse.values.name!r} holds {element.name}; make it a dense one")
        tensors[sparse.values.name] = sparse
    for node in graph:
        for value in node.inputs:
            if value is None or value.type is not None or value.producer() is not None or value.name not in tensors:
                continue
            sparse = tensors[value.name]
            value.type = ir.TensorType(ir.DataType(sparse.values.data_type))
            value.shape = ir.Shape(sparse.dims)
        for _, inner in subgraphs(node):
            _type_sparse_initializers(inner, tensors)


def _restore(graph: onnx.GraphProto, original: onnx.GraphProto) -> None:
    """Take from the original what onnx_ir leaves out, and leave out what it adds."""
    order = {info.name: index for index, info in enumerate(original.value_info)}
    added = {tensor.name for tensor in graph.initializer} - order.keys()
    kept = [info for info in graph.value_info if info.name not in added]
    kept.sort(key=lambda info: order.get(info.name, len(order)))
    # The entries are copied before the field that holds them is emptied.
    copies = [_copy(info) for info in kept]
    del graph.value_info[:]
    graph.value_info.extend(copies)
    external = {
        tensor.name: tensor for tensor in original.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL
    }
    for tensor in graph.initializer if external else ():
        source = external.get(tensor.name)
        if source is not None and _is_same_reference(tensor, source):
            tensor.CopyFrom(source)


def _restore_types(graph: onnx.GraphProto, original: onnx.GraphProto) -> None:
    """Write the types that did not change as they were, without the shapes that inference found.

    In subgraphs these stay: onnxruntime wants the shapes of what a Loop or a Scan hands to its body. What the package's
    own operators give must have no shape, and keeps none.
    """
    unplanned = {name for node in graph.node if node.domain == DOMAIN for name in node.output}
    for infos, originals in (
        (graph.input, original.input),
        (graph.output, original.output),
        (graph.value_info, original.value_info),
    ):
        known = {info.name: info for info in originals}
        for info in infos:
            before = None if info.name in unplanned else known.get(info.name)
            if before is not None and _element_code(before.type) == _element_code(info.type):
                info.CopyFrom(before)


def _element_code(type_: onnx.TypeProto) -> int:
    inner = _protos.innermost_type(type_)
    kind = inner.WhichOneof("value")
    return getattr(inner, kind).elem_type if kind in ("tensor_type", "sparse_tensor_type") else 0


def _copy(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    return copy


def _is_same_reference(tensor: onnx.TensorProto, source: onnx.TensorProto) -> bool:
    """Whether an external tensor is the original one: such entries may say more than onnx_ir reads (a checksum)."""
    entries = {entry.key: entry.value for entry in source.external_data}
    return (
        tensor.data_location == onnx.TensorProto.EXTERNAL
        and tensor.data_type == source.data_type
        and all(entries.get(entry.key) == entry.value for entry in tensor.external_data)
    )


def _drop_repeated_metadata(tensor: onnx.TensorProto) -> None:
    """onnx_ir writes the metadata of a tensor that it has from a proto twice."""
    first = {entry.key: index for index, entry in reversed(list(enumerate(tensor.metadata_props)))}
    for index in range(len(tensor.metadata_props) - 1, -1, -1):
        if first[tensor.metadata_props[index].key] != index:
            del tensor.metadata_props[index]
