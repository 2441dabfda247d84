"""Lowering of the IR version: what each one added must be absent, or be without meaning."""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._opset._census import tensor_elements
from ort_castlike._targets import Target

__all__ = ["check_ir_version", "lower_ir_version"]

# The first IR version that has an element type; IR 10 has all others.
_TYPES_SINCE = {
    "float4e2m1": 11,
    "float8e8m0": 12,
    "int2": 13,
    "uint2": 13,
    "float6e2m3": 14,
    "float6e3m2": 14,
}
# What IR 11 added besides: plans for several devices, which say where a node runs and nothing of what it computes.
_DEVICES_SINCE = 11


def check_ir_version(model: ir.Model, target: Target) -> dict[str, int]:
    """The element types of a model that the target's IR version lacks, with the first version that has each."""
    return {
        element: _TYPES_SINCE[element]
        for element in sorted(tensor_elements(model))
        if _TYPES_SINCE.get(element, 0) > target.ir_version
    }


def lower_ir_version(model: ir.Model, target: Target) -> list[str]:
    """Lower a model's IR version where it is higher than the target's, and say so."""
    if model.ir_version <= target.ir_version:
        return []
    lines = [f"IR version lowered from {model.ir_version} to {target.ir_version}"]
    if target.ir_version < _DEVICES_SINCE:
        dropped = len(model.device_configurations)
        model.device_configurations = ()
        for root in (model.graph, *(function.graph for function in model.functions.values())):
            for graph in (root, *root.subgraphs()):
                for node in graph:
                    dropped += len(node.device_configurations)
                    node.device_configurations = ()
        if dropped:
            lines.append(f"multi-device configurations dropped, IR version {target.ir_version} has none ({dropped})")
    model.ir_version = target.ir_version
    return lines
