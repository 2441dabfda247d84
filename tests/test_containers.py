"""Sequences, optionals, constants filled in, and BitCast of emulated types, run on the installed onnxruntime."""

from __future__ import annotations

import graphs
import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import DTYPES, assert_same, graph, model, node, optional, sequence, since, tensor, untyped, value
from onnx import TensorProto, helper

import ort_castlike

each_type = pytest.mark.parametrize("dtype", sorted(DTYPES))


def to(name: str) -> int:
    return TensorProto.DataType.Value(name)


def sample(dtype: str, shape=(2, 3)) -> np.ndarray:
    return np.resize(np.array([1.0, 2.0, 0.5, 1.0, 4.0, 1.0]), shape).astype(DTYPES[dtype])


@each_type
def test_sequence_is_built_read_and_joined(dtype):
    built = model(
        [
            node("SequenceConstruct", ["a", "b"], ["two"]),
            node("SequenceInsert", ["two", "a", "first"], ["three"]),
            node("SequenceErase", ["three", "last"], ["s"]),
            node("SequenceAt", ["s", "last"], ["e"]),
            node("ConcatFromSequence", ["three"], ["joined"], axis=0),
            node("SequenceLength", ["three"], ["n"]),
        ],
        [value("a", dtype, [2, 3]), value("b", dtype, [2, 3])],
        [sequence("s", dtype), value("e", dtype), value("joined", dtype), value("n", "INT64")],
        [tensor("first", 0, np.int64), tensor("last", -1, np.int64)],
    )
    a = sample(dtype)
    b = a[::-1].copy()
    joined = np.concatenate([a, a, b])
    assert_same(graphs.run(built, {"a": a, "b": b}), [[a, a], a, joined, np.array(3)])


@each_type
def test_sequence_is_an_input_and_starts_empty(dtype):
    built = model(
        [
            node("SequenceAt", ["given", "zero"], ["e"]),
            node("SequenceEmpty", [], ["none"], dtype=to(dtype)),
            node("SequenceInsert", ["none", "e"], ["one"]),
        ],
        [sequence("given", dtype)],
        [sequence("one", dtype), value("e", dtype)],
        [tensor("zero", 0, np.int64)],
    )
    a = sample(dtype)
    assert_same(graphs.run(built, {"given": [a, a]}), [[a], a])


@each_type
@pytest.mark.parametrize("opset", [25, *since(28, 28)])
def test_optional_holds_a_tensor_or_nothing(dtype, opset):
    kind = helper.make_tensor_type_proto(to(dtype), [2, 3])
    built = model(
        [
            node("Optional", ["a"], ["some"]),
            node("Optional", [], ["none"], type=kind),
            node("OptionalHasElement", ["some"], ["has_some"]),
            node("OptionalHasElement", ["none"], ["has_none"]),
            node("OptionalGetElement", ["some"], ["e"]),
        ],
        [value("a", dtype, [2, 3])],
        [value("has_some", "BOOL"), value("has_none", "BOOL"), value("e", dtype)],
        opset=opset,
    )
    a = sample(dtype)
    assert_same(graphs.run(built, {"a": a}), [np.array(True), np.array(False), a])


@each_type
def test_optional_goes_through_a_branch(dtype):
    then = graph([node("Optional", ["a"], ["t"])], "then", [], [optional("t", dtype, [2, 3])])
    kind = helper.make_tensor_type_proto(to(dtype), [2, 3])
    otherwise = graph([node("Optional", [], ["f"], type=kind)], "else", [], [optional("f", dtype, [2, 3])])
    built = model(
        [
            node("If", ["c"], ["o"], then_branch=then, else_branch=otherwise),
            node("OptionalHasElement", ["o"], ["has"]),
        ],
        [value("c", "BOOL", []), value("a", dtype, [2, 3])],
        [value("has", "BOOL")],
    )
    for chosen in (True, False):
        assert_same(graphs.run(built, {"c": np.array(chosen), "a": sample(dtype)}), [np.array(chosen)])


def test_container_of_two_types_is_refused_though_one_carrier_holds_both():
    built = model(
        [node("SequenceConstruct", ["a", "b"], ["s"], name="mix")],
        [value("a", "INT2", [2]), value("b", "INT8", [2])],
        [sequence("s", "INT2")],
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'mix'|inference"):
        ort_castlike.rewrite(built)


@each_type
def test_constant_of_shape_fills_with_its_value(dtype):
    fill = tensor("fill", [0.5 if "FLOAT" in dtype else 1], dtype)
    built = model(
        [node("ConstantOfShape", ["shape"], ["y"], value=fill)], [value("shape", "INT64", [2])], [value("y", dtype)]
    )
    expected = np.full((2, 3), 0.5 if "FLOAT" in dtype else 1).astype(DTYPES[dtype])
    assert_same(graphs.run(built, {"shape": np.array([2, 3])}), [expected])
    assert_same(graphs.run(built, {"shape": np.array([0, 3])}), [expected[:0]])


def test_constant_of_shape_takes_a_packed_negative_value():
    fill = TensorProto(name="fill", data_type=to("INT2"), dims=[1], raw_data=b"\x02")
    built = model(
        [node("ConstantOfShape", ["shape"], ["y"], value=fill)], [value("shape", "INT64", [1])], [value("y", "INT2")]
    )
    assert_same(graphs.run(built, {"shape": np.array([2])}), [np.array([-2, -2], np.int8).astype(ml_dtypes.int2)])


@each_type
def test_constant_in_the_graph_and_in_a_branch(dtype):
    a = sample(dtype)
    then = graph([node("Constant", [], ["t"], value=tensor("t", a, dtype))], "then", [], [untyped("t")])
    otherwise = graph([node("Identity", ["k"], ["f"])], "else", [], [untyped("f")])
    built = model(
        [
            node("Constant", [], ["k"], value=tensor("k", a[::-1], dtype)),
            node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise),
        ],
        [value("c", "BOOL", [])],
        [value("y", dtype), value("k", dtype)],
    )
    for chosen in (True, False):
        got = graphs.run(built, {"c": np.array(chosen)})
        assert_same(got, [a if chosen else a[::-1], a[::-1]])


def test_sparse_constant_of_an_emulated_type_is_refused():
    sparse = onnx.SparseTensorProto(values=tensor("v", [1], "INT2"), indices=tensor("i", [1], np.int64), dims=[3])
    built = model(
        [node("Constant", [], ["k"], sparse_value=sparse), node("Cast", ["k"], ["y"], to=to("FLOAT"))],
        [],
        [value("y", "FLOAT")],
    )
    with pytest.raises(ort_castlike.CastLikeError):
        ort_castlike.rewrite(built)


FOUR_BITS = ("INT4", "UINT4", "FLOAT4E2M1")
EIGHT_BITS = ("INT8", "UINT8", "FLOAT8E8M0")
PAIRS = [
    *(("INT2", "UINT2"), ("UINT2", "INT2")),
    *((a, b) for a in FOUR_BITS for b in FOUR_BITS),
    *((a, b) for a, b in ((a, b) for a in EIGHT_BITS for b in EIGHT_BITS) if "FLOAT8E8M0" in (a, b)),
]
STOCK = {"INT8": np.dtype(np.int8), "UINT8": np.dtype(np.uint8)}


def every_code(dtype: str) -> np.ndarray:
    """An array that holds each bit pattern of a type once."""
    bits = {"2": 2, "4": 4}.get(dtype.removeprefix("U").removeprefix("INT").removeprefix("FLOAT")[:1], 8)
    bits = 8 if dtype in EIGHT_BITS else bits
    codes = np.arange(1 << bits, dtype=np.uint8)
    if dtype in ("INT2", "INT4"):
        half = 1 << (bits - 1)
        return ((codes.astype(np.int16) + half) % (2 * half) - half).astype(np.int8).astype(DTYPES[dtype])
    if dtype in ("UINT2", "UINT4"):
        return codes.astype(DTYPES[dtype])
    return codes.view({**DTYPES, **STOCK}[dtype])


@pytest.mark.opset(26)
@pytest.mark.parametrize(("source", "target"), PAIRS)
@pytest.mark.parametrize("constant", [False, True], ids=["input", "constant"])
@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_bitcast_keeps_every_bit_pattern(source, target, constant, lowering):
    x = every_code(source).reshape(2, -1)
    initializers = []
    if constant:
        initializers = [onnx.numpy_helper.from_array(x, "x")]
    built = model(
        [node("BitCast", ["x"], ["y"], to=to(target))],
        [] if constant else [value("x", source, x.shape)],
        [value("y", target)],
        initializers,
        opset=26,
    )
    [got] = graphs.run(built, {} if constant else {"x": x}, lowering=lowering)
    assert_same(got, every_code(target).reshape(2, -1))


@pytest.mark.opset(26)
def test_bitcast_between_float8_and_its_scale_type_is_refused():
    built = model(
        [node("BitCast", ["x"], ["y"], to=to("FLOAT8E8M0"), name="bits")],
        [value("x", "FLOAT8E4M3FN", [3])],
        [value("y", "FLOAT8E8M0")],
        opset=26,
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'bits'.*FLOAT8E4M3FN"):
        ort_castlike.rewrite(built)


@pytest.mark.opset(26)
def test_bitcast_of_a_constant_float8_to_its_scale_type_is_folded():
    codes = np.array([0x38, 0xFF, 0x00], np.uint8)
    built = model(
        [node("BitCast", ["x"], ["y"], to=to("FLOAT8E8M0"))],
        [],
        [value("y", "FLOAT8E8M0")],
        [TensorProto(name="x", data_type=to("FLOAT8E4M3FN"), dims=[3], raw_data=codes.tobytes())],
        opset=26,
    )
    assert_same(graphs.run(built), [codes.view(ml_dtypes.float8_e8m0fnu)])


@pytest.mark.opset(26)
def test_bitcast_to_another_width_is_refused():
    built = model(
        [node("BitCast", ["x"], ["y"], to=to("INT4"), name="bits")],
        [value("x", "INT2", [4])],
        [value("y", "INT4")],
        opset=26,
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'bits'.*2 bits|inference"):
        ort_castlike.rewrite(built)


@pytest.mark.opset(26)
def test_bitcast_of_a_scalar_and_of_nothing():
    for shape in ((), (0, 3)):
        x = np.full(shape, -1, np.int8).astype(ml_dtypes.int2)
        built = model(
            [node("BitCast", ["x"], ["y"], to=to("UINT2")), node("BitCast", ["y"], ["z"], to=to("INT2"))],
            [value("x", "INT2", shape)],
            [value("y", "UINT2"), value("z", "INT2")],
            opset=26,
        )
        assert_same(graphs.run(built, {"x": x}), [np.full(shape, 3, np.uint8).astype(ml_dtypes.uint2), x])
