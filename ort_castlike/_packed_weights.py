"""INT4 and UINT4 weights that a rewrite leaves as they are, found without building a graph of the model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import onnx

from ort_castlike._files import _protos
from ort_castlike._targets import LONGEST_FUSED_BLOCK
from ort_castlike._types import ELEMENT_TYPES

__all__ = ["packed_weights"]

_FOUR_BITS = frozenset((ELEMENT_TYPES["INT4"].code, ELEMENT_TYPES["UINT4"].code))


def packed_weights(proto: onnx.ModelProto, own_file: str | None = None) -> int:
    """How many initializers are such weights: constants in blocks, which DequantizeLinear alone takes, to float.

    Args:
        proto: The model.
        own_file: The external data that stands for data in the model's own file.

    Returns:
        The number; 0 where one of them is anything else.
    """
    graph = proto.graph
    fed = {info.name for info in graph.input}
    constants = {tensor.name: tensor for tensor in graph.initializer if tensor.name not in fed}
    packed = {
        name
        for name, tensor in constants.items()
        if tensor.data_type in _FOUR_BITS and _is_whole(tensor, own_file) and len(tensor.dims) > 1
    }
    taken: set[str] = set()
    for node in graph.node:
        inputs = packed.intersection(node.input)
        if inputs and not _stays(node, constants, packed):
            return 0
        taken |= inputs
    for inner in itertools.islice(_protos.graphs(graph), 1, None):
        if not packed.isdisjoint(itertools.chain(*(node.input for node in inner.node), _names(inner.output))):
            return 0
    return len(packed) if taken == packed and packed.isdisjoint(_names(graph.output)) else 0


def _names(infos: object) -> list[str]:
    return [info.name for info in infos]  # type: ignore[attr-defined]


def _is_whole(tensor: onnx.TensorProto, own_file: str | None) -> bool:
    """Whether the model has the data, as much as the shape says."""
    size = -(-math.prod(tensor.dims) // 2)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return bool(size == len(tensor.raw_data))
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return entries.get("location") == own_file and entries.get("length") == str(size)


def _stays(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], packed: set[str]) -> bool:
    """Whether it is a DequantizeLinear that a rewrite has nothing to do on."""
    integers = {attribute.name: attribute.i for attribute in node.attribute}
    inputs = [name for name in node.input if name]
    if (node.domain, node.op_type) != ("", "DequantizeLinear") or not integers.keys() <= {"axis", "block_size"}:
        return False
    if not 1 < len(inputs) < 4 or not packed.issuperset((inputs[0], *inputs[2:])):
        return False
    data, scale, *zero_point = (constants.get(name) for name in inputs)
    if data is None or scale is None or scale.data_type != onnx.TensorProto.FLOAT:
        return False
    axis, block_size, shape = integers.get("axis", 1), integers.get("block_size", 0), list(data.dims)
    if not -len(shape) <= axis < len(shape) or not 0 < block_size <= LONGEST_FUSED_BLOCK:
        return False
    shape[axis] = -(-shape[axis] // block_size)
    return list(scale.dims) == shape and all(
        tensor is not None and tensor.data_type == data.data_type and list(tensor.dims) == shape
        for tensor in zero_point
    )
