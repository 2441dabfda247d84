"""What onnx_ir's own walks do not tell: which attribute of a node holds a graph, and where a node lies."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

__all__ = ["nodes_with_place", "subgraphs"]


def subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """The graphs in a node's attributes, with the attribute's name."""
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.value
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.value:
                yield name, graph


def nodes_with_place(graph: ir.Graph, place: str) -> Iterator[tuple[ir.Node, str]]:
    """Every node under ``graph``, with words that say which graph it is in."""
    pending = [(graph, place)]
    while pending:
        current, where = pending.pop()
        for node in current:
            yield node, where
            pending.extend(
                (inner, f"{name} of {node.op_type} {_name(node)!r} in {where}") for name, inner in subgraphs(node)
            )


def _name(node: ir.Node) -> str | None:
    return node.name or next((output.name for output in node.outputs), None)
