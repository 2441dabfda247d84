"""The independent evaluation: what ONNX's pages say, by hand, and the same as the kernels for every pair of types."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import function, graph, model, node, value
from onnx import helper

from ort_castlike import _kernels
from ort_castlike._check._feeds import InputSpec, boundary_feed, boundary_rounds, random_feed
from ort_castlike._check._reference import Reference, cast, free_names
from ort_castlike._types import ELEMENT_TYPES, EMULATED_TYPES

NUMBERS = [name for name in ELEMENT_TYPES if not name.startswith(("COMPLEX", "STRING"))]
PAIRS = [pair for pair in itertools.product(NUMBERS, NUMBERS) if not EMULATED_TYPES.keys().isdisjoint(pair)]
TIES = [0.5, 1.5, 2.5, -0.5, -1.5]


def casts(values, to: str, **options) -> list:
    array = cast(np.asarray(values), ELEMENT_TYPES[to], options.pop("rounding", "nearest_even"), **options)
    assert array.dtype == ELEMENT_TYPES[to].dtype
    return array.astype(np.float64).tolist()


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("nearest_even", [0, 2, 2, 0, -2]),
        ("toward_zero", [0, 1, 2, 0, -1]),
        ("half_away", [1, 2, 3, -1, -2]),
    ],
)
def test_ties_go_where_the_rounding_says(rounding, expected):
    assert casts(np.float32(TIES), "INT4", rounding=rounding) == expected


def test_integers_of_few_bits_wrap():
    assert casts(np.float32([-3, -2, 3, 2.0**60, 5]), "INT2") == [1, -2, -1, 0, 1]
    assert casts(np.float32([-3, -2, 3, 17]), "UINT2") == [1, 2, 3, 1]
    assert casts(np.int64([-9, 8, 2**62 + 5]), "INT4") == [7, -8, 5]
    assert casts(np.float32([np.nan, np.inf, -np.inf]), "UINT4") == [0, 0, 0]


def test_float4_is_the_nearest_of_its_values_and_saturates():
    given = np.float32([0.25, 0.75, 2.5, 3.5, 5.0, 5.1, 100, -np.inf, -0.1])
    assert casts(given, "FLOAT4E2M1") == [0, 1, 2, 4, 4, 6, 6, -6, 0]
    assert math.copysign(1, casts(np.float32([np.nan]), "FLOAT4E2M1")[0]) == -1


@pytest.mark.parametrize(("round_mode", "expected"), [("up", [4, 1, 8]), ("down", [2, 0.5, 4]), ("nearest", [4, 1, 4])])
def test_e8m0_rounds_to_powers_of_two(round_mode, expected):
    assert casts(np.float32([3, 0.75, 5]), "FLOAT8E8M0", round_mode=round_mode) == expected


def test_float8_overflows_where_its_page_says():
    powers = np.array([2.0**9, 2.0**16]).astype(ml_dtypes.float8_e8m0fnu)
    assert casts(powers, "FLOAT8E4M3FN") == [448, 448]
    assert casts(powers, "FLOAT8E5M2", saturate=False) == [512, math.inf]
    assert np.isnan(casts(powers, "FLOAT8E4M3FNUZ", saturate=False)).all()


def test_strings_are_numbers():
    texts = np.array(["-2", "1.5", "1e1"], dtype=object)
    assert casts(texts, "INT4") == [-2, 2, -6]
    assert cast(np.array([-2, 1], ml_dtypes.int2), ELEMENT_TYPES["STRING"], "nearest_even").tolist() == ["-2", "1"]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids="-".join)
def test_kernels_agree(source, target):
    spec = InputSpec("x", ELEMENT_TYPES[source], (40,), is_wide=True)
    feeds = [boundary_feed([spec], index) for index in range(boundary_rounds([spec]))] + [random_feed([spec], 3)]
    values = np.concatenate([feed["x"] for feed in feeds])
    is_narrow = ELEMENT_TYPES[target].is_integer and ELEMENT_TYPES[target].bits <= 4
    roundings = ("nearest_even", "toward_zero", "half_away") if is_narrow else ("nearest_even",)
    modes = ("up", "down", "nearest") if target == "FLOAT8E8M0" else ("up",)
    for rounding, saturate, mode in itertools.product(roundings, (True, False), modes):
        to_type = ELEMENT_TYPES[target]
        made = _kernels.convert(
            values, ELEMENT_TYPES[source], to_type, rounding=rounding, saturate=saturate, round_mode=mode
        )
        expected = cast(values, to_type, rounding, saturate, mode)
        left, right = (array.astype(to_type.dtype).astype(np.float64) for array in (made, expected))
        np.testing.assert_array_equal(left, right)
        finite = ~np.isnan(left)
        np.testing.assert_array_equal(np.signbit(left[finite]), np.signbit(right[finite]))


def test_quantization_saturates_and_does_not_wrap():
    quantize = node("QuantizeLinear", ["x", "s", "z"], ["y"])
    feed = {"x": np.float32([-100, -0.75, 0.25, 100]), "s": np.float32(0.5), "z": np.array(0, ml_dtypes.int2)}
    [result] = evaluate(quantize, feed)
    assert result.astype(np.int8).tolist() == [-2, -2, 0, 1]


def test_blocks_of_a_dequantization_may_end_early():
    dequantize = node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=0, block_size=2)
    codes = np.array([-2, -1, 0, 1, 1], ml_dtypes.int2)
    feed = {"x": codes, "s": np.float32([1, 2, 4]), "z": np.array([0, 1, -1], ml_dtypes.int2)}
    [result] = evaluate(dequantize, feed)
    assert result.tolist() == [-2, -1, -2, 0, 8]


def test_casts_inside_functions_and_subgraphs_are_these_too():
    branch = graph([node("CastLike", ["x", "like"], ["narrow"])], "branch", [], [value("narrow", "INT2", [2])])
    conditional = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    assert free_names(conditional) == ["c", "x", "like"]
    feed = {"c": np.array(True), "x": np.float32([1.5, -1.5]), "like": np.zeros(1, ml_dtypes.int2)}
    [result] = evaluate(conditional, feed)
    assert result.astype(np.int8).tolist() == [-2, -2]


def evaluate(one: onnx.NodeProto, feed) -> list:
    return Reference(model([one], [], []), "nearest_even").run(one, feed)


def test_loop_needs_no_condition_and_stacks_what_it_gives():
    body = graph(
        [node("Add", ["state", "one"], ["next"]), node("Identity", ["next"], ["item"]), node("Identity", ["c"], ["d"])],
        "body",
        [value("i", "INT64", []), value("c", "BOOL", []), value("state", "FLOAT", [1, 2])],
        [value("d", "BOOL", []), value("next", "FLOAT", [1, 2]), value("item", "FLOAT", [1, 2])],
    )
    loop = node("Loop", ["count", "", "x"], ["last", "all"], body=body)
    feed = {"count": np.array(3), "x": np.float32([[0, 1]]), "one": np.float32(1)}
    last, stacked = evaluate(loop, feed)
    assert last.tolist() == [[3, 4]]
    assert stacked.tolist() == [[[1, 2]], [[2, 3]], [[3, 4]]]


def test_quantization_to_a_float_adds_its_zero_point():
    quantize = node("QuantizeLinear", ["x", "s", "z"], ["y"])
    feed = {"x": np.float32([0, 2, -9]), "s": np.float32(2), "z": np.array(1.5, ml_dtypes.float4_e2m1fn)}
    [result] = evaluate(quantize, feed)
    assert result.astype(np.float32).tolist() == [1.5, 2, -3]


def test_pad_cuts_where_it_is_negative():
    feed = {
        "x": np.array([[1, -2, 0]], ml_dtypes.int2),
        "p": np.int64([0, 1, 0, -2]),
        "v": np.array(-1, ml_dtypes.int2),
    }
    [result] = evaluate(node("Pad", ["x", "p", "v"], ["y"]), feed)
    assert result.astype(np.int8).tolist() == [[-1, 1]]


def test_scan_goes_backward():
    body = graph(
        [node("Add", ["state", "item"], ["sum"]), node("Identity", ["sum"], ["part"])],
        "body",
        [value("state", "FLOAT", [1]), value("item", "FLOAT", [1])],
        [value("sum", "FLOAT", [1]), value("part", "FLOAT", [1])],
    )
    options = {"num_scan_inputs": 1, "scan_input_directions": [1], "scan_output_directions": [1]}
    scan = node("Scan", ["first", "x"], ["last", "parts"], body=body, **options)
    last, parts = evaluate(scan, {"first": np.float32([0]), "x": np.float32([[1], [2], [4]])})
    assert last.tolist() == [7]
    assert parts.tolist() == [[7], [6], [4]]


def test_defaults_of_a_function_reach_the_nodes_inside_it():
    inner = helper.make_node("Constant", [], ["to"])
    inner.attribute.append(onnx.AttributeProto(name="value_int", ref_attr_name="n", type=onnx.AttributeProto.INT))
    plus = function(
        "plus", ["x"], ["y"], [inner, node("Add", ["x", "to"], ["y"])], defaults=[helper.make_attribute("n", 5)]
    )
    called = node("plus", ["x"], ["y"], domain="local")
    source = model([called], [value("x", "INT64", [1])], [value("y", "INT64", [1])], functions=[plus])
    [result] = Reference(source, "nearest_even").run(called, {"x": np.int64([1])})
    assert result.tolist() == [6]


@pytest.mark.parametrize("target", ["INT2", "FLOAT4E2M1", "FLOAT8E8M0", "STRING"])
def test_scalars_stay_arrays(target):
    result = cast(np.array(1.0, np.float32), ELEMENT_TYPES[target], "nearest_even")
    assert isinstance(result, np.ndarray)
    assert result.shape == ()
