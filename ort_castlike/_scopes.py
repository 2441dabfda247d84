"""What nodes with subgraphs and calls of functions hand over, in a form that onnx_ir and onnxruntime both take."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ort_castlike._errors import ModelError
from ort_castlike._walk import subgraphs

__all__ = ["bring_in_outer_values", "name_dead_outputs"]


def name_dead_outputs(model: ir.Model, fresh_name: Callable[[str], str]) -> None:
    """Name the outputs that calls and nodes with subgraphs leave out.

    onnxruntime (1.20 to 1.32) crashes on a Loop that leaves out an output, and onnx_ir writes no outputs behind the
    last one that has a name, though such nodes must have as many as their body or their function gives.
    """
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for node in graph.all_nodes():
            unnamed = [output for output in node.outputs if not output.name]
            if unnamed and (node.op_identifier() in model.functions or any(True for _ in subgraphs(node))):
                for output in unnamed:
                    output.name = fresh_name(f"{node.op_type}_unused")


def bring_in_outer_values(graph: ir.Graph, fresh_name: Callable[[str], str]) -> None:
    """Let every graph inside ``graph`` return values of its own only, since onnxruntime refuses others.

    onnx_ir reads such an output as a value that is tied to its source by nothing but the name.

    Args:
        graph: A main graph, or the graph of a function.
        fresh_name: Gives a name that nothing else has.

    Raises:
        ModelError: A subgraph returns a value that no scope gives.
    """
    pending: list[tuple[ir.Graph, tuple[ir.Graph, ...]]] = [(graph, ())]
    while pending:
        current, outer = pending.pop()
        scopes = (current, *outer)
        for node in current:
            for _, inner in subgraphs(node):
                for index, value in enumerate(inner.outputs):
                    if not _is_given_in(inner, value):
                        _bring_in(inner, index, _source(value, scopes, node), fresh_name)
                pending.append((inner, scopes))


def _is_given_in(graph: ir.Graph, value: ir.Value) -> bool:
    node = value.producer()
    if node is not None:
        return node.graph is graph
    return value in graph.inputs or graph.initializers.get(value.name or "") is value


def _source(value: ir.Value, scopes: tuple[ir.Graph, ...], node: ir.Node) -> ir.Value:
    for scope in scopes:
        given = (output for inner in scope for output in inner.outputs)
        for candidate in (*scope.initializers.values(), *scope.inputs, *given):
            if candidate.name == value.name:
                return candidate
    raise ModelError(
        f"a subgraph of node {node.name or node.op_type!r} returns {value.name!r}, which no node and no outer scope "
        "gives; export the model again"
    )


def _bring_in(graph: ir.Graph, index: int, source: ir.Value, fresh_name: Callable[[str], str]) -> None:
    name = fresh_name(f"{source.name}_inner")
    output = ir.Value(name=name, type=source.type, shape=source.shape)
    graph.append(ir.Node("", "Identity", [source], outputs=[output], name=fresh_name(f"{name}_Identity")))
    graph.outputs[index] = output
