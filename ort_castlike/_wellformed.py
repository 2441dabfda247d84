"""What a model must be so that it can be read at all, checked before anything is made of it.

A broken model is refused here, with the culprit named, so that the rest may take for granted what ONNX promises:
known element types, attributes that hold what they say, nodes with the inputs and outputs of their operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx
import onnx_ir as ir

from ort_castlike import _protos
from ort_castlike._context import DOMAIN, describe
from ort_castlike._errors import ModelError
from ort_castlike._opset._schemas import schema, signature
from ort_castlike._types import ELEMENT_TYPES

__all__ = ["check_nodes", "check_proto"]

_CODES = frozenset(element.code for element in ELEMENT_TYPES.values())
_DEEPEST_TYPE = 8
_LARGEST = 1 << 62  # elements
# The field that holds the value of an attribute of each type.
_FIELDS = {
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
}
_AGAIN = "export the model again"


def check_proto(proto: onnx.ModelProto) -> None:
    """Refuse a model with tensors, types or attributes that say what cannot be.

    Raises:
        ModelError: One is found. The message names it.
    """
    for graph in _protos.graphs(proto.graph):
        for infos in (graph.input, graph.output, graph.value_info):
            for info in infos:
                _check_type(info.type, f"the type of {info.name!r}")
        for sparse in graph.sparse_initializer:
            _check_tensor(sparse.values)
    for tensor in _protos.tensors(proto):
        _check_tensor(tensor)
    for node in _protos.nodes(proto):
        if not node.op_type:
            raise ModelError(f"node {_name(node)} has no operator; {_AGAIN}")
        if node.attribute:
            _check_attributes(node)


def check_nodes(model: ir.Model) -> None:
    """Refuse a node of the default domain that lacks what its operator must have, or has what it cannot.

    Raises:
        ModelError: One is found. The message names it.
    """
    _check_nodes(model.graph.all_nodes(), model.opset_imports)
    for function in model.functions.values():
        _check_nodes(function.all_nodes(), function.opset_imports)


def _check_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type not in _CODES:
        raise ModelError(f"tensor {tensor.name!r} has the element type {tensor.data_type}, which is none; {_AGAIN}")
    if any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) > _LARGEST:
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}, which is none; {_AGAIN}")


def _check_type(type_: onnx.TypeProto, what: str) -> None:
    for _ in range(_DEEPEST_TYPE):
        kind = type_.WhichOneof("value")
        if kind in ("tensor_type", "sparse_tensor_type"):
            code = getattr(type_, kind).elem_type
            if code not in _CODES and code != onnx.TensorProto.UNDEFINED:
                raise ModelError(f"{what} has the element type {code}, which is none; {_AGAIN}")
            return
        if kind in ("sequence_type", "optional_type"):
            type_ = getattr(type_, kind).elem_type
        elif kind == "map_type":
            type_ = type_.map_type.value_type
        else:
            return
    raise ModelError(f"{what} nests more than {_DEEPEST_TYPE} deep; {_AGAIN}")


def _check_attributes(node: onnx.NodeProto) -> None:
    names = set()
    for attribute in node.attribute:
        if not attribute.name or attribute.name in names:
            raise ModelError(f"node {_name(node)} has the attribute {attribute.name!r} more than once; {_AGAIN}")
        names.add(attribute.name)
        if attribute.ref_attr_name:
            continue
        field = _FIELDS.get(attribute.type)
        if attribute.type == onnx.AttributeProto.UNDEFINED or (field is not None and not attribute.HasField(field)):
            raise ModelError(f"node {_name(node)} has an attribute {attribute.name!r} that holds nothing; {_AGAIN}")
        for held, (type_, other) in (
            (attribute.HasField("g"), (onnx.AttributeProto.GRAPH, "a graph")),
            (attribute.HasField("t"), (onnx.AttributeProto.TENSOR, "a tensor")),
            (bool(attribute.graphs), (onnx.AttributeProto.GRAPHS, "graphs")),
            (bool(attribute.tensors), (onnx.AttributeProto.TENSORS, "tensors")),
        ):
            if held and attribute.type != type_:
                raise ModelError(
                    f"node {_name(node)} has an attribute {attribute.name!r} that holds {other} and says that it holds "
                    f"something else; {_AGAIN}"
                )
        if attribute.type == onnx.AttributeProto.TYPE_PROTO:
            _check_type(attribute.tp, f"the attribute {attribute.name!r} of node {_name(node)}")


def _name(node: onnx.NodeProto) -> str:
    if node.name:
        return f"{node.name!r} ({node.op_type})"
    return f"the {node.op_type} that gives {node.output[0] if node.output else None!r}"


def _check_nodes(nodes: Iterable[ir.Node], opset_imports: dict[str, int]) -> None:
    opset = opset_imports.get("", 1)
    for node in nodes:
        if node.domain == "":
            if schema(node.op_type, opset) is not None:
                _check_node(node, opset)
        elif node.domain == DOMAIN and (node.op_type, len(node.inputs), len(node.outputs)) != ("CastLike", 2, 1):
            raise ModelError(
                f"node {describe(node)}: the domain {DOMAIN!r} has a CastLike of two inputs and one output alone; "
                "rewrite the original model again"
            )


def _check_node(node: ir.Node, opset: int) -> None:
    entry = signature(node.op_type, opset)
    given = [value is not None and value.name != "" for value in node.inputs]
    if len(given) > entry.max_input:
        raise ModelError(
            f"node {describe(node)} has {len(given)} inputs and {node.op_type} takes {entry.max_input}; {_AGAIN}"
        )
    for index, formal in enumerate(entry.inputs):
        if formal.required and not (index < len(given) and given[index]):
            raise ModelError(f"node {describe(node)} lacks the input {formal.name} that {node.op_type} must have")
    if not node.outputs or len(node.outputs) > entry.max_output:
        raise ModelError(
            f"node {describe(node)} has {len(node.outputs)} outputs and {node.op_type} gives {entry.max_output}; "
            f"{_AGAIN}"
        )
    for name, attribute in node.attributes.items():
        known = entry.attributes.get(name)
        if known is not None and not attribute.is_ref() and int(attribute.type) != int(known.type.value):
            raise ModelError(
                f"node {describe(node)}: its attribute {name!r} is of the type {attribute.type.name} and "
                f"{node.op_type} takes {known.type.name}; {_AGAIN}"
            )
    for name, known in entry.attributes.items():
        if known.required and name not in node.attributes:
            raise ModelError(f"node {describe(node)} lacks the attribute {name!r} that {node.op_type} must have")
