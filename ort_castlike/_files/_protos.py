"""Walks over ModelProtos: every graph, node and tensor in one, subgraphs and functions included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

from ort_castlike._errors import ModelError

__all__ = ["external_tensors", "graphs", "held_graphs", "innermost_type", "nodes", "tensors"]


# How deep graphs may nest: each takes three of the hundred messages that readers of protobufs let nest, and what is in
# it up to six more.
_DEEPEST = 31
_DEEPEST_TYPE = 8


def graphs(graph: onnx.GraphProto, depth: int = 0) -> Iterator[onnx.GraphProto]:
    """``graph`` and every graph inside it.

    Raises:
        ModelError: They nest deeper than a file of the model could be read.
    """
    _check_depth(graph, depth)
    yield graph
    for node in graph.node:
        if node.attribute:
            yield from _graphs_of(node, depth + 1)


def nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model."""
    yield from _nodes(proto.graph.node)
    for function in proto.functions:
        yield from _nodes(function.node)


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every dense tensor of a model: initializers and attributes."""
    for graph in graphs(proto.graph):
        yield from graph.initializer
    for function in proto.functions:
        for node in function.node:
            for graph in _graphs_of(node, 1):
                yield from graph.initializer
    for node in nodes(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose data lies outside the model."""
    return (tensor for tensor in tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL)


def innermost_type(type_: onnx.TypeProto) -> onnx.TypeProto:
    """The type inside all sequences, optionals and maps.

    Raises:
        ModelError: They nest deeper than anything that there is.
    """
    for _ in range(_DEEPEST_TYPE):
        kind = type_.WhichOneof("value")
        if kind in ("sequence_type", "optional_type"):
            type_ = getattr(type_, kind).elem_type
        elif kind == "map_type":
            type_ = type_.map_type.value_type
        else:
            return type_
    raise ModelError(f"a type nests more than {_DEEPEST_TYPE} deep; export the model again")


def _nodes(listed: Iterable[onnx.NodeProto], depth: int = 1) -> Iterator[onnx.NodeProto]:
    for node in listed:
        yield node
        for attribute in node.attribute:
            for graph in held_graphs(attribute):
                _check_depth(graph, depth)
                yield from _nodes(graph.node, depth + 1)


def _graphs_of(node: onnx.NodeProto, depth: int) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        for graph in held_graphs(attribute):
            yield from graphs(graph, depth)


def held_graphs(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    """The graphs that an attribute holds."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def _check_depth(graph: onnx.GraphProto, depth: int) -> None:
    if depth > _DEEPEST:
        raise ModelError(
            f"graph {graph.name!r} lies more than {_DEEPEST} graphs deep, which no file of a model can hold"
        )
