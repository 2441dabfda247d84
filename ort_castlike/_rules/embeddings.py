"""2-bit ``GatherBlockQuantized`` tables of com.microsoft, as the exactly equal 4-bit tables.

Releases from 1.23 on take the 4-bit codes as bytes, as others take the 2-bit ones. Older ones take INT4 and UINT4
tensors alone. A table that is the weight of a MatMulNBits too is handed over by a Reshape; the two go on sharing it
where the codes are bytes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context
from ort_castlike._rules import recoding
from ort_castlike._rules.recoding import Recoding, ZeroPoints
from ort_castlike._rules.weights import leave, packed_zero_points, wants_packing, why_no_constant

__all__ = ["pack_gather_block_quantized"]


_TAKES_BYTES = (1, 23)  # the first release that takes 4-bit codes as bytes
_TAKES_ODD_ROWS = (1, 27)  # and the first that takes zero points of an odd number of blocks with them
_HAS_INT4 = 10  # the first IR version with INT4 and UINT4


@dataclasses.dataclass(frozen=True)
class _Table:
    """A table of (rows, columns) codes; ``data`` holds them, handed over by ``reshape`` where that is not None."""

    data: ir.Value
    reshape: ir.Node | None
    rows: int
    columns: int

    @classmethod
    def of(cls, node: ir.Node, context: Context) -> _Table | None:
        value = node.inputs[0]
        assert value is not None
        reshape = None
        shape: Sequence[int] | None = None
        producer = value.producer()
        if producer is not None and (producer.domain, producer.op_type) == ("", "Reshape"):
            reshape, (value, target) = producer, producer.inputs
            shape_tensor = context.constant(target)
            if shape_tensor is not None and not producer.attributes.get_int("allowzero", 0):
                shape = [int(size) for size in _constants.values(shape_tensor).reshape(-1)]
        tensor = context.constant(value)
        if value is None or tensor is None or tensor.dtype != ir.DataType.UINT8:
            return None
        size = math.prod(tensor.shape.numpy())
        if reshape is None:
            shape = tensor.shape.numpy()
        if shape is None or len(shape) != 2:
            return None
        shape = [_resolved(shape, index, size) for index in range(2)]
        if math.prod(shape) != size or min(shape) <= 0:
            return None
        return cls(value, reshape, shape[0], 4 * shape[1])

    def is_packed_for_a_layer(self, context: Context) -> bool:
        """Whether a MatMulNBits with the same codes gets 4 bits."""
        return any(use.node.op_type == "MatMulNBits" and wants_packing(use.node, context) for use in self.data.uses())


def pack_gather_block_quantized(node: ir.Node, context: Context) -> None:
    """Turn a GatherBlockQuantized of 2 bits with a constant table into one of 4 bits."""
    if node.attributes.get_int("bits", 4) != 2 or context.options.weights == "keep":
        return
    table = _Table.of(node, context)
    shared = table is not None and table.is_packed_for_a_layer(context)
    if not (context.options.packs("gather") or shared):
        return
    scales, zeros = (*node.inputs[2:], None, None)[:2]
    why = why_no_constant(context, scales, zeros)
    if table is None or why is not None:
        leave(node, context, why or "its table is no constant matrix of bytes")
        return
    block_size, axis = node.attributes.get_int("block_size", 128), node.attributes.get_int("quantize_axis", 1)
    blocks = -(-table.columns // block_size)
    zero_points = ZeroPoints(table.rows, blocks, context.constant(zeros))
    gather_axis = node.attributes.get_int("gather_axis", 0)
    is_integer = zero_points.tensor is None or zero_points.is_packed
    if axis not in (1, -1) or gather_axis not in (0, -2) or not zero_points.fits or not is_integer:
        leave(node, context, "its axes or the size of its zero points are none that onnxruntime takes")
        return
    as_bytes = _takes_bytes(context, zero_points)
    inputs = (_as_bytes if as_bytes else _as_elements)(node, context, table, zeros, zero_points)
    context.layer_packed((table.data, scales, zeros), (_source(inputs[0]), *inputs[1:]))
    attributes = [attribute for attribute in node.attributes.values() if attribute.name != "bits"]
    if as_bytes:
        attributes.append(ir.AttrInt64("bits", 4))
    while inputs[-1] is None:
        inputs.pop()
    context.become(node, "GatherBlockQuantized", inputs, attributes, domain=node.domain)
    context.changed(node, "GatherBlockQuantized", "the same table with 4 bits")


def _takes_bytes(context: Context, zero_points: ZeroPoints) -> bool:
    release = context.options.target.release
    new = recoding.recoding(zero_points, recoding.UNSIGNED)
    is_odd = zero_points.blocks % 2 == 1 and new is not None and new.needs_zero_points
    return release >= (_TAKES_ODD_ROWS if is_odd else _TAKES_BYTES)


def _as_bytes(
    node: ir.Node, context: Context, table: _Table, zeros: ir.Value | None, zero_points: ZeroPoints
) -> list[ir.Value | None]:
    new = recoding.recoding(zero_points, recoding.UNSIGNED)
    assert new is not None  # 2-bit zero points always have one
    constant = context.constant(table.data)
    assert constant is not None
    *outer, last = constant.shape.numpy()
    data = context.derived_constant(table.data, new.kind, recoding.wider(new, ir.DataType.UINT8, (*outer, last * 2)))
    if table.reshape is not None:
        shape = context.stock_constant(np.array([table.rows, table.columns // 2], np.int64), "shape")
        data = context.insert(
            node, "Reshape", [data, shape], gives="UINT8", shape=ir.Shape((table.rows, table.columns // 2))
        )
    row = -(-zero_points.blocks // 2)
    packed = packed_zero_points(context, zeros, new, zero_points, ir.DataType.UINT8, (table.rows, row))
    return [data, *node.inputs[1:3], packed]


def _as_elements(
    node: ir.Node, context: Context, table: _Table, zeros: ir.Value | None, zero_points: ZeroPoints
) -> list[ir.Value | None]:
    """INT4 where the default zero point will do, else UINT4: without zero points both have 0."""
    new = recoding.recoding(zero_points, recoding.SIGNED)
    dtype = ir.DataType.INT4
    if new is None or new.needs_zero_points:
        new, dtype = Recoding(1, 0, needs_zero_points=True), ir.DataType.UINT4
    derive = recoding.wider(new, dtype, (table.rows, table.columns))
    data = context.derived_constant(table.data, f"{new.kind}_{dtype.name}_{table.rows}", derive)
    context.model.ir_version = max(context.model.ir_version, _HAS_INT4)
    packed = packed_zero_points(context, zeros, new, zero_points, dtype, (table.rows, zero_points.blocks))
    return [data, *node.inputs[1:3], packed]


def _source(value: ir.Value | None) -> ir.Value | None:
    """The value itself, or what a Reshape gives it from."""
    producer = None if value is None else value.producer()
    return value if producer is None else producer.inputs[0]


def _resolved(shape: Sequence[int], index: int, size: int) -> int:
    """A size of the shape that a Reshape is given, where -1 stands for what is left."""
    if shape[index] != -1:
        return shape[index]
    return size // max(1, shape[1 - index])
