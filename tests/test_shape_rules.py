"""Operators that move elements, on the carrier of every emulated type, and the ways a model has to hold constants."""

from __future__ import annotations

import graphs
import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import DTYPES, assert_same, model, node, tensor, value
from onnx import TensorProto

import ort_castlike
from ort_castlike._rules import RULES

each_type = pytest.mark.parametrize("dtype", sorted(DTYPES))

INT2_VALUES = np.array([[1, -2, 0], [-1, 1, -2]], np.int8)


def to(name: str) -> int:
    return TensorProto.DataType.Value(name)


def sample(dtype: str, shape=(2, 3)) -> np.ndarray:
    return np.resize(np.array([1.0, 2.0, 0.5, 1.0, 4.0, 1.0]), shape).astype(DTYPES[dtype])


def test_every_operator_whose_schema_takes_an_emulated_type_has_a_rule():
    emulated = [f"tensor({name.lower()})" for name in (*DTYPES, "FLOAT6E2M3", "FLOAT6E3M2")]
    taken = {
        (schema.domain, schema.name)
        for schema in onnx.defs.get_all_schemas_with_history()
        for kind in (
            *(kind for constraint in schema.type_constraints for kind in constraint.allowed_type_strs),
            *(formal.type_str for formal in (*schema.inputs, *schema.outputs)),
        )
        if any(name in kind for name in emulated)
    }
    assert len(taken) >= 19
    assert taken <= set(RULES)


def test_operator_without_a_rule_is_refused_by_name():
    built = model([node("Relu", ["x"], ["y"], name="act")], [value("x", "INT2", [3])], [value("y", "INT2", [3])])
    with pytest.raises(ort_castlike.CastLikeError, match=r"'act'.*Relu.*'x'.*int2"):
        ort_castlike.rewrite(built)


OPERATORS = {
    "Identity": ([], {}, lambda x: x),
    "Reshape": ([[3, -1]], {}, lambda x: x.reshape(3, 2)),
    "Flatten": ([], {"axis": 0}, lambda x: x.reshape(1, 6)),
    "Transpose": ([], {"perm": [1, 0]}, lambda x: x.T.copy()),
    "Unsqueeze": ([[0, 3]], {}, lambda x: x.reshape(1, 2, 3, 1)),
    "Shape": ([], {}, lambda x: np.array(x.shape)),
    "Size": ([], {}, lambda x: np.array(x.size)),
}


@each_type
@pytest.mark.parametrize("op_type", sorted(OPERATORS))
def test_operator_moves_elements(dtype, op_type):
    operands, attributes, expected = OPERATORS[op_type]
    names = [f"operand{index}" for index in range(len(operands))]
    built = model(
        [node(op_type, ["x", *names], ["y"], **attributes)],
        [value("x", dtype, [2, 3])],
        [value("y", "INT64" if op_type in ("Shape", "Size") else dtype)],
        [tensor(name, operand, np.int64) for name, operand in zip(names, operands, strict=True)],
    )
    x = sample(dtype)
    assert_same(graphs.run(built, {"x": x}), [expected(x)])


@each_type
def test_squeeze_takes_axes_of_size_one_away(dtype):
    built = model(
        [node("Squeeze", ["x", "axes"], ["y"])],
        [value("x", dtype, [1, 6, 1])],
        [value("y", dtype)],
        [tensor("axes", [0, -1], np.int64)],
    )
    x = sample(dtype, (1, 6, 1))
    assert_same(graphs.run(built, {"x": x}), [x.reshape(6)])


# Zero, which Pad fills with by itself, is no value of FLOAT8E8M0.
PADDINGS = [
    (dtype, mode, fill)
    for dtype in sorted(DTYPES)
    for mode in ("constant", "edge", "reflect", "wrap")
    for fill in ("absent", "input", "initializer")
    if (dtype, mode, fill) != ("FLOAT8E8M0", "constant", "absent")
]


@pytest.mark.parametrize(("dtype", "mode", "fill"), PADDINGS)
def test_pad(dtype, mode, fill):
    x = sample(dtype)
    one = np.array(1).astype(DTYPES[dtype])
    inputs, initializers, feeds = [value("x", dtype, [2, 3])], [tensor("pads", [0, 1, 1, 2], np.int64)], {"x": x}
    if fill == "input":
        inputs.append(value("fill", dtype, []))
        feeds["fill"] = one
    elif fill == "initializer":
        initializers.append(tensor("fill", one, dtype))
    operands = ["x", "pads"] + ([] if fill == "absent" else ["fill"])
    built = model([node("Pad", operands, ["y"], mode=mode)], inputs, [value("y", dtype)], initializers)
    widths = ((0, 1), (1, 2))
    wide = x.astype(np.float32)
    if mode == "constant":
        padded = np.pad(wide, widths, constant_values=0 if fill == "absent" else 1)
    else:
        padded = np.pad(wide, widths, mode=mode)
    assert_same(graphs.run(built, feeds), [padded.astype(DTYPES[dtype])])


@pytest.mark.parametrize("opset", [24, 25])
@pytest.mark.parametrize("dtype", ["INT4", "UINT4", "FLOAT4E2M1", "FLOAT8E8M0"])
def test_tensor_scatter_writes_into_a_cache(dtype, opset):
    cache, update = sample(dtype, (2, 1, 4, 2)), sample(dtype, (2, 1, 2, 2))[::-1].copy()
    built = model(
        [node("TensorScatter", ["cache", "update", "at"], ["y"], axis=2)],
        [value("cache", dtype, [2, 1, 4, 2]), value("update", dtype, [2, 1, 2, 2]), value("at", "INT64", [2])],
        [value("y", dtype)],
        opset=opset,
    )
    expected = cache.copy()
    expected[0, :, 1:3], expected[1, :, 2:4] = update[0], update[1]
    assert_same(graphs.run(built, {"cache": cache, "update": update, "at": np.array([1, 2])}), [expected])


@each_type
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,), (7,)], ids=str)
def test_scalars_empty_tensors_and_partial_bytes(dtype, shape):
    x = sample(dtype, shape)
    built = model(
        [node("Identity", ["w"], ["a"]), node("Reshape", ["x", "flat"], ["b"], allowzero=1)],
        [value("x", dtype, shape)],
        [value("a", dtype, shape), value("b", dtype)],
        [onnx.numpy_helper.from_array(x, "w"), tensor("flat", [-1] if x.size else [0], np.int64)],
    )
    assert_same(graphs.run(built, {"x": x}), [x, x.reshape(-1)])


def packed(values: np.ndarray) -> list[int]:
    """Bytes of INT2 values, four each, the first in the lowest bits."""
    codes = np.resize(values.ravel() & 3, -(-values.size // 4) * 4).reshape(-1, 4)
    codes.ravel()[values.size :] = 0
    return [int(a | b << 2 | c << 4 | d << 6) for a, b, c, d in codes.astype(int)]


def stored(form: str) -> TensorProto:
    proto = TensorProto(name="w", data_type=to("INT2"), dims=INT2_VALUES.shape)
    data = packed(INT2_VALUES)
    if form == "raw_data":
        proto.raw_data = bytes(data)
    elif form == "int32_data":
        proto.int32_data.extend(data)
    elif form == "sign-extended int32_data":
        proto.int32_data.extend(byte - 256 if byte > 127 else byte for byte in data)
    else:
        proto.raw_data = bytes([data[0], data[1] | 0xF0])
    return proto


@pytest.mark.parametrize("form", ["raw_data", "int32_data", "sign-extended int32_data", "padding that is not zero"])
@pytest.mark.parametrize("place", ["initializer", "Constant"])
def test_constant_is_read_from_every_form_of_storage(form, place):
    nodes = [node("Transpose", ["w"], ["y"])]
    initializers = [stored(form)]
    if place == "Constant":
        nodes.insert(0, node("Constant", [], ["w"], value=initializers.pop()))
    built = model(nodes, [], [value("y", "INT2")], initializers)
    assert_same(graphs.run(built), [INT2_VALUES.T.astype(ml_dtypes.int2)])


def test_initializer_shared_by_several_consumers_and_an_output():
    built = model(
        [
            node("Transpose", ["w"], ["a"]),
            node("Cast", ["w"], ["b"], to=to("FLOAT")),
            node("CastLike", ["x", "w"], ["c"]),
            node("Reshape", ["w", "flat"], ["d"]),
            node("Identity", ["w"], ["e"]),
        ],
        [value("x", "FLOAT", [3])],
        [value("a", "INT2"), value("b", "FLOAT"), value("c", "INT2"), value("d", "INT2"), value("e", "INT2")],
        [tensor("w", INT2_VALUES, "INT2"), tensor("flat", [-1], np.int64)],
    )
    w = INT2_VALUES.astype(ml_dtypes.int2)
    narrowed = np.array([1, -2, -1], np.int8).astype(ml_dtypes.int2)
    got = graphs.run(built, {"x": np.array([1, 2, 3], np.float32)})
    assert_same(got, [w.T.copy(), INT2_VALUES.astype(np.float32), narrowed, w.reshape(-1), w])


def test_initializer_that_is_also_a_graph_input_can_be_overridden():
    built = model(
        [node("Transpose", ["w"], ["y"]), node("Cast", ["w"], ["f"], to=to("FLOAT"))],
        [value("w", "INT2", [2, 3])],
        [value("y", "INT2"), value("f", "FLOAT")],
        [tensor("w", INT2_VALUES, "INT2")],
    )
    w = INT2_VALUES.astype(ml_dtypes.int2)
    assert_same(graphs.run(built), [w.T.copy(), INT2_VALUES.astype(np.float32)])
    other = np.zeros((2, 3), np.int8).astype(ml_dtypes.int2)
    assert_same(graphs.run(built, {"w": other}), [other.T.copy(), np.zeros((2, 3), np.float32)])


def test_initializer_that_is_an_output_of_the_graph():
    built = model(
        [node("Identity", ["x"], ["y"])],
        [value("x", "INT2", [1])],
        [value("y", "INT2"), value("w", "INT2", [2, 3])],
        [tensor("w", INT2_VALUES, "INT2")],
    )
    x = np.array([1], np.int8).astype(ml_dtypes.int2)
    assert_same(graphs.run(built, {"x": x}), [x, INT2_VALUES.astype(ml_dtypes.int2)])
