"""Arrays of emulated types to carriers and back."""

from __future__ import annotations

import numpy as np
import pytest

from ort_castlike._io._arrays import carrier_dtype, first_foreign, from_carrier, to_carrier
from ort_castlike._types import EMULATED_TYPES, ElementType

INTEGERS = [row for row in EMULATED_TYPES.values() if row.is_integer]
FLOATS = [row for row in EMULATED_TYPES.values() if row.is_float]
every_type = pytest.mark.parametrize("element", EMULATED_TYPES.values(), ids=EMULATED_TYPES)
every_integer = pytest.mark.parametrize("element", INTEGERS, ids=lambda row: row.name)
every_float = pytest.mark.parametrize("element", FLOATS, ids=lambda row: row.name)

# Sign, exponent and mantissa bits and the bias of the small floats, by the formats' definitions.
LAYOUTS = {"FLOAT4E2M1": (2, 1, 1), "FLOAT6E2M3": (2, 3, 1), "FLOAT6E3M2": (3, 2, 3)}


def value_of(code: int, element: ElementType) -> float:
    """The value of a code, from the definition of its type."""
    if element.is_integer:
        low, high = element.integer_range
        return code if code <= high else code + 2 * low
    if element.name == "FLOAT8E8M0":
        return float("nan") if code == 255 else 2.0 ** (code - 127)
    exponent_bits, mantissa_bits, bias = LAYOUTS[element.name]
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (mantissa_bits + exponent_bits) else 1.0
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa * 2.0**-mantissa_bits) * 2.0 ** (exponent - bias)


def every_code(element: ElementType) -> np.ndarray:
    return np.arange(1 << element.bits, dtype=np.uint8)


def every_value(element: ElementType) -> np.ndarray:
    values = [value_of(int(code), element) for code in every_code(element)]
    return np.array(values, carrier_dtype(element))


@every_type
def test_every_value_reaches_the_carrier(element: ElementType) -> None:
    carried = to_carrier(every_code(element).view(element.dtype), element)
    assert carried.dtype == carrier_dtype(element)
    np.testing.assert_array_equal(carried, every_value(element))
    np.testing.assert_array_equal(np.signbit(carried), np.signbit(every_value(element)))


@every_type
def test_every_value_comes_back_from_the_carrier(element: ElementType) -> None:
    array = from_carrier(every_value(element), element)
    assert array.dtype == element.dtype
    np.testing.assert_array_equal(array.view(np.uint8), every_code(element))


@every_type
def test_bits_above_the_element_are_ignored(element: ElementType) -> None:
    dirty = every_code(element) | np.uint8((0xFF << element.bits) & 0xFF)
    carried = to_carrier(dirty.view(element.dtype), element)
    np.testing.assert_array_equal(carried, every_value(element))


@every_type
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 1, 2)])
def test_shapes_are_kept_both_ways(element: ElementType, shape: tuple[int, ...]) -> None:
    carried = to_carrier(np.zeros(shape, np.uint8).view(element.dtype), element)
    assert isinstance(carried, np.ndarray)
    assert carried.shape == shape
    array = from_carrier(carried, element)
    assert isinstance(array, np.ndarray)
    assert array.shape == shape


@every_type
def test_strides_of_any_kind_are_read(element: ElementType) -> None:
    codes = np.resize(every_code(element), 24).reshape(4, 6)
    array = codes.view(element.dtype)
    carrier = every_value(element)[codes]
    for view in (np.s_[::2, 1::2], np.s_[::-1], np.s_[:, ::-3]):
        carried = to_carrier(array[view], element)
        assert carried.flags.c_contiguous
        np.testing.assert_array_equal(carried, carrier[view])
        back = from_carrier(carrier[view], element)
        np.testing.assert_array_equal(back.view(np.uint8), codes[view])
    np.testing.assert_array_equal(to_carrier(array.T, element), carrier.T)
    np.testing.assert_array_equal(from_carrier(carrier.T, element).view(np.uint8), codes.T)


@every_type
def test_the_result_shares_no_memory_with_the_argument(element: ElementType) -> None:
    array = every_code(element).view(element.dtype)
    carried = to_carrier(array, element)
    assert not np.shares_memory(carried, array)
    assert not np.shares_memory(from_carrier(carried, element), carried)


@every_type
def test_values_of_the_type_are_not_foreign(element: ElementType) -> None:
    assert first_foreign(every_value(element), element) is None
    assert first_foreign(np.empty((0, 2), carrier_dtype(element)), element) is None


@every_integer
def test_every_other_integer_is_foreign(element: ElementType) -> None:
    info = np.iinfo(carrier_dtype(element))
    low, high = element.integer_range
    for value in range(info.min, info.max + 1):
        array = np.array([[0, value], [1, 0]], carrier_dtype(element))
        expected = None if low <= value <= high else value
        assert first_foreign(array, element) == expected


@pytest.mark.parametrize("element", [EMULATED_TYPES[name] for name in LAYOUTS], ids=lambda row: row.name)
def test_every_other_float16_is_foreign(element: ElementType) -> None:
    known = every_value(element).view(np.uint16)
    # One bit more or less, and a sample of all of them, NaN and infinity with it.
    others = np.concatenate([known + np.uint16(1), known - np.uint16(1), np.arange(0, 1 << 16, 31, np.uint16)])
    for bits in np.setdiff1d(others, known):
        array = np.array([0, bits], np.uint16).view(np.float16)
        foreign = first_foreign(array, element)
        assert foreign is not None
        np.testing.assert_equal(foreign, array[1])


def test_floats_that_are_no_power_of_two_are_foreign_to_e8m0() -> None:
    element = EMULATED_TYPES["FLOAT8E8M0"]
    others = [0.0, -0.0, -1.0, 3.0, np.inf, -np.inf, np.nextafter(np.float32(2), np.float32(3)), 2.0**-128]
    for value in others:
        array = np.array([1.0, value, 2.0], np.float32)
        foreign = first_foreign(array, element)
        assert foreign == value
        assert np.signbit(foreign) == np.signbit(value)


def test_a_nan_of_any_payload_is_the_nan_of_e8m0() -> None:
    element = EMULATED_TYPES["FLOAT8E8M0"]
    array = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert first_foreign(array, element) is None
    np.testing.assert_array_equal(from_carrier(array, element).view(np.uint8), [255] * 4)
