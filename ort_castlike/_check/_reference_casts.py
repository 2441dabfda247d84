"""Casts with an emulated type on either side, as ONNX's pages say them, to check the kernels against.

Nothing here is shared with the kernels, and nothing is fast: a cast out of an emulated type is a table over its codes,
made one number at a time; a cast into one is a search among all the values that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ort_castlike._types import ElementType

__all__ = ["Array", "cast_by_definition"]

Array = np.ndarray[Any, np.dtype[Any]]

_E8M0_LOW, _E8M0_HIGH = -127, 127  # exponents of its smallest and its largest value


def cast_by_definition(
    values: Array,
    source: ElementType,
    target: ElementType,
    *,
    rounding: str = "nearest_even",
    saturate: bool = True,
    round_mode: str = "up",
) -> Array:
    """The values of ``source.dtype`` as an array of ``target.dtype``; one of the two is an emulated type or STRING.

    Args:
        values: Array of any shape.
        source: Its element type.
        target: The element type to cast to.
        rounding: How a float becomes a 2- or 4-bit integer.
        saturate: As Cast's attribute.
        round_mode: As Cast's attribute.

    Raises:
        ValueError: A string is no number.
    """

    def convert(array: Array) -> Array:
        return np.asarray(_into(array, target, rounding, saturate, round_mode))

    if source.name == "STRING":
        return convert(np.array([float(text) for text in values.flat], np.float64).reshape(values.shape))
    if not source.is_emulated:
        return convert(values)
    codes = values.view(np.uint8) & np.uint8((1 << source.bits) - 1)
    numbers = np.arange(1 << source.bits, dtype=np.uint8).view(source.dtype).astype(np.float64)
    return np.asarray(convert(numbers)[codes])


def _into(values: Array, target: ElementType, rounding: str, saturate: bool, round_mode: str) -> Array:
    if target.name == "STRING":
        numbers = values if values.dtype.isbuiltin == 1 else values.astype(np.float64)
        return np.array([_text(number) for number in numbers.flat], dtype=object).reshape(values.shape)
    if target.name == "BOOL":
        return np.asarray(values != 0)
    if target.is_integer:
        return _into_integer(values, target, rounding)
    if target.name == "FLOAT8E8M0":
        exact = values if values.dtype.kind in "biu" else values.astype(np.float64)
        codes = _each(exact, lambda value: _power_of_two(value, saturate, round_mode))
        return codes.astype(np.uint8).view(target.dtype)
    if target.bits <= 8:
        return _into_small_float(values.astype(np.float64), target, saturate)
    with np.errstate(over="ignore"):
        return values.astype(target.dtype)


def _each(values: Array, function: Callable[[Any], int]) -> Array:
    """``function`` of each value, called once for values that are alike."""
    different, places = np.unique(values, return_inverse=True)
    results = np.array([function(value) for value in different.tolist()], dtype=object)
    return results[places.reshape(-1)].reshape(values.shape) if values.size else np.zeros(values.shape, object)


def _text(value: Any) -> str:
    if isinstance(value, np.floating):
        return str(int(value)) if np.isfinite(value) and value == np.trunc(value) else str(value)
    return str(int(value))


def _into_integer(values: Array, target: ElementType, rounding: str) -> Array:
    """Round, and keep the low bits of the two's complement; wider types than 4 bits cut off toward zero."""
    modulus = 1 << target.bits
    if values.dtype.kind in "biu":
        whole = values.astype(np.uint64) if values.dtype == np.uint64 else values.astype(np.int64).view(np.uint64)
        low = whole & np.uint64(modulus - 1)
    else:
        numbers = _rounded(values.astype(np.float64), rounding if target.bits <= 4 else "toward_zero")
        numbers = np.where(np.isfinite(numbers), numbers, 0.0)
        low = _each(numbers, lambda number: int(number) % modulus).astype(np.uint64)
    if target.is_signed_integer:
        low = np.where(low >= np.uint64(modulus // 2), low - np.uint64(modulus % 2**64), low).view(np.int64)
    narrow = low.astype(np.int64) if target.bits < 64 else low
    return narrow.astype(target.dtype)


def _rounded(numbers: Array, rounding: str) -> Array:
    if rounding == "nearest_even":
        return np.asarray(np.rint(numbers))
    with np.errstate(invalid="ignore"):
        whole: Array = np.trunc(numbers)
        if rounding == "toward_zero":
            return whole
        return np.asarray(whole + np.copysign(np.abs(numbers - whole) >= 0.5, numbers))


def _into_small_float(numbers: Array, target: ElementType, saturate: bool) -> Array:
    """The nearest of the values that a float of 4, 6 or 8 bits has, ties to the even code."""
    sign_bit = 1 << (target.bits - 1)
    ladder = np.arange(sign_bit, dtype=np.uint8).view(target.dtype).astype(np.float64)
    ladder = ladder[np.isfinite(ladder)]  # code i has the value ladder[i]
    top = len(ladder) - 1
    beyond = ladder[top] + (ladder[top] - ladder[top - 1]) / 2  # a tie with what would be the next value
    size = np.abs(numbers)
    below = np.clip(np.searchsorted(ladder, np.nan_to_num(size), side="right") - 1, 0, top)
    above = np.minimum(below + 1, top)
    middle = (ladder[below] + ladder[above]) / 2
    goes_up = (size > middle) | ((size == middle) & (below % 2 == 1))
    codes = np.where(goes_up, above, below)
    has_special = target.bits == 8
    is_over = size >= beyond if top % 2 else size > beyond
    if has_special and not saturate:
        special = _code_of(target, np.inf)
        codes = np.where(is_over, special, codes)
    negative = np.signbit(numbers)
    if not has_special:
        codes, negative = np.where(np.isnan(numbers), 0, codes), negative | np.isnan(numbers)
    codes = np.where(negative, codes | sign_bit, codes)
    if has_special:
        if target.name.endswith("FNUZ"):
            codes = np.where(codes == sign_bit, 0, codes)  # it has one zero; this code is its NaN
            codes = np.where(is_over & (not saturate), sign_bit, codes)
        codes = np.where(np.isnan(numbers), _code_of(target, np.nan), codes)
    return codes.astype(np.uint8).view(target.dtype)


def _code_of(target: ElementType, value: float) -> int:
    """The code of infinity where the type has one, else of NaN."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(target.dtype).astype(np.float64)
    found = codes[numbers == value] if math.isinf(value) else codes[:0]
    return int(found[0]) if found.size else int(codes[np.isnan(numbers)][0])


def _power_of_two(value: Any, saturate: bool, round_mode: str) -> int:
    """The code of FLOAT8E8M0 for a number."""
    not_a_number = 255
    if value != value or value < 0:
        return not_a_number
    if value == 0 or value == math.inf:
        return (0 if value == 0 else _E8M0_HIGH - _E8M0_LOW) if saturate else not_a_number
    if isinstance(value, int):
        exponent = value.bit_length() - 1
        excess = value - (1 << exponent)
        is_power, reaches_middle = excess == 0, 2 * excess >= 1 << exponent
    else:
        mantissa, exponent = math.frexp(value)
        exponent -= 1
        is_power, reaches_middle = mantissa == 0.5, mantissa >= 0.75
    is_below = exponent < _E8M0_LOW
    is_above = exponent > _E8M0_HIGH or (exponent == _E8M0_HIGH and not is_power)
    if not saturate and (is_below or is_above):
        return not_a_number
    exponent += (round_mode == "up" and not is_power) or (round_mode == "nearest" and reaches_middle)
    return int(min(max(exponent, _E8M0_LOW), _E8M0_HIGH)) - _E8M0_LOW
