"""2-bit weights as 4-bit weights of exactly the same values: which codes and zero points, and their bytes.

(q - z) * s is (f * q + d - (f * z + d)) * (s / f). Where z is an integer, f is 1; where it is a half or a quarter, f
is 2 or 4. The shift d brings codes and zero points into the range of 4 bits and, where it can, makes the one zero
point of all blocks the default, which needs no tensor. Payloads are read and made a block at a time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._files._streams import StreamedTensor

__all__ = [
    "DEFAULT_ZERO_POINT",
    "SIGNED",
    "UNSIGNED",
    "Codes",
    "Recoding",
    "ZeroPoints",
    "divided",
    "divides_exactly",
    "recoding",
    "wider",
]

Derive = Callable[[ir.TensorProtocol], ir.TensorProtocol]

DEFAULT_ZERO_POINT = 2  # of 2-bit codes
_FACTORS = (1, 2, 4)
_FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


@dataclasses.dataclass(frozen=True)
class Codes:
    """4-bit codes: their range, and the zero point where none is given."""

    lowest: int
    highest: int
    default_zero_point: int


UNSIGNED = Codes(0, 15, 8)
SIGNED = Codes(-8, 7, 0)


@dataclasses.dataclass(frozen=True)
class Recoding:
    """code' = factor * code + shift, the same for zero points, and scale' = scale / factor."""

    factor: int
    shift: int
    needs_zero_points: bool

    @property
    def kind(self) -> str:
        """A name for what is derived by it."""
        return f"bits4_{self.factor}_{self.shift % 16}"


@dataclasses.dataclass(frozen=True)
class ZeroPoints:
    """The zero points of ``rows`` rows of ``blocks`` blocks; ``tensor`` is None where all have the default.

    Attributes:
        rows: Rows of weights.
        blocks: Blocks in a row.
        tensor: UINT8 with four to a byte and rows of whole bytes, or floats.
    """

    rows: int
    blocks: int
    tensor: ir.TensorProtocol | None

    @property
    def is_packed(self) -> bool:
        return self.tensor is not None and self.tensor.dtype == ir.DataType.UINT8

    @property
    def fits(self) -> bool:
        """Whether the tensor has a type and the size that it must have, in whatever shape."""
        if self.tensor is None:
            return True
        if not self.is_packed and self.tensor.dtype not in _FLOATS:
            return False
        row = -(-self.blocks // 4) if self.is_packed else self.blocks
        return math.prod(self.tensor.shape.numpy()) == self.rows * row

    def values(self) -> Iterator[np.ndarray]:
        """The zero points as float64, an even number of rows after the other."""
        if self.tensor is None:
            yield np.full((1, self.blocks), float(DEFAULT_ZERO_POINT))
        elif self.is_packed:
            for packed in _even_rows(_constants.payload_blocks(self.tensor), -(-self.blocks // 4)):
                codes = (packed[..., None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
                yield codes.reshape(len(packed), -1)[:, : self.blocks].astype(np.float64)
        else:
            for values in _even_rows(_constants.value_blocks(self.tensor), self.blocks):
                yield values.astype(np.float64)

    def packed(self, recoding: Recoding, *, whole_rows: bool) -> Iterator[np.ndarray]:
        """The bytes of the 4-bit zero points; each row begins a byte if ``whole_rows``."""
        for values in self.values():
            codes = (recoding.factor * values + recoding.shift).astype(np.int64).astype(np.uint8)
            if whole_rows:
                codes = np.pad(codes, ((0, 0), (0, self.blocks % 2)))
            codes = codes.reshape(-1)
            codes = np.pad(codes, (0, codes.size % 2))
            yield codes[0::2] | codes[1::2] << np.uint8(4)


def recoding(zero_points: ZeroPoints, codes: Codes) -> Recoding | None:
    """The exact recoding for zero points; None where there is none in the range of ``codes``."""
    factor, lowest, highest = 1, math.inf, -math.inf
    for values in zero_points.values():
        exact = next((step for step in _FACTORS if step >= factor and _are_integers(step * values)), None)
        if exact is None:
            return None
        factor, lowest, highest = exact, min(lowest, values.min()), max(highest, values.max())
    low, high = int(factor * lowest), int(factor * highest)
    top = 3 * factor
    shift = codes.default_zero_point - low
    if low == high and codes.lowest <= shift and shift + top <= codes.highest:
        return Recoding(factor, shift, needs_zero_points=False)
    shift = codes.lowest + max(0, -low)
    if shift + max(high, top) > codes.highest:
        return None
    return Recoding(factor, shift, needs_zero_points=True)


def wider(recoding: Recoding, dtype: ir.DataType, shape: tuple[int, ...]) -> Derive:
    """From a tensor of packed 2-bit codes to one of packed 4-bit codes of a type and shape."""

    def derive(tensor: ir.TensorProtocol) -> StreamedTensor:
        table = _code_table(recoding.factor, recoding.shift)

        def encode() -> Iterator[np.ndarray]:
            for block in _constants.payload_blocks(tensor):
                yield _constants.looked_up(block, table).view(np.uint8)

        return StreamedTensor(encode, dtype, shape, name=tensor.name, like=tensor)

    return derive


def divided(factor: int) -> Derive:
    """From scales to scales / factor, in their own type."""

    def derive(tensor: ir.TensorProtocol) -> StreamedTensor:
        def encode() -> Iterator[np.ndarray]:
            for block in _constants.value_blocks(tensor):
                yield _over(block, factor).view(np.uint8)

        return StreamedTensor(encode, tensor.dtype, tensor.shape.numpy(), name=tensor.name, like=tensor)

    return derive


def divides_exactly(scales: ir.TensorProtocol, factor: int) -> bool:
    """Whether scales / factor are exact in the scales' own type."""
    if factor == 1:
        return True
    for block in _constants.value_blocks(scales):
        values = block.astype(np.float64)
        if not ((_over(block, factor).astype(np.float64) * factor == values) | np.isnan(values)).all():
            return False
    return True


def _over(values: np.ndarray, factor: int) -> np.ndarray:
    """Quotients, each rounded once where it is not exact."""
    return (values.astype(np.float64) / factor).astype(values.dtype)


def _are_integers(values: np.ndarray) -> bool:
    return bool((np.isfinite(values) & (values == np.floor(values))).all())


def _even_rows(blocks: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Blocks of elements regrouped to rows of ``size`` elements, an even number at a time until the last."""
    left: np.ndarray | None = None
    for block in blocks:
        data = block if left is None else np.concatenate([left, block])
        whole = data.size // (2 * size) * (2 * size)
        if whole:
            yield data[:whole].reshape(-1, size)
        left = data[whole:]
    if left is not None and left.size:
        yield left.reshape(-1, size)


@functools.cache
def _code_table(factor: int, shift: int) -> np.ndarray:
    """The two bytes of 4-bit codes for each byte of 2-bit codes, as one little-endian number."""
    codes = (np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3
    pairs: np.ndarray = (((factor * codes + shift) & 15) << np.array([0, 4, 8, 12])).sum(axis=1).astype("<u2")
    return pairs
