"""Which releases run a model as it is: what each of them does with the emulated types and with layers of few bits.

Every entry was probed by running models of one operator on 1.20, 1.23, 1.24, 1.27 and 1.32, with the type at every
opset that these load: ``docs/support-matrix.md``, and every pair of types of a cast on all the values of the small one.
What is not known to be right is not claimed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from ort_castlike._context import describe, emulated_element, tensor_dtype
from ort_castlike._flaws import flaws_of, truncates_float16
from ort_castlike._opset import usable_opset
from ort_castlike._opset._census import take_census
from ort_castlike._opset._gaps import must_be_replaced
from ort_castlike._opset._site import Site
from ort_castlike._rules.dequantization import is_optimized
from ort_castlike._rules.weights import form_of_zero_points, is_float16
from ort_castlike._targets import LONGEST_FUSED_BLOCK, TARGETS, Target
from ort_castlike._types import ELEMENT_TYPES, EMULATED_TYPES

__all__ = ["notes_on_refused_layers", "releases_that_load", "releases_that_run", "releases_that_take"]

Release = tuple[int, int]
Types = Mapping[ir.Value, ir.TypeProtocol]

_NEVER = (1 << 16, 0)
_INTEGERS = frozenset(("INT2", "INT4", "UINT2", "UINT4"))

# For each emulated type, the first release that loads a model that holds it; what is not listed is loaded by none.
_HELD: Mapping[str, Release] = {
    "INT4": (1, 20),
    "UINT4": (1, 20),
    "INT2": (1, 24),
    "UINT2": (1, 24),
    "FLOAT4E2M1": (1, 24),
    "FLOAT8E8M0": (1, 27),
}
# The first release that casts the type at all.
_CAST: Mapping[str, Release] = {
    "INT4": (1, 23),
    "UINT4": (1, 23),
    "INT2": (1, 24),
    "UINT2": (1, 24),
    "FLOAT8E8M0": (1, 27),
}
_CASTS_STRINGS = (1, 27)  # right; 1.24 refuses some
# Shape has no kernel for the types; a shape that is known is folded. Nor has Identity, or what else moves elements.
_TAKES: Mapping[str, frozenset[str]] = {
    "Constant": frozenset(_HELD),
    "DequantizeLinear": _INTEGERS,
    "QuantizeLinear": _INTEGERS,
    "Shape": frozenset(_HELD),
    "Transpose": _INTEGERS,
}
# From this release on, 2-bit weights in front of a MatMul are fused, and the fused operator errs for some shapes, such
# as a number of columns that is no multiple of 4 (seen up to 1.32).
_FUSES_TWO_BITS = (1, 25)
# Before this release, 4-bit weights in longer blocks than LONGEST_FUSED_BLOCK are wrong.
_LONG_BLOCKS = (1, 32)
# The first release that takes a layer of so many bits in bytes, with float zero points or else.
_LAYERS: Mapping[tuple[str, int], Release] = {
    ("MatMulNBits", 4): (1, 20),
    ("MatMulNBits", 8): (1, 23),
    ("GatherBlockQuantized", 4): (1, 23),
    ("GatherBlockQuantized", 8): (1, 23),
}


def releases_that_run(model: ir.Model, versions: tuple[int, int], types: Types) -> tuple[str, ...]:
    """The releases that run a model as it is, and right, by what is known of them.

    Args:
        model: The model.
        versions: Its ai.onnx version and its IR version.
        types: The types of the values of emulated types.
    """
    elements = {element.name for type_ in types.values() if (element := emulated_element(type_)) is not None}
    needed = max((_HELD.get(name, _NEVER) for name in elements), default=TARGETS[0].release)
    wanted = [target for target in _loading(model, versions, types) if target.release >= needed]
    nodes = [
        node
        for node in model.graph.all_nodes()
        if node.op_type in _JUDGED or any(value in types for value in _values(node))
    ]
    return tuple(str(target) for target in wanted if all(_is_right(target.release, node, types) for node in nodes))


def releases_that_load(model: ir.Model, versions: tuple[int, int]) -> tuple[str, ...]:
    """The releases that load a model without emulated types: they have its opset and refuse none of its nodes."""
    return tuple(map(str, _loading(model, versions, {})))


def releases_that_take(versions: tuple[int, int]) -> tuple[str, ...]:
    """The releases that have an ai.onnx version and an IR version."""
    return tuple(map(str, _taking(versions)))


def notes_on_refused_layers(model: ir.Model, target: Target) -> list[str]:
    """A line for each layer of few bits that a release refuses."""
    return [
        f"onnxruntime {target} refuses node {describe(node)} with bits={_bits(node)}, which stays as it is"
        for node in model.graph.all_nodes()
        if _takes_layer(node, target, {}) is False
    ]


def _taking(versions: tuple[int, int]) -> list[Target]:
    opset, ir_version = versions
    return [target for target in TARGETS if opset <= target.opset and ir_version <= target.ir_version]


def _loading(model: ir.Model, versions: tuple[int, int], types: Types) -> list[Target]:
    opset = versions[0]
    nodes = tuple(model.graph.all_nodes())
    stock = [node for node in nodes if node.domain == ""]
    operators = {node.op_type for node in stock}
    census = functools.cache(lambda: take_census(model))
    return [
        target
        for target in _taking(versions)
        if usable_opset(target, {opset: operators}) >= opset
        and not any(must_be_replaced(Site(node, opset, opset, target, census)) for node in stock)
        and not any(_takes_layer(node, target, types) is False for node in nodes)
    ]


# Layers of com.microsoft -------------------------------------------------------------------------------------


def _takes_layer(node: ir.Node, target: Target, types: Types) -> bool | None:
    """Whether a release takes a layer of few bits; None for any other node."""
    if not _is_layer(node):
        return None
    bits = _bits(node)
    if node.op_type == "GatherBlockQuantized":
        if _is_table_of_four_bits(node, types):
            return True
        if bits == 2:
            return target.two_bit_slowdown.gather is not None
    form = form_of_zero_points(node.inputs[3] if len(node.inputs) > 3 else None)
    if bits == 2:
        return target.two_bit_slowdown.of(form, is_float16=is_float16(node)) is not None
    if bits == 8 and node.op_type == "MatMulNBits" and form == "floats":
        return False
    return target.release >= _LAYERS.get((node.op_type, bits), _NEVER)


def _is_layer(node: ir.Node) -> bool:
    return node.domain == "com.microsoft" and node.op_type in ("GatherBlockQuantized", "MatMulNBits")


def _is_table_of_four_bits(node: ir.Node, types: Types) -> bool:
    """Whether it is a GatherBlockQuantized on INT4 or UINT4, which every release has."""
    data = node.inputs[0] if node.inputs else None
    return _is_layer(node) and node.op_type == "GatherBlockQuantized" and _name(data, types) in ("INT4", "UINT4")


def _bits(node: ir.Node) -> int:
    attribute = node.attributes.get("bits")
    return 4 if attribute is None or attribute.is_ref() else attribute.as_int()


# Nodes of ONNX -----------------------------------------------------------------------------------------------

_JUDGED = frozenset(("Cast", "CastLike", "QuantizeLinear"))


def _values(node: ir.Node) -> Iterator[ir.Value]:
    return (value for value in (*node.inputs, *node.outputs) if value is not None)


def _name(value: ir.Value | None, types: Types) -> str | None:
    """The name of the element type of a value, None where it is not known."""
    dtype = None if value is None else tensor_dtype(types.get(value, value.type))
    return None if dtype is None or dtype == ir.DataType.UNDEFINED else dtype.name


def _is_right(release: Release, node: ir.Node, types: Types) -> bool:
    if node.domain != "":
        return not any(value in types for value in _values(node)) or _is_table_of_four_bits(node, types)
    if node.op_type in ("Cast", "CastLike"):
        return _casts_right(release, node, types)
    names = {_name(value, types) for value in _values(node)}
    emulated = {name for name in names if name in EMULATED_TYPES}
    if not emulated:
        return not (node.op_type == "QuantizeLinear" and "FLOAT16" in names and truncates_float16(release))
    if not emulated <= _TAKES.get(node.op_type, frozenset()):
        return False
    if node.op_type == "Shape":
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        return shape is not None and shape.is_static()
    if node.op_type == "QuantizeLinear":
        return not ("FLOAT16" in names and truncates_float16(release))
    if node.op_type != "DequantizeLinear":
        return True
    if is_optimized(node):
        return False
    if emulated & {"INT2", "UINT2"}:
        return release < _FUSES_TWO_BITS
    return release >= _LONG_BLOCKS or node.attributes.get_int("block_size", 0) <= LONGEST_FUSED_BLOCK


def _casts_right(release: Release, node: ir.Node, types: Types) -> bool:
    source, target = (_name(values[0] if values else None, types) for values in (node.inputs, node.outputs))
    saturate = node.attributes.get_int("saturate", 1)
    if source is None or target is None:
        return not any(value in types for value in _values(node))
    if source not in EMULATED_TYPES and target not in EMULATED_TYPES:
        return not any(release >= flaw.first for flaw in flaws_of(source, target, bool(saturate)))
    if any(release < _CAST.get(name, _NEVER) for name in (source, target) if name in EMULATED_TYPES):
        return False
    if "STRING" in (source, target) and release < _CASTS_STRINGS:
        return False
    if target in _INTEGERS:  # halves are rounded away from zero, where ONNX says to the nearest even number
        return source in ("BOOL", "STRING") or ELEMENT_TYPES[source].is_integer
    if source == "FLOAT8E8M0" and target == "BOOL":  # 2 to the power of -127 is False
        return False
    # Other ways to round were not tried, and a cast that is not into FLOAT8E8M0 is refused with one.
    return saturate == 1 and "round_mode" not in node.attributes
