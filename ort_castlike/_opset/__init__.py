"""Lowering of the opset and IR version: proven node by node against ONNX's schemas, refused where it cannot be."""

from ort_castlike._opset._gaps import usable_opset
from ort_castlike._opset._lower import lower

__all__ = ["lower", "usable_opset"]
