"""Operators that move elements and never look at them: they run as they are, on the carrier."""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._context import Context

__all__ = ["RULES", "keep"]


def keep(node: ir.Node, context: Context) -> None:
    """Leave the node as it is: its inputs and outputs are carriers already."""


RULES = {
    ("", op_type): keep
    for op_type in (
        "Flatten",
        "Identity",
        "Pad",
        "Reshape",
        "Shape",
        "Size",
        "Squeeze",
        "TensorScatter",
        "Transpose",
        "Unsqueeze",
    )
}
