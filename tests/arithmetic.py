"""ONNX's casts as arithmetic: the values of every element type from its format, and what each cast must give.

Nothing here casts with ml_dtypes, or with the package under test. A float of up to 16 bits is its code, looked up in a
table of the values that the format gives to the codes; a cast into such a type is a search in that table. The only
conversions left to numpy are those that IEEE 754 and the two's complement define.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ort_castlike._types import element_type

__all__ = [
    "EIGHT_BIT_FLOATS",
    "FORMATS",
    "bounds",
    "cast",
    "dtype_of",
    "grid",
    "is_integer",
    "literals",
    "same",
    "values_of",
]


class Format(NamedTuple):
    """A binary floating-point format of 4 to 16 bits.

    Attributes:
        exponent: Bits of the exponent.
        mantissa: Bits of the mantissa.
        bias: What is taken off the exponent.
        inf: Code of infinity, None where there is none.
        nan: Code of a NaN, None where there is none.
        largest: Code of the largest finite value.
        signed_zero: Whether there is a -0.
    """

    exponent: int
    mantissa: int
    bias: int
    inf: int | None
    nan: int | None
    largest: int
    signed_zero: bool = True

    @property
    def sign(self) -> int:
        return 1 << (self.exponent + self.mantissa)


# From ONNX's technical notes on float8, float4 and IEEE 754; FLOAT8E8M0 has no sign and no mantissa.
FORMATS = {
    "FLOAT16": Format(5, 10, 15, 0x7C00, 0x7E00, 0x7BFF),
    "BFLOAT16": Format(8, 7, 127, 0x7F80, 0x7FC0, 0x7F7F),
    "FLOAT8E4M3FN": Format(4, 3, 7, None, 0x7F, 0x7E),
    "FLOAT8E4M3FNUZ": Format(4, 3, 8, None, 0x80, 0x7F, signed_zero=False),
    "FLOAT8E5M2": Format(5, 2, 15, 0x7C, 0x7E, 0x7B),
    "FLOAT8E5M2FNUZ": Format(5, 2, 16, None, 0x80, 0x7F, signed_zero=False),
    "FLOAT4E2M1": Format(2, 1, 1, None, None, 0x7),
    "FLOAT6E2M3": Format(2, 3, 1, None, None, 0x1F),
    "FLOAT6E3M2": Format(3, 2, 3, None, None, 0x1F),
}
EIGHT_BIT_FLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")


def dtype_of(name: str) -> np.dtype:
    return element_type(name).dtype


def is_integer(name: str) -> bool:
    return name.startswith(("INT", "UINT"))


def bounds(name: str) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    bits = int(name.lstrip("UINT"))
    return (0, 2**bits - 1) if name.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@functools.cache
def magnitudes(name: str) -> tuple[float, ...]:
    """The values of the codes from 0 to that after the largest finite one, which is what rounding could give."""
    format_ = FORMATS[name]
    values = []
    for code in range(format_.largest + 2):
        exponent, mantissa = code >> format_.mantissa, code & ((1 << format_.mantissa) - 1)
        significand = mantissa + ((1 << format_.mantissa) if exponent else 0)
        values.append(math.ldexp(significand, max(exponent, 1) - format_.bias - format_.mantissa))
    return tuple(values)


@functools.cache
def table(name: str) -> np.ndarray:
    """The value of every code of a float of up to 16 bits, as float64."""
    if name == "FLOAT8E8M0":
        return np.array([math.ldexp(1.0, code - 127) for code in range(255)] + [math.nan])
    format_ = FORMATS[name]
    half = np.full(format_.sign, np.nan)
    half[: format_.largest + 1] = magnitudes(name)[: format_.largest + 1]
    if format_.inf is not None:
        half[format_.inf] = np.inf
    values = np.concatenate([half, -half])
    if not format_.signed_zero:
        values[format_.sign] = np.nan
    return values


def values_of(array: np.ndarray, name: str) -> np.ndarray:
    """The values of an array of an element type: float64 for floats, int64 or uint64 for integers, bool, objects."""
    if name in FORMATS or name == "FLOAT8E8M0":
        codes = array.view(np.uint16 if array.itemsize == 2 else np.uint8)
        return table(name)[codes & (len(table(name)) - 1)]
    if is_integer(name) and array.dtype.isbuiltin != 1:
        low, high = bounds(name)
        codes = array.view(np.uint8).astype(np.int64) & (high - low)
        return np.where(codes > high, codes - (high - low + 1), codes)
    if is_integer(name):
        return array.astype(np.uint64 if name == "UINT64" else np.int64)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return array.astype(np.float64) if name == "FLOAT" else array


def cast(array: np.ndarray, source: str, to: str, *, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """What the cast of an array of the type ``source`` must be, in the dtype of the type ``to``.

    A float that has no integer part in a stock integer type is not to be given: ONNX leaves that open.
    """
    if source == to:
        return array.copy()
    if source == "STRING":
        numbers = [int(text) if is_integer(to) and text.lstrip("+-").isdigit() else float(text) for text in array.flat]
        array, source = np.array(numbers, object if is_integer(to) else np.float64).reshape(array.shape), "DOUBLE"
    values = values_of(array, source)
    if to == "STRING":
        return _texts(values)
    if to == "BOOL":
        return values != 0
    if is_integer(to):
        return _to_integer(values, to)
    if to in ("FLOAT", "DOUBLE"):
        with np.errstate(over="ignore"):
            return values.astype(dtype_of(to))
    exact = values.astype(np.int64) if values.dtype == np.bool_ else values
    if to == "FLOAT8E8M0":
        codes = _map(functools.partial(_power_of_two, saturate=saturate, round_mode=round_mode), exact)
    else:
        codes = _to_float(exact, to, saturate)
    return codes.astype(np.uint16 if to.endswith("16") else np.uint8).view(dtype_of(to))


def _map(function, values: np.ndarray) -> np.ndarray:
    return np.array([function(value) for value in values.ravel().tolist()], np.int64).reshape(values.shape)


def _texts(values: np.ndarray) -> np.ndarray:
    """Integers in decimals; floats with up to 8 significant digits, as C's %g writes them."""
    texts = np.empty(values.shape, object)
    for index, value in np.ndenumerate(values):
        if values.dtype.kind == "f":
            named = "NaN" if np.isnan(value) else "INF" if value > 0 else "-INF"
            texts[index] = f"{value:.8g}" if np.isfinite(value) else named
        else:
            texts[index] = str(int(value))
    return texts


def _to_integer(values: np.ndarray, to: str) -> np.ndarray:
    """Floats into 2 and 4 bits to the nearest even, into more bits toward zero; the low bits of what that gives."""
    low, high = bounds(to)
    size = high - low + 1
    numbers = values.ravel().tolist()
    if values.dtype.kind in "fO":
        to_whole = round if size < 256 else int  # round() takes halves to the even number
        numbers = [to_whole(number) if math.isfinite(number) else 0 for number in numbers]
    numbers = [(number - low) % size + low for number in numbers]
    if size >= 256:
        return np.array(numbers, dtype_of(to)).reshape(values.shape)
    codes = np.array(numbers, np.int64).astype(np.uint8) & np.uint8(high - low)
    return codes.view(dtype_of(to)).reshape(values.shape)


@functools.cache
def _midpoints(name: str) -> tuple[float, ...]:
    """Between each code and the next, the number that lies in the middle; each is a float64."""
    listed = magnitudes(name)
    return tuple((low + high) / 2 for low, high in itertools.pairwise(listed))


def _to_float(values: np.ndarray, to: str, saturate: bool) -> np.ndarray:
    """The codes of the nearest values, the even code of two, as the tables of ONNX's Cast say."""
    format_ = FORMATS[to]
    middles = _midpoints(to)
    if values.dtype.kind == "f":
        sizes, negative, no_number = np.abs(values), np.signbit(values), np.isnan(values)
        first, last = (np.searchsorted(middles, sizes, side) for side in ("left", "right"))
    else:
        listed = values.ravel().tolist()
        negative, no_number = values < 0, np.zeros(values.shape, bool)
        # Python compares an integer with a float as the numbers that they are.
        first, last = (
            np.array([side(middles, abs(number)) for number in listed], np.int64).reshape(values.shape)
            for side in (bisect.bisect_left, bisect.bisect_right)
        )
    codes = np.where((first != last) & (first % 2 == 1), last, first)
    overflow = format_.largest
    if to.endswith("16") or (to in EIGHT_BIT_FLOATS and not saturate):
        overflow = format_.inf if format_.inf is not None else format_.nan
    codes = np.where(codes > format_.largest, overflow, codes)
    signed = negative & (format_.signed_zero | (codes != 0)) & (codes != format_.sign)
    codes = np.where(signed, codes | format_.sign, codes)
    return np.where(no_number, format_.sign if format_.nan is None else format_.nan, codes)


def _power_of_two(value: float, *, saturate: bool, round_mode: str) -> int:
    """The code of FLOAT8E8M0; 255 is NaN."""
    if value != value or value < 0:
        return 255
    if not saturate and not 2.0**-127 <= value <= 2.0**127:
        return 255
    if value <= 2.0**-127:
        return 0
    if value >= 2.0**127:
        return 254
    power = math.frexp(value)[1] - 1 if isinstance(value, float) else int(value).bit_length() - 1
    # Whole numbers and floats alike: of any two, Python compares the values.
    below = 2**power if power >= 0 else 2.0**power
    middle = 3 * 2 ** (power - 1) if power > 0 else 1.5 * 2.0**power
    rises = value > below if round_mode == "up" else round_mode == "nearest" and value >= middle
    return power + 127 + rises


@functools.cache
def grid(name: str) -> np.ndarray:
    """Values of an element type to try: all of up to 16 bits, and of wider types the ends, ties and large ones."""
    if name == "BOOL":
        return np.array([False, True])
    if name in FORMATS or name == "FLOAT8E8M0":
        codes = np.arange(len(table(name)))
        return codes.astype(np.uint16 if name.endswith("16") else np.uint8).view(dtype_of(name))
    if is_integer(name):
        return _integer_grid(name)
    return _float_grid(np.float32 if name == "FLOAT" else np.float64)


def _integer_grid(name: str) -> np.ndarray:
    low, high = bounds(name)
    if high - low < 256:
        return (np.arange(low, high + 1) & (high - low)).astype(np.uint8).view(dtype_of(name))
    ties = [int(middle) for to in FORMATS for middle in _midpoints(to)[:: 1 if "16" not in to else 61] if middle >= 16]
    ties += [3 << power for power in range(62)] + [1 << power for power in range(64)]
    # Halfway between two floats and two doubles.
    ties += [(2 * number + 1) << power for power in range(40) for number in (2**23, 2**23 + 1)]
    ties += [(2 * number + 1) << power for power in range(10) for number in (2**52, 2**52 + 1)]
    numbers = set(range(-300, 301))
    for tie in ties:
        numbers.update(sign * tie + step for sign in (1, -1) for step in range(-2, 3))
    numbers.update((low, low + 1, high - 1, high))
    return np.array(sorted(number for number in numbers if low <= number <= high), dtype_of(name))


def _float_grid(real: type) -> np.ndarray:
    ties = [number / 4 for number in range(300)]
    for to in FORMATS:
        listed = np.array(_midpoints(to)[:: 1 if "16" not in to else 61])
        ties += [*listed, *magnitudes(to)[:: 1 if "16" not in to else 61], listed[-1]]
    ties += [1.5 * 2.0**power for power in range(-126, 127)] + [2.0**power for power in range(-149, 128)]
    ties += [2.0**power + half for power in range(2, 53) for half in (0.5, 1.5, 2.5)]
    if real is np.float64:
        ties += [(2**24 + 2 * number + 1) * 2.0**power for power in (-149, -24, 0, 50) for number in range(4)]
        ties += [2.0**power for power in (-1074, -1022, -300, 128, 300, 1023)]
    with np.errstate(all="ignore"):
        exact = np.unique(np.array(ties, np.float64).astype(real))
        near = np.concatenate([exact, np.nextafter(exact, real(np.inf)), np.nextafter(exact, real(0))])
    near = np.concatenate([near, np.array([np.finfo(real).max, np.finfo(real).smallest_subnormal], real)])
    near = np.unique(near[np.isfinite(near)])
    specials = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], real)
    return np.concatenate([near, -near, specials])


def same(got: np.ndarray, expected: np.ndarray, to: str) -> np.ndarray:
    """Where two arrays hold the same values of a type: the same bits, or a NaN both."""
    if to in ("STRING", "BOOL"):
        return got == expected
    bits = np.dtype(f"u{expected.itemsize}")
    equal = np.ascontiguousarray(got).view(bits) == np.ascontiguousarray(expected).view(bits)
    if not is_integer(to):
        equal |= np.isnan(values_of(got, to)) & np.isnan(values_of(expected, to))
    return equal


def literals(to: str) -> Sequence[str]:
    """Texts to cast to a type: numbers that it holds exactly and numbers that are rounded, where it takes them."""
    whole = ["0", "1", "-1", "7", "+3", "-0"]
    if is_integer(to) and bounds(to)[1] >= 127:
        low, high = bounds(to)
        numbers = [str(low), str(high), *whole]
        return [text for text in numbers if low <= int(text) <= high]
    if to == "BOOL":
        return ["0", "1"]
    floats = [
        *whole,
        "0.5",
        "1.5",
        "2.5",
        "-2.5",
        "0.1",
        "1e3",
        "-1E-2",
        "448",
        "57344",
        "480",
        "65535",
        "1e30",
        "1e-30",
    ]
    named = ["INF", "-INF", "+INF", "inf", "NaN", "nan"]
    return floats + named
