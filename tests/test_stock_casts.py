"""Casts between stock types: those that a release gets wrong are corrected, all others stay, and the table is exact."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from arithmetic import EIGHT_BIT_FLOATS, bounds, cast, grid, is_integer, literals, same, values_of
from graphs import model, node, op_types, run, tensor, value
from onnx import helper

import ort_castlike
from ort_castlike._flaws import FLAWS, flaws_of
from ort_castlike._io._ort_values import to_ort_value, to_python
from ort_castlike._targets import resolve_target
from ort_castlike._types import CASTLIKE_TYPES, element_type

STOCK = tuple(name for name in CASTLIKE_TYPES if not element_type(name).is_emulated)


def code(name: str) -> int:
    return element_type(name).code


@functools.cache
def feed(source: str, to: str) -> np.ndarray:
    """What ONNX says the cast of: no number that an integer type does not hold."""
    if source == "STRING":
        return np.array(literals(to), object)
    values = grid(source)
    if to == "STRING":
        return values[:: 1 + len(values) // 500]
    if is_integer(to) and not is_integer(source) and source != "BOOL":
        whole = np.trunc(values_of(values, source))
        low, high = bounds(to)
        return values[(whole >= low) & (whole < float(high + 1))]
    return values


def ways(source: str) -> list[tuple[str, bool]]:
    listed = [(to, True) for to in STOCK if to != source]
    return listed + [(to, False) for to in EIGHT_BIT_FLOATS if to != source]


def casts_of(source: str, op_type: str = "Cast") -> onnx.ModelProto:
    """A model of a cast to every other stock type, with and without saturation."""
    nodes, inputs, outputs, likes = [], [], [], []
    for index, (to, saturate) in enumerate(ways(source)):
        attributes = {} if saturate else {"saturate": 0}
        operands = [f"x{index}"]
        if op_type == "Cast":
            attributes["to"] = code(to)
        else:
            operands.append(f"like{index}")
            likes.append(helper.make_tensor(operands[1], code(to), [], [""] if to == "STRING" else [0]))
        nodes.append(node(op_type, operands, [f"y{index}"], f"cast{index}", **attributes))
        inputs.append(value(f"x{index}", source, [None]))
        outputs.append(value(f"y{index}", to, [None]))
    return model(nodes, inputs, outputs, likes, opset=21)


def wrong(source: str, results) -> set[tuple[str, str, bool]]:
    found = set()
    for (to, saturate), got in zip(ways(source), results, strict=True):
        expected = cast(feed(source, to), source, to, saturate=saturate)
        assert got.dtype == expected.dtype
        if not same(got, expected, to).all():
            found.add((source, to, saturate))
    return found


@pytest.mark.parametrize("source", STOCK)
def test_the_table_lists_what_stock_onnxruntime_gets_wrong_and_nothing_else(source):
    proto = casts_of(source)
    proto.ir_version = 10
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    name = f"tensor({element_type(source).ort_name})"
    feeds = {f"x{index}": to_ort_value(feed(source, to), name) for index, (to, _) in enumerate(ways(source))}
    results = [to_python(result) for result in session.run_with_ort_values(None, feeds)]
    release = resolve_target(None).release
    listed = {
        (source, to, saturate)
        for to, saturate in ways(source)
        if any(flaw.first <= release for flaw in flaws_of(source, to, saturate))
    }
    assert wrong(source, results) == listed


@pytest.mark.parametrize("op_type", ["Cast", "CastLike"])
@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("source", STOCK)
def test_a_model_of_stock_types_alone_casts_right(source, lowering, op_type):
    feeds = {f"x{index}": feed(source, to) for index, (to, _) in enumerate(ways(source))}
    assert not wrong(source, run(casts_of(source, op_type), feeds, lowering=lowering))


@pytest.mark.parametrize("source", STOCK)
def test_only_casts_in_the_table_change(source):
    proto = casts_of(source)
    proto.ir_version = 10
    rewritten = ort_castlike.rewrite(proto, target="1.20")
    kept = [entry for entry in rewritten.graph.node if entry in list(proto.graph.node)]
    right = [way for way in ways(source) if not flaws_of(source, *way)]
    assert len(kept) == len(right)
    assert "ort_castlike" not in {entry.domain for entry in rewritten.opset_import}


@pytest.mark.parametrize(
    ("source", "to", "attributes"),
    [
        ("FLOAT", "FLOAT16", {}),
        ("FLOAT16", "FLOAT", {}),
        ("INT64", "FLOAT", {}),
        ("INT64", "FLOAT16", {}),
        ("FLOAT", "FLOAT8E4M3FN", {}),
        ("FLOAT", "FLOAT8E4M3FNUZ", {"saturate": 0}),
        ("DOUBLE", "FLOAT", {}),
        ("FLOAT8E4M3FNUZ", "BOOL", {}),
    ],
)
def test_a_model_with_nothing_to_correct_is_returned_as_it_is(source, to, attributes):
    entry = node("Cast", ["x"], ["y"], to=code(to), **attributes)
    proto = model([entry], [value("x", source, [2])], [value("y", to, [2])], opset=21)
    proto.ir_version = 10
    assert ort_castlike.rewrite(proto, target="1.20") == proto


@pytest.mark.parametrize(
    "nodes",
    [
        [node("RandomUniform", [], ["h"], dtype=code("DOUBLE"), shape=[2])],
        [node("HannWindow", ["n"], ["h"], output_datatype=code("DOUBLE"))],
        [node("ConstantOfShape", ["s"], ["h"], value=tensor("", [0.0], np.float64))],
        [node("Constant", [], ["h"], value=tensor("", [0.0], np.float64))],
        [node("Cast", ["n"], ["h"], to=code("DOUBLE"))],
        [node("CastLike", ["n", "d"], ["h"])],
        [
            node("SequenceEmpty", [], ["e"], dtype=code("DOUBLE")),
            node("SequenceInsert", ["e", "d"], ["f"]),
            node("SequenceAt", ["f", "n"], ["h"]),
        ],
    ],
    ids=lambda nodes: nodes[-1].op_type,
)
def test_a_double_is_seen_wherever_it_comes_from(nodes):
    nodes = [*nodes, node("Cast", ["h"], ["y"], to=code("FLOAT16"))]
    constants = [tensor("n", 1, np.int64), tensor("s", [2], np.int64)]
    if any("d" in entry.input for entry in nodes):
        constants.append(tensor("d", [1.0], np.float64))
    proto = model(nodes, [], [value("y", "FLOAT16")], constants, opset=21)
    proto.ir_version = 10
    assert len(ort_castlike.inspect(proto, target="1.20").changes) == 1


def test_a_cast_of_a_value_of_unknown_type_stays():
    nodes = [node("Unknown", ["x"], ["h"], domain="foreign"), node("Cast", ["h"], ["y"], to=code("FLOAT16"))]
    proto = model(nodes, [value("x", "DOUBLE", [2])], [value("y", "FLOAT16", [2])], opset=21)
    proto.ir_version = 10
    proto.opset_import.append(helper.make_opsetid("foreign", 1))
    assert ort_castlike.rewrite(proto, target="1.20") == proto


@pytest.mark.parametrize(("source", "opset"), [("DOUBLE", 12), ("INT64", 17)])
def test_below_the_opset_of_what_it_takes_a_cast_stays(source, opset):
    to = "FLOAT16" if source == "DOUBLE" else "BFLOAT16"
    entry = node("Cast", ["x"], ["y"], to=code(to))
    proto = model([entry], [value("x", source, [2])], [value("y", to, [2])], opset=opset)
    proto.ir_version = 8
    assert ort_castlike.rewrite(proto, target="1.20") == proto


@pytest.mark.parametrize(
    ("numbers", "dtype", "to", "saturate", "expected"),
    [
        ([1 + 2**-11 + 2**-40, -(1 + 2**-11)], np.float64, "FLOAT16", 1, [1 + 2**-10, -1.0]),
        ([480.0, 464.0], np.float32, "FLOAT8E4M3FN", 0, [np.nan, 448.0]),
        ([-61440.0, 61439.0], np.float32, "FLOAT8E5M2", 0, [-np.inf, 57344.0]),
        ([(1 << 62) + (1 << 54) + 1], np.int64, "BFLOAT16", 1, [2.0**62 + 2.0**55]),
    ],
)
@pytest.mark.parametrize("is_constant", [False, True])
def test_values_that_stock_onnxruntime_gets_wrong(numbers, dtype, to, saturate, expected, is_constant):
    entry = node("Cast", ["x"], ["y"], to=code(to), **({} if saturate else {"saturate": 0}))
    array = np.array(numbers, dtype)
    source = helper.tensor_dtype_to_string(helper.np_dtype_to_tensor_dtype(array.dtype)).split(".")[-1]
    back = node("Cast", ["y"], ["z"], to=code("FLOAT"))
    inputs, constants = ([], [tensor("x", array, dtype)]) if is_constant else ([value("x", source, [None])], [])
    proto = model([entry, back], inputs, [value("z", "FLOAT", [None])], constants, opset=21)
    (result,) = run(proto, {} if is_constant else {"x": array})
    np.testing.assert_array_equal(result, np.array(expected, np.float32))


def test_negative_zero_of_float8_is_false():
    nodes = [node("Cast", ["x"], ["h"], to=code("FLOAT8E4M3FN")), node("Cast", ["h"], ["y"], to=code("BOOL"))]
    proto = model(nodes, [value("x", "FLOAT", [3])], [value("y", "BOOL", [3])], opset=21)
    (result,) = run(proto, {"x": np.array([-0.0, 0.0, np.nan], np.float32)})
    assert result.tolist() == [False, False, True]


def test_casts_inside_a_subgraph_are_corrected():
    body = [node("Cast", ["x"], ["inner"], to=code("FLOAT16"))]
    graphs = {
        name: helper.make_graph(body, name, [], [value("inner", "FLOAT16", [1])])
        for name in ("then_branch", "else_branch")
    }
    nodes = [node("If", ["c"], ["y"], **graphs)]
    proto = model(nodes, [value("c", "BOOL", []), value("x", "DOUBLE", [1])], [value("y", "FLOAT16", [1])], opset=21)
    (result,) = run(proto, {"c": np.array(True), "x": np.array([1 + 2**-11 + 2**-40])})
    assert result.tolist() == [1 + 2**-10]


def test_inspect_says_what_is_corrected_and_why():
    entry = node("Cast", ["x"], ["y"], "narrow", to=code("FLOAT16"))
    proto = model([entry], [value("x", "DOUBLE", [2])], [value("y", "FLOAT16", [2])], opset=21)
    (change,) = ort_castlike.inspect(proto, target="1.20").changes
    assert "narrow" in change.node
    assert "rounds to FLOAT first" in change.becomes
    assert op_types(ort_castlike.rewrite(proto, target="1.20")) != ["Cast"]


def test_the_rows_of_the_table_do_not_overlap_without_reason():
    for flaw in FLAWS:
        assert flaw.sources.isdisjoint(flaw.targets)
        assert flaw.sources | flaw.targets <= set(STOCK)
