"""Models for the tests of the rewriter, written in a line or two, and run by the installed onnxruntime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import ort_castlike

__all__ = [
    "DTYPES",
    "assert_same",
    "function",
    "graph",
    "model",
    "node",
    "op_types",
    "optional",
    "run",
    "sequence",
    "since",
    "tensor",
    "untyped",
    "value",
]

DTYPES: Mapping[str, np.dtype] = {
    "INT2": np.dtype(ml_dtypes.int2),
    "UINT2": np.dtype(ml_dtypes.uint2),
    "INT4": np.dtype(ml_dtypes.int4),
    "UINT4": np.dtype(ml_dtypes.uint4),
    "FLOAT4E2M1": np.dtype(ml_dtypes.float4_e2m1fn),
    "FLOAT8E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}

node = helper.make_node
graph = helper.make_graph


def _code(dtype: str) -> int:
    return onnx.TensorProto.DataType.Value(dtype)


def value(name: str, dtype: str, shape: Sequence[int | str | None] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, _code(dtype), shape)


def sequence(name: str, dtype: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, _code(dtype), None)


def optional(name: str, dtype: str, shape: Sequence[int] | None = None) -> onnx.ValueInfoProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(_code(dtype), shape))
    return helper.make_value_info(name, kind)


def untyped(name: str) -> onnx.ValueInfoProto:
    """A formal input or output of a body with nothing but a name, as ONNX allows."""
    return onnx.ValueInfoProto(name=name)


def tensor(name: str, values: object, dtype: np.dtype | type | str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values).astype(DTYPES.get(dtype, dtype)), name)


def since(opset: int, *values: object) -> list:
    """Parameters of a test that are about what came to ONNX with an opset."""
    return [pytest.param(value, marks=pytest.mark.opset(opset)) for value in values]


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    *,
    opset: int = 25,
    attributes: Sequence[str] = (),
    defaults: Sequence[onnx.AttributeProto] = (),
) -> onnx.FunctionProto:
    """A function in the domain "local" that may call others of that domain."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, opsets, attributes, defaults)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 25,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", opset)]
    if functions:
        opsets.append(helper.make_opsetid("local", 1))
    main = helper.make_graph(nodes, "main", inputs, outputs, initializer=initializers)
    return helper.make_model(main, opset_imports=opsets, functions=functions, ir_version=14 if opset > 26 else 13)


def run(source: onnx.ModelProto, feeds: Mapping[str, object] | None = None, **options: str) -> list:
    """What the installed onnxruntime gives for the rewritten model."""
    session = ort_castlike.InferenceSession(source, providers=["CPUExecutionProvider"], **options)
    return session.run(None, dict(feeds or {}))


def assert_same(got: object, expected: object) -> None:
    """The same dtype, shape and bits; NaN is NaN."""
    if isinstance(expected, (list, tuple)):
        assert isinstance(got, list)
        assert len(got) == len(expected)
        for left, right in zip(got, expected, strict=True):
            assert_same(left, right)
        return
    expected = np.asarray(expected)
    assert isinstance(got, np.ndarray)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert got.tobytes() == expected.tobytes(), (got, expected)


def op_types(source: onnx.ModelProto | onnx.GraphProto | onnx.FunctionProto) -> list[str]:
    """Domain and operator of every node, inside subgraphs too."""
    found: list[str] = []
    pending: list[Iterable[onnx.NodeProto]] = [
        source.graph.node if isinstance(source, onnx.ModelProto) else source.node
    ]
    while pending:
        for entry in pending.pop():
            found.append(f"{entry.domain}::{entry.op_type}" if entry.domain else entry.op_type)
            for attribute in entry.attribute:
                pending.extend(inner.node for inner in (attribute.g, *attribute.graphs))
    return found
