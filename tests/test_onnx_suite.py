"""ONNX's own node tests through the backend: every one that holds a CastLike, a cast or an emulated type."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.backend.test import BackendTest
from onnx.backend.test.case.node import collect_testcases

from ort_castlike import backend

EMULATED = frozenset(
    getattr(onnx.TensorProto, name)
    for name in ("UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2", "FLOAT6E2M3", "FLOAT6E3M2")
    if hasattr(onnx.TensorProto, name)  # not every onnx has the float6 types
)


@pytest.fixture(scope="module")
def all_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arithmetic of ONNX's cases overflows where it should
        return collect_testcases("")


@pytest.fixture(scope="module")
def cases(all_cases):
    """The cases of this package's field, by name."""
    return {case.name: case for case in all_cases if is_of_the_field(case)}


def nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from nodes(subgraph)


def element_types(type_: onnx.TypeProto) -> int:
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return element_types(getattr(type_, kind).elem_type)
    return getattr(type_, kind).elem_type


def is_of_the_field(case) -> bool:
    model = case.model
    if case.name.startswith(("test_cast_", "test_castlike_")):
        return True
    if any(node.op_type == "CastLike" for graph in (model.graph, *model.functions) for node in nodes(graph)):
        return True
    types = {element_types(info.type) for info in (*model.graph.input, *model.graph.output)}
    types.update(tensor.data_type for tensor in model.graph.initializer)
    for node in nodes(model.graph):
        types.update(attribute.t.data_type for attribute in node.attribute)
    return not EMULATED.isdisjoint(types)


def array_of(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def assert_agrees(got, expected, case) -> None:
    """Floats that a model may compute with agree as closely as the case asks; every other type bit for bit."""
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for left, right in zip(got, expected, strict=True):
            assert_agrees(left, right, case)
        return
    if expected is None:
        assert got is None
        return
    expected = np.asarray(expected)
    got = np.asarray(got)
    assert got.shape == expected.shape
    if expected.dtype.kind in "OU":
        assert got.tolist() == expected.tolist()
        return
    assert got.dtype == expected.dtype
    if expected.dtype.kind in "fc":
        np.testing.assert_allclose(got, expected, rtol=case.rtol, atol=case.atol)
    elif expected.dtype == helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16):
        # Two units in the last place: the data is rounded after each step of a MatMul, in an order of its own.
        np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=2**-6, atol=case.atol)
    else:
        assert got.tobytes() == expected.tobytes(), (got, expected)


def outcome(case) -> str:
    """What is wrong with a case, nothing where it passes."""
    try:
        prepared = backend.prepare(case.model)
        for inputs, outputs in case.data_sets:
            got = prepared.run([array_of(value) for value in inputs])
            assert_agrees(list(got), [array_of(value) for value in outputs], case)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_every_case_of_the_field_passes(cases):
    outcomes = {name: outcome(case) for name, case in cases.items()}
    failed = [f"{name}: {said}" for name, said in outcomes.items() if said]
    assert not failed, "\n".join(failed)


def test_the_field_is_as_large_as_it_is_known_to_be(cases):
    assert len(cases) >= 200
    assert sum(name.startswith("test_castlike_") for name in cases) >= 100


@pytest.mark.usefixtures("all_cases")
def test_onnx_makes_its_test_cases_from_the_backend():
    suite = BackendTest(backend, __name__).test_cases["OnnxBackendNodeModelTest"]
    suite("test_castlike_FLOAT_to_INT2_cpu").debug()
    suite("test_cast_INT2_to_FLOAT16_cpu").debug()
    suite("test_quantizelinear_int2_cpu").debug()
