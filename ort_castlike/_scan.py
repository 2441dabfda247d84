"""A first look at a model: whether there can be anything to rewrite, found without building a graph of it.

It errs on one side alone: what is called settled is what a rewrite would give back as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ort_castlike._files import _protos
from ort_castlike._flaws import FLAWS
from ort_castlike._metadata import DOMAIN
from ort_castlike._options import Options
from ort_castlike._packed_weights import packed_weights
from ort_castlike._targets import Target
from ort_castlike._types import ELEMENT_TYPES, EMULATED_TYPES

__all__ = ["is_settled"]

_CODES = frozenset(element.code for element in EMULATED_TYPES.values())
# The attributes by which an operator names the element type that it gives.
_TYPE_ATTRIBUTES = frozenset(("dtype", "output_dtype", "to"))
_WEIGHT_OPERATORS = frozenset(("GatherBlockQuantized", "MatMulNBits"))
# What operators give without an input, a tensor or an attribute that names the type.
_SPONTANEOUS = frozenset(ELEMENT_TYPES[name].code for name in ("BOOL", "FLOAT", "INT32", "INT64", "STRING", "UINT8"))
_FLAWS = [
    (frozenset(ELEMENT_TYPES[name].code for name in flaw.sources), ELEMENT_TYPES[name].code, flaw.only_unsaturated)
    for flaw in FLAWS
    for name in flaw.targets
]
# Up to this opset, no operator is without a working kernel in a release that loads the opset.
_NO_GAPS = 27


def is_settled(
    proto: onnx.ModelProto, options: Options, *, may_hold_weights: bool = False, own_file: str | None = None
) -> bool:
    """Whether a model holds nothing that a rewrite with these options would look into.

    Args:
        proto: The model.
        options: The options of the rewrite.
        may_hold_weights: Whether it may hold INT4 and UINT4 weights that a rewrite leaves as they are; a report has to
            list them.
        own_file: The external data that stands for data in the model's own file.
    """
    target = options.target
    return (
        proto.ir_version <= target.ir_version
        and all(_fits(entry, target) for entry in _opset_imports(proto))
        and not any(_is_emulated(type_) for type_ in _types(proto))
        and _count_emulated(proto) == (packed_weights(proto, own_file) if may_hold_weights else 0)
        and not any(_has_work(node) for node in _protos.nodes(proto))
        and not (options.weights != "keep" and any(_has_two_bits(node) for node in _protos.nodes(proto)))
        and not _may_err(proto)
    )


def _count_emulated(proto: onnx.ModelProto) -> int:
    return sum(tensor.data_type in _CODES for tensor in _protos.tensors(proto))


def _fits(entry: onnx.OperatorSetIdProto, target: Target) -> bool:
    return entry.domain not in ("", "ai.onnx") or entry.version <= min(target.opset, _NO_GAPS)


def _opset_imports(proto: onnx.ModelProto) -> Iterator[onnx.OperatorSetIdProto]:
    yield from proto.opset_import
    for function in proto.functions:
        yield from function.opset_import


def _types(proto: onnx.ModelProto) -> Iterator[onnx.TypeProto]:
    for graph in _protos.graphs(proto.graph):
        for infos in (graph.input, graph.output, graph.value_info):
            yield from (info.type for info in infos)
        for sparse in graph.sparse_initializer:
            yield onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=sparse.values.data_type))
    for function in proto.functions:
        yield from (info.type for info in function.value_info)


def _elements(type_: onnx.TypeProto) -> set[int]:
    """The element types of the tensors in a type."""
    inner = _protos.innermost_type(type_)
    kind = inner.WhichOneof("value")
    return {getattr(inner, kind).elem_type} if kind in ("tensor_type", "sparse_tensor_type") else set()


def _is_emulated(type_: onnx.TypeProto) -> bool:
    return not _CODES.isdisjoint(_elements(type_))


def _may_err(proto: onnx.ModelProto) -> bool:
    """Whether there may be a cast between stock types that a release gets wrong."""
    casts = [
        node for node in _protos.nodes(proto) if node.op_type in ("Cast", "CastLike") and node.domain in ("", "ai.onnx")
    ]
    if not casts:
        return False
    present = set(_SPONTANEOUS)
    present.update(*map(_elements, _types(proto)))
    present.update(tensor.data_type for tensor in _protos.tensors(proto))
    for node in _protos.nodes(proto):
        for attribute in node.attribute:
            # "to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision", "stash_type", "type"
            if attribute.name.endswith(("to", "type", "precision")):
                present.add(attribute.i)
                present.update(_elements(attribute.tp))
    return any(_errs(node, present) for node in casts)


def _errs(node: onnx.NodeProto, present: set[int]) -> bool:
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    targets = {attributes["to"]} if "to" in attributes else present
    saturate = attributes.get("saturate", 1)
    return any(
        target in targets and not (only_unsaturated and saturate) and not sources.isdisjoint(present)
        for sources, target, only_unsaturated in _FLAWS
    )


def _has_work(node: onnx.NodeProto) -> bool:
    for attribute in node.attribute:
        if type(attribute.name) is not str:  # bytes, which do not decode: to be refused
            return True
        if attribute.ref_attr_name or attribute.HasField("sparse_tensor"):  # what these give is not looked up here
            return True
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _CODES:
            return True
        if attribute.name == "round_mode" and node.domain != DOMAIN:
            return True
        if attribute.HasField("tp") and _is_emulated(attribute.tp):
            return True
    return False


def _has_two_bits(node: onnx.NodeProto) -> bool:
    """Whether it is a layer of com.microsoft that holds 2-bit weights; a reference counts as work already."""
    return (
        node.domain == "com.microsoft"
        and node.op_type in _WEIGHT_OPERATORS
        and any(attribute.name == "bits" and attribute.i == 2 for attribute in node.attribute)
    )
