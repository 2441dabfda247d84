"""Casts between stock types that a supported release gets wrong: other stock operators, in both lowerings.

Every other cast between stock types stays as it is. ``_flaws`` lists the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ort_castlike._context import Context
from ort_castlike._flaws import flaws_of
from ort_castlike._rules.casts import fold, saturates
from ort_castlike._rules.chain import Chain
from ort_castlike._rules.small_floats import Format, round_to_format
from ort_castlike._rules.standard_casts import as_double
from ort_castlike._types import element_type

__all__ = ["STOCK_CASTS"]

# The opset from which on the operators that are put in take the types that they must.
_SINCE, _SINCE_FOR_64_BITS = 13, 18

_FORMATS: Mapping[str, Format] = {
    "FLOAT16": Format(10, -14, 65504.0),
    "BFLOAT16": Format(7, -126, 2.0**128 - 2.0**120),
    "FLOAT8E4M3FN": Format(3, -6, 448.0),
    "FLOAT8E4M3FNUZ": Format(3, -7, 240.0),
    "FLOAT8E5M2": Format(2, -14, 57344.0),
    "FLOAT8E5M2FNUZ": Format(2, -15, 57344.0),
}
# The largest FLOAT that does not round to what lies beyond the range, where the stock cast knows another.
_LAST = {"FLOAT8E4M3FN": 464.0, "FLOAT8E5M2": float(np.nextafter(np.float32(61440.0), np.float32(0.0)))}


def stock_cast(node: ir.Node, context: Context) -> None:
    """Replace a cast between stock types that is in the table of flaws; leave any other."""
    source, output = node.inputs[0] if node.inputs else None, node.outputs[0]
    if source is None or source.dtype is None or output.dtype is None:
        return  # what a foreign operator gives, say; the runtime knows more
    from_type, to_type = element_type(source.dtype), element_type(output.dtype)
    saturate = saturates(node)
    flaws = flaws_of(from_type.name, to_type.name, saturate)
    since = _SINCE_FOR_64_BITS if from_type.name in ("INT64", "UINT64") else _SINCE
    if not flaws or context.model.opset_imports.get("", 1) < since:
        return
    op_type = node.op_type
    tensor = context.constant(source)
    if tensor is not None and from_type.name != "STRING":
        fold(node, context, tensor, from_type, to_type)
    else:
        _replace(node, context, source, to_type.name, saturate)
    means = "; ".join(flaw.reason for flaw in flaws)
    context.changed(node, op_type, f"what casts {from_type.name} to {to_type.name} right: the stock cast {means}")


STOCK_CASTS: Mapping[tuple[str, str], Callable[[ir.Node, Context], None]] = {
    ("", "Cast"): stock_cast,
    ("", "CastLike"): stock_cast,
}


def _replace(node: ir.Node, context: Context, source: ir.Value, to: str, saturate: bool) -> None:
    chain = Chain(node, context, source.shape)
    if to == "BOOL":
        zero = chain("Equal", chain.cast(source, "FLOAT"), chain.scalar(0.0, "FLOAT"), gives="BOOL")
        chain.finish(chain("Not", zero))
        return
    value = _rounded_once(chain, source, to)
    if not saturate and to in _LAST:
        value = _to_infinity(chain, value, _LAST[to])
    chain.finish(chain.cast(value, to, **({} if saturate else {"saturate": 0})))


def _rounded_once(chain: Chain, source: ir.Value, to: str) -> ir.Value:
    """A value that a stock cast takes to the type named ``to`` as if it had rounded ``source`` once."""
    type_ = chain.type_of(source)
    if type_ == "DOUBLE":
        return round_to_format(chain, source, _FORMATS[to])
    if to != "BFLOAT16":
        return chain.cast(source, "FLOAT")
    if type_ != "INT64":
        return round_to_format(chain, as_double(chain, source), _FORMATS[to])
    magnitude = chain.cast(chain("Abs", source), "UINT64")  # right for the smallest number too, which is its own Abs
    rounded = round_to_format(chain, as_double(chain, magnitude), _FORMATS[to])
    negative = chain("Less", source, chain.scalar(0, "INT64"), gives="BOOL")
    return chain("Where", negative, chain("Neg", rounded), rounded, gives="DOUBLE")


def _to_infinity(chain: Chain, value: ir.Value, last: float) -> ir.Value:
    """The value divided by 1, or by 0 where it is larger than ``last``; no Where, which crashes 1.24 in places."""
    type_ = chain.type_of(value)
    inside = chain("LessOrEqual", chain("Abs", value), chain.scalar(last, type_), gives="BOOL")
    return chain("Div", value, chain.cast(inside, type_))
