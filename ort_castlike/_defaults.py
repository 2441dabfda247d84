"""Graph inputs with a default value: what keeps one that a carrier holds in float16 from crashing the runtime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_castlike._context import Context

__all__ = ["shield_float16_defaults"]


def shield_float16_defaults(context: Context) -> None:
    """Put a Reshape to the same shape between a float16 graph input that has a default and what takes it.

    Where a Cast to float takes it, given or put there for want of a float16 kernel, 1.23 to 1.27 crash at load.
    """
    graph = context.model.graph
    for value in graph.inputs:
        if value not in context.original or not value.is_initializer() or value.dtype != ir.DataType.FLOAT16:
            continue
        tensor = value.const_value
        uses = tuple(value.uses())
        if tensor is None or not uses:
            continue
        shape = context.stock_constant(np.array(tensor.shape.numpy(), np.int64), "shape")
        node = ir.Node("", "Reshape", [value, shape], name=context.fresh_name(f"{value.name}_Reshape"))
        output = node.outputs[0]
        output.name, output.type, output.shape = context.fresh_name(f"{value.name}_kept"), value.type, value.shape
        graph.insert_before(graph[0], node)
        for use in uses:
            use.node.replace_input_with(use.idx, output)
