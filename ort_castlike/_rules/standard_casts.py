"""Casts as stock operators alone: what a node becomes with ``lowering="standard"``."""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._context import Context
from ort_castlike._rules.chain import Chain
from ort_castlike._rules.narrowing import narrow_float, narrow_integer
from ort_castlike._rules.small_floats import SMALL_FLOATS, round_to_power_of_two, round_to_small_float
from ort_castlike._types import ElementType

__all__ = ["as_double", "standard_cast"]

# What overflows: beyond the middle between the largest number and the next there would be, that itself if it is even.
_OVERFLOW = {"FLOAT8E4M3FN": ("Greater", 464.0), "FLOAT8E5M2": ("GreaterOrEqual", 61440.0)}


def standard_cast(
    node: ir.Node,
    context: Context,
    source: ir.Value,
    from_type: ElementType,
    to_type: ElementType,
    *,
    saturate: bool,
    round_mode: str,
) -> None:
    """Turn a node into stock operators that cast ``source``, the carrier of ``from_type``, to that of ``to_type``."""
    chain = Chain(node, context, source.shape)
    if to_type.name == "FLOAT8E8M0":
        result = round_to_power_of_two(chain, as_double(chain, source), round_mode, saturate)
    elif to_type.name in SMALL_FLOATS:
        result = round_to_small_float(chain, _as_float(chain, source), to_type.name)
    elif to_type.is_emulated and from_type.name != "STRING" and not from_type.is_float:
        result = narrow_integer(chain, source, from_type, to_type)
    elif to_type.is_emulated:
        result = narrow_float(chain, _as_float(chain, source), to_type, context.options.rounding)
    else:
        result = _widen(chain, source, from_type, to_type, saturate)
    chain.finish(result)


def _as_float(chain: Chain, value: ir.Value) -> ir.Value:
    """The value in FLOAT, or in DOUBLE where only that holds it. A large integer is rounded, beyond any small float."""
    return chain.cast(value, "DOUBLE" if chain.type_of(value) in ("DOUBLE", "STRING") else "FLOAT")


def as_double(chain: Chain, value: ir.Value) -> ir.Value:
    """The value in DOUBLE; a 64-bit integer that it does not hold keeps its side of the powers of two and their halves.

    From 2**53 on, the lowest 11 bits are dropped, and if any was set the bit above them is set.
    """
    type_ = chain.type_of(value)
    double = chain.cast(value, "DOUBLE")
    if type_ not in ("INT64", "UINT64"):
        return double
    bits = chain.cast(value, "UINT64")
    high = chain("BitShift", bits, chain.scalar(11, "UINT64"), direction="RIGHT")
    lost = chain.cast(chain("BitwiseAnd", bits, chain.scalar(0x7FF, "UINT64")), "BOOL")
    odd = chain("BitwiseOr", high, chain.cast(lost, "UINT64"))
    large = chain.times(chain.cast(odd, "DOUBLE"), 2.0**11)
    exact = chain("Less", double, chain.scalar(2.0**53, "DOUBLE"), gives="BOOL")
    return chain("Where", exact, double, large, gives="DOUBLE")


def _widen(chain: Chain, value: ir.Value, from_type: ElementType, to_type: ElementType, saturate: bool) -> ir.Value:
    """A stock Cast of the carrier, between others where it alone would leave the answer to the CPU."""
    to = to_type.name
    if to_type.is_integer and from_type.name == "FLOAT8E8M0":
        value = _within(chain, value, to_type)
    elif to_type.is_integer and from_type.name in SMALL_FLOATS:
        value = chain.cast(value, "INT8")  # so that a negative number wraps in an unsigned type
    if to.startswith("FLOAT8") and not saturate:
        if from_type.is_float and not from_type.is_emulated and to in _OVERFLOW:
            value = _overflowing(chain, value, to)
        return chain.cast(value, to, saturate=0)
    return chain.cast(value, to)


def _overflowing(chain: Chain, value: ir.Value, to: str) -> ir.Value:
    """A value with an infinity where it rounds to more than the type holds: stock Cast errs there without saturate."""
    if chain.type_of(value) != "DOUBLE":
        value = chain.cast(value, "FLOAT")
    comparison, bound = _OVERFLOW[to]
    type_ = chain.type_of(value)
    beyond = chain(comparison, chain("Abs", value), chain.scalar(bound, type_), gives="BOOL")
    infinite = chain.times(value, 2.0**1000 if type_ == "DOUBLE" else 2.0**120)
    return chain("Where", beyond, infinite, value, gives=type_)


def _within(chain: Chain, value: ir.Value, to_type: ElementType) -> ir.Value:
    """A power of two modulo the range of an integer type: its sign bit, or 0, where it does not fit; 0 for a NaN."""
    top = 2.0 ** (to_type.bits - to_type.is_signed_integer)
    inside = chain("Less", value, chain.scalar(top, "FLOAT"), gives="BOOL")
    numbers = chain.select(inside, value, 0.0)
    if not to_type.is_signed_integer:
        return numbers
    sign = chain("Equal", value, chain.scalar(top, "FLOAT"), gives="BOOL")
    return chain("Where", sign, chain.scalar(-top, "FLOAT"), numbers, gives="FLOAT")
