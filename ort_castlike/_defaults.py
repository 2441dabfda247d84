"""Graph inputs with a default value: what keeps one of float16 from crashing the runtime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_castlike._context import Context

__all__ = ["shield_float16_defaults"]


def shield_float16_defaults(context: Context) -> None:
    """Put an Expand to no other shape between a float16 graph input that has a default and what takes it.

    Where a Cast to float takes it, given or put there by a rule or for want of a float16 kernel, 1.23 to 1.27 crash at
    load. A model in which nothing changes stays as it is.
    """
    if not (context.original or context.changes):
        return
    graph = context.model.graph
    for value in graph.inputs:
        if not value.is_initializer() or value.dtype != ir.DataType.FLOAT16:
            continue
        uses = tuple(value.uses())
        if not uses:
            continue
        same_shape = context.stock_constant(np.zeros(0, np.int64), "same_shape")
        node = ir.Node("", "Expand", [value, same_shape], name=context.fresh_name(f"{value.name}_Expand"))
        output = node.outputs[0]
        output.name, output.type, output.shape = context.fresh_name(f"{value.name}_kept"), value.type, value.shape
        graph.insert_before(graph[0], node)
        for use in uses:
            use.node.replace_input_with(use.idx, output)
