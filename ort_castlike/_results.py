"""Keeps what the domain's operators give out of memory that was planned for it, where a wrong shape ends the process.

Where onnxruntime takes a result for one of a known shape (a buffer that is bound to an output, an output of an If, a
buffer that is used again), it refuses a result of another shape; and what is refused in a Python operator aborts the
process, where a stock operator raises. So these results have no shape in the model, and none is an output of a graph.
"""

from __future__ import annotations

import numpy as np

from ort_castlike._context import DOMAIN, Context

__all__ = ["leave_results_unplanned"]


def leave_results_unplanned(context: Context) -> None:
    """Take the shapes off what the domain's operators give; a copy of it is what a graph gives.

    The copy is an Expand to no other shape: the optimizers leave that one where it is, and an Identity not.
    """
    for node in list(context.model.graph.all_nodes()):
        if node.domain != DOMAIN:
            continue
        (result,) = node.outputs
        if result.is_graph_output():
            assert result.type is not None
            inner = context.insert(
                node,
                node.op_type,
                node.inputs,
                node.attributes.values(),
                gives=result.type.dtype.name,
                domain=DOMAIN,
            )
            same_shape = context.stock_constant(np.zeros(0, np.int64), "same_shape")
            context.become(node, "Expand", [inner, same_shape])
        else:
            result.shape = None
