"""bfloat16 on the CPU, where no release has arithmetic for it: each operator computes in float32 between casts.

A value of bfloat16 is one of float32, and the result is rounded to bfloat16 once. This is for those who know that a
model runs on the CPU, which a rewrite does not: other execution providers have kernels of their own.
"""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._context import Context
from ort_castlike._inference import infer_types
from ort_castlike._options import Options

__all__ = ["compute_in_float32"]

# What has kernels for bfloat16, or hands values on to other nodes.
_KEPT = frozenset(("Cast", "CastLike", "Constant", "Identity", "If", "Loop", "Scan"))


def compute_in_float32(model: ir.Model, options: Options) -> None:
    """Put casts around every operator of ONNX's that takes bfloat16 and gives one output, in place.

    Raises:
        ModelError: ONNX's inference refuses the model.
    """
    context = Context(model, options)
    infer_types(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in tuple(graph):
            if node.domain == "" and node.op_type not in _KEPT and len(node.outputs) == 1:
                _widen(node, context)


def _widen(node: ir.Node, context: Context) -> None:
    inputs = [_as_float32(value, node, context) for value in node.inputs]
    if inputs == list(node.inputs):
        return
    output = node.outputs[0]
    if output.dtype != ir.DataType.BFLOAT16:
        context.become(node, node.op_type, inputs, tuple(node.attributes.values()))
        return
    wide = context.insert(
        node, node.op_type, inputs, tuple(node.attributes.values()), gives="FLOAT", shape=output.shape
    )
    context.become(node, "Cast", [wide], [ir.AttrInt64("to", ir.DataType.BFLOAT16)])


def _as_float32(value: ir.Value | None, node: ir.Node, context: Context) -> ir.Value | None:
    if value is None or value.dtype != ir.DataType.BFLOAT16:
        return value
    to_float = [ir.AttrInt64("to", ir.DataType.FLOAT)]
    return context.insert(node, "Cast", [value], to_float, gives="FLOAT", shape=value.shape)
