"""Cast and CastLike with an emulated type on either side: folded, or redirected as the lowering asks.

The custom lowering gives the domain's CastLike, between exact stock casts; the standard one stock operators alone.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants, _kernels
from ort_castlike._context import DOMAIN, Context, describe
from ort_castlike._errors import ModelError
from ort_castlike._rules.standard_casts import standard_cast
from ort_castlike._types import ElementType, element_type

__all__ = ["RULES", "cast", "fold", "redirect", "saturates"]


def cast(node: ir.Node, context: Context) -> None:
    """Fold a cast of a constant; redirect any other."""
    op_type = node.op_type
    source = node.inputs[0] if node.inputs else None
    from_type = context.element(source, node)
    to_type = context.element(node.outputs[0], node)
    _check_operands(node)
    assert source is not None
    if from_type == to_type:
        context.become(node, "Identity", [source])
        context.changed(node, op_type, "Identity, since both sides have the same type")
        return
    tensor = context.constant(source)
    if tensor is not None and "STRING" not in (from_type.name, to_type.name):
        fold(node, context, tensor, from_type, to_type)
        context.changed(node, op_type, f"a constant of {to_type.name}")
        return
    redirect(node, context, source, from_type, to_type)
    means = "stock operators" if context.options.lowering == "standard" else f"{DOMAIN}::CastLike"
    context.changed(node, op_type, f"{means} from {from_type.name} to {to_type.name}")


RULES = {("", "Cast"): cast, ("", "CastLike"): cast}


def _check_operands(node: ir.Node) -> None:
    if node.op_type == "CastLike" and (len(node.inputs) != 2 or node.inputs[1] is None):
        raise ModelError(f"node {describe(node)} has no target_type; CastLike takes two inputs")


def saturates(node: ir.Node) -> bool:
    """Whether a cast saturates, which it does by default."""
    return bool(node.attributes.get_int("saturate", 1))


def _round_mode(node: ir.Node) -> str:
    return node.attributes.get_string("round_mode", "up") or "up"


def fold(
    node: ir.Node,
    context: Context,
    tensor: ir.TensorProtocol,
    from_type: ElementType,
    to_type: ElementType,
) -> None:
    """Let a constant take the place of a node that casts one."""
    name = context.fresh_name(f"{node.outputs[0].name}_folded")
    _constants.check_payload(tensor)
    convert = functools.partial(
        _kernels.convert,
        from_type=from_type,
        to_type=to_type,
        rounding=context.options.rounding,
        saturate=saturates(node),
        round_mode=_round_mode(node),
    )
    folded = _constants.mapped_tensor(tensor, to_type, name, convert)
    if to_type.is_emulated:
        context.replace(node, context.emulated_constant(folded))
    else:
        context.replace(node, context.folded_constant(folded))


def redirect(node: ir.Node, context: Context, source: ir.Value, from_type: ElementType, to_type: ElementType) -> None:
    """Turn a node into a cast of ``source``; what it has of saturate and round_mode applies."""
    if context.options.lowering == "standard" or to_type.name == "STRING":  # the text is the runtime's in any case
        saturate, round_mode = saturates(node), _round_mode(node)
        standard_cast(node, context, source, from_type, to_type, saturate=saturate, round_mode=round_mode)
    else:
        _custom_cast(node, context, source, from_type, to_type)


def _custom_cast(
    node: ir.Node, context: Context, source: ir.Value, from_type: ElementType, to_type: ElementType
) -> None:
    """The domain's CastLike, with a stock Cast before or behind it where values cross in another type."""
    shape = source.shape
    crossing = from_type.crossing
    if crossing != (from_type.carrier or from_type.name):
        source = context.insert(node, "Cast", [source], [_to(crossing)], gives=crossing, shape=shape)
    # Out of a 2- or 4-bit integer, the narrow type alone crosses: what follows is an exact stock Cast of its carrier.
    widens = from_type.is_emulated and from_type.is_integer and not to_type.is_emulated
    given_type = element_type(crossing) if widens else to_type
    target = context.stock_constant(np.zeros(0, element_type(given_type.crossing).dtype), f"like_{given_type.crossing}")
    saturate, round_mode = saturates(node), _round_mode(node)
    attributes = [
        ir.AttrString("from_type", from_type.name),
        ir.AttrString("to_type", given_type.name),
        ir.AttrString("rounding", context.options.rounding),
        ir.AttrInt64("saturate", int(saturate)),
        ir.AttrString("round_mode", round_mode),
    ]
    final = to_type.carrier or to_type.name
    if final == given_type.crossing:
        context.become(node, "CastLike", [source, target], attributes, domain=DOMAIN)
        return
    given = context.insert(
        node, "CastLike", [source, target], attributes, gives=given_type.crossing, shape=shape, domain=DOMAIN
    )
    if widens:
        standard_cast(node, context, given, from_type, to_type, saturate=saturate, round_mode=round_mode)
        return
    cast_attributes = [_to(final)]
    if final.startswith("FLOAT8") and not saturate:
        cast_attributes.append(ir.AttrInt64("saturate", 0))
    context.become(node, "Cast", [given], cast_attributes)


def _to(name: str) -> ir.Attr:
    return ir.AttrInt64("to", ir.DataType[name])
