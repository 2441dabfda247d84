"""2-bit weight layers of com.microsoft, as the exactly equal 4-bit layers that every release runs fast.

``MatMulNBits`` computes A @ ((q - z) * s) with q stored in ``bits`` bits. A 2-bit layer is a 4-bit layer with the
same q, z and s; where a zero point is half an integer, it is the one with 2q, 2z and s / 2. Nothing is rounded on
the way, and what cannot be done exactly is left as it is, with a note.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context, describe

__all__ = ["WEIGHT_RULES", "pack_matmul_nbits"]

_DEFAULT_ZERO_POINT = {2: 2, 4: 8}
_DATA, _SCALES, _ZERO_POINTS = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What a MatMulNBits node says of its weights: (N, blocks) of ``block_size`` codes each."""

    columns: int
    blocks: int
    block_size: int

    @classmethod
    def of(cls, node: ir.Node) -> _Layer | None:
        columns, depth, block_size = (node.attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
        if not columns or not depth or not block_size or block_size % 4:
            return None
        return cls(columns, -(-depth // block_size), block_size)

    def fits(self, data: ir.TensorProtocol, scales: ir.TensorProtocol) -> bool:
        return (
            data.dtype == ir.DataType.UINT8
            and math.prod(data.shape.numpy()) == self.columns * self.blocks * self.block_size // 4
            and math.prod(scales.shape.numpy()) == self.columns * self.blocks
        )


@dataclasses.dataclass(frozen=True)
class _Recoding:
    """How the codes, zero points and scales of a layer change: code' = factor * code + shift.

    ``zero_points`` are the new ones, None where they are the 4-bit default or stay in the node as they are.
    """

    factor: int
    shift: int
    zero_points: np.ndarray | None = None
    keeps_zero_points: bool = False


def pack_matmul_nbits(node: ir.Node, context: Context) -> None:
    """Turn a MatMulNBits of 2 bits with constant weights into one of 4 bits."""
    if node.attributes.get_int("bits", 4) != 2 or not context.options.packs_weights:
        return
    layer = _Layer.of(node)
    inputs = [*node.inputs, *(None,) * (4 - len(node.inputs))]
    data, scales = context.constant(inputs[_DATA]), context.constant(inputs[_SCALES])
    if layer is None or data is None or scales is None:
        _leave(node, context, "its weights are computed, not constant")
        return
    if not layer.fits(data, scales):
        _leave(node, context, "its weights do not have the size that N, K and block_size say")
        return
    recoding = _recoding(layer, inputs[_ZERO_POINTS], scales, context)
    if isinstance(recoding, str):
        _leave(node, context, recoding)
        return
    _recode(node, context, layer, inputs, recoding)
    context.changed(node, "MatMulNBits", "the same layer with bits=4")


WEIGHT_RULES = {("com.microsoft", "MatMulNBits"): pack_matmul_nbits}


def _leave(node: ir.Node, context: Context, why: str) -> None:
    context.notes.append(f"left node {describe(node)} at bits=2: {why}")


def _recoding(
    layer: _Layer, zero_points: ir.Value | None, scales: ir.TensorProtocol, context: Context
) -> _Recoding | str:
    """The exact recoding of a layer, or why there is none."""
    if zero_points is None:
        return _shifted(1, np.full((layer.columns, layer.blocks), _DEFAULT_ZERO_POINT[2]))
    tensor = context.constant(zero_points)
    if tensor is None:
        return "its zero points are computed, not constant"
    if tensor.dtype == ir.DataType.UINT8:
        row_bytes = -(-layer.blocks // 4)
        packed = _constants.payload(tensor)
        if packed.size != layer.columns * row_bytes:
            return "its packed zero points do not have the size that N, K and block_size say"
        codes = _unpacked(packed).reshape(layer.columns, row_bytes * 4)[:, : layer.blocks]
        return _shifted(1, codes)
    values = _constants.values(tensor).astype(np.float64)
    if values.size != layer.columns * layer.blocks:
        return "its zero points do not have the size that N, K and block_size say"
    values = values.reshape(layer.columns, layer.blocks)
    if _are_codes(values):
        return _shifted(1, values)
    if _are_codes(2 * values) and _halves_exactly(scales):
        return _shifted(2, 2 * values)
    if context.options.target.two_bit_slowdown is None:
        # Slower than integer zero points, and all that these releases have for such a layer.
        return _Recoding(1, 0, keeps_zero_points=True)
    return "its zero points are no halves of integers from 0 to 15"


def _shifted(factor: int, zero_points: np.ndarray) -> _Recoding:
    """Codes times ``factor``, moved so that one zero point for all blocks is the 4-bit default."""
    zero_points = zero_points.astype(np.int64)
    first = int(zero_points.flat[0])
    shift = _DEFAULT_ZERO_POINT[4] - first
    if (zero_points == first).all() and shift >= 0 and shift + 3 * factor <= 15:
        return _Recoding(factor, shift)
    return _Recoding(factor, 0, zero_points.astype(np.uint8))


def _are_codes(values: np.ndarray) -> bool:
    return bool(((values >= 0) & (values <= 15) & (values == np.floor(values))).all())


def _halves_exactly(scales: ir.TensorProtocol) -> bool:
    values = _constants.values(scales)
    half = (values.astype(np.float32) * np.float32(0.5)).astype(values.dtype)
    return bool((half.astype(np.float32) * np.float32(2) == values.astype(np.float32)).all())


def _recode(node: ir.Node, context: Context, layer: _Layer, inputs: list[ir.Value | None], recoding: _Recoding) -> None:
    data, scales = inputs[_DATA], inputs[_SCALES]
    assert data is not None
    assert scales is not None
    inputs[_DATA] = context.derived_constant(
        data, f"bits4_{recoding.factor}_{recoding.shift}", functools.partial(_wider_codes, recoding)
    )
    if recoding.factor == 2:
        inputs[_SCALES] = context.derived_constant(scales, "half", _half)
    if not recoding.keeps_zero_points:
        inputs[_ZERO_POINTS] = None
    if recoding.zero_points is not None:
        packed = _packed_rows(recoding.zero_points)
        inputs[_ZERO_POINTS] = context.stock_constant(packed, "zero_points")
    while inputs[-1] is None:
        inputs.pop()
    attributes = [attribute for attribute in node.attributes.values() if attribute.name != "bits"]
    context.become(node, "MatMulNBits", inputs, [*attributes, ir.AttrInt64("bits", 4)], domain=node.domain)


def _wider_codes(recoding: _Recoding, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    table = _code_table(recoding.factor, recoding.shift)
    shape = tensor.shape.numpy()
    wider = (*shape[:-1], shape[-1] * 2)

    def encode() -> ir.TensorProtocol:
        codes = _constants.looked_up(_constants.payload(tensor), table).view(np.uint8)
        return ir.Tensor(codes.reshape(wider), dtype=ir.DataType.UINT8)

    return ir.LazyTensor(encode, ir.DataType.UINT8, ir.Shape(wider))


def _half(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    def encode() -> ir.TensorProtocol:
        values = _constants.values(tensor)
        return ir.Tensor((values.astype(np.float32) * np.float32(0.5)).astype(values.dtype), dtype=tensor.dtype)

    return ir.LazyTensor(encode, tensor.dtype, ir.Shape(tensor.shape.numpy()))


@functools.cache
def _code_table(factor: int, shift: int) -> np.ndarray:
    """The two bytes of 4-bit codes for each byte of 2-bit codes, as one little-endian number."""
    codes = _unpacked(np.arange(256, dtype=np.uint8)).reshape(256, 4).astype(np.int64)
    return ((factor * codes + shift) << np.array([0, 4, 8, 12])).sum(axis=1).astype("<u2")


def _unpacked(packed: np.ndarray) -> np.ndarray:
    """The 2-bit codes of each byte, lowest bits first."""
    return (packed[:, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)


def _packed_rows(codes: np.ndarray) -> np.ndarray:
    """4-bit codes, two per byte, each row padded to whole bytes."""
    padded = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return padded[:, 0::2] | padded[:, 1::2] << 4
