"""Models for the examples in a few lines: nodes, and arrays and types by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

__all__ = ["FORMATS", "make_model", "value"]

# Opset 25 has the 2-bit types, and IR version 13 is the first that may hold them.
FORMATS = {25: 13, 23: 11}


def value(name: str, element_type: str, shape: Sequence[int | str]) -> ValueInfoProto:
    """A value by the name of its element type, such as "INT2"."""
    return helper.make_tensor_value_info(name, TensorProto.DataType.Value(element_type), shape)


def make_model(
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    initializers: Mapping[str, np.ndarray],
    *,
    opset: int = 25,
    functions: Sequence[FunctionProto] = (),
) -> ModelProto:
    """A model at ``opset``, with the IR version that goes with it.

    Args:
        name: Of the graph.
        nodes: In an order that they can run in.
        inputs: As :func:`value` gives them.
        outputs: Likewise.
        initializers: Name to array, ml_dtypes types included.
        opset: 23 or 25.
        functions: Model-local functions; their domains are imported at version 1.
    """
    graph = helper.make_graph(
        nodes,
        name,
        inputs,
        outputs,
        [numpy_helper.from_array(array, key) for key, array in initializers.items()],
    )
    domains = dict.fromkeys(function.domain for function in functions)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=FORMATS[opset])
