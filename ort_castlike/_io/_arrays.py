"""Numpy arrays of emulated types to arrays of their carriers and back, exactly and in one or two passes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ort_castlike._types import ELEMENT_TYPES, ElementType

__all__ = ["Array", "carrier_dtype", "first_foreign", "from_carrier", "to_carrier"]

Array = np.ndarray[Any, np.dtype[Any]]


def carrier_dtype(element: ElementType) -> np.dtype[Any]:
    """The numpy dtype in which arrays of ``element`` go through onnxruntime."""
    return ELEMENT_TYPES[element.carrier].dtype if element.carrier else element.dtype


def to_carrier(array: Array, element: ElementType) -> Array:
    """An array of the carrier's dtype, C-contiguous, with the values of ``array``.

    Args:
        array: Of ``element.dtype``, any shape and strides. Bits of a byte above the element's are ignored.
        element: An emulated type.
    """
    if element.is_integer:
        return array.astype(carrier_dtype(element), order="C")
    values = np.empty(array.shape, carrier_dtype(element))
    return np.take(_values(element), array.view(np.uint8), mode="clip", out=values)


def from_carrier(array: Array, element: ElementType) -> Array:
    """An array of ``element.dtype``, C-contiguous, with the values of ``array``.

    Args:
        array: Of the carrier's dtype; each value is one of ``element`` (see ``first_foreign``).
        element: An emulated type.
    """
    codes = np.empty(array.shape, np.uint8)
    if element.is_integer:
        # ml_dtypes keeps the low bits alone, without an extension of the sign.
        np.bitwise_and(array.view(np.uint8), np.uint8((1 << element.bits) - 1), out=codes)
    elif element.name == "FLOAT8E8M0":
        # The code is the exponent field of a float, for 2**-127 (subnormal) and NaN too.
        np.right_shift(array.view(np.uint32), np.uint32(23), out=codes, casting="unsafe")
    else:
        shift, table = _codes(element)
        np.take(table, array.view(np.uint16) >> np.uint16(shift), mode="clip", out=codes)
    return codes.view(element.dtype)


def first_foreign(array: Array, element: ElementType) -> Any:
    """The first value of a carrier array that is no value of ``element``, as a numpy scalar; None if all are."""
    if array.size == 0:
        return None
    if element.is_integer:
        low, high = element.integer_range
        if array.min() >= low and array.max() <= high:
            return None
        foreign = (array < low) | (array > high)
    else:
        back = to_carrier(from_carrier(array, element), element)
        bits = np.dtype(f"u{array.itemsize}")
        foreign = back.view(bits) != array.view(bits)
        if foreign.any():
            foreign &= ~(np.isnan(back) & np.isnan(array))  # a NaN of another payload is a NaN all the same
        if not foreign.any():
            return None
    return array[foreign].flat[0]


@functools.cache
def _values(element: ElementType) -> Array:
    """The value that each byte of ``element.dtype`` stands for, in the carrier's dtype."""
    codes = np.arange(256, dtype=np.uint8) & np.uint8((1 << element.bits) - 1)
    return codes.view(element.dtype).astype(carrier_dtype(element))


@functools.cache
def _codes(element: ElementType) -> tuple[int, Array]:
    """How far to shift the bits of a float16, and the code of ``element`` for what is left of them.

    Only the leading bits of the mantissa can be set in a value of a small float, so the rest is shifted out.
    """
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    bits = _values(element)[codes].view(np.uint16)
    shift = next(shift for shift in range(15, -1, -1) if not (bits & ((1 << shift) - 1)).any())
    table = np.zeros(1 << (16 - shift), np.uint8)
    table[bits >> shift] = codes
    return shift, table
