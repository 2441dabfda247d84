"""Walks over ModelProtos: every graph, node and tensor in one, subgraphs and functions included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx

__all__ = ["external_tensors", "graphs", "nodes", "tensors"]


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and every graph inside it."""
    yield graph
    for node in graph.node:
        yield from _graphs_of(node)


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
            for graph in _graphs_of(node):
                yield from graph.initializer
    for node in nodes(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose data lies outside the model."""
    return (tensor for tensor in tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL)


def _nodes(listed: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in listed:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g.node)
            for graph in attribute.graphs:
                yield from _nodes(graph.node)


def _graphs_of(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield from graphs(attribute.g)
        for graph in attribute.graphs:
            yield from graphs(graph)
