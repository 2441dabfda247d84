"""A chain of stock operators in front of a node, the last of which the node itself becomes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ort_castlike._context import Context
from ort_castlike._types import element_type

__all__ = ["Chain"]


class Chain:
    """Puts stock operators in front of one node, all of whose values have the same shape or are scalars.

    Args:
        node: The node that the chain stands for.
        context: The rewrite.
        shape: Shape of the values.
    """

    def __init__(self, node: ir.Node, context: Context, shape: ir.Shape | None) -> None:
        self._node = node
        self._context = context
        self._shape = shape
        self._given: list[ir.Value] = []

    def __call__(self, op_type: str, *inputs: ir.Value, gives: str = "", **attributes: float | str) -> ir.Value:
        """Add an operator and give its output, of the element type named ``gives``: by default the first input's."""
        value = self._context.insert(
            self._node,
            op_type,
            inputs,
            [_attribute(name, attribute) for name, attribute in attributes.items()],
            gives=gives or self.type_of(inputs[0]),
            shape=self._shape,
        )
        self._given.append(value)
        return value

    def cast(self, value: ir.Value, to: str, **attributes: float | str) -> ir.Value:
        """A value in the stock type named ``to``: itself where it has that type."""
        if self.type_of(value) == to:
            return value
        return self("Cast", value, gives=to, to=int(ir.DataType[to]), **attributes)

    def scalar(self, number: float, type_: str) -> ir.Value:
        """A constant of no axes, of the element type named ``type_``."""
        return self._context.stock_constant(np.array(number, element_type(type_).dtype), "scalar")

    def clip(self, value: ir.Value, low: float, high: float) -> ir.Value:
        """Bring the numbers into low...high; what becomes of a NaN depends on the runtime."""
        type_ = self.type_of(value)
        return self("Clip", value, self.scalar(low, type_), self.scalar(high, type_))

    def times(self, value: ir.Value, factor: float) -> ir.Value:
        """Multiply by a constant."""
        return self("Mul", value, self.scalar(factor, self.type_of(value)))

    def select(self, condition: ir.Value, value: ir.Value, otherwise: float) -> ir.Value:
        """The value where the condition holds, a constant elsewhere."""
        type_ = self.type_of(value)
        return self("Where", condition, value, self.scalar(otherwise, type_), gives=type_)

    def finish(self, value: ir.Value) -> None:
        """Let the node become the operator that gives ``value``; an Identity where the chain added none."""
        last = value.producer()
        if value not in self._given or last is None or last.graph is None:
            self._context.become(self._node, "Identity", [value])
            return
        self._context.become(self._node, last.op_type, list(last.inputs), dict(last.attributes))
        last.graph.remove(last, safe=True)

    @staticmethod
    def type_of(value: ir.Value) -> str:
        """The name of a value's element type."""
        assert value.dtype is not None
        return value.dtype.name


def _attribute(name: str, value: float | str) -> ir.Attr:
    if isinstance(value, str):
        return ir.AttrString(name, value)
    return ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrFloat32(name, value)
