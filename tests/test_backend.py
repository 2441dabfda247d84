"""The ONNX backend interface: models and single nodes, in the forms in which ONNX's interface gives them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import model, node, optional, run, sequence, tensor, value
from onnx import helper

import ort_castlike
from ort_castlike import backend

TO_INT2 = node("CastLike", ["x", "like"], ["y"])
NUMBERS = np.array([0.5, 1.5, -2.0], np.float32)
INT2 = np.dtype(ml_dtypes.int2)


def to_int2() -> onnx.ModelProto:
    return model([TO_INT2], [value("x", "FLOAT", [3])], [value("y", "INT2", [3])], [tensor("like", [0], "INT2")])


def bits(array: np.ndarray) -> list[int]:
    assert array.dtype == INT2
    return array.astype(np.int8).tolist()


@pytest.mark.parametrize(
    "inputs",
    [[NUMBERS], (NUMBERS,), NUMBERS, {"x": NUMBERS}, [onnx.numpy_helper.from_array(NUMBERS)]],
    ids=["list", "tuple", "the value itself", "mapping", "TensorProto"],
)
def test_inputs_come_in_order_or_by_name(inputs):
    outputs = backend.prepare(to_int2()).run(inputs)
    assert isinstance(outputs, tuple)
    assert bits(outputs[0]) == [0, -2, -2]
    assert bits(outputs["y"]) == [0, -2, -2]


@pytest.mark.parametrize("form", [lambda proto: proto, lambda proto: proto.SerializeToString()], ids=["proto", "bytes"])
def test_a_model_runs_once(form):
    (y,) = backend.run_model(form(to_int2()), [NUMBERS])
    assert bits(y) == [0, -2, -2]


def test_options_of_a_rewrite_are_taken():
    (y,) = backend.run_model(to_int2(), [NUMBERS], "CPU", rounding="toward_zero", lowering="standard", rtol=1e-3)
    assert bits(y) == [0, 1, -2]


def test_too_many_values_are_refused():
    with pytest.raises(ort_castlike.CastLikeError, match=r"2 values were given; the model has inputs \['x'\]"):
        backend.prepare(to_int2()).run([NUMBERS, NUMBERS])


def test_an_invalid_model_is_refused_by_onnx():
    broken = to_int2()
    broken.graph.node[0].input.append("nothing gives this")
    with pytest.raises(onnx.checker.ValidationError):
        backend.prepare(broken)


@pytest.mark.parametrize("opset", [None, 25])
def test_a_node_runs_on_the_types_of_its_values(opset):
    given = {} if opset is None else {"opset_version": opset}
    (y,) = backend.run_node(TO_INT2, [NUMBERS, np.zeros(1, INT2)], **given)
    assert bits(y) == [0, -2, -2]


def test_a_node_with_types_of_its_outputs():
    cast = node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT2)
    (y,) = backend.run_node(cast, NUMBERS, outputs_info=[(INT2, (3,))])
    assert bits(y) == [0, -2, -2]


def test_a_node_on_a_sequence():
    first, second = np.array([1, -2]).astype(INT2), np.array([0]).astype(INT2)
    (y,) = backend.run_node(node("SequenceInsert", ["s", "t"], ["y"]), [[first], second])
    assert [bits(item) for item in y] == [[1, -2], [0]]


@pytest.mark.parametrize("texts", [np.array(["1", "-2"]), np.array(["1", "-2"], object)], ids=["str", "object"])
def test_a_node_on_strings(texts):
    (y,) = backend.run_node(node("Cast", ["x"], ["y"], to=onnx.TensorProto.INT2), [texts])
    assert bits(y) == [1, -2]
    (back,) = backend.run_node(node("Cast", ["x"], ["y"], to=onnx.TensorProto.STRING), [y])
    assert back.tolist() == ["1", "-2"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([NUMBERS], "1 values were given"),
        ([[], NUMBERS], "an empty sequence"),
        ([np.array(["2020"], "datetime64[D]"), NUMBERS], "datetime64"),
    ],
)
def test_values_that_give_a_node_no_types_are_refused(values, said):
    with pytest.raises(ort_castlike.CastLikeError, match=said):
        backend.run_node(node("SequenceInsert", ["s", "t"], ["y"]), values)


@pytest.mark.opset(28)
def test_an_optional_that_holds_nothing_is_none():
    proto = model(
        [node("OptionalHasElement", ["x"], ["y"])], [optional("x", "INT2", [1])], [value("y", "BOOL", [])], opset=28
    )
    assert [backend.run_model(proto, [given])[0].item() for given in (None, np.zeros(1, INT2))] == [False, True]


def test_a_sequence_of_tensor_protos_is_a_value():
    proto = model([node("SequenceLength", ["s"], ["y"])], [sequence("s", "INT2")], [value("y", "INT64", [])])
    assert backend.run_model(proto, [[tensor("", [1], "INT2")] * 3])[0] == 3
    assert run(proto, {"s": []})[0] == 0


def test_devices():
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("XPU")
    with pytest.raises(ort_castlike.CastLikeError, match="no device 'XPU'"):
        backend.prepare(to_int2(), "XPU")


def test_a_model_is_compatible_if_it_can_be_rewritten():
    assert backend.is_compatible(to_int2())
    assert not backend.is_compatible(to_int2(), "XPU")
    refused = model([node("Relu", ["x"], ["y"])], [value("x", "INT2", [3])], [value("y", "INT2", [3])])
    assert not backend.is_compatible(refused)


def test_a_node_of_an_unknown_operator_is_an_error():
    with pytest.raises(onnx.checker.ValidationError):
        backend.run_node(helper.make_node("NoSuchOperator", ["x"], ["y"]), [NUMBERS])


def test_bfloat16_computes_in_float32_and_rounds_once_on_the_cpu():
    values = np.array([1.0, 1.0078125, -3.0, 300.0], ml_dtypes.bfloat16)
    nodes = [
        node("Mul", ["x", "x"], ["square"]),
        node("Add", ["square", "x"], ["y"]),
        node("CastLike", ["x", "like"], ["codes"]),
    ]
    ports = [value("y", "BFLOAT16", [4]), value("codes", "INT2", [4])]
    proto = model(nodes, [value("x", "BFLOAT16", [4])], ports, [tensor("like", [0], "INT2")])
    y, codes = backend.run_model(proto, [values])
    wide = values.astype(np.float32)
    square = (wide * wide).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert y.tolist() == (square + wide).astype(ml_dtypes.bfloat16).tolist()
    assert bits(codes) == [1, 1, 1, 0]


def test_a_comparison_of_bfloat16_gives_its_own_type():
    values = np.array([1.0, -1.0], ml_dtypes.bfloat16)
    proto = model([node("Greater", ["x", "y"], ["z"])], [value("x", "BFLOAT16", [2]), value("y", "BFLOAT16", [2])],
                  [value("z", "BOOL", [2])])  # fmt: skip
    (z,) = backend.run_model(proto, [values, values[::-1].copy()])
    assert z.tolist() == [True, False]
