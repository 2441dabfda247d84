"""Casts into FLOAT4E2M1, the float6 types and FLOAT8E8M0 as stock operators, each value rounded once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from ort_castlike._rules.chain import Chain

__all__ = ["SMALL_FLOATS", "Format", "round_to_format", "round_to_power_of_two", "round_to_small_float"]


@dataclasses.dataclass(frozen=True)
class Format:
    """What of a floating-point format decides how a number is rounded.

    Attributes:
        mantissa: Bits of its mantissa.
        lowest: Exponent of its smallest normal number.
        limit: Its largest finite value.
    """

    mantissa: int
    lowest: int
    limit: float


SMALL_FLOATS: Mapping[str, Format] = {
    "FLOAT4E2M1": Format(1, 0, 6.0),
    "FLOAT6E2M3": Format(3, 0, 7.5),
    "FLOAT6E3M2": Format(2, -2, 28.0),
}

_SMALLEST, _LARGEST = 2.0**-127, 2.0**127  # of FLOAT8E8M0


def round_to_small_float(chain: Chain, value: ir.Value, to: str) -> ir.Value:
    """A FLOAT or DOUBLE value at the nearest number of a small format, ties to even, saturating; -0 for a NaN."""
    small = SMALL_FLOATS[to]
    # A NaN becomes a number that is rounded to -0. Where loses the sign of a zero in its second input, not its third.
    almost_zero = chain.scalar(-(2.0**-64), chain.type_of(value))
    # Clip comes first, since 1.24 crashes in a subgraph where a Where takes what a DequantizeLinear gives.
    clipped = chain.clip(value, -small.limit, small.limit)
    clipped = chain("Where", chain("IsNaN", value, gives="BOOL"), almost_zero, clipped, gives=chain.type_of(value))
    return chain.cast(round_to_format(chain, clipped, small), "FLOAT16")


def round_to_format(chain: Chain, value: ir.Value, to: Format) -> ir.Value:
    """A FLOAT or DOUBLE value at the nearest number of a format, ties to even, as if its range had no end."""
    magnitude = chain.clip(chain("Abs", value), 2.0**to.lowest, to.limit)
    # The distance between neighbours of the format, a power of two: dividing by it is exact, and Round keeps -0.
    step = _power_below(chain, magnitude, 2.0**-to.mantissa)
    return chain("Mul", chain("Round", chain("Div", value, step)), step)


def round_to_power_of_two(chain: Chain, value: ir.Value, round_mode: str, saturate: bool) -> ir.Value:
    """A DOUBLE value at a power of two that FLOAT8E8M0 holds, as a FLOAT; a NaN where there is none."""
    clipped = chain.clip(value, _SMALLEST, _LARGEST)
    if round_mode == "up":
        # A power of two falls to the number before it, any other number stays above the power before it.
        below = _power_below(chain, _reduced(chain, clipped))
        power = chain.times(below, 2.0)
    elif round_mode == "nearest":
        half = chain.times(_power_below(chain, clipped), 0.5)
        power = _power_below(chain, chain("Add", clipped, half))
    else:
        power = _power_below(chain, clipped)
    lowest = chain.scalar(0.0 if saturate else _SMALLEST, "DOUBLE")
    valid = chain("GreaterOrEqual", value, lowest, gives="BOOL")
    if not saturate:
        fits = chain("LessOrEqual", value, chain.scalar(_LARGEST, "DOUBLE"), gives="BOOL")
        valid = chain("And", valid, fits)
    return chain.select(valid, chain.cast(power, "FLOAT"), float("nan"))


def _power_below(chain: Chain, value: ir.Value, scale: float = 1.0) -> ir.Value:
    """``scale`` times the largest power of two that is not above a positive number.

    With p bits of precision, q = (2**(p-1) + 1) * x holds the mantissa of x twice, one copy in the last place of the
    other; q times the number just below 1 loses exactly the leading one (S. M. Rump's unit in the first place).
    """
    product = chain.times(value, (2.0 ** (_precision(chain, value) - 1) + 1.0) * scale)
    return chain("Sub", product, _reduced(chain, product))


def _reduced(chain: Chain, value: ir.Value) -> ir.Value:
    """A number times the largest one below 1, rounded: as a difference, since a Mul by nearly 1 is optimized away."""
    return chain("Sub", value, chain.times(value, 2.0 ** -_precision(chain, value)))


def _precision(chain: Chain, value: ir.Value) -> int:
    return 53 if chain.type_of(value) == "DOUBLE" else 24
