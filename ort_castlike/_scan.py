"""A first look at a model: whether there can be anything to rewrite, found without building a graph of it.

It errs on one side alone: what is called settled is what a rewrite would give back as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from ort_castlike import _protos
from ort_castlike._targets import Target
from ort_castlike._types import EMULATED_TYPES

__all__ = ["is_settled"]

_CODES = frozenset(element.code for element in EMULATED_TYPES.values())
# The attributes by which an operator names the element type that it gives.
_TYPE_ATTRIBUTES = frozenset(("dtype", "output_dtype", "to"))
# Up to this opset, no operator is without a working kernel in a release that loads the opset.
_NO_GAPS = 27


def is_settled(proto: onnx.ModelProto, target: Target) -> bool:
    """Whether a model holds nothing that a rewrite for ``target`` would look into."""
    return (
        proto.ir_version <= target.ir_version
        and all(_fits(entry, target) for entry in _opset_imports(proto))
        and not any(_is_emulated(type_) for type_ in _types(proto))
        and not any(tensor.data_type in _CODES for tensor in _protos.tensors(proto))
        and not any(_has_work(node) for node in _protos.nodes(proto))
    )


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


def _is_emulated(type_: onnx.TypeProto) -> bool:
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return getattr(type_, kind).elem_type in _CODES
    if kind in ("sequence_type", "optional_type"):
        return _is_emulated(getattr(type_, kind).elem_type)
    return kind == "map_type" and _is_emulated(type_.map_type.value_type)


def _has_work(node: onnx.NodeProto) -> bool:
    if node.domain == "com.microsoft" and node.op_type == "MatMulNBits":
        return True
    for attribute in node.attribute:
        if attribute.ref_attr_name or attribute.HasField("sparse_tensor"):  # what these give is not looked up here
            return True
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in _CODES:
            return True
        if attribute.name == "round_mode" or (attribute.HasField("tp") and _is_emulated(attribute.tp)):
            return True
    return False
