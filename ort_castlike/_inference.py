"""Element types and shapes for every value of a model, by ONNX's own inference."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from ort_castlike._errors import ModelError
from ort_castlike._load import add_sparse_types

__all__ = ["infer_types"]

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
    if all(value.type is not None and value.shape is not None for value in values):
        return []
    _type_loop_inputs(model.graph)
    untyped = [value for value in values if value.type is None]
    _merge(model.graph, _inferred(model).graph)
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


def _inferred(model: ir.Model) -> onnx.ModelProto:
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
    finally:
        for value, tensor in held:
            value.const_value = tensor
    add_sparse_types(model, proto)
    try:
        return onnx.shape_inference.infer_shapes(proto, check_type=False, strict_mode=False, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as error:
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
    inferred = ir.serde.deserialize_value_info_proto(info, None)
    if value.type is None:
        value.type = inferred.type
    if value.shape is None:
        value.shape = inferred.shape
