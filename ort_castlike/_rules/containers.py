"""Sequences and optionals of tensors: they hold carriers, and an attribute that names an element type names these."""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._context import Context, carrier_type, describe, emulated_element, tensor_dtype
from ort_castlike._errors import ModelError
from ort_castlike._types import element_type

__all__ = ["RULES"]


def hold(node: ir.Node, context: Context) -> None:
    """Leave the node as it is, where all that it takes and gives has one element type."""
    types = {
        element_type(dtype).name: value
        for value in (*node.inputs, *node.outputs)
        if value is not None
        and (type_ := context.original.get(value, value.type)) is not None
        and (dtype := tensor_dtype(type_)) is not None
        and (value in context.original or not _is_index(node, value))
    }
    if len(types) > 1:
        found = " and ".join(f"{value.name!r} of {name}" for name, value in types.items())
        raise ModelError(f"node {describe(node)} puts {found} together; a container holds tensors of one type")


def _is_index(node: ir.Node, value: ir.Value) -> bool:
    """Whether a value is a position, a length or a flag, and not what the container holds."""
    positions = {"SequenceAt": (1,), "SequenceErase": (1,), "SequenceInsert": (2,)}
    if any(index < len(node.inputs) and node.inputs[index] is value for index in positions.get(node.op_type, ())):
        return True
    return node.op_type in ("SequenceLength", "OptionalHasElement") and value in node.outputs


def sequence_empty(node: ir.Node, context: Context) -> None:
    """Name the carrier in ``dtype``."""
    carrier = tensor_dtype(node.outputs[0].type)
    assert carrier is not None
    node.attributes["dtype"] = ir.AttrInt64("dtype", carrier)
    context.changed(node, node.op_type, f"an empty sequence of {carrier.name}")


def optional(node: ir.Node, context: Context) -> None:
    """Name the carrier in ``type``, which an empty optional has."""
    hold(node, context)
    attribute = node.attributes.get("type")
    if attribute is None or attribute.is_ref():
        return
    given: ir.TypeAndShape = attribute.value
    if given.type is not None and emulated_element(given.type) is not None:
        carrier = carrier_type(given.type)
        node.attributes["type"] = ir.AttrTypeProto("type", ir.TypeAndShape(carrier, given.shape))
        context.changed(node, node.op_type, "an empty optional of the carrier")


RULES = {
    **{
        ("", op_type): hold
        for op_type in (
            "ConcatFromSequence",
            "OptionalGetElement",
            "OptionalHasElement",
            "SequenceAt",
            "SequenceConstruct",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
        )
    },
    ("", "SequenceEmpty"): sequence_empty,
    ("", "Optional"): optional,
}
