"""Functions and models of different opsets brought to one, where every node provably means the same at both."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ort_castlike._context import describe
from ort_castlike._errors import ModelError
from ort_castlike._opset._bumps import ADDITIONS
from ort_castlike._opset._schemas import bumps

__all__ = ["lift"]

# Versions that only added types, or attributes whose defaults say what was meant before. Lowering has most of those
# above 21; the rest is here, since a form that cannot always go down can always go up.
_ADDITIONS: frozenset[tuple[str, int]] = ADDITIONS | frozenset(
    (op_type, opset)
    for opset, names in {
        19: "Cast CastLike Constant DequantizeLinear Equal Identity If Loop Pad QuantizeLinear Reshape Scan Shape Size",
        20: "ConstantOfShape IsInf IsNaN ReduceMax ReduceMin",
        21: "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad QuantizeLinear "
        "Reshape Scan Shape Size Squeeze Transpose Unsqueeze",
        23: "DequantizeLinear QuantizeLinear",
        24: "Cast CastLike",
    }.items()
    for op_type in names.split()
)


def lift(function: ir.Function, model: ir.Model) -> None:
    """Let the nodes of ``function`` stand in ``model``: the older of the two is lifted to the newer's opset.

    Raises:
        ModelError: A node changed its meaning between the two opsets, or another domain has two versions.
    """
    name = f"{function.domain}::{function.name}"
    for domain, version in function.opset_imports.items():
        present = model.opset_imports.get(domain)
        if present is None:
            model.opset_imports[domain] = version
        elif domain == "" and version != present:
            older, nodes = (f"function {name}", function) if version < present else ("the model", model.graph)
            _check(nodes.all_nodes(), min(version, present), max(version, present), older, name)
            model.opset_imports[""] = max(version, present)
        elif version != present and any(
            node.domain == domain and node.op_identifier() not in model.functions for node in function.all_nodes()
        ):
            raise ModelError(
                f"function {name} imports version {version} of {domain!r} and the model imports version {present}; "
                "export both with the same version"
            )


def _check(nodes: Iterable[ir.Node], low: int, high: int, where: str, name: str) -> None:
    for node in nodes:
        if node.domain == "" and not all(
            (node.op_type, version) in _ADDITIONS for version in bumps(node.op_type, low, high)
        ):
            raise ModelError(
                f"function {name} must be inlined, and it and the model import the opsets {low} and {high}: node "
                f"{describe(node)} of {where} is written for opset {low}, and opset {high} changed its operator; "
                "export both with the same opset"
            )
