"""DequantizeLinear: the stock operator on the carrier or on a packed constant, with what keeps it right.

The standard: y = (x - zero_point) * scale. Here the product is a float32, rounded once more to the output type where
that has 16 bits. For 16-bit and FLOAT8E8M0 scales that is the exact product rounded once: such a scale times a small
integer, a float4 or a float6 fits the 24 digits of a float32.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context, describe
from ort_castlike._errors import ModelError
from ort_castlike._rules.fusing import make_fusible
from ort_castlike._rules.granularity import Granularity
from ort_castlike._rules.operands import converted, operands, zeros_like
from ort_castlike._targets import LONGEST_FUSED_BLOCK
from ort_castlike._types import ElementType, element_type

__all__ = ["dequantize", "is_optimized"]

_OUTPUT_TYPES = ("FLOAT", "FLOAT16", "BFLOAT16")
# The optimizer moves these in front of a DequantizeLinear without blocks, by way of a QuantizeLinear. Up to 1.29 that
# has a wrong type where there is no zero point, and truncates in float16; 1.23 lacks it at opset 23; 1.32 gets a zero
# point of int8 wrong.
_MOVED = frozenset(("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"))
_SEEN_THROUGH = frozenset(("Cast", "CastLike", "Dropout", "Identity"))
# From 1.21 on the optimizer rounds the bias of these (a MatMul and an Add become a Gemm) to whole multiples of the
# scales' product where the first input is dequantized by a single scale and the weights by one for each channel. With
# 8 bits that loses little, with 2 it ruins the sum.
_BIASED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


@dataclasses.dataclass
class _Stock:
    """The stock DequantizeLinear that computes a node, before it is put into the graph."""

    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    granularity: Granularity

    @property
    def inputs(self) -> list[ir.Value]:
        return [value for value in (self.x, self.scale, self.zero_point) if value is not None]

    def emit(self, node: ir.Node, context: Context, to_type: ElementType) -> ir.Node:
        """Turn ``node`` into it, and a Cast where it gives another type than is wanted; the node that it became."""
        assert self.scale.type is not None
        gives = self.scale.type.dtype.name
        attributes = self.granularity.attributes()
        if gives == to_type.name:
            context.become(node, "DequantizeLinear", self.inputs, attributes)
            return node
        shape = node.outputs[0].shape
        product = context.insert(node, "DequantizeLinear", self.inputs, attributes, gives=gives, shape=shape)
        context.become(node, "Cast", [product], [ir.AttrInt64("to", ir.DataType[to_type.name])])
        producer = product.producer()
        assert producer is not None
        return producer


def dequantize(node: ir.Node, context: Context) -> None:
    """Dequantize the carrier, or a constant in a packed type that the runtime fuses into its 4-bit kernels."""
    make_fusible(node, context)
    x, scale, zero_point = operands(node)
    from_type, to_type = context.element(x, node), context.element(node.outputs[0], node)
    if to_type.name not in _OUTPUT_TYPES:
        raise ModelError(
            f"node {describe(node)}: DequantizeLinear gives {to_type.name}, and can give {', '.join(_OUTPUT_TYPES)}; "
            "set output_dtype, which a FLOAT8E8M0 scale needs"
        )
    stock = _Stock(x, scale, zero_point, Granularity.of(node))
    stock.granularity.check(node, x, scale, zero_point)
    is_small_float = from_type.is_emulated and from_type.is_float
    has_integers = not is_small_float or (from_type.name == "FLOAT4E2M1" and _can_double(context, stock))
    # The stock operator takes a single scale for one of the whole tensor, and refuses a block size with it.
    is_open = stock.granularity.may_be_one_block(x, scale)
    if not has_integers or is_open or (_is_optimized(node, context, stock) and not _make_one_block(context, stock)):
        _dequantize_floats(node, context, stock, to_type)
    elif is_small_float:
        _dequantize_doubled(node, context, stock, to_type)
    else:
        _dequantize_integers(node, context, stock, from_type, to_type)


def _dequantize_integers(
    node: ir.Node, context: Context, stock: _Stock, from_type: ElementType, to_type: ElementType
) -> None:
    packs = from_type.is_emulated and _is_constant(context, stock.x, stock.zero_point)
    exposed = not (packs or stock.granularity.block_size)  # to moves that were not foreseen
    if exposed and stock.zero_point is None and from_type.is_integer and from_type.bits <= 16:
        stock.zero_point = zeros_like(node, context, stock.scale, from_type.carrier or from_type.name)
    if exposed or to_type.name != "FLOAT16" or context.element(stock.scale, node) != to_type:
        stock.scale = converted(node, context, stock.scale, "FLOAT")
    _split_blocks(context, stock)
    unchanged = (
        from_type.packed == from_type.name
        and packs
        and list(node.inputs[: len(stock.inputs)]) == stock.inputs
        and stock.scale.type == node.outputs[0].type
        and stock.granularity.block_size == node.attributes.get_int("block_size", 0)
        and not node.attributes.get_int("output_dtype", 0)
    )
    if unchanged:
        context.pack(node, 0, 2)
        return
    becomes = stock.emit(node, context, to_type)
    if packs:
        context.pack(becomes, 0, 2)
    held = (from_type.packed if packs else from_type.carrier) or from_type.name
    context.changed(node, "DequantizeLinear", f"DequantizeLinear of {held}")


def _is_constant(context: Context, *values: ir.Value | None) -> bool:
    return all(value is None or context.constant(value) is not None for value in values)


def _is_optimized(node: ir.Node, context: Context, stock: _Stock) -> bool:
    """As ``is_optimized``, with a closer look at the bias."""
    return not stock.granularity.block_size and _is_followed(
        node, lambda user, index: _rounds_bias(user, index, context, stock)
    )


def is_optimized(node: ir.Node) -> bool:
    """Whether the optimizer may change what comes of a node: by a move in front of it, or by rounding a bias."""
    return not node.attributes.get_int("block_size", 0) and _is_followed(node, _may_round_bias)


def _may_round_bias(node: ir.Node, _: int) -> bool:
    if node.op_type not in _BIASED:
        return False
    first = node.inputs[0]
    producer = None if first is None else first.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _is_followed(node: ir.Node, rounds_bias: Callable[[ir.Node, int], bool]) -> bool:
    pending, seen = list(node.outputs), set(node.outputs)
    while pending:
        for use in pending.pop().uses():
            if use.node.op_type in _MOVED or rounds_bias(use.node, use.idx):
                return True
            if use.node.op_type in _SEEN_THROUGH:
                fresh = [output for output in use.node.outputs if output not in seen]
                pending.extend(fresh)
                seen.update(fresh)
    return False


def _rounds_bias(node: ir.Node, index: int, context: Context, stock: _Stock) -> bool:
    if node.op_type not in _BIASED:
        return False
    if index == 0:
        return _is_single(stock.scale)
    # Where the first input is of an emulated type too, its own DequantizeLinear has been seen to.
    first = node.inputs[0]
    producer = None if first is None else first.producer()
    return (
        index == 1
        and producer is not None
        and producer.op_type == "DequantizeLinear"
        and not context.is_emulated(producer.inputs[0])
        and _is_single(producer.inputs[1])
    )


def _is_single(scale: ir.Value | None) -> bool:
    """Whether it may be one scale for all elements."""
    return scale is not None and (scale.shape is None or all(size == 1 for size in scale.shape))


def _make_one_block(context: Context, stock: _Stock) -> bool:
    """Make a constant one of blocks that are as long as an axis, which the optimizer leaves alone.

    Returns:
        False where that cannot be done.
    """
    data = context.constant(stock.x)
    if data is None or len(data.shape) < 2 or not _is_constant(context, stock.scale, stock.zero_point):
        return False
    shape = data.shape.numpy()
    axis = stock.granularity.axis % len(shape)
    block_axis = 1 if axis == 0 else 0
    as_block = functools.partial(_one_block, axis=axis, shape=(*shape[:block_axis], 1, *shape[block_axis + 1 :]))
    kind = f"one_block_{axis}_{'_'.join(map(str, shape))}"
    stock.scale = context.derived_constant(stock.scale, kind, as_block)
    if stock.zero_point is not None:
        stock.zero_point = context.derived_constant(stock.zero_point, kind, as_block)
    stock.granularity = Granularity(block_axis, max(1, shape[block_axis]))
    return True


def _one_block(tensor: ir.TensorProtocol, *, axis: int, shape: tuple[int, ...]) -> ir.TensorProtocol:
    values = _constants.values(tensor).reshape(-1, *(1 for _ in shape[axis + 1 :]))
    return _like(tensor, np.broadcast_to(values, shape))


def _like(tensor: ir.TensorProtocol, values: np.ndarray) -> ir.TensorProtocol:
    """New values of a tensor, in the packed type of its own."""
    element = element_type(tensor.dtype)
    if element.packed is not None:
        return _constants.emulated_tensor(np.ascontiguousarray(values), element_type(element.packed), "")
    return ir.Tensor(np.ascontiguousarray(values), dtype=None if element.is_emulated else tensor.dtype)


def _split_blocks(context: Context, stock: _Stock) -> None:
    """Blocks of at most 256: the fused kernels of 1.20 to 1.29 give garbage or do not load with larger ones.

    They take powers of two and constants only.
    """
    axis, block_size = stock.granularity.axis, stock.granularity.block_size
    is_power = block_size & (block_size - 1) == 0
    if block_size <= LONGEST_FUSED_BLOCK or not is_power or not _is_constant(context, *stock.inputs):
        return
    data = context.constant(stock.x)
    assert data is not None
    blocks = -(-data.shape.numpy()[axis] // LONGEST_FUSED_BLOCK)
    times = block_size // LONGEST_FUSED_BLOCK
    kind = f"times_{times}_{axis}_{blocks}"
    repeat = functools.partial(_repeated, times=times, axis=axis, size=blocks)
    stock.scale = context.derived_constant(stock.scale, kind, repeat)
    if stock.zero_point is not None:
        stock.zero_point = context.derived_constant(stock.zero_point, kind, repeat)
    stock.granularity = Granularity(axis, LONGEST_FUSED_BLOCK)


def _repeated(tensor: ir.TensorProtocol, *, times: int, axis: int, size: int) -> ir.TensorProtocol:
    repeated = np.repeat(_constants.values(tensor), times, axis=axis)
    return _like(tensor, repeated.take(np.arange(size), axis=axis))


def _can_double(context: Context, stock: _Stock) -> bool:
    """Whether 2x is a constant of int8 and half the scale exact, so far as that can be known.

    A computed float32 scale counts as exact: below 2**-125 its half may lose the last digit, 2**-150.
    """
    if not _is_constant(context, stock.x, stock.zero_point):
        return False
    scale = context.constant(stock.scale)
    if scale is None:
        return True
    values = _constants.values(scale).astype(np.float32)
    return bool(((values * np.float32(0.5) * np.float32(2) == values) | np.isnan(values)).all())


def _dequantize_doubled(node: ir.Node, context: Context, stock: _Stock, to_type: ElementType) -> None:
    """A constant FLOAT4E2M1 as int8 that holds 2x, with half the scale."""
    stock.x = context.derived_constant(stock.x, "doubled", _doubled)
    if stock.zero_point is not None:
        stock.zero_point = context.derived_constant(stock.zero_point, "doubled", _doubled)
    elif not stock.granularity.block_size:
        stock.zero_point = zeros_like(node, context, stock.scale, "INT8")
    if context.constant(stock.scale) is not None:
        stock.scale = context.derived_constant(stock.scale, "half_float", _half)
    else:
        half = context.stock_constant(np.array(0.5, np.float32), "half")
        scale = converted(node, context, stock.scale, "FLOAT")
        stock.scale = context.insert(node, "Mul", [scale, half], gives="FLOAT", shape=scale.shape)
    _split_blocks(context, stock)
    stock.emit(node, context, to_type)
    context.changed(node, "DequantizeLinear", "DequantizeLinear of INT8 that holds 2x, with half the scale")


def _doubled(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return _constants.mapped_tensor(tensor, element_type("INT8"), "", lambda values: (values * 2).astype(np.int8))


def _half(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    half = np.float32(0.5)
    return _constants.mapped_tensor(tensor, element_type("FLOAT"), "", lambda values: values.astype(np.float32) * half)


def _dequantize_floats(node: ir.Node, context: Context, stock: _Stock, to_type: ElementType) -> None:
    """The arithmetic itself, in float32; the stock operator takes no float16 as data."""
    data = converted(node, context, stock.x, "FLOAT")
    if stock.zero_point is not None:
        offset = converted(node, context, stock.zero_point, "FLOAT")
        offset = stock.granularity.spread(node, context, offset, stock.x)
        data = context.insert(node, "Sub", [data, offset], gives="FLOAT", shape=stock.x.shape)
    scale = converted(node, context, stock.scale, "FLOAT")
    scale = stock.granularity.spread(node, context, scale, stock.x)
    if to_type.name == "FLOAT":
        context.become(node, "Mul", [data, scale])
    else:
        product = context.insert(node, "Mul", [data, scale], gives="FLOAT", shape=stock.x.shape)
        context.become(node, "Cast", [product], [ir.AttrInt64("to", ir.DataType[to_type.name])])
    context.changed(node, "DequantizeLinear", "a product in float32")
