"""Casts into INT2, UINT2, INT4 and UINT4 as stock operators: round, and keep the low bits of the two's complement.

Every step is exact, and none leans on what C leaves undefined: a float is cast to an integer only once it is known to
fit, so that every CPU and WebAssembly give the same. The operators are those that the oldest release has, chosen by
what they cost there and on the newest (``benchmarks/standard_lowering.py``).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_castlike._rules.chain import Chain
from ort_castlike._types import ElementType

__all__ = ["narrow_float", "narrow_integer"]


def narrow_float(chain: Chain, value: ir.Value, to_type: ElementType, rounding: str) -> ir.Value:
    """A FLOAT or DOUBLE value rounded to a 2- or 4-bit integer, in its carrier."""
    rounded = _ROUNDERS[rounding](chain, _bounded(chain, value, to_type.bits))
    whole = chain.cast(rounded, "INT64" if chain.type_of(value) == "DOUBLE" else "INT32")
    return _low_bits(chain, whole, to_type)


def narrow_integer(chain: Chain, value: ir.Value, from_type: ElementType, to_type: ElementType) -> ir.Value:
    """The low bits of a bool or of an integer, as a 2- or 4-bit integer in its carrier."""
    assert to_type.carrier is not None
    low, high = from_type.integer_range if from_type.is_integer else (0, 1)
    if to_type.integer_range[0] <= low and high <= to_type.integer_range[1]:
        return chain.cast(value, to_type.carrier)
    return _low_bits(chain, value, to_type)


def _bounded(chain: Chain, value: ir.Value, bits: int) -> ir.Value:
    """The value brought to where an integer type holds it, its low bits unchanged: NaN and infinities give 0.

    From ``limit`` on, every number of the type is a multiple of 2**bits, as the limit itself and 0 are.
    """
    if chain.type_of(value) == "FLOAT":
        limit = 2.0 ** (23 + bits)
        # x > alpha ? x : 0, which is false for a NaN; the fastest operator that is sure to take it away.
        numbers = chain("ThresholdedRelu", value, alpha=-limit)
        return chain.clip(numbers, -limit, limit)
    inside = chain("Less", chain("Abs", value), chain.scalar(2.0 ** (52 + bits), "DOUBLE"), gives="BOOL")
    return chain.select(inside, value, 0.0)


def _nearest_even(chain: Chain, value: ir.Value) -> ir.Value:
    return chain("Round", value)


def _toward_zero(chain: Chain, value: ir.Value) -> ir.Value:
    """The value itself, since the cast to an integer that follows truncates."""
    return value


def _half_away(chain: Chain, value: ir.Value) -> ir.Value:
    """The value moved away from zero by the largest number below 0.5, so that truncation rounds halves away.

    With 0.5 itself, the largest number below 0.5 would round up to 1.
    """
    double = chain.type_of(value) == "DOUBLE"
    dtype = np.dtype(np.float64 if double else np.float32)
    step = float(np.nextafter(dtype.type(0.5), dtype.type(0)))
    # A large multiple, clipped, is the step with the value's sign: cheaper than Sign.
    signed_step = chain.clip(chain.times(value, 2.0**900 if double else 2.0**99), -step, step)
    return chain("Add", value, signed_step)


_ROUNDERS = {"nearest_even": _nearest_even, "toward_zero": _toward_zero, "half_away": _half_away}


def _low_bits(chain: Chain, value: ir.Value, to_type: ElementType) -> ir.Value:
    """The low bits of an integer of any type, sign-extended where the target is signed.

    They are masked before the cast to 8 bits: onnxruntime takes the first of two casts in a row away, even one to an
    integer, and a float that does not fit 8 bits would be cast to them.
    """
    value = chain("BitwiseAnd", value, chain.scalar((1 << to_type.bits) - 1, chain.type_of(value)))
    if not to_type.is_signed_integer:
        return chain.cast(value, "UINT8")
    sign = chain.scalar(1 << (to_type.bits - 1), "INT32")  # the narrowest type that has Sub on 1.20
    flipped = chain("BitwiseXor", chain.cast(value, "INT32"), sign)
    return chain.cast(chain("Sub", flipped, sign), "INT8")
