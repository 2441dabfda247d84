"""Graph inputs with a default value, fed and not fed; float16 ones crashed onnxruntime 1.23 to 1.27 at load."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import DTYPES, assert_same, model, node, op_types, run, tensor, value

import ort_castlike

ELEMENTS = {**DTYPES, "FLOAT16": np.dtype(np.float16)}


@pytest.mark.parametrize("shape", [["n"], None])
@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("element", ["FLOAT16", "FLOAT4E2M1", "INT2"])
def test_a_feed_may_have_another_size_than_the_default(element, lowering, shape):
    source = model(
        [node("Cast", ["d"], ["wide"], to=1), node("Cast", ["wide"], ["narrow"], to=26)],
        [value("d", element, shape)],
        [value("wide", "FLOAT", shape), value("narrow", "INT2", shape)],
        [tensor("d", [1, 0, 1, 1], ELEMENTS[element])],
    )
    for fed, values in ((False, [1, 0, 1, 1]), (True, [0, 1]), (True, [1] * 7)):
        given = {"d": np.array(values, ELEMENTS[element])} if fed else {}
        wide, narrow = run(source, given, lowering=lowering)
        assert_same(wide, np.array(values, np.float32))
        assert_same(narrow, np.array(values, DTYPES["INT2"]))


@pytest.mark.parametrize("element", ["INT4", "FLOAT4E2M1"])
def test_a_float16_scale_with_a_default(element):
    source = model(
        [node("QuantizeLinear", ["x", "s", "z"], ["y"])],
        [value("x", "FLOAT16", [2]), value("s", "FLOAT16", [])],
        [value("y", element, [2])],
        [tensor("x", [1, -1], np.float16), tensor("s", 0.5, np.float16), tensor("z", 0, element)],
    )
    assert_same(run(source), [np.array([2, -2], DTYPES[element])])
    assert_same(run(source, {"s": np.array(1, np.float16)}), [np.array([1, -1], DTYPES[element])])


def test_a_model_without_emulated_types_stays_as_it_is():
    source = model(
        [node("Neg", ["x"], ["y"])],
        [value("x", "FLOAT16", [1])],
        [value("y", "FLOAT16", [1])],
        [tensor("x", [1], np.float16)],
        opset=13,
    )
    assert op_types(ort_castlike.rewrite(source, target="1.20")) == ["Neg"]
