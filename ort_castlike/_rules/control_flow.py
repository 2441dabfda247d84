"""If, Loop and Scan: the bodies are legalized like any graph; what is handed in and out must have one type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from ort_castlike._context import Context, describe
from ort_castlike._errors import ModelError
from ort_castlike._opset._schemas import type_text

__all__ = ["RULES"]


def if_(node: ir.Node, context: Context) -> None:
    """Check that both branches give the types that the node gives."""
    for name in ("then_branch", "else_branch"):
        graph = _graph(node, name)
        _agree(node, context, zip(graph.outputs, node.outputs, strict=False), f"the output of its {name}")


def loop(node: ir.Node, context: Context) -> None:
    """Check what goes into the body, from one iteration to the next, and out."""
    body = _graph(node, "body")
    carried = body.inputs[2:]
    _agree(node, context, zip(carried, node.inputs[2:], strict=False), "the body's input")
    _agree(node, context, zip(carried, body.outputs[1:], strict=False), "the body's input")
    _agree(node, context, zip(body.outputs[1:], node.outputs, strict=False), "the body's output")


def scan(node: ir.Node, context: Context) -> None:
    """Check as for Loop, and copy inputs that the body returns as they are: onnxruntime leaves those unwritten."""
    body = _graph(node, "body")
    states = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
    _agree(node, context, zip(body.inputs, node.inputs, strict=False), "the body's input")
    _agree(node, context, zip(body.inputs[:states], body.outputs, strict=False), "the body's input")
    _agree(node, context, zip(body.outputs, node.outputs, strict=False), "the body's output")
    for index, value in enumerate(body.outputs):
        if value in body.inputs:
            body.outputs[index] = _copied(body, value, context)


RULES = {("", "If"): if_, ("", "Loop"): loop, ("", "Scan"): scan}


def _graph(node: ir.Node, name: str) -> ir.Graph:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        raise ModelError(f"node {describe(node)} has no graph {name!r}; {node.op_type} must have one")
    return attribute.as_graph()


def _agree(node: ir.Node, context: Context, pairs: Iterable[tuple[ir.Value, ir.Value | None]], what: str) -> None:
    """Raise where two values that stand for one have different types; carriers alone would hide some of these."""
    for inner, outer in pairs:
        if outer is None or outer.type is None or inner.type is None:
            continue
        types: Sequence[ir.TypeProtocol] = (
            context.original.get(inner, inner.type),
            context.original.get(outer, outer.type),
        )
        if type_text(types[0]) != type_text(types[1]):
            raise ModelError(
                f"node {describe(node)}: {what} {inner.name!r} is {type_text(types[0])} and {outer.name!r}, which "
                f"stands for it outside or in the next iteration, is {type_text(types[1])}; give both one type"
            )


def _copied(graph: ir.Graph, value: ir.Value, context: Context) -> ir.Value:
    output = ir.Value(name=context.fresh_name(f"{value.name}_out"), type=value.type, shape=value.shape)
    graph.append(ir.Node("", "Identity", [value], outputs=[output], name=context.fresh_name(f"{output.name}_Identity")))
    return output
