"""Replaces a node by the body that ONNX defines its operator by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
import onnx_ir as ir

from ort_castlike._opset._schemas import schema
from ort_castlike._opset._site import Fragment, Refusal, Site

__all__ = ["expand"]


def expand(site: Site) -> tuple[Fragment, int] | Refusal:
    """The body of a node's operator, specialized to the node.

    Returns:
        The fragment, its attributes and element types filled in, and the opset that it is written for; a refusal where
        ONNX defines no body, or gives none for this node.
    """
    node = site.node
    entry = schema(node.op_type, site.high)
    call = ir.to_proto(node)
    if entry.has_function:
        opset = _closest(entry.function_opset_versions, site.low)
        text = entry.get_function_with_opset_version(opset)
    elif entry.has_context_dependent_function:
        if any(value is not None and value.type is None for value in node.inputs):
            return Refusal(
                "ONNX's function body for it depends on the types of its inputs, and one has no static type"
                " (inline the function that holds it, or infer shapes)"
            )
        opset = _closest(entry.context_dependent_function_opset_versions, site.low)
        kinds = [_type_proto(value).SerializeToString() for value in node.inputs]
        text = entry.get_context_dependent_function_with_opset_version(opset, call.SerializeToString(), kinds)
    else:
        return Refusal("ONNX defines no function body for it")
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    if not function.node:
        return Refusal("ONNX gives no function body for a node with these attributes and input shapes")
    return _fragment(site, function, _arguments(call, entry)), opset


def _closest(versions: list[int], low: int) -> int:
    """The newest body that the lower opset can hold as it is, else the one nearest to it."""
    fitting = [version for version in versions if version <= low]
    return max(fitting) if fitting else min(versions)


def _type_proto(value: ir.Value | None) -> onnx.TypeProto:
    if value is None or value.type is None:
        return onnx.TypeProto()
    described: onnx.ValueInfoProto = ir.to_proto(ir.Value(name="value", type=value.type, shape=value.shape))
    return described.type


def _arguments(call: onnx.NodeProto, entry: Any) -> dict[str, onnx.AttributeProto]:
    """The attributes that a body may refer to: the node's own, and the defaults of the rest."""
    found = {name: row.default_value for name, row in entry.attributes.items() if row.default_value.name}
    found.update({attribute.name: attribute for attribute in call.attribute})
    return found


def _fragment(site: Site, function: onnx.FunctionProto, arguments: Mapping[str, onnx.AttributeProto]) -> Fragment:
    node = site.node
    graph = onnx.GraphProto(name="fragment")
    graph.node.extend(function.node)
    actual = []
    absent = set()
    for index, name in enumerate(function.input):
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None:
            absent.add(name)
            continue
        actual.append(index)
        graph.input.add(name=name).type.CopyFrom(_type_proto(value))
    _bind(graph, arguments, absent)
    slots = []
    taken = set(function.input)
    for slot, name in enumerate(function.output[: len(node.outputs)]):
        if not node.outputs[slot].name:
            continue
        slots.append(slot)
        if name in taken:
            # A value cannot be given twice, nor be an outer value: it goes through an Identity.
            copy = f"{name}_output_{slot}"
            graph.node.add(op_type="Identity", input=[name], output=[copy])
            name = copy
        taken.add(name)
        graph.output.add(name=name)
    _prune(graph)
    typed = _with_types(graph, function)
    how = f"replaced by ONNX's function body of {node.op_type}"
    return Fragment(ir.serde.deserialize_graph(typed), tuple(actual), tuple(slots), how)


def _bind(graph: onnx.GraphProto, arguments: Mapping[str, onnx.AttributeProto], absent: set[str]) -> None:
    """Put the arguments for the references to attributes, and nothing for inputs that are left out."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name in absent:
                node.input[index] = ""
        bound = []
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                argument = arguments.get(attribute.ref_attr_name)
                if argument is None:
                    continue
                renamed = onnx.AttributeProto()
                renamed.CopyFrom(argument)
                renamed.name = attribute.name
                bound.append(renamed)
            else:
                if attribute.HasField("g"):
                    _bind(attribute.g, arguments, absent)
                bound.append(attribute)
        copies = [onnx.AttributeProto.FromString(attribute.SerializeToString()) for attribute in bound]
        del node.attribute[:]
        node.attribute.extend(copies)


def _prune(graph: onnx.GraphProto) -> None:
    """Take out the nodes whose outputs nothing uses: an output that the node leaves out needs no computing."""
    needed = {output.name for output in graph.output}
    kept = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(_names_read(node))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del graph.node[:]
    graph.node.extend(copies)


def _names_read(node: onnx.NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            names.update(output.name for output in attribute.g.output)
            for inner in attribute.g.node:
                names |= _names_read(inner)
    return names


def _with_types(graph: onnx.GraphProto, function: onnx.FunctionProto) -> onnx.GraphProto:
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION, graph=graph, opset_import=function.opset_import)
    try:
        return onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, ValueError):
        return graph
