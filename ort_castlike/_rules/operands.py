"""The operands of QuantizeLinear and DequantizeLinear: read from a node, converted, and filled in."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context, describe
from ort_castlike._errors import ModelError
from ort_castlike._types import element_type

__all__ = ["converted", "operands", "zeros_like"]

_SMALL = 1 << 12  # elements that are written into the model, where more are made at load


def operands(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Data, scale and zero point (None where there is none) of a node.

    Raises:
        ModelError: The data or the scale is missing.
    """
    data, scale, zero_point = [*node.inputs, None, None, None][:3]
    if data is None or scale is None:
        raise ModelError(f"node {describe(node)} lacks an input; {node.op_type} takes the data and a scale")
    return data, scale, zero_point


def converted(node: ir.Node, context: Context, value: ir.Value, to: str) -> ir.Value:
    """A value in the stock type named ``to``: itself, a folded constant, or a Cast in front of ``node``."""
    if value.type is None:
        raise ModelError(
            f"node {describe(node)}: the element type of {value.name!r} is not known; give it a value_info in the model"
        )
    if value.type.dtype == ir.DataType[to]:
        return value
    if context.constant(value) is not None and not context.is_emulated(value):
        return context.derived_constant(value, f"as_{to.lower()}", lambda tensor: _converted_tensor(tensor, to))
    return context.insert(node, "Cast", [value], [ir.AttrInt64("to", ir.DataType[to])], gives=to, shape=value.shape)


def _converted_tensor(tensor: ir.TensorProtocol, to: str) -> ir.TensorProtocol:
    element = element_type(to)

    def convert(values: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):  # an overflow is an infinity, as in the runtime's own Cast
            return values.astype(element.dtype)

    return _constants.mapped_tensor(tensor, element, "", convert)


def zeros_like(node: ir.Node, context: Context, scale: ir.Value, element: str) -> ir.Value:
    """A zero point of zeros, of the type named ``element``, for a scale."""
    dtype = element_type(element).dtype
    if scale.shape is not None and scale.shape.is_static() and math.prod(scale.shape.numpy()) <= _SMALL:
        return context.stock_constant(np.zeros(scale.shape.numpy(), dtype), "zero_point")
    sizes = context.insert(node, "Shape", [scale], gives="INT64")
    zero = ir.AttrTensor("value", ir.Tensor(np.zeros(1, dtype)))
    return context.insert(node, "ConstantOfShape", [sizes], [zero], gives=element, shape=scale.shape)
