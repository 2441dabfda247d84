"""Casts as numpy functions: an array in, an array of the target element type (or of its crossing type) out.

Every cast is done block by block in reused scratch memory, so that the data stays in the cache and no
temporary grows with the input. Nothing here leans on what C leaves undefined (a float that does not fit an
integer), so the result is the same on every CPU.
"""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ort_castlike._errors import ModelError, OptionError
from ort_castlike._types import ELEMENT_TYPES, ElementType

__all__ = ["BLOCK", "convert"]

BLOCK = 1 << 16  # elements: large enough that the cost of a numpy call vanishes, small enough for the L2 cache

_POOL_LIMIT = 8
_CACHE_LINE = 64  # bytes

_TYPE_OF = {row.dtype: row for row in ELEMENT_TYPES.values()}

# Mantissa bits, exponent of the smallest normal number and largest value (OCP MX specification 1.0).
_SMALL_FLOATS = {"FLOAT4E2M1": (1, 0, 6.0), "FLOAT6E2M3": (3, 0, 7.5), "FLOAT6E3M2": (2, -2, 28.0)}
# Largest finite value; the FNUZ formats have one more exponent below and no infinity.
_FLOAT8_MAX = {
    "FLOAT8E4M3FN": 448.0,
    "FLOAT8E4M3FNUZ": 240.0,
    "FLOAT8E5M2": 57344.0,
    "FLOAT8E5M2FNUZ": 57344.0,
}

_E8M0_MIN = np.int32(0x00400000)  # 2**-127 as float32, a subnormal number
_E8M0_MAX = np.int32(0x7F000000)  # 2**127
_E8M0_NAN = np.int32(0x7FC00000)
# What is added before the mantissa is cut off, and the first pattern that is no longer rounded to 2**-127.
_E8M0_STEP = {
    "up": (np.int32(0x007FFFFF), np.int32(0x00400001)),
    "down": (np.int32(0), np.int32(0x00800000)),
    "nearest": (np.int32(0x00400000), np.int32(0x00600000)),
}
_EXPONENT = np.array(0x7F800000, np.int32)
_SIGN = np.array(-0x80000000, np.int32)


class _Scratch:
    """Three buffers of one block each, seen as each of the types that the kernels work in."""

    def __init__(self) -> None:
        self.f64 = [_aligned() for _ in range(3)]
        self.i64 = [buffer.view(np.int64) for buffer in self.f64]
        self.f32 = [buffer.view(np.float32)[:BLOCK] for buffer in self.f64]
        self.i32 = [buffer.view(np.int32)[:BLOCK] for buffer in self.f64]


def _aligned() -> np.ndarray:
    """A block of float64 that begins with a cache line, which spares a tenth of the time."""
    memory = np.empty(BLOCK * 8 + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + BLOCK * 8].view(np.float64)


# A scratch belongs to the call that took it out of the pool, so threads and signal handlers never share one.
_pool: list[_Scratch] = []

_T = TypeVar("_T")
_Kernel = Callable[[np.ndarray, np.ndarray, _Scratch], None]


def convert(
    values: np.ndarray,
    from_type: ElementType,
    to_type: ElementType,
    *,
    rounding: str = "nearest_even",
    saturate: bool = True,
    round_mode: str = "up",
    give_away: bool = False,
) -> np.ndarray:
    """Cast ``values`` as ONNX's Cast does; docs/operators/CastLike.md holds the tables.

    Args:
        values: Array of any shape, in the numpy dtype of ``from_type``, in that of its crossing type, or in
            any other dtype of the same kind (boolean, integer, float) that holds the values exactly. Strings
            are given as the float64 that they spell.
        from_type: Element type of the values.
        to_type: Element type to cast to, any but STRING and the complex ones.
        rounding: How a float becomes a 2- or 4-bit integer: "nearest_even", "toward_zero" or "half_away".
        saturate: Whether what lies beyond the range of a float8 type, or of FLOAT8E8M0, becomes the nearest
            finite value.
        round_mode: How a value between two powers of two becomes FLOAT8E8M0: "up", "down" or "nearest".
        give_away: Whether the result may take the memory of ``values``, which spares the cost of fresh memory.

    Returns:
        A new array of the same shape: in the numpy dtype of ``to_type``, or where that is an emulated type in
        that of its crossing type (int8, uint8 or float32).

    Raises:
        ModelError: The array is not of the kind of ``from_type``, or there is no cast between the two types.
        OptionError: ``rounding`` or ``round_mode`` is none of the choices.
    """
    values = np.asarray(values)
    if not values.dtype.isnative:
        values = values.astype(values.dtype.type)
    plan = _plan(values.dtype, from_type.name, to_type.name, rounding, saturate, round_mode)
    if give_away and plan.changes_nothing and _is_whole(values):
        return values
    # A small result of its own costs less: where it is narrower than the values, numpy makes a copy of the first block.
    in_place = plan.reads_first and (values.size > BLOCK or values.itemsize == plan.dtype.itemsize)
    if give_away and in_place and _is_whole(values):
        out = values.reshape(-1).view(plan.dtype)[: values.size].reshape(values.shape)
    else:
        out = np.empty(values.shape, plan.dtype)
    _run(plan.kernel, values, out)
    return out


class _Plan(NamedTuple):
    """What is decided once for all arrays of one dtype that are cast with the same options."""

    kernel: _Kernel
    dtype: np.dtype[Any]
    reads_first: bool
    changes_nothing: bool


@functools.cache
def _plan(found: np.dtype[Any], from_name: str, to_name: str, rounding: str, saturate: bool, round_mode: str) -> _Plan:
    source, to_type = _source_type(found, ELEMENT_TYPES[from_name]), ELEMENT_TYPES[to_name]
    kernel = _kernel(source.name, to_name, rounding, bool(saturate), round_mode)
    dtype = (ELEMENT_TYPES[to_type.crossing] if to_type.is_emulated else to_type).dtype
    # An infinity becomes the largest float8, of the same type too.
    changes_nothing = found == dtype and not to_type.is_emulated and to_name not in _FLOAT8_MAX
    return _Plan(kernel, dtype, _reads_first(source, to_type), changes_nothing)


def _reads_first(source: ElementType, to_type: ElementType) -> bool:
    """Whether a kernel has read all of a block before it writes the result, which can then lie in the same memory."""
    if to_type.name in _SMALL_FLOATS:
        return source.dtype.itemsize >= 4
    return source.is_float and to_type.is_integer and to_type.bits <= 8


def _is_whole(values: np.ndarray) -> bool:
    """Whether the memory is the array's own: that of a view may be needed elsewhere."""
    return values.flags.owndata and values.flags.carray


def _source_type(dtype: np.dtype[Any], from_type: ElementType) -> ElementType:
    """The element type that an array is really of, checked against the one that it is said to be of."""
    found = _TYPE_OF.get(dtype)
    kind = "float" if from_type.name == "STRING" else _kind(from_type)
    if found is None or kind is None or _kind(found) != kind:
        raise ModelError(f"an array of dtype {dtype} holds no {from_type.name} values that can be cast")
    return found


def _kind(row: ElementType) -> str | None:
    if row.name == "BOOL":
        return "boolean"
    if row.is_integer:
        return "integer"
    return "float" if row.is_float else None


def _run(kernel: _Kernel, values: np.ndarray, out: np.ndarray) -> None:
    try:
        scratch = _pool.pop()
    except IndexError:
        scratch = _Scratch()
    if 0 < out.size <= BLOCK:
        _without_warnings(kernel, values.reshape(-1), out.reshape(-1), scratch)
    else:
        _without_warnings(_run_blocks, kernel, values, out.reshape(-1), scratch)
    if len(_pool) < _POOL_LIMIT:
        _pool.append(scratch)


def _run_blocks(kernel: _Kernel, values: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
    # An array that is not contiguous is gathered block by block by its flat iterator, never as a whole.
    source = values.reshape(-1) if values.flags.c_contiguous else values.flat
    for start in range(0, out.size, BLOCK):
        kernel(source[start : start + BLOCK], out[start : start + BLOCK], scratch)


def _without_warnings(function: Callable[..., None], *arguments: object) -> None:
    """Call a function such that numpy does not warn of overflows and invalid values."""
    if _QUIET is None:
        with np.errstate(all="ignore"):
            function(*arguments)
    else:
        _QUIET.copy().run(function, *arguments)


def _quiet_context() -> contextvars.Context | None:
    """A context in which numpy does not warn: a copy of it costs a tenth of ``np.errstate``.

    None up to numpy 1.26, which keeps what it warns of for the thread and not in the context.
    """
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        return None
    context = contextvars.copy_context()
    context.run(np.seterr, all="ignore")
    return context


_QUIET = _quiet_context()


def _kernel(source: str, to: str, rounding: str, saturate: bool, round_mode: str) -> _Kernel:
    """The kernel for one pair of types: it reads a block, and writes a block of the stored type."""
    row, to_type = ELEMENT_TYPES[source], ELEMENT_TYPES[to]
    rounder = _choice("rounding", rounding, _ROUNDERS)
    step = _choice("round_mode", round_mode, _E8M0_STEP)
    if to_type.is_integer and row.is_float and to_type.bits <= 8:
        return _float_to_narrow_integer(row, to_type, rounder if to_type.bits < 8 else _round_toward_zero)
    if to_type.is_integer:
        kernel = _float_to_wide_integer if row.is_float else _integer_to_integer(to_type)
    elif to == "BOOL":
        kernel = _to_bool
    elif to in _SMALL_FLOATS:
        kernel = _float_to_small_float(*_SMALL_FLOATS[to])
    elif to == "FLOAT8E8M0":
        kernel = functools.partial(_to_e8m0, saturate, *step)
    elif to in _FLOAT8_MAX or to in ("FLOAT16", "BFLOAT16"):
        kernel = functools.partial(_to_narrow_float, _FLOAT8_MAX.get(to) if saturate else None)
    elif to in ("FLOAT", "DOUBLE"):
        kernel = _copy
    else:
        raise ModelError(f"there is no cast from {source} to {to}")
    return kernel


def _choice(name: str, value: str, table: Mapping[str, _T]) -> _T:
    if value not in table:
        raise OptionError(f"{name}={value!r} is not possible; choose one of {', '.join(map(repr, table))}")
    return table[value]


# Rounding to whole numbers, which stay floats ---------------------------------------------------------------


def _round_half_away(block: np.ndarray, out: np.ndarray, rest: np.ndarray) -> None:
    np.trunc(block, out=out)
    np.subtract(block, out, out=rest)
    np.add(rest, rest, out=rest)
    np.trunc(rest, out=rest)
    np.add(out, rest, out=out)


def _round_toward_zero(block: np.ndarray, out: np.ndarray, rest: np.ndarray) -> None:
    np.trunc(block, out=out)


def _round_nearest_even(block: np.ndarray, out: np.ndarray, rest: np.ndarray) -> None:
    np.rint(block, out=out)


_Rounder = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
_ROUNDERS: dict[str, _Rounder] = {
    "nearest_even": _round_nearest_even,
    "toward_zero": _round_toward_zero,
    "half_away": _round_half_away,
}

# Into integers ----------------------------------------------------------------------------------------------


def _sign_bias(to_type: ElementType) -> int:
    """What moves the range of a 2- or 4-bit type to begin at 0: half its size where it is signed."""
    return 1 << (to_type.bits - 1) if to_type.is_signed_integer and to_type.bits < 8 else 0


def _wrapper(to_type: ElementType) -> Callable[[np.ndarray], None]:
    """What brings int8 or uint8 values, to which the bias was added, into the range of a type of up to 8 bits."""
    if to_type.bits >= 8:
        return lambda out: None
    dtype = ELEMENT_TYPES[to_type.crossing].dtype
    # Arrays without axes: numpy takes them faster than scalars, which counts where there are few values.
    mask, bias = np.array((1 << to_type.bits) - 1, dtype), np.array(_sign_bias(to_type), dtype)
    if not bias:
        return lambda out: np.bitwise_and(out, mask, out)

    def wrap(out: np.ndarray) -> None:
        np.bitwise_and(out, mask, out)
        np.subtract(out, bias, out)

    return wrap


def _integer_to_integer(to_type: ElementType) -> _Kernel:
    """Keep the low bits of the two's complement."""
    bias, wrap = _sign_bias(to_type), _wrapper(to_type)

    def kernel(block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
        np.copyto(out, _plain(block), casting="unsafe")
        if bias:
            np.add(out, out.dtype.type(bias), out=out)
        wrap(out)

    return kernel


def _plain(block: np.ndarray) -> np.ndarray:
    """ml_dtypes' integers as int8, anything of numpy's own as it is."""
    return block if block.dtype.isbuiltin == 1 else block.astype(np.int8)


def _float_to_narrow_integer(source: ElementType, to_type: ElementType, rounder: _Rounder) -> _Kernel:
    """Round, and keep the low bits of the two's complement: types of up to 8 bits.

    A float to which 1.5 * 2**23 (float32; 2**52 for float64) is added is rounded to an integer, nearest even,
    and the low bits of the sum's pattern are that integer's. Where a block holds a value that is too large for
    this, or no number, all of it takes the slower way, which is exact for everything.
    """
    double = source.name == "DOUBLE"
    real, fraction_bits = (np.float64, 52) if double else (np.float32, 23)
    is_real = source.dtype == real
    bias = _sign_bias(to_type)
    magic = np.array(1.5 * 2.0**fraction_bits + bias, real)
    lowest = int(real(2.0**fraction_bits).view(np.int64 if double else np.int32))
    highest = lowest + (1 << fraction_bits) - 1
    adds_at_once = rounder is _round_nearest_even
    wrap = _wrapper(to_type)

    def kernel(block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
        size = block.size
        reals = scratch.f64 if double else scratch.f32
        rounded, pattern = reals[1][:size], (scratch.i64 if double else scratch.i32)[1][:size]
        if not is_real:
            np.copyto(reals[0][:size], block, casting="unsafe")
            block = reals[0][:size]
        if adds_at_once:
            np.add(block, magic, rounded)
        else:
            rounder(block, rounded, reals[2][:size])
            np.add(rounded, magic, rounded)
        # The methods min() and max() do the same at twice the cost of the call.
        if np.minimum.reduce(pattern) < lowest or np.maximum.reduce(pattern) > highest:
            rest = reals[2][:size]
            rounder(block, rounded, rest)
            _modulo_256(rounded, rest)
            pattern[...] = rounded
            np.add(pattern, bias, out=pattern)
        out[...] = pattern
        wrap(out)

    return kernel


def _modulo_256(values: np.ndarray, rest: np.ndarray) -> None:
    """Reduce whole numbers to 0...255, each step exact; what is no finite number becomes 0."""
    real = values.dtype.type
    np.multiply(values, real(2.0**-8), out=rest)
    np.floor(rest, out=rest)
    np.multiply(rest, real(2.0**8), out=rest)
    np.subtract(values, rest, out=values)
    np.fmax(values, real(0), out=values)


def _float_to_wide_integer(block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
    """Truncate toward zero, and keep the low bits of the two's complement: types of 16 to 64 bits."""
    rounded, rest = scratch.f64[0][: block.size], scratch.f64[1][: block.size]
    pattern = scratch.i64[1][: block.size]
    np.copyto(rounded, block, casting="unsafe")
    np.trunc(rounded, out=rounded)
    if not (rounded.min() >= -(2.0**63) and rounded.max() < 2.0**63):
        # Each step is exact: the quotient is a shift of the exponent, and the difference has no more bits.
        np.multiply(rounded, 2.0**-64, out=rest)
        np.rint(rest, out=rest)
        np.multiply(rest, 2.0**64, out=rest)
        np.subtract(rounded, rest, out=rounded)
        rounded[np.isnan(rounded)] = 0.0
        rounded[rounded == 2.0**63] = -(2.0**63)
    np.copyto(pattern, rounded, casting="unsafe")
    np.copyto(out, pattern, casting="unsafe")


def _to_bool(block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
    """Everything but a zero is True, NaN too."""
    if block.dtype.isbuiltin != 1:
        np.copyto(scratch.f32[0][: block.size], block, casting="unsafe")
        block = scratch.f32[0][: block.size]
    np.not_equal(block, block.dtype.type(0), out=out)


# Into floats ------------------------------------------------------------------------------------------------


def _copy(block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
    """The casts that numpy does right: into float and double."""
    np.copyto(out, block, casting="unsafe")


def _as_float32(block: np.ndarray, scratch: _Scratch) -> np.ndarray:
    """The block as float32, rounded to odd where float32 does not hold it.

    A number rounded to odd (cut off, and its last bit set if anything was lost) can be rounded once more, to
    a type that is narrower by two bits or more, as if the first rounding had not been. This may use the first
    two buffers; the result may be the block itself, and must not be written to.
    """
    kind, itemsize = block.dtype.kind, block.dtype.itemsize
    if block.dtype == np.float32:
        return block
    single, exact = scratch.f32[0][: block.size], scratch.f64[1][: block.size]
    if itemsize <= 2:
        np.copyto(single, block, casting="unsafe")
        return single
    if kind in "iu" and itemsize == 8:
        low = block.dtype.type(0x7FF)
        lost = (block & low) != 0
        large = block >= 1 << 53
        if kind == "i":
            large |= block <= -(1 << 53)
        odd = (block & ~low) | (lost.astype(block.dtype) << block.dtype.type(11))
        block = np.where(large, odd, block)
    np.copyto(exact, block, casting="unsafe")
    np.copyto(single, exact, casting="unsafe")
    pattern = scratch.i32[0][: block.size]
    inexact = single != exact
    away = np.abs(single) > np.abs(exact)
    np.subtract(pattern, away, out=pattern, casting="unsafe")
    np.bitwise_or(pattern, inexact, out=pattern, casting="unsafe")
    return single


def _to_narrow_float(limit: float | None, block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
    """Round once, nearest even, into a type that has a dtype of its own; ``limit`` is where it saturates."""
    single = _as_float32(block, scratch)
    if limit is not None:
        single = np.clip(single, np.float32(-limit), np.float32(limit), out=scratch.f32[2][: block.size])
    np.copyto(out, single, casting="unsafe")


def _float_to_small_float(mantissa: int, lowest: int, limit: float) -> _Kernel:
    """Round, nearest even and saturating, to the values of a format without Inf and NaN, as float32.

    Args:
        mantissa: Bits of the format's mantissa.
        lowest: Exponent of its smallest normal number.
        limit: Its largest value.
    """
    # Arrays without axes: numpy takes them faster than scalars.
    smallest, largest = np.array(-limit, np.float32), np.array(limit, np.float32)
    beyond = 2.0 ** math.frexp(limit)[1]
    first_unit, last_unit = np.array(2.0**lowest, np.float32), np.array(beyond, np.float32)
    shift = np.array(1.5 * 2.0 ** (23 - mantissa), np.float32)
    pattern_beyond = int(np.float32(beyond).view(np.int32))

    def kernel(block: np.ndarray, out: np.ndarray, scratch: _Scratch) -> None:
        size = block.size
        single, unit, rounded = _as_float32(block, scratch), scratch.f32[1][:size], scratch.f32[2][:size]
        unit_bits, out_bits = scratch.i32[1][:size], out.view(np.int32)
        np.clip(single, smallest, largest, out=out)
        # The power of two at or below each value: adding a multiple of it rounds the value at its own last place.
        np.bitwise_and(out_bits, _EXPONENT, out=unit_bits)
        np.clip(unit, first_unit, last_unit, out=unit)
        has_nan = bool(np.maximum.reduce(unit_bits) == pattern_beyond)  # the exponent of a NaN is that of an infinity
        np.multiply(unit, shift, out=unit)
        np.add(out, unit, out=rounded)
        np.subtract(rounded, unit, out=rounded)
        np.bitwise_and(out_bits, _SIGN, out=out_bits)
        np.bitwise_or(out_bits, scratch.i32[2][:size], out=out_bits)
        if has_nan:
            out[np.isnan(out)] = -0.0

    return kernel


def _to_e8m0(
    saturate: bool,
    step: np.int32,
    rounded_up: np.int32,
    block: np.ndarray,
    out: np.ndarray,
    scratch: _Scratch,
) -> None:
    """Round to a power of two from 2**-127 to 2**127, as float32; NaN where there is none."""
    bits = _as_float32(block, scratch).view(np.int32)
    power = out.view(np.int32)
    np.add(bits, step, out=power)
    np.bitwise_and(power, _EXPONENT, out=power)
    power[bits < rounded_up] = _E8M0_MIN
    power[bits > _E8M0_MAX] = _E8M0_MAX if saturate else _E8M0_NAN
    if not saturate:
        power[bits < _E8M0_MIN] = _E8M0_NAN
    power[(bits > _EXPONENT) | ((bits < 0) & (bits != _SIGN))] = _E8M0_NAN
