"""Element types and shapes for every value of a model, by ONNX's own inference."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ort_castlike._errors import ModelError, innermost
from ort_castlike._files import _protos
from ort_castlike._files._load import add_sparse_types
from ort_castlike._opset._schemas import schema

__all__ = ["infer_types"]

_MOST_PROPAGATED = 1 << 18  # elements
_LARGE = 1024  # bytes; a larger initializer is no shape operand, so inference does without its data


def infer_types(model: ir.Model) -> list[ir.Value]:
    """Give every value whose type or shape is not written in the model the one that ONNX infers.

    Large payloads take no part: inference sees their type and shape alone, so memory does not grow with the
    weights.

    Returns:
        The values that had no type, so that a caller can take the inferred ones off again.

    Raises:
        ModelError: ONNX's inference refuses the model.
    """
    values = list(_inferrable(model.graph))
    _type_loop_inputs(model.graph)
    untyped = [value for value in values if value.type is None]
    proto = _without_data(model)
    inferred = _inferred(proto, data_prop=False)
    if not _is_complete(inferred) and _is_propagable(inferred):
        inferred = _inferred(proto, data_prop=True)
    _merge(model.graph, inferred.graph)
    return untyped


def _inferrable(graph: ir.Graph) -> Iterator[ir.Value]:
    """What nodes give, and what they hand to their subgraphs."""
    for node in graph.all_nodes():
        yield from (output for output in node.outputs if output.name)
    for subgraph in graph.subgraphs():
        yield from subgraph.inputs


def _type_loop_inputs(graph: ir.Graph) -> None:
    """Type the counter and the condition in the bodies of loops: inference does not, and onnxruntime needs it."""
    for node in graph.all_nodes():
        body = node.attributes.get("body")
        if node.op_type != "Loop" or node.domain != "" or body is None or body.is_ref():
            continue
        for index, dtype in enumerate((ir.DataType.INT64, ir.DataType.BOOL)):
            if index < len(node.inputs) and index < len(body.as_graph().inputs):
                value, actual = body.as_graph().inputs[index], node.inputs[index]
                value.type = value.type or ir.TensorType(dtype)
                if value.shape is None and (index == 0 or actual is None):
                    value.shape = ir.Shape(())


def _is_propagable(proto: onnx.ModelProto) -> bool:
    """Whether inference may follow the contents of shape operands, and not only shapes.

    It makes a message of some 200 bytes for each element of every vector of known size that a Cast or the like takes.
    """
    opset = max((entry.version for entry in proto.opset_import if entry.domain == ""), default=1)
    sizes: dict[str, int] = {}
    for graph in _protos.graphs(proto.graph):
        for infos in (graph.input, graph.value_info, graph.output):
            sizes.update((info.name, _vector_size(info.type)) for info in infos)
        sizes.update((tensor.name, tensor.dims[0]) for tensor in graph.initializer if len(tensor.dims) == 1)
    elements = 0
    for node in _protos.nodes(proto):
        entry = schema(node.op_type, opset) if node.domain == "" else None
        if entry is not None and entry.has_data_propagation_function:
            elements += sum(sizes.get(name, 0) for name in node.input)
    return elements <= _MOST_PROPAGATED


def _is_complete(proto: onnx.ModelProto) -> bool:
    """Whether inference found all that it could find."""
    for graph in _protos.graphs(proto.graph):
        known = {info.name for infos in (graph.value_info, graph.output) for info in infos if _is_known(info.type)}
        if not all(name in known for node in graph.node for name in node.output if name):
            return False
    return True


def _is_known(type_: onnx.TypeProto) -> bool:
    if not type_.HasField("tensor_type"):
        return True
    shape = type_.tensor_type.shape
    return type_.tensor_type.HasField("shape") and all(dim.WhichOneof("value") is not None for dim in shape.dim)


def _vector_size(type_: onnx.TypeProto) -> int:
    """The size of a vector, 0 where it is not known or there is no vector."""
    shape = type_.tensor_type.shape
    return shape.dim[0].dim_value if len(shape.dim) == 1 else 0


def _without_data(model: ir.Model) -> onnx.ModelProto:
    """The model for inference, large payloads left out."""
    held: list[tuple[ir.Value, ir.TensorProtocol]] = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.nbytes > _LARGE:
                held.append((value, tensor))
                value.const_value = ir.ExternalTensor(
                    "absent",
                    0,
                    tensor.nbytes,
                    tensor.dtype,
                    shape=ir.Shape(tensor.shape.numpy()),
                    name=value.name or "",
                )
    try:
        proto = ir.serde.serialize_model(model)
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        raise ModelError(f"the model cannot be understood: {innermost(error)}") from error
    finally:
        for value, tensor in held:
            value.const_value = tensor
    add_sparse_types(model, proto)
    return proto


def _inferred(proto: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=data_prop)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError, MemoryError) as error:
        raise ModelError(f"ONNX's type inference refuses the model: {error}") from error


def _merge(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    infos = {info.name: info for info in proto.value_info}
    infos.update((info.name, info) for info in proto.output)
    for node, node_proto in zip(graph, proto.node, strict=True):
        for value in node.outputs:
            info = infos.get(value.name or "")
            if info is not None and (value.type is None or value.shape is None):
                _fill(value, info)
        attributes = {attribute.name: attribute for attribute in node_proto.attribute}
        for attribute in node.attributes.values():
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.GRAPH:
                _merge_subgraph(attribute.as_graph(), attributes[attribute.name].g)
            elif attribute.type == ir.AttributeType.GRAPHS:
                for subgraph, subproto in zip(attribute.as_graphs(), attributes[attribute.name].graphs, strict=True):
                    _merge_subgraph(subgraph, subproto)


def _merge_subgraph(graph: ir.Graph, proto: onnx.GraphProto) -> None:
    inputs = {info.name: info for info in proto.input}
    for value in graph.inputs:
        if value.type is None or value.shape is None:
            _fill(value, inputs[value.name or ""])
    _merge(graph, proto)


def _fill(value: ir.Value, info: onnx.ValueInfoProto) -> None:
    try:
        inferred = ir.serde.deserialize_value_info_proto(info, None)
    except ir.serde.SerdeError:  # half a type, of an optional of who knows what
        return
    if value.type is None:
        value.type = inferred.type
    if value.shape is None:
        value.shape = inferred.shape
