"""What a bump that changed more than types and attributes asks of a node, and lower forms of new operators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ort_castlike._opset._census import type_of
from ort_castlike._opset._forms import bit_cast, bit_shift, cropped_pool, cum_prod, floor_mod, tensor_scatter
from ort_castlike._opset._fragments import FragmentBuilder
from ort_castlike._opset._schemas import element_of
from ort_castlike._opset._site import EXPAND, Edit, Refusal, Rule, Site, Verdict

__all__ = ["ALWAYS", "FORMS", "RULES"]

_FLOATS = ("bfloat16", "float", "float16")
_HALVES = ("bfloat16", "float16")


def _cast(site: Site) -> Verdict:
    """``round_mode`` came with FLOAT8E8M0 and says nothing of any other type."""
    if "round_mode" not in site.node.attributes:
        return Edit()
    to = site.node.attributes.get("to")
    if to is None or to.is_ref():
        return _without_round_mode(site, None)
    return _without_round_mode(site, ir.DataType(to.as_int()).name.lower())


def _cast_like(site: Site) -> Verdict:
    if "round_mode" not in site.node.attributes:
        return Edit()
    output = type_of(site.node.outputs[0])
    return _without_round_mode(site, site.element(1) or (None if output is None else element_of(output)))


def _without_round_mode(site: Site, element: str | None) -> Verdict:
    if element == "float8e8m0" or (element is None and site.could_be("float8e8m0")):
        return Edit()
    return Edit(drop=("round_mode",))


def _quantize_23(site: Site) -> Verdict:
    """From 23 on the scale may be of another type than x, and ``precision`` says what the division is done in.

    At 21 all three are one type: x and the scale are cast to the type of the division.
    """
    precision = site.integer("precision", 0)
    if precision is None:
        return Refusal("the function's caller gives its precision; inline the function")
    x, scale = site.element(0), site.element(1)
    element = ir.DataType(precision).name.lower() if precision else scale
    if x is not None and x == scale == element:
        return Edit(drop=("precision",))
    if element is None:
        if sum(site.could_be(name) for name in _FLOATS) == 1:
            return Edit(drop=("precision",))
        build = FragmentBuilder(site)
        x_cast = build.op("CastLike", build.input(0), build.input(1))
        return build.rebuilt(
            [x_cast, *build.inputs()[1:]], drop=("precision",), how="x is cast to the type of the scale first"
        )
    if element not in _FLOATS:
        return Refusal(
            f"x and y_scale are of different types at opset 23, and a division in {element} has no lower form"
        )
    build = FragmentBuilder(site)
    inputs = build.inputs()
    for index, known in ((0, x), (1, scale)):
        if known != element:
            inputs[index] = build.cast(build.input(index), element)
    return build.rebuilt(inputs, drop=("precision",), how=f"x and y_scale are cast to {element} first")


def _quantize_any(site: Site) -> Verdict:
    """A zero point gives the output's type, and ``output_dtype`` can only repeat it."""
    return Edit() if site.input(2) is None else Edit(drop=("output_dtype",))


def _dequantize_23(site: Site) -> Verdict:
    """``output_dtype`` is also the type of the multiplication: at 21 that is the scale's type."""
    code = site.integer("output_dtype", 0)
    if code is None:
        return Refusal("the function's caller gives its output_dtype; inline the function")
    element = ir.DataType(code).name.lower() if code else None
    if element is None or element == site.element(1):
        return Edit(drop=("output_dtype",))
    build = FragmentBuilder(site)
    inputs = build.inputs()
    inputs[1] = build.cast(build.input(1), element)
    return build.rebuilt(inputs, drop=("output_dtype",), how=f"x_scale is cast to {element} first")


def _attention_24(site: Site) -> Verdict:
    """At 24 a mask may be shorter than the keys, and ``nonpad_kv_seqlen`` says how many keys count."""
    if site.input(6) is not None:
        return EXPAND
    mask, key, past = site.input(3), site.input(1), site.input(4)
    if mask is None:
        return Edit()
    lengths = [
        None if value is None else _dimension(value, axis) for value, axis in ((mask, -1), (key, -2), (past, -2))
    ]
    if lengths[0] is None or lengths[1] is None or (past is not None and lengths[2] is None):
        return EXPAND
    if past is None:
        return Edit() if lengths[0] == lengths[1] else EXPAND
    numbers = [length for length in lengths if isinstance(length, int)]
    return Edit() if len(numbers) == 3 and numbers[0] == numbers[1] + numbers[2] else EXPAND


def _dimension(value: ir.Value, axis: int) -> int | str | None:
    if value.shape is None or len(value.shape) < -axis:
        return None
    size = value.shape[axis]
    return size.value if isinstance(size, ir.SymbolicDim) else int(size)


def _attention_25(site: Site) -> Verdict:
    """The sliding window came with 25; -1 is no window."""
    bounds = [site.integer(f"{side}_window_size", -1) for side in ("left", "right")]
    return Edit(drop=("left_window_size", "right_window_size")) if bounds == [-1, -1] else EXPAND


def _pool_22(site: Site) -> Verdict:
    """With ``ceil_mode``, 22 ignores windows that would start in the padding at the end; older text counts them.

    There is no such window where a stride and the padding at the end together are no wider than the kernel.
    """
    if site.integer("ceil_mode", 0) == 0 or site.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        return Edit()
    attributes = site.node.attributes
    names = ("kernel_shape", "strides", "dilations", "pads")
    if any(name in attributes and attributes[name].is_ref() for name in (*names, "ceil_mode", "auto_pad")):
        return Refusal("its ceil_mode or its window is given by the function's caller; inline the function")
    kernel, strides, dilations, pads = (
        list(attributes[name].as_ints()) if name in attributes else [] for name in names
    )
    rank = len(kernel)
    if site.text("auto_pad", "NOTSET") == "VALID":
        pads = []
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * (2 * rank)
    window = [dilations[axis] * (kernel[axis] - 1) + 1 for axis in range(rank)]
    if all(strides[axis] + pads[rank + axis] <= window[axis] for axis in range(rank)):
        return Edit()
    return cropped_pool(site, window, strides, pads)


def _range_27(site: Site) -> Verdict:
    """``stash_type`` is the type that float16 and bfloat16 are counted in; it has no effect for the others."""
    element = next((found for found in map(site.element, range(3)) if found is not None), None)
    if element in _HALVES:
        return EXPAND
    if element is None and any(map(site.could_be, _HALVES)):
        return Refusal("its type is not known and could be a 16-bit float, which came with opset 27")
    return Edit(drop=("stash_type",))


def _bit_shift_28(site: Site) -> Verdict:
    """28 takes signed integers and says what a shift by the width or more gives; 11 does neither."""
    element = site.element(0)
    if element is None:
        return Refusal("its element type is not known, and signed shifts came with opset 28")
    shift = None if site.input(1) is None else ir.convenience.get_const_tensor(site.node.inputs[1])  # type: ignore[arg-type]
    if element.startswith("uint") and shift is not None:
        amounts = shift.numpy()
        if bool(np.all(amounts < amounts.dtype.itemsize * 8)):
            return Edit()
    return bit_shift(site, element)


def _mod_28(site: Site) -> Verdict:
    """28 also takes floats with fmod=0, the floored remainder; 13 takes only integers there."""
    fmod = site.integer("fmod", 0)
    element = site.element(0) or site.element(1)
    if fmod == 1:
        return Edit()
    if fmod is None or element is None:
        return Refusal("its type or its fmod is not known, and the floored remainder of floats came with opset 28")
    return Edit() if "int" in element else floor_mod(site)


def _space_to_depth_28(site: Site) -> Verdict:
    """``mode`` came with 28: DCR is what the operator always did."""
    return Edit(drop=("mode",)) if site.text("mode", "DCR") == "DCR" else EXPAND


RULES: Mapping[tuple[str, int], Rule] = {
    ("AveragePool", 22): _pool_22,
    ("MaxPool", 22): _pool_22,
    ("DequantizeLinear", 23): _dequantize_23,
    ("QuantizeLinear", 23): _quantize_23,
    ("Attention", 24): _attention_24,
    ("Cast", 24): _cast,
    ("CastLike", 24): _cast_like,
    ("Attention", 25): _attention_25,
    ("Range", 27): _range_27,
    ("BitShift", 28): _bit_shift_28,
    ("Mod", 28): _mod_28,
    ("SpaceToDepth", 28): _space_to_depth_28,
}

# Attributes without effect go whatever the opset: onnxruntime 1.32 refuses a round_mode and fails on an output_dtype
# that ONNX allows.
ALWAYS: Mapping[str, Rule] = {
    "Cast": _cast,
    "CastLike": _cast_like,
    "DequantizeLinear": _dequantize_23,
    "QuantizeLinear": _quantize_any,
}

# For operators that the lower opset lacks and ONNX gives no body for, and nodes that a release cannot run as they are.
FORMS: Mapping[str, Rule] = {
    "BitCast": bit_cast,
    "CumProd": cum_prod,
    "DequantizeLinear": _dequantize_23,
    "QuantizeLinear": _quantize_23,
    "TensorScatter": tensor_scatter,
}
