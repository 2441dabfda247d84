"""How scales and zero points lie over the tensor that they belong to: one for all, for each slice, for each block."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from ort_castlike._context import Context, describe
from ort_castlike._errors import ModelError

__all__ = ["Granularity"]


@dataclasses.dataclass(frozen=True)
class Granularity:
    """How the scale of a QuantizeLinear or DequantizeLinear lies over its data.

    Attributes:
        axis: The quantization axis, negative values count from the back.
        block_size: Elements of that axis which share a scale; 0 where there are no blocks.
    """

    axis: int
    block_size: int

    @classmethod
    def of(cls, node: ir.Node) -> Granularity:
        axis, block_size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
        # The runtime takes a single scale for one of the whole tensor, and refuses a block size with it.
        return cls(axis, 0 if _is_one_block(node, axis, block_size) else block_size)

    def may_be_one_block(self, data: ir.Value, scale: ir.Value) -> bool:
        """Whether a vector of blocks may turn out to be a single one when it runs."""
        return (
            self.block_size > 0
            and data.shape is not None
            and len(data.shape) == 1
            and not isinstance(data.shape[0], int)
            and (scale.shape is None or not isinstance(scale.shape[0], int))
        )

    def attributes(self) -> list[ir.Attr]:
        """The attributes that say so, the default aside."""
        attributes = [ir.AttrInt64("axis", self.axis)] if self.axis != 1 else []
        if self.block_size:
            attributes.append(ir.AttrInt64("block_size", self.block_size))
        return attributes

    def check(self, node: ir.Node, data: ir.Value, *values: ir.Value | None) -> None:
        """Refuse scales and zero points that do not fit the data, so far as their shapes are known.

        Raises:
            ModelError: The axis, the block size or a shape is wrong.
        """
        if data.shape is None:
            return
        rank = len(data.shape)
        if self.block_size < 0 or (self.block_size and not -rank <= self.axis < rank):
            raise ModelError(
                f"node {describe(node)}: axis {self.axis} and block_size {self.block_size} are not possible for "
                f"{data.name!r} of {rank} dimensions"
            )
        for value in values:
            if value is not None and value.shape is not None and not self._fits(data.shape, value.shape):
                raise ModelError(
                    f"node {describe(node)}: {value.name!r} of shape {value.shape} does not fit {data.name!r} of shape "
                    f"{data.shape} with axis {self.axis} and block_size {self.block_size}"
                )

    def _fits(self, data: ir.Shape, scale: ir.Shape) -> bool:
        if not self.block_size:
            if len(scale) == 0 or (len(scale) == 1 and _may_equal(scale[0], 1)):
                return True
            place = 0 if len(data) == 1 else self.axis  # with one dimension the axis says nothing
            return len(scale) == 1 and -len(data) <= place < len(data) and _may_equal(data[place], scale[0])
        expected = list(data)
        size = expected[self.axis]
        if isinstance(size, int):
            expected[self.axis] = -(-size // self.block_size)
        else:
            expected[self.axis] = ir.SymbolicDim(None)
        return len(scale) == len(data) and all(map(_may_equal, expected, scale))

    def can_spread(self, value: ir.Value, data: ir.Value) -> bool:
        """Whether enough is known of the shapes to spread a scale or zero point over the data."""
        return data.shape is not None or self.axis < 0 or _is_single(value)

    def spread(self, node: ir.Node, context: Context, value: ir.Value, data: ir.Value) -> ir.Value:
        """A scale or zero point in a shape that broadcasts to ``data``, by nodes in front of ``node``.

        Raises:
            ModelError: That takes the rank of the data, and it is not known.
        """
        assert value.type is not None
        gives = value.type.dtype.name
        if self.block_size:
            indices = self._block_of_each(node, context, data)
            return context.insert(node, "Gather", [value, indices], [ir.AttrInt64("axis", self.axis)], gives=gives)
        is_single = _is_single(value)
        if (is_single and data.shape is None) or (data.shape is not None and len(data.shape) == 0):
            # A vector of one would give a scalar a dimension.
            scalar = context.stock_constant(np.zeros(0, np.int64), "shape")
            return context.insert(node, "Reshape", [value, scalar], gives=gives, shape=ir.Shape([]))
        behind = 0 if is_single else self._dimensions_behind(node, data)
        if behind <= 0:
            return value
        shape = context.stock_constant(np.array([-1] + [1] * behind, np.int64), "shape")
        return context.insert(node, "Reshape", [value, shape], gives=gives)

    def _dimensions_behind(self, node: ir.Node, data: ir.Value) -> int:
        """How many dimensions of the data follow the axis."""
        if self.axis < 0:
            return -self.axis - 1
        if data.shape is None:
            raise ModelError(
                f"node {describe(node)}: the rank of {data.name!r} is not known; give it a value_info in the model"
            )
        return len(data.shape) - self.axis - 1

    def _block_of_each(self, node: ir.Node, context: Context, data: ir.Value) -> ir.Value:
        """For each place on the axis, the number of its block."""
        size = None if data.shape is None else data.shape[self.axis]
        if isinstance(size, int):
            return context.stock_constant(np.arange(size, dtype=np.int64) // self.block_size, "blocks")
        axis = context.stock_constant(np.array(self.axis, np.int64), "axis")
        zero, one = (context.stock_constant(np.array(number, np.int64), "number") for number in (0, 1))
        block_size = context.stock_constant(np.array(self.block_size, np.int64), "number")
        shape = context.insert(node, "Shape", [data], gives="INT64")
        count = context.insert(node, "Gather", [shape, axis], gives="INT64")
        places = context.insert(node, "Range", [zero, count, one], gives="INT64")
        return context.insert(node, "Div", [places, block_size], gives="INT64")


def _is_one_block(node: ir.Node, axis: int, block_size: int) -> bool:
    """Whether all of a vector is a single block."""
    data, scale = [*node.inputs, None, None][:2]
    if data is None or data.shape is None or scale is None or len(data.shape) != 1:
        return False
    if axis not in (0, -1) or block_size <= 0:
        return False
    size = data.shape[0]
    if not isinstance(size, int):
        return scale.shape is not None and scale.shape == (1,)
    return size <= block_size and (scale.shape is None or (len(scale.shape) == 1 and _may_equal(scale.shape[0], 1)))


def _is_single(value: ir.Value) -> bool:
    """Whether it is known to be one scale or zero point for all elements."""
    return value.shape is not None and (len(value.shape) == 0 or value.shape == (1,))


def _may_equal(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    return not (isinstance(one, int) and isinstance(other, int)) or one == other
