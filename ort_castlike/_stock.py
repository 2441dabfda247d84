"""Which releases run a model as it is: what each of them does with the emulated types.

Every entry was probed by running a model of one operator on 1.20, 1.23, 1.24, 1.27 and 1.32.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ort_castlike._opset import usable_opset
from ort_castlike._targets import TARGETS, Target

__all__ = ["releases_for", "releases_that_run"]

Release = tuple[int, int]

_QUANTIZE = ("DequantizeLinear", "QuantizeLinear")
_CAST = ("Cast", "CastLike")
_MOVE = ("Identity", "Shape", "Transpose")


def _since(**families: Release) -> Mapping[str, Release]:
    listed = {"quantize": _QUANTIZE, "cast": _CAST, "move": _MOVE, "hold": ("Constant",)}
    return {op_type: release for family, release in families.items() for op_type in listed[family]}


_FOUR_BITS = _since(hold=(1, 20), quantize=(1, 20), cast=(1, 23), move=(1, 24))
_TWO_BITS = _since(hold=(1, 24), quantize=(1, 24), cast=(1, 24), move=(1, 24))
# For each emulated type, the first release that has a kernel for an operator on it. "Constant" stands for loading a
# model that holds the type; a type that is not listed is loaded by none.
_KERNELS: Mapping[str, Mapping[str, Release]] = {
    "INT4": _FOUR_BITS,
    "UINT4": _FOUR_BITS,
    "INT2": _TWO_BITS,
    "UINT2": _TWO_BITS,
    "FLOAT4E2M1": _since(hold=(1, 23)),
    "FLOAT8E8M0": _since(hold=(1, 24), cast=(1, 27)),
}


# From these releases on an operator is known to give wrong numbers in some graphs: 2-bit weights in front of a MatMul
# are fused, and the fused operator errs where the number of columns is no multiple of 4 (seen up to 1.32).
_ERRS: Mapping[tuple[str, str], Release] = {
    ("DequantizeLinear", "INT2"): (1, 27),
    ("DequantizeLinear", "UINT2"): (1, 27),
}


def releases_that_run(
    model: ir.Model, uses: Iterable[tuple[str, str, str]], opset: int, ir_version: int
) -> tuple[str, ...]:
    """The releases that run a model as it is, and right, by what is known of its emulated types.

    Args:
        model: The model.
        uses: (domain, operator, name of the element type) wherever a node meets an emulated type; the operator is
            "Constant" where a graph just holds one.
        opset: The model's ai.onnx version.
        ir_version: The model's IR version.
    """
    listed = set(uses)
    operators = {node.op_type for node in model.graph.all_nodes() if node.domain == ""}
    return tuple(
        str(target)
        for target in TARGETS
        if _loads(target, opset, ir_version)
        and usable_opset(target, {opset: operators}) >= opset
        and all(_has_kernel(target, *use) for use in listed)
    )


def releases_for(opset: int, ir_version: int) -> tuple[str, ...]:
    """The releases that load a model of an opset and an IR version."""
    return tuple(str(target) for target in TARGETS if _loads(target, opset, ir_version))


def _loads(target: Target, opset: int, ir_version: int) -> bool:
    return opset <= target.opset and ir_version <= target.ir_version


def _has_kernel(target: Target, domain: str, op_type: str, element: str) -> bool:
    since = _KERNELS.get(element, {}).get(op_type) if domain == "" else None
    errs = _ERRS.get((op_type, element))
    return since is not None and target.release >= since and (errs is None or target.release < errs)
