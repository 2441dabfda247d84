"""Constants that a DequantizeLinear in a subgraph takes from outside: they are brought into the subgraph.

onnxruntime fuses such a node with the MatMul behind it and looks for the weights in the subgraph alone: 1.24 to 1.32
refuse the model ("Missing required weight"), and 1.20 crashes.
"""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._context import Context

__all__ = ["sink_constants"]


def sink_constants(context: Context) -> None:
    """Move every such constant into the subgraph, or copy it where something else takes it too.

    A copy has the data of the original; nothing is copied in memory.
    """
    copies: dict[tuple[ir.Graph, ir.Value], ir.Value] = {}
    for graph in context.model.graph.subgraphs():
        for node in graph:
            if node.op_type != "DequantizeLinear" or node.domain != "":
                continue
            for index, value in enumerate(node.inputs):
                tensor = context.constant(value)
                if value is None or tensor is None or _is_inside(value, graph):
                    continue
                if (graph, value) not in copies:
                    copies[graph, value] = _brought_in(context, graph, value, tensor)
                    context.changed(node, node.op_type, f"the same, with {value.name!r} inside the subgraph")
                node.replace_input_with(index, copies[graph, value])


def _is_inside(value: ir.Value, graph: ir.Graph) -> bool:
    producer = value.producer()
    return (value.graph if producer is None else producer.graph) is graph


def _brought_in(context: Context, graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    if value.is_initializer() and not value.is_graph_output() and all(use.node.graph is graph for use in value.uses()):
        assert value.graph is not None
        assert value.name is not None
        del value.graph.initializers[value.name]
        graph.register_initializer(value)
        return value
    name = context.fresh_name(f"{value.name}_inside")
    copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=_named(tensor, name))
    graph.register_initializer(copy)
    return copy


def _named(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The same data under another name: to serialize a value renames its tensor, which the given model shares."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=name,
            base_dir=tensor.base_dir,
        )
    return ir.LazyTensor(lambda: tensor, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=name)
