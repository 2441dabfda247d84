"""BitCast with an emulated type on either side: from a carrier to the codes of its values, from codes to a carrier.

A code is the bit pattern of an element as an unsigned number, in uint8. Every step is a stock operator, exact for every
code, NaN included.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context, describe
from ort_castlike._errors import ModelError
from ort_castlike._types import ElementType, element_type

__all__ = ["RULES"]


def bit_cast(node: ir.Node, context: Context) -> None:
    """Fold a constant, and go by way of the codes otherwise."""
    source = node.inputs[0] if node.inputs else None
    from_type = context.element(source, node)
    to_type = context.element(node.outputs[0], node)
    assert source is not None
    if from_type.bits != to_type.bits:
        raise ModelError(
            f"node {describe(node)}: BitCast from {from_type.name} ({from_type.bits} bits) to {to_type.name} "
            f"({to_type.bits} bits); both must have the same width"
        )
    if from_type == to_type:
        context.become(node, "Identity", [source])
        context.changed(node, "BitCast", "Identity, since both sides have the same type")
        return
    tensor = context.constant(source)
    if tensor is not None:
        _fold(node, context, tensor, to_type)
        context.changed(node, "BitCast", f"a constant of {to_type.name}")
        return
    for element in (from_type, to_type):
        if element.name.startswith("FLOAT8") and not element.is_emulated:
            emulated = source if context.is_emulated(source) else node.outputs[0]
            raise context.unsupported(
                node, emulated, f"and the bits of {element.name} are in no stock operator's reach"
            )
    _become_values(node, context, _codes(node, context, source, from_type), to_type)
    context.changed(node, "BitCast", f"stock operators that take codes of {from_type.name} for {to_type.name}")


RULES = {("", "BitCast"): bit_cast}


def _fold(node: ir.Node, context: Context, tensor: ir.TensorProtocol, to_type: ElementType) -> None:
    name = context.fresh_name(f"{node.outputs[0].name}_folded")
    shape, dtype = tensor.shape.numpy(), ir.DataType(to_type.code)
    _constants.check_payload(tensor)

    def reinterpret() -> ir.TensorProtocol:
        payload = _constants.payload(tensor)
        if to_type.bits < 8:
            return ir.PackedTensor(payload, dtype, shape=shape, name=name)
        return ir.Tensor(payload.view(to_type.dtype).reshape(shape), dtype=dtype, name=name)

    folded = ir.LazyTensor(reinterpret, dtype, ir.Shape(shape), name=name)
    context.replace(node, context.emulated_constant(folded) if to_type.is_emulated else context.folded_constant(folded))


def _codes(node: ir.Node, context: Context, source: ir.Value, element: ElementType) -> ir.Value:
    """The codes of the values that a carrier holds, in front of ``node``."""

    def step(op_type: str, *inputs: ir.Value, gives: str) -> ir.Value:
        attributes = [ir.AttrInt64("to", ir.DataType[gives])] if op_type == "Cast" else []
        return context.insert(node, op_type, inputs, attributes, gives=gives, shape=source.shape)

    def constant(value: object, dtype: type) -> ir.Value:
        return context.stock_constant(np.array(value, dtype), f"bits_{element.name}")

    if element.is_integer and not element.is_signed_integer:
        return source
    if element.is_integer:
        low_byte = step("Cast", source, gives="UINT8")
        if element.bits == 8:
            return low_byte
        return step("BitwiseAnd", low_byte, constant((1 << element.bits) - 1, np.uint8), gives="UINT8")
    if element.name == "FLOAT4E2M1":
        value = step("Cast", source, gives="FLOAT")
        doubled = step("Mul", step("Abs", value, gives="FLOAT"), constant(2, np.float32), gives="FLOAT")
        index = step("Cast", doubled, gives="INT32")
        # 1/x tells -0 from 0, which no comparison does.
        negative = step("Less", step("Reciprocal", value, gives="FLOAT"), constant(0, np.float32), gives="BOOL")
        behind = step("Add", index, constant(13, np.int32), gives="INT32")
        index = step("Where", negative, behind, index, gives="INT32")
        table = np.zeros(26, np.uint8)
        magnitudes = _carrier_values(element)[:8].astype(np.float32) * 2
        table[magnitudes.astype(np.int64)] = range(8)
        table[magnitudes.astype(np.int64) + 13] = range(8, 16)
        return step("Gather", constant(table, np.uint8), index, gives="UINT8")
    assert element.name == "FLOAT8E8M0"
    # The logarithm of a power of two is off by far less than a half, in double for subnormal float too.
    logarithm = step("Log", step("Cast", source, gives="DOUBLE"), gives="DOUBLE")
    exponent = step("Mul", logarithm, constant(1 / np.log(2), np.float64), gives="DOUBLE")
    biased = step("Add", step("Round", exponent, gives="DOUBLE"), constant(127, np.float64), gives="DOUBLE")
    is_nan = step("IsNaN", source, gives="BOOL")
    return step("Cast", step("Where", is_nan, constant(255, np.float64), biased, gives="DOUBLE"), gives="UINT8")


def _become_values(node: ir.Node, context: Context, codes: ir.Value, element: ElementType) -> None:
    """Turn ``node`` into what gives the carrier's values for codes."""
    if element.is_integer and not element.is_signed_integer:
        context.become(node, "Identity", [codes])
    elif element.name == "INT8":
        context.become(node, "Cast", [codes], [ir.AttrInt64("to", ir.DataType.INT8)])
    else:
        table = context.stock_constant(_carrier_values(element), f"values_{element.name}")
        to_index = [ir.AttrInt64("to", ir.DataType.INT32)]
        index = context.insert(node, "Cast", [codes], to_index, gives="INT32", shape=codes.shape)
        context.become(node, "Gather", [table, index])


def _carrier_values(element: ElementType) -> np.ndarray:
    """The carrier's value for each code of an emulated type."""
    assert element.carrier is not None
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    return codes.view(element.dtype).astype(element_type(element.carrier).dtype)
