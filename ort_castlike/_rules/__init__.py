"""What each operator becomes when it takes or gives a value of an emulated type: one table, an entry an operator.

A rule is a function of the node and the :class:`~ort_castlike._context.Context`. It is called once the types of
all values are carriers, and leaves a node (or several) that stock onnxruntime and the package's own domain run.
An operator that is not in the table is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ort_castlike._context import Context
from ort_castlike._rules import bitcast, casts, constants, containers, control_flow, quantization, shape
from ort_castlike._rules.embeddings import pack_gather_block_quantized
from ort_castlike._rules.stock_casts import STOCK_CASTS
from ort_castlike._rules.weights import pack_matmul_nbits

__all__ = ["RULES", "STOCK_RULES", "WEIGHT_RULES", "Rule"]

Rule = Callable[[ir.Node, Context], None]

RULES: Mapping[tuple[str, str], Rule] = {
    **casts.RULES,
    **quantization.RULES,
    **shape.RULES,
    **constants.RULES,
    **bitcast.RULES,
    **control_flow.RULES,
    **containers.RULES,
}

# What a release gets wrong with stock types alone. These rules are called for nodes without an emulated type.
STOCK_RULES: Mapping[tuple[str, str], Rule] = {**STOCK_CASTS, **quantization.STOCK_RULES}

# Layers of com.microsoft that hold weights of few bits in bytes. These rules are called on top of the others.
WEIGHT_RULES: Mapping[tuple[str, str], Rule] = {
    ("com.microsoft", "GatherBlockQuantized"): pack_gather_block_quantized,
    ("com.microsoft", "MatMulNBits"): pack_matmul_nbits,
}
