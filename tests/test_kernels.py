"""Every cast, against arithmetic that is written here: Python integers, fractions and the formats' definitions."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Iterable, Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from ort_castlike._errors import ModelError, OptionError
from ort_castlike._kernels import BLOCK, convert
from ort_castlike._types import ELEMENT_TYPES, ElementType

ROUNDINGS = ("nearest_even", "toward_zero", "half_away")
ROUND_MODES = ("up", "down", "nearest")
NARROW_INTEGERS = ("INT2", "UINT2", "INT4", "UINT4")
INTEGERS = (*NARROW_INTEGERS, "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
FLOAT8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
SMALL_FLOATS = ("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2")

# Name: exponent bits, mantissa bits, exponent bias, largest finite code without its sign.
FORMATS = {
    "FLOAT4E2M1": (2, 1, 1, 0x07),
    "FLOAT6E2M3": (2, 3, 1, 0x1F),
    "FLOAT6E3M2": (3, 2, 3, 0x1F),
    "FLOAT8E4M3FN": (4, 3, 7, 0x7E),
    "FLOAT8E4M3FNUZ": (4, 3, 8, 0x7F),
    "FLOAT8E5M2": (5, 2, 15, 0x7B),
    "FLOAT8E5M2FNUZ": (5, 2, 16, 0x7F),
}


def row(name: str) -> ElementType:
    return ELEMENT_TYPES[name]


def cast(values: np.ndarray, source: str, to: str, **options: object) -> np.ndarray:
    return convert(values, row(source), row(to), **options)  # type: ignore[arg-type]


def same(actual: np.ndarray, expected: Iterable[float] | np.ndarray) -> None:
    """Equal as numbers, NaN where NaN is due, and zeros of the same sign."""
    got = actual.astype(np.float64) if actual.dtype.kind not in "iub" else actual
    want = np.asarray(expected)
    wrong = ~((got == want) & (np.signbit(got) == np.signbit(want)) | ((got != got) & (want != want)))
    assert not wrong.any(), f"at {np.flatnonzero(wrong)[:5]}: {got[wrong][:5]} instead of {want[wrong][:5]}"


# The arithmetic ---------------------------------------------------------------------------------------------


def magnitude(name: str, code: int) -> Fraction:
    """The value of a code without its sign, from the format's definition."""
    _, mantissa, bias, _ = FORMATS[name]
    exponent, fraction = code >> mantissa, code & ((1 << mantissa) - 1)
    if exponent == 0:
        return Fraction(fraction, 1 << mantissa) * Fraction(2) ** (1 - bias)
    return (1 + Fraction(fraction, 1 << mantissa)) * Fraction(2) ** (exponent - bias)


def into_format(values: np.ndarray, name: str, saturate: bool = True) -> np.ndarray:
    """Float64 values to the nearest of a format, ties to the even code; overflow is NaN, Inf or the largest."""
    largest = FORMATS[name][3]
    grid = np.array([float(magnitude(name, code)) for code in range(largest + 2)])
    midpoints = (grid[1:] + grid[:-1]) / 2
    size = np.abs(values)
    below, above = np.searchsorted(midpoints, size, "left"), np.searchsorted(midpoints, size, "right")
    code = np.where(below == above, below, np.where(below % 2 == 0, below, above))
    result = grid[np.minimum(code, largest)]
    if not saturate:
        result[code > largest] = np.inf if name == "FLOAT8E5M2" else np.nan
    result = np.copysign(result, values)
    if name.endswith("UZ"):
        result[result == 0] = 0.0
    result[np.isnan(values)] = -0.0 if name in SMALL_FLOATS else np.nan
    return result


def into_e8m0(values: np.ndarray, round_mode: str, saturate: bool) -> np.ndarray:
    lowest, highest = 2.0**-127, 2.0**127
    with np.errstate(invalid="ignore", over="ignore"):
        half, exponent = np.frexp(values)
        up = {"up": half > 0.5, "down": half > 1, "nearest": half >= 0.75}[round_mode]
        result = np.clip(np.ldexp(1.0, exponent - 1 + up), lowest, highest)
        result[values < lowest] = lowest if saturate else np.nan
        result[values > highest] = highest if saturate else np.nan
        result[np.isnan(values) | (values < 0)] = np.nan
    return result


def to_whole(value: float, rounding: str) -> int:
    """Any number to a whole one; what is not finite gives 0."""
    if not math.isfinite(value):
        return 0
    cut = int(value)
    if rounding == "toward_zero":
        return cut
    if rounding == "nearest_even":
        return round(value)
    return cut + (1 if value > 0 else -1) if abs(Fraction(value) - cut) >= Fraction(1, 2) else cut


def wrap(number: int, name: str) -> int:
    bits, low = row(name).bits, number & ((1 << row(name).bits) - 1)
    return low - (1 << bits) if row(name).is_signed_integer and low >> (bits - 1) else low


def wrapped(numbers: Sequence[int], name: str) -> np.ndarray:
    stored = row(row(name).crossing).dtype
    return np.array([wrap(number, name) for number in numbers], dtype=stored)


def all_of(dtype: object) -> np.ndarray:
    """Every value of a 16-bit type."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)  # type: ignore[call-overload]


@pytest.fixture(scope="module", params=["FLOAT16", "BFLOAT16"])
def sixteen(request: pytest.FixtureRequest) -> tuple[str, np.ndarray, np.ndarray]:
    values = all_of(row(request.param).dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        return request.param, values, values.astype(np.float64)


def tie_grid(dtype: object) -> np.ndarray:
    """Ties, their neighbours, powers of two and large numbers, of both signs, with all that is not finite."""
    kind = np.dtype(dtype)  # type: ignore[call-overload]
    halves = np.arange(0, 40, 0.125).tolist()
    powers = [2.0**k for k in range(-140, 128)]
    large = [2.0**k + d for k in range(20, 60) for d in (-3, -1, -0.5, 0.5, 1, 2.5, 3, 7)]
    edges = [448.0, 464.0, 479.0, 480.0, 240.0, 247.5, 248.0, 57344.0, 61439.0, 61440.0, 65536.0, 1e30, 3.4e38]
    if kind == np.float64:
        powers += [2.0**k for k in (-1074, -300, 200, 1023)]
        large += [2.0**k + d for k in range(49, 53) for d in (0.5, 1.5)] + [2.0**63, 2.0**64 + 2.0**12, 1e300]
    positive = np.array(halves + powers + large + edges, dtype=kind)
    near = np.concatenate([positive, np.nextafter(positive, kind.type(np.inf)), np.nextafter(positive, kind.type(0))])
    special = np.array([np.nan, np.copysign(np.nan, -1), np.inf, -np.inf], dtype=kind)
    return np.concatenate([near, -near, special])


# Into 2 and 4 bits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_16_bit_float_into_2_and_4_bits(sixteen, rounding):
    source, values, exact = sixteen
    whole = [to_whole(value, rounding) for value in exact.tolist()]
    for to in NARROW_INTEGERS:
        same(cast(values, source, to, rounding=rounding), wrapped(whole, to))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_boundaries_and_large_floats_into_2_and_4_bits(dtype, rounding):
    values = tie_grid(dtype)
    whole = [to_whole(value, rounding) for value in values.tolist()]
    source = "FLOAT" if dtype is np.float32 else "DOUBLE"
    for to in NARROW_INTEGERS:
        same(cast(values, source, to, rounding=rounding), wrapped(whole, to))
        # One at a time, so that no value is helped by a block that takes the slow way for another's sake.
        one_by_one = [cast(value, source, to, rounding=rounding) for value in values.reshape(-1, 1)[::7]]
        same(np.concatenate(one_by_one), wrapped(whole[::7], to))


def test_the_three_roundings_at_ties():
    values = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, -0.49999997], np.float32)
    results = {rounding: cast(values, "FLOAT", "INT4", rounding=rounding).tolist() for rounding in ROUNDINGS}
    assert results == {
        "nearest_even": [0, 2, 2, 0, -2, 0, 0],
        "toward_zero": [0, 1, 2, 0, -1, 0, 0],
        "half_away": [1, 2, 3, -1, -2, 0, 0],
    }


def test_a_string_follows_the_rule_for_floats():
    same(cast(np.array([2.5, -3.0, np.nan]), "STRING", "INT4"), np.array([2, -3, 0], np.int8))


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_keep_their_low_bits(source):
    low, high = row(source).integer_range
    near = [0, 1, -1, 2**53, 2**53 + 1, 2**62 + 7]
    numbers = range(low, high + 1) if row(source).bits <= 8 else [*range(low, low + 40), *range(high - 40, high + 1)]
    numbers = [*numbers, *(number for number in near if low <= number <= high)]
    stored = np.array(numbers, dtype=row(row(source).crossing).dtype)
    for to in INTEGERS:
        same(cast(stored, source, to), wrapped(numbers, to))
    if row(source).is_emulated:
        for to in INTEGERS:
            same(cast(stored.astype(row(source).dtype), source, to), wrapped(numbers, to))


@pytest.mark.parametrize("to", [*INTEGERS, "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", *FLOAT8, *SMALL_FLOATS, "BOOL"])
def test_booleans_become_0_and_1(to):
    expected = wrapped([0, 1], to) if to in INTEGERS else np.array([0.0, 1.0])
    same(cast(np.array([False, True]), "BOOL", to), expected)


# Into wider integers and bool -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_into_wider_integers_are_cut_off_and_wrap(dtype):
    values = tie_grid(dtype)
    whole = [to_whole(value, "toward_zero") for value in values.tolist()]
    for to in INTEGERS[4:]:
        # The rounding option is none of theirs.
        result = cast(values, "FLOAT" if dtype is np.float32 else "DOUBLE", to, rounding="half_away")
        assert result.dtype == row(to).dtype
        same(result, wrapped(whole, to))


def test_everything_but_zero_is_true(sixteen):
    source, values, exact = sixteen
    expected = [value != 0 for value in exact.tolist()]
    assert cast(values, source, "BOOL").tolist() == expected
    assert cast(exact, "DOUBLE", "BOOL").tolist() == expected
    assert cast(cast(values, source, "FLOAT"), "FLOAT", "BOOL").tolist() == expected
    assert cast(np.array([-2, -1, 0, 1], np.int8), "INT2", "BOOL").tolist() == [True, True, False, True]


@pytest.mark.parametrize("name", FLOAT8)
def test_a_negative_zero_of_a_float8_type_is_false(name):
    zeros = np.array([0.0, -0.0], np.float32).astype(row(name).dtype)
    assert cast(zeros, name, "BOOL").tolist() == [False, False]


# Into small floats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", SMALL_FLOATS)
def test_every_16_bit_float_into_float4_and_float6(sixteen, to):
    source, values, exact = sixteen
    result = cast(values, source, to)
    assert result.dtype == np.float32
    same(result, into_format(exact, to))


@pytest.mark.parametrize("to", [*SMALL_FLOATS, *FLOAT8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ties_boundaries_and_large_floats_into_small_floats(dtype, to):
    source = "FLOAT" if dtype is np.float32 else "DOUBLE"
    grid = [float(magnitude(to, code)) for code in range(FORMATS[to][3] + 2)]
    ties = np.array([(a + b) / 2 for a, b in itertools.pairwise(grid)], dtype)
    near = np.concatenate([ties, np.nextafter(ties, dtype(0)), np.nextafter(ties, dtype(np.inf))])
    values = np.concatenate([near, -near, np.array(grid, dtype), tie_grid(dtype)])
    for saturate in (True, False) if to in FLOAT8 else (True,):
        same(cast(values, source, to, saturate=saturate), into_format(values.astype(np.float64), to, saturate))


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("to", FLOAT8)
def test_every_16_bit_float_into_float8(sixteen, to, saturate):
    source, values, exact = sixteen
    result = cast(values, source, to, saturate=saturate)
    assert result.dtype == row(to).dtype
    same(result, into_format(exact, to, saturate))


def test_without_saturation_the_sign_of_what_is_no_number_is_kept():
    values = np.array([-np.nan, np.nan, -np.inf, np.inf, -1e6, 1e6], np.float32)
    for to in ("FLOAT8E4M3FN", "FLOAT8E5M2"):
        signs = np.signbit(cast(values, "FLOAT", to, saturate=False).view(np.int8))
        assert signs.tolist() == np.signbit(values).tolist()


def test_a_double_is_rounded_once_on_its_way_to_a_small_float():
    just_over, just_under = 2.0**-40, -(2.0**-40)
    for to, tie, lower, upper in (
        ("FLOAT4E2M1", 0.25, 0.0, 0.5),
        ("FLOAT4E2M1", 2.5, 2.0, 3.0),
        ("FLOAT6E2M3", 1.0625, 1.0, 1.125),
        ("FLOAT8E5M2", 1.125, 1.0, 1.25),
        ("FLOAT8E4M3FN", 3.125, 3.0, 3.25),
        ("BFLOAT16", 1.00390625, 1.0, 1.0078125),
        ("FLOAT16", 1.00048828125, 1.0, 1.0009765625),
    ):
        values = np.array([tie, tie + just_over, tie + just_under])
        same(cast(values, "DOUBLE", to), np.array([lower, upper, lower]))
        same(cast(-values, "DOUBLE", to), -np.array([lower, upper, lower]))


def test_a_large_integer_is_rounded_once_on_its_way_to_a_small_float():
    tie = 2**55 + 2**47  # between two bfloat16 numbers, 2**55 and 2**55 + 2**48
    numbers = [tie - 1, tie, tie + 1, -tie - 1, -tie, -tie + 1, 2**24 + 1, 2**62 - 1]
    expected = [2**55, 2**55, 2**55 + 2**48, -(2**55) - 2**48, -(2**55), -(2**55), 2**24, 2**62]
    same(cast(np.array(numbers, np.int64), "INT64", "BFLOAT16"), np.array(expected, np.float64))
    assert float(cast(np.array(2**63 + 2**55 + 1, np.uint64), "UINT64", "BFLOAT16")) == 2.0**63 + 2.0**56


@pytest.mark.parametrize("source", ["INT8", "UINT8", "INT16", "INT32", "UINT32", "INT64", "UINT64"])
def test_integers_into_small_floats(source):
    low, high = row(source).integer_range
    numbers = [n for n in [*range(-600, 600), 61439, 61440, 61441, low, high, 2**40 + 1] if low <= n <= high]
    stored = np.array(numbers, row(source).dtype)
    for to in (*SMALL_FLOATS, *FLOAT8):
        same(cast(stored, source, to), into_format(np.array(numbers, np.float64), to) + 0.0)


# FLOAT8E8M0 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_mode", ROUND_MODES)
@pytest.mark.parametrize("saturate", [True, False])
def test_every_16_bit_float_into_e8m0(sixteen, round_mode, saturate):
    source, values, exact = sixteen
    result = cast(values, source, "FLOAT8E8M0", round_mode=round_mode, saturate=saturate)
    assert result.dtype == np.float32
    same(result, into_e8m0(exact, round_mode, saturate))


@pytest.mark.parametrize("round_mode", ROUND_MODES)
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_powers_of_two_their_neighbours_and_ties_into_e8m0(dtype, round_mode, saturate):
    values = tie_grid(dtype)
    with np.errstate(over="ignore"):
        values = np.concatenate([values, values * dtype(1.5), values * dtype(0.75)])
    result = cast(
        values, "FLOAT" if dtype is np.float32 else "DOUBLE", "FLOAT8E8M0", round_mode=round_mode, saturate=saturate
    )
    same(result, into_e8m0(values.astype(np.float64), round_mode, saturate))


def test_the_special_rows_of_the_e8m0_table():
    values = np.array([0.0, np.nan, np.inf, 3e38, 1e-39, -1.0], np.float32)
    lowest, highest, nan = 2.0**-127, 2.0**127, np.nan
    same(cast(values, "FLOAT", "FLOAT8E8M0"), np.array([lowest, nan, highest, highest, lowest, nan]))
    unsaturated = cast(values, "FLOAT", "FLOAT8E8M0", saturate=False, round_mode="nearest")
    same(unsaturated, np.full(6, nan))


@pytest.mark.parametrize("source", ["INT64", "UINT64"])
def test_large_integers_into_e8m0_are_exact(source):
    numbers = [1, 2, 3, 2**24 + 1, 2**53 - 1, 2**53 + 1, 2**60, 2**60 + 1, 2**61 - 1, 3 * 2**59, 3 * 2**59 - 1]
    stored = np.array(numbers, row(source).dtype)
    same(cast(stored, source, "FLOAT8E8M0"), [2.0 ** (n - 1).bit_length() for n in numbers])
    same(cast(stored, source, "FLOAT8E8M0", round_mode="down"), [2.0 ** (n.bit_length() - 1) for n in numbers])
    nearest = [2.0 ** (n.bit_length() - (2 * n < 3 * 2 ** (n.bit_length() - 1))) for n in numbers]
    same(cast(stored, source, "FLOAT8E8M0", round_mode="nearest"), nearest)


# Out of small types -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [*SMALL_FLOATS, *FLOAT8])
def test_every_small_float_is_exact_in_wider_ones_and_in_itself(source):
    bits = FORMATS[source][0] + FORMATS[source][1]
    codes = range(FORMATS[source][3] + 1)
    negative = range(1, len(codes)) if source.endswith("UZ") else codes
    stored = np.array([*codes, *(code | 1 << bits for code in negative)], np.uint8).view(row(source).dtype)
    exact = np.array(
        [*(float(magnitude(source, code)) for code in codes), *(-float(magnitude(source, code)) for code in negative)]
    )
    for to in ("FLOAT", "DOUBLE", "BFLOAT16", "FLOAT16", source):
        result = cast(stored, source, to)
        same(result, exact)
        assert result.dtype == (np.float32 if row(to).is_emulated else row(to).dtype)
    for to in NARROW_INTEGERS:
        same(cast(stored, source, to), wrapped([round(value) for value in exact.tolist()], to))
    for to in SMALL_FLOATS:
        same(cast(stored, source, to), into_format(exact, to))


def test_every_e8m0_value_is_exact_in_float_and_in_itself():
    stored = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    exact = np.array([2.0 ** (code - 127) for code in range(255)] + [np.nan])
    same(cast(stored, "FLOAT8E8M0", "FLOAT"), exact)
    same(cast(stored, "FLOAT8E8M0", "DOUBLE"), exact)
    for round_mode, saturate in itertools.product(ROUND_MODES, (True, False)):
        same(cast(stored, "FLOAT8E8M0", "FLOAT8E8M0", round_mode=round_mode, saturate=saturate), exact)


@pytest.mark.parametrize("source", NARROW_INTEGERS)
def test_2_and_4_bit_integers_are_exact_in_floats(source):
    low, high = row(source).integer_range
    numbers = np.arange(low, high + 1)
    for stored in (numbers.astype(row(row(source).crossing).dtype), numbers.astype(row(source).dtype)):
        for to in ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16"):
            same(cast(stored, source, to), numbers.astype(np.float64))


@pytest.mark.parametrize("size", [1, BLOCK + 1])
def test_what_numpy_warns_of_is_the_callers_to_choose(size):
    # A signalling NaN, which is an invalid value for any arithmetic.
    values = np.full(size, 0x7FA00000, np.uint32).view(np.float32)
    with np.errstate(all="raise"):
        before = np.geterr()
        assert convert(values, ELEMENT_TYPES["FLOAT"], ELEMENT_TYPES["INT2"]).tolist() == [0] * size
        assert np.geterr() == before
        with pytest.raises(FloatingPointError):
            np.add(values, np.float32(1))


def test_a_double_beyond_float_is_infinite_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(cast(np.array([1e300, -1e300]), "DOUBLE", "FLOAT"), [np.inf, -np.inf])
        same(cast(np.array([1e6, -np.inf]), "DOUBLE", "FLOAT16"), [np.inf, -np.inf])
        same(cast(np.array([np.nan, 1e30], np.float32), "FLOAT", "INT2"), [0, 0])


def test_a_byte_order_is_no_other_number():
    values = np.array([300, -1])
    for dtype, source, to in (("i4", "INT32", "INT64"), ("i8", "INT64", "INT16"), ("f4", "FLOAT", "INT16")):
        swapped = values.astype(np.dtype(dtype).newbyteorder(">" if sys.byteorder == "little" else "<"))
        same(cast(swapped, source, to), [300, -1])


def test_an_infinity_of_an_array_that_is_given_away_saturates_as_any_other():
    values = np.array([np.inf, 2.0], ml_dtypes.float8_e5m2)
    same(cast(values, "FLOAT8E5M2", "FLOAT8E5M2", give_away=True), [57344.0, 2.0])


# Shapes, memory, threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 7, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("to", ["INT2", "UINT4", "FLOAT4E2M1", "INT64"])
def test_sizes_around_a_block(size, to):
    values = (np.arange(size) % 9 - 4).astype(np.float32)
    numbers = [n % 9 - 4 for n in range(size)]
    result = cast(values, "FLOAT", to)
    assert result.shape == (size,)
    same(result, wrapped(numbers, to) if to in INTEGERS else values.astype(np.float64))


def test_one_number_too_large_in_a_block_leaves_the_others_right():
    values = np.tile(np.arange(-4, 5, dtype=np.float32), 2 * BLOCK // 9 + 1)
    values[BLOCK + 5] = np.float32(1e30)
    values[BLOCK + 6] = np.nan
    expected = wrapped([n % 9 - 4 for n in range(values.size)], "INT2")
    expected[BLOCK + 5 : BLOCK + 7] = 0
    same(cast(values, "FLOAT", "INT2"), expected)


@pytest.mark.parametrize("to", ["INT2", "FLOAT4E2M1", "FLOAT8E8M0", "FLOAT8E5M2", "INT32", "BOOL", "DOUBLE"])
def test_a_scalar_stays_a_scalar_array(to):
    result = cast(np.array(2.0, np.float32), "FLOAT", to)
    assert type(result) is np.ndarray
    assert result.shape == ()


@pytest.mark.parametrize("to", ["INT4", "FLOAT6E2M3", "FLOAT8E8M0", "FLOAT16"])
def test_arrays_that_are_not_contiguous_or_not_native(to):
    base = (np.arange(300 * 500).reshape(300, 500) % 13 + 1).astype(np.float32)
    for values in (base.T, base[::-1, ::3], base[5], base.astype(">f4"), np.broadcast_to(base[:, :1], (300, 7))):
        plain = np.ascontiguousarray(values, np.float32)
        result = cast(values, "FLOAT", to)
        assert result.shape == values.shape
        assert result.flags.c_contiguous
        same(result, cast(plain, "FLOAT", to).astype(np.float64))


@pytest.mark.parametrize("to", ["INT2", "FLOAT4E2M1", "FLOAT8E8M0", "FLOAT", "FLOAT8E5M2", "BOOL"])
def test_the_input_is_never_changed_and_may_be_read_only(to):
    values = tie_grid(np.float32)
    before = values.tobytes()
    values.flags.writeable = False
    cast(values, "FLOAT", to, rounding="half_away")
    assert values.tobytes() == before


@pytest.mark.parametrize("source", ["FLOAT", "DOUBLE", "FLOAT16", "INT8", "INT32", "INT64"])
@pytest.mark.parametrize("to", ["INT2", "UINT4", "INT8", "FLOAT4E2M1", "FLOAT8E8M0", "FLOAT8E5M2", "BOOL", "FLOAT"])
def test_the_memory_of_the_input_may_hold_the_result(source, to):
    values = (np.arange(3 * BLOCK + 5).reshape(-1, 1) % 11 - 5).astype(row(source).dtype)
    if source == "FLOAT":
        values[BLOCK + 1] = np.nan
        values[7] = 1e30
    expected = cast(values, source, to)
    result = cast(values.copy(), source, to, give_away=True)
    assert result.shape == expected.shape
    assert result.tobytes() == expected.tobytes()


def test_an_array_that_is_given_away_holds_the_result_and_a_view_never_does():
    values = np.resize(np.array([1.0, 2.0, 3.0], np.float32), BLOCK + 1).copy()
    view = values[:]
    assert not np.shares_memory(cast(view, "FLOAT", "INT2", give_away=True), values)
    assert view[:3].tolist() == [1.0, 2.0, 3.0]
    assert not np.shares_memory(cast(values, "FLOAT", "INT2"), values)
    assert np.shares_memory(cast(values, "FLOAT", "INT2", give_away=True), values)


@pytest.mark.parametrize("to", ["INT2", "FLOAT4E2M1"])
def test_no_temporary_grows_with_the_input(to):
    values = np.ones(64 * BLOCK, np.float32)[::2]
    cast(values[:BLOCK], "FLOAT", to)
    tracemalloc.start()
    try:
        result = cast(values, "FLOAT", to)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - result.nbytes < 32 * BLOCK


def test_several_threads_at_once():
    rng = np.random.default_rng(7)
    inputs = [rng.integers(-100, 100, 3 * BLOCK).astype(np.float32) for _ in range(8)]
    wrong: list[int] = []

    def work(index: int) -> None:
        expected = (inputs[index].astype(np.int64) + 2 & 3) - 2
        results = (cast(inputs[index], "FLOAT", "INT2", rounding="half_away") for _ in range(10))
        wrong.extend(index for result in results if not np.array_equal(result, expected))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# What is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "source", "to"),
    [
        (np.array([1.0]), "INT2", "FLOAT"),
        (np.array([1]), "FLOAT", "INT2"),
        (np.array([1]), "BOOL", "INT2"),
        (np.array(["1"]), "STRING", "INT2"),
        (np.array(["1"], object), "STRING", "INT2"),
        (np.array([1j]), "COMPLEX128", "INT2"),
        (np.array([1.0]), "DOUBLE", "STRING"),
        (np.array([1.0]), "DOUBLE", "COMPLEX64"),
    ],
)
def test_an_array_of_another_kind_or_a_cast_that_does_not_exist_is_refused(values, source, to):
    with pytest.raises(ModelError):
        cast(values, source, to)


@pytest.mark.parametrize("option", [{"rounding": "up"}, {"round_mode": "nearest_even"}])
def test_an_unknown_option_is_refused(option):
    with pytest.raises(OptionError, match="choose one of"):
        cast(np.array([1.0]), "DOUBLE", "INT2", **option)
