"""QuantizeLinear: a stock QuantizeLinear to 8 bits and a Clip, or the arithmetic itself where the stock one errs.

The standard: y = saturate(round_half_even(x / scale) + zero_point). The division has the precision of the scale, or
of the attribute ``precision``: x and the scale are rounded to that type, and so is their quotient. A FLOAT8E8M0 scale
is a power of two and no precision to divide in; with it, and with INT32, the quotient is a float32 or a double.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context, describe
from ort_castlike._errors import ModelError
from ort_castlike._flaws import truncates_float16
from ort_castlike._rules.casts import redirect
from ort_castlike._rules.dequantization import dequantize
from ort_castlike._rules.granularity import Granularity
from ort_castlike._rules.operands import converted, operands, zeros_like
from ort_castlike._types import ElementType, element_type

__all__ = ["RULES", "STOCK_RULES", "quantize"]


def quantize(node: ir.Node, context: Context, why: str = "") -> None:
    """Quantize to 8 bits and clip to the type's range; to a float type divide and narrow.

    Args:
        node: The node.
        context: The rewrite.
        why: What the report says of the reason.
    """
    x, scale, zero_point = operands(node)
    to_type = context.element(node.outputs[0], node)
    granularity = Granularity.of(node)
    granularity.check(node, x, scale, zero_point)
    precision = _precision(node, context, scale)
    is_right = not granularity.block_size and not _is_rounded_last(context, x, zero_point)
    if to_type.is_integer and precision == "FLOAT" and is_right:
        _quantize_stock(node, context, x, scale, zero_point, to_type)
        return
    # Blocks on another axis than the last overflow above 2**31 in the stock operator up to 1.24, float16 truncates
    # up to 1.29, bfloat16 it does not take, and behind sums, products and means it is fused: these are written out.
    quotient = _quotient(node, context, x, scale, precision)
    if to_type.is_integer:
        _round(node, context, quotient, zero_point, to_type, why)
    else:
        _narrow(node, context, quotient, zero_point, to_type)


_FUSED = frozenset(("Add", "AveragePool", "Mul"))
_MOVABLE = frozenset(
    ("Dropout", "Flatten", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
)


def quantize_float16(node: ir.Node, context: Context) -> None:
    """Write out a quantization of stock types where the target truncates; leave any other.

    It truncates FLOAT16 to integers without blocks. Where the rank that spreading the scale takes is unknown, it stays,
    and so it does in a model without emulated types: another device may be right, and want the operator.
    """
    x, output = node.inputs[0] if node.inputs else None, node.outputs[0]
    if not context.original or not truncates_float16(context.options.target.release):
        return
    if x is None or x.dtype != ir.DataType.FLOAT16:
        return
    granularity = Granularity.of(node)
    if output.dtype is None or not element_type(output.dtype).is_integer or granularity.block_size:
        return
    if not granularity.can_spread(operands(node)[1], x):
        return
    quantize(node, context, ": the stock operator drops what is behind the point of a FLOAT16")


RULES = {("", "DequantizeLinear"): dequantize, ("", "QuantizeLinear"): quantize}
STOCK_RULES = {("", "QuantizeLinear"): quantize_float16}


def _precision(node: ir.Node, context: Context, scale: ir.Value) -> str:
    code = node.attributes.get_int("precision", 0)
    name = element_type(code).name if code else context.element(scale, node).name
    if name == "FLOAT8E8M0" and not code:
        return "FLOAT"
    if name == "INT32" and not code:
        return "DOUBLE"
    if name not in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"):
        raise ModelError(
            f"node {describe(node)}: precision {name} is no type to divide in; "
            "give FLOAT, FLOAT16, BFLOAT16 or DOUBLE, or leave the attribute away"
        )
    return name


def _is_rounded_last(context: Context, x: ir.Value, zero_point: ir.Value | None) -> bool:
    """Whether the optimizer may make one node of this one, a sum, product or mean before it and what dequantizes.

    Such a node rounds when the zero point is added (1.20 to 1.32), so that ties go to odd numbers where that is odd.
    """
    producer = _moved_from(x).producer()
    if producer is None or producer.op_type not in _FUSED or zero_point is None:
        return False
    constant = context.constant(zero_point)
    if constant is not None and not (_constants.values(constant).astype(np.int64) % 2).any():
        return False
    sources = [_moved_from(value).producer() for value in producer.inputs if value is not None]
    return all(source is not None and source.op_type == "DequantizeLinear" for source in sources)


def _moved_from(value: ir.Value) -> ir.Value:
    """The value behind operators that the optimizer takes away, or moves to the other side of a quantization."""
    while (node := value.producer()) is not None and node.op_type in _MOVABLE and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _quantize_stock(
    node: ir.Node,
    context: Context,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    to_type: ElementType,
) -> None:
    """A stock QuantizeLinear, clipped where the type is narrower than its carrier.

    Saturating at the carrier's range first changes nothing: the type's range lies within it.
    """
    gives = to_type.carrier or to_type.name
    x, scale = converted(node, context, x, "FLOAT"), converted(node, context, scale, "FLOAT")
    # The zero point says the type: output_dtype makes the optimizer of 1.32 fail.
    zero_point = zero_point or zeros_like(node, context, scale, gives)
    inputs, attributes = [x, scale, zero_point], Granularity.of(node).attributes()
    if not to_type.is_emulated:
        context.become(node, "QuantizeLinear", inputs, attributes)
        context.changed(node, "QuantizeLinear", "QuantizeLinear with a float32 scale")
        return
    wide = context.insert(node, "QuantizeLinear", inputs, attributes, gives=gives, shape=x.shape)
    dtype = element_type(gives).dtype
    low, high = (context.stock_constant(np.array(bound, dtype), "bound") for bound in to_type.integer_range)
    context.become(node, "Clip", [wide, low, high])
    context.changed(node, "QuantizeLinear", f"QuantizeLinear to {gives}, clipped to the range of {to_type.name}")


@dataclasses.dataclass(frozen=True)
class _Quotient:
    """x / scale as ``value``, a FLOAT or DOUBLE that holds a number of the precision asked for."""

    value: ir.Value
    x: ir.Value
    type: str


def _quotient(node: ir.Node, context: Context, x: ir.Value, scale: ir.Value, precision: str) -> _Quotient:
    work = "DOUBLE" if precision == "DOUBLE" else "FLOAT"
    dividend = converted(node, context, converted(node, context, x, precision), work)
    divisor = converted(node, context, converted(node, context, scale, precision), work)
    divisor = Granularity.of(node).spread(node, context, divisor, x)
    value = context.insert(node, "Div", [dividend, divisor], gives=work, shape=x.shape)
    # A float32 has more than twice the digits of the 16-bit types, so rounding twice rounds right.
    return _Quotient(converted(node, context, converted(node, context, value, precision), work), x, work)


def _plus_zero_point(
    node: ir.Node, context: Context, value: ir.Value, zero_point: ir.Value | None, quotient: _Quotient
) -> ir.Value:
    if zero_point is None:
        return value
    offset = converted(node, context, zero_point, quotient.type)
    offset = Granularity.of(node).spread(node, context, offset, quotient.x)
    return context.insert(node, "Add", [value, offset], gives=quotient.type, shape=quotient.x.shape)


def _round(
    node: ir.Node,
    context: Context,
    quotient: _Quotient,
    zero_point: ir.Value | None,
    to_type: ElementType,
    why: str,
) -> None:
    rounded = context.insert(node, "Round", [quotient.value], gives=quotient.type, shape=quotient.x.shape)
    moved = _plus_zero_point(node, context, rounded, zero_point, quotient)
    dtype = element_type(quotient.type).dtype
    low, high = (context.stock_constant(np.array(bound, dtype), "bound") for bound in to_type.integer_range)
    clipped = context.insert(node, "Clip", [moved, low, high], gives=quotient.type, shape=quotient.x.shape)
    gives = to_type.carrier or to_type.name
    context.become(node, "Cast", [clipped], [ir.AttrInt64("to", ir.DataType[gives])])
    context.changed(node, "QuantizeLinear", f"a division, rounded and clipped to the range of {to_type.name}{why}")


def _narrow(
    node: ir.Node, context: Context, quotient: _Quotient, zero_point: ir.Value | None, to_type: ElementType
) -> None:
    moved = _plus_zero_point(node, context, quotient.value, zero_point, quotient)
    redirect(node, context, moved, element_type(quotient.type), to_type)
    context.changed(node, "QuantizeLinear", f"a division, narrowed to {to_type.name}")
