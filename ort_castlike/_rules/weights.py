"""2-bit ``MatMulNBits`` layers of com.microsoft, as the exactly equal 4-bit layers that every release runs fast.

Nothing is rounded on the way. What cannot be done exactly is left as it is, with a note.
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from ort_castlike._context import Context, describe
from ort_castlike._files._streams import StreamedTensor
from ort_castlike._rules import recoding
from ort_castlike._rules.recoding import Recoding, ZeroPoints

__all__ = [
    "form_of_zero_points",
    "is_float16",
    "leave",
    "pack_matmul_nbits",
    "packed_zero_points",
    "wants_packing",
    "why_no_constant",
]

_DATA, _SCALES, _ZERO_POINTS, _GROUPS = 1, 2, 3, 4
_INT8 = 4  # the accuracy_level that allows it
_FLOATS = frozenset((ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16))


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What a MatMulNBits node says of its weights: (N, blocks) of ``block_size`` codes each."""

    columns: int
    blocks: int
    block_size: int

    @classmethod
    def of(cls, node: ir.Node) -> _Layer | None:
        columns, depth, block_size = (node.attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
        if columns <= 0 or depth <= 0 or block_size <= 0 or block_size % 4:
            return None
        return cls(columns, -(-depth // block_size), block_size)

    def fits(self, data: ir.TensorProtocol, scales: ir.TensorProtocol) -> bool:
        return (
            data.dtype == ir.DataType.UINT8
            and scales.dtype in _FLOATS
            and math.prod(data.shape.numpy()) == self.columns * self.blocks * self.block_size // 4
            and math.prod(scales.shape.numpy()) == self.columns * self.blocks
        )


def pack_matmul_nbits(node: ir.Node, context: Context) -> None:
    """Turn a MatMulNBits of 2 bits with constant weights into one of 4 bits."""
    if not wants_packing(node, context):
        return
    inputs = [*node.inputs, *(None,) * (4 - len(node.inputs))]
    form = form_of_zero_points(inputs[_ZERO_POINTS])
    why = why_no_constant(context, *inputs[_DATA : _ZERO_POINTS + 1])
    data, scales = context.constant(inputs[_DATA]), context.constant(inputs[_SCALES])
    if why or data is None or scales is None:
        leave(node, context, why or "it lacks an input")
        return
    layer = _Layer.of(node)
    if layer is None or not layer.fits(data, scales):
        leave(node, context, "its weights do not have the type and size that its attributes say")
        return
    if node.attributes.get_int("weight_prepacked", 0):
        leave(node, context, "its weights are packed for one execution provider")
        return
    zero_points = ZeroPoints(layer.columns, layer.blocks, context.constant(inputs[_ZERO_POINTS]))
    if not zero_points.fits:
        leave(node, context, "its zero points do not have the type and size that its attributes say")
        return
    new = recoding.recoding(zero_points, recoding.UNSIGNED)
    if new is not None and recoding.divides_exactly(scales, new.factor):
        _recode(node, context, inputs, new, zero_points)
        context.changed(node, "MatMulNBits", "the same layer with bits=4")
    elif form == "floats" and context.options.packs("other_floats"):
        _recode(node, context, inputs, Recoding(1, 0, needs_zero_points=False), None)
        context.changed(node, "MatMulNBits", "the same layer with bits=4, with its float zero points, which is slow")
    elif new is None:
        leave(node, context, "its zero points times 1, 2 or 4 are no integers that 4 bits hold")
    else:
        leave(node, context, f"its scales divided by {new.factor} are not exact")


def wants_packing(node: ir.Node, context: Context) -> bool:
    """Whether a MatMulNBits is one of 2 bits that ought to be one of 4 bits."""
    if node.attributes.get_int("bits", 4) != 2:
        return False
    form = form_of_zero_points(node.inputs[_ZERO_POINTS] if len(node.inputs) > _ZERO_POINTS else None)
    return context.options.packs(form, is_float16=is_float16(node), int8_block=_int8_block(node))


def leave(node: ir.Node, context: Context, why: str) -> None:
    """Note that a layer stays as it is."""
    context.notes.append(f"left node {describe(node)} at bits=2: {why}")


def why_no_constant(context: Context, *values: ir.Value | None) -> str | None:
    """Why one of the values cannot be recoded, None where all of them can."""
    for value in values:
        if value is None or context.constant(value) is not None:
            continue
        if value.is_graph_input() and value.is_initializer():
            return f"{value.name!r} is an input of the graph too, so a feed may replace it"
        return f"{value.name!r} is computed, not constant"
    return None


def form_of_zero_points(zero_points: ir.Value | None) -> str:
    """The form of the zero points, as the table of targets names it."""
    if zero_points is None:
        return "none"
    return "packed" if zero_points.dtype in (None, ir.DataType.UINT8) else "floats"


def is_float16(node: ir.Node) -> bool:
    """Whether a MatMulNBits takes float16."""
    scales = node.inputs[_SCALES] if len(node.inputs) > _SCALES else None
    return scales is not None and scales.dtype == ir.DataType.FLOAT16


def _int8_block(node: ir.Node) -> int | None:
    """The block size of a layer that the runtime may compute in int8."""
    regrouped = len(node.inputs) > _GROUPS and node.inputs[_GROUPS] is not None
    allowed = node.attributes.get_int("accuracy_level", 0) == _INT8 and not regrouped
    return node.attributes.get_int("block_size", 128) if allowed else None


def _recode(
    node: ir.Node, context: Context, inputs: list[ir.Value | None], new: Recoding, zero_points: ZeroPoints | None
) -> None:
    """Give a node its 4-bit weights; the zero points stay as they are where None are given."""
    data, scales, zeros = inputs[_DATA : _ZERO_POINTS + 1]
    assert data is not None
    assert scales is not None
    constant = context.constant(data)
    assert constant is not None
    *outer, last = constant.shape.numpy()
    derive = recoding.wider(new, ir.DataType.UINT8, (*outer, last * 2))
    inputs[_DATA] = context.derived_constant(data, new.kind, derive)
    if new.factor > 1:
        inputs[_SCALES] = context.derived_constant(scales, f"over_{new.factor}", recoding.divided(new.factor))
    if zero_points is not None:
        shape = (zero_points.rows, -(-zero_points.blocks // 2))
        inputs[_ZERO_POINTS] = packed_zero_points(context, zeros, new, zero_points, ir.DataType.UINT8, shape)
    context.layer_packed((data, scales, zeros), inputs[_DATA : _ZERO_POINTS + 1])
    while inputs[-1] is None:
        inputs.pop()
    attributes = [attribute for attribute in node.attributes.values() if attribute.name != "bits"]
    context.become(node, "MatMulNBits", inputs, [*attributes, ir.AttrInt64("bits", 4)], domain=node.domain)


def packed_zero_points(
    context: Context,
    value: ir.Value | None,
    new: Recoding,
    zero_points: ZeroPoints,
    dtype: ir.DataType,
    shape: tuple[int, int],
) -> ir.Value | None:
    """The 4-bit zero points as a constant, None where the default will do; UINT8 has rows of whole bytes."""
    if not new.needs_zero_points:
        return None
    assert value is not None
    whole_rows = dtype == ir.DataType.UINT8

    def derive(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return StreamedTensor(
            lambda: zero_points.packed(new, whole_rows=whole_rows), dtype, shape, name=tensor.name, like=tensor
        )

    return context.derived_constant(value, f"{new.kind}_{dtype.name}_{shape[0]}_{shape[1]}", derive)
