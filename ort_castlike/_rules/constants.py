"""Constant and ConstantOfShape: what their attributes hold is re-encoded in the carrier."""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context, emulated_element
from ort_castlike._types import element_type

__all__ = ["RULES"]


def constant(node: ir.Node, context: Context) -> None:
    """Leave a dense tensor to the end, when all who use it are known."""
    attribute = node.attributes.get("value")
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.TENSOR:
        raise context.unsupported(node, node.outputs[0], "and holds it in no attribute 'value'")


def constant_of_shape(node: ir.Node, context: Context) -> None:
    """Re-encode ``value``."""
    attribute = node.attributes.get("value")
    if attribute is None or attribute.is_ref():
        raise context.unsupported(node, node.outputs[0], "and has no tensor in its attribute 'value'")
    tensor = attribute.as_tensor()
    if emulated_element(ir.TensorType(tensor.dtype)) is None:
        raise context.unsupported(node, node.outputs[0], f"and its attribute 'value' holds {tensor.dtype.name}")
    _constants.check_payload(tensor)
    node.attributes["value"] = ir.AttrTensor("value", _constants.carrier_tensor(tensor))
    context.changed(node, node.op_type, f"filled with a value of {element_type(tensor.dtype).carrier}")


RULES = {("", "Constant"): constant, ("", "ConstantOfShape"): constant_of_shape}
