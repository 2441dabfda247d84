"""The rule for Cast and CastLike: what a node becomes in either lowering."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import ort_castlike
from ort_castlike._errors import ModelError
from ort_castlike._types import element_type

LOWERINGS = ("custom", "standard")
each_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


def code(name: str) -> int:
    return element_type(name).code


def model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, str],
    outputs: dict[str, str],
    initializers: Sequence[TensorProto] = (),
) -> onnx.ModelProto:
    """A model of one axis of unknown size."""
    graph = helper.make_graph(
        nodes,
        "casts",
        [helper.make_tensor_value_info(name, code(type_), ["n"]) for name, type_ in inputs.items()],
        [helper.make_tensor_value_info(name, code(type_), None) for name, type_ in outputs.items()],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def cast(from_name: str, to_name: str, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node("Cast", ["x"], ["y"], name="narrow", to=code(to_name), **attributes)
    return model([node], {"x": from_name}, {"y": to_name})


def cast_like(from_name: str, to_name: str, **attributes: object) -> onnx.ModelProto:
    node = helper.make_node("CastLike", ["x", "like"], ["y"], name="narrow", **attributes)
    return model([node], {"x": from_name, "like": to_name}, {"y": to_name})


def rewrite(source: onnx.ModelProto, lowering: str, **options: object) -> onnx.ModelProto:
    rewritten = ort_castlike.rewrite(source, lowering=lowering, target="1.20", **options)
    assert rewritten.ir_version <= 10
    return rewritten


def operators(rewritten: onnx.ModelProto) -> list[str]:
    return [f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in rewritten.graph.node]


def attributes(node: NodeProto) -> dict[str, object]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


# The custom lowering -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [cast, cast_like])
def test_a_narrowing_becomes_the_domains_castlike(build) -> None:
    rewritten = rewrite(build("FLOAT", "INT2"), "custom", rounding="half_away")
    assert operators(rewritten) == ["ort_castlike::CastLike", "Expand"]
    node, kept = rewritten.graph.node
    assert (kept.name, list(kept.output)) == ("narrow", ["y"])
    assert attributes(node) == {
        "from_type": "FLOAT",
        "to_type": "INT2",
        "rounding": "half_away",
        "saturate": 1,
        "round_mode": "up",
    }
    target = next(tensor for tensor in rewritten.graph.initializer if tensor.name in node.input)
    assert (target.name, target.data_type, list(target.dims)) == (node.input[1], TensorProto.INT8, [0])
    assert {entry.domain: entry.version for entry in rewritten.opset_import} == {"": 21, "ort_castlike": 1}


def test_the_target_of_a_castlike_is_used_no_more() -> None:
    source = cast_like("FLOAT", "INT2")
    assert "like" in [value.name for value in source.graph.input]
    rewritten = rewrite(source, "custom")
    assert "like" in [value.name for value in rewritten.graph.input]
    assert all("like" not in node.input for node in rewritten.graph.node)


@each_lowering
def test_what_only_computed_a_target_is_removed(lowering: str) -> None:
    nodes = [
        helper.make_node("Cast", ["z"], ["like"], to=code("INT2")),
        helper.make_node("CastLike", ["x", "like"], ["y"]),
    ]
    rewritten = rewrite(model(nodes, {"x": "FLOAT", "z": "FLOAT"}, {"y": "INT2"}), lowering)
    assert all("z" not in node.input for node in rewritten.graph.node)


@pytest.mark.parametrize("from_name", ["FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ"])
def test_a_type_that_python_cannot_take_crosses_as_float(from_name: str) -> None:
    rewritten = rewrite(cast(from_name, "INT2"), "custom")
    assert operators(rewritten) == ["Cast", "ort_castlike::CastLike", "Expand"]
    crossing, narrowing, _ = rewritten.graph.node
    assert attributes(crossing) == {"to": TensorProto.FLOAT}
    assert attributes(narrowing)["from_type"] == from_name


@pytest.mark.parametrize("to_name", ["FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2FNUZ"])
def test_a_type_that_python_cannot_give_is_cast_to_at_the_end(to_name: str) -> None:
    float8 = {"saturate": 0} if to_name.startswith("FLOAT8") else {}
    rewritten = rewrite(cast("INT2", to_name, **float8), "custom")
    assert operators(rewritten) == ["ort_castlike::CastLike", "Cast"]
    assert attributes(rewritten.graph.node[-1]) == {"to": code(to_name), **float8}
    assert list(rewritten.graph.node[-1].output) == ["y"]


def test_a_string_crosses_as_double() -> None:
    rewritten = rewrite(cast("STRING", "UINT4"), "custom")
    assert operators(rewritten) == ["Cast", "ort_castlike::CastLike", "Expand"]
    assert attributes(rewritten.graph.node[0]) == {"to": TensorProto.DOUBLE}


def test_saturate_and_round_mode_are_handed_on() -> None:
    rewritten = rewrite(cast_like("FLOAT", "FLOAT8E8M0", saturate=0, round_mode="down"), "custom")
    node = rewritten.graph.node[0]
    assert {"saturate": 0, "round_mode": "down"}.items() <= attributes(node).items()


# The standard lowering ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [cast, cast_like])
def test_a_narrowing_becomes_stock_operators(build) -> None:
    rewritten = rewrite(build("FLOAT", "INT2"), "standard")
    assert operators(rewritten) == [
        *("ThresholdedRelu", "Clip", "Round", "Cast"),
        *("BitwiseAnd", "BitwiseXor", "Sub", "Cast"),
    ]
    assert [entry.domain for entry in rewritten.opset_import] == [""]
    assert rewritten.graph.node[-1].name == "narrow"
    assert list(rewritten.graph.node[-1].output) == ["y"]


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("nearest_even", ["ThresholdedRelu", "Clip", "Round", "Cast", "BitwiseAnd", "Cast"]),
        ("toward_zero", ["ThresholdedRelu", "Clip", "Cast", "BitwiseAnd", "Cast"]),
        ("half_away", ["ThresholdedRelu", "Clip", "Mul", "Clip", "Add", "Cast", "BitwiseAnd", "Cast"]),
    ],
)
def test_the_rounding_decides_the_operators(rounding: str, expected: list[str]) -> None:
    assert operators(rewrite(cast("FLOAT", "UINT2"), "standard", rounding=rounding)) == expected


@pytest.mark.parametrize(
    ("from_name", "to_name"), [("INT2", "INT4"), ("INT2", "INT8"), ("UINT2", "UINT4"), ("UINT4", "UINT8")]
)
def test_a_cast_within_one_carrier_costs_nothing(from_name: str, to_name: str) -> None:
    assert operators(rewrite(cast(from_name, to_name), "standard")) == ["Identity"]


@pytest.mark.parametrize(
    ("from_name", "to_name"), [("INT2", "FLOAT"), ("UINT4", "INT64"), ("BOOL", "INT2"), ("FLOAT8E8M0", "DOUBLE")]
)
def test_a_cast_to_a_wider_type_is_one_stock_cast(from_name: str, to_name: str) -> None:
    assert operators(rewrite(cast(from_name, to_name), "standard")) == ["Cast"]


def test_a_standard_cast_to_float8_keeps_saturate() -> None:
    [node] = rewrite(cast("INT2", "FLOAT8E5M2", saturate=0), "standard").graph.node
    assert attributes(node) == {"to": code("FLOAT8E5M2"), "saturate": 0}


def test_equal_constants_are_shared() -> None:
    nodes = [helper.make_node("Cast", ["x"], [f"y{index}"], to=code("INT2")) for index in range(3)]
    rewritten = rewrite(model(nodes, {"x": "FLOAT"}, {f"y{index}": "INT2" for index in range(3)}), "standard")
    once = rewrite(cast("FLOAT", "INT2"), "standard")
    assert len(rewritten.graph.initializer) == len(once.graph.initializer)
    assert len(rewritten.graph.node) == 3 * len(once.graph.node)
    names = [node.name for node in rewritten.graph.node if node.name]
    assert len(set(names)) == len(names)


# Both --------------------------------------------------------------------------------------------------------


@each_lowering
@pytest.mark.parametrize("build", [cast, cast_like])
def test_a_cast_to_its_own_type_is_an_identity(build, lowering: str) -> None:
    assert operators(rewrite(build("INT2", "INT2"), lowering)) == ["Identity"]


@each_lowering
@pytest.mark.parametrize("from_name", ["INT2", "FLOAT4E2M1", "FLOAT8E8M0"])
def test_text_comes_from_a_stock_cast(from_name: str, lowering: str) -> None:
    [node] = rewrite(cast(from_name, "STRING"), lowering).graph.node
    assert (node.op_type, attributes(node)) == ("Cast", {"to": TensorProto.STRING})


@each_lowering
def test_a_constant_is_folded(lowering: str) -> None:
    weight = numpy_helper.from_array(np.array([-3, 1.5, 2.5, np.nan], np.float32), "w")
    nodes = [
        helper.make_node("Cast", ["w"], ["small"], to=code("INT2")),
        helper.make_node("Reshape", ["small", "shape"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([2, 2]), "shape")
    rewritten = rewrite(model(nodes, {}, {"y": "INT2"}, [weight, shape]), lowering)
    assert operators(rewritten) == ["Reshape"]
    constants = {tensor.name: tensor for tensor in rewritten.graph.initializer}
    folded = constants[rewritten.graph.node[0].input[0]]
    assert folded.data_type == TensorProto.INT8
    assert numpy_helper.to_array(folded).tolist() == [1, -2, -2, 0]
    assert "w" not in constants


@each_lowering
def test_a_folded_graph_output_keeps_its_name(lowering: str) -> None:
    small = numpy_helper.from_array(np.array([-2, 1], ml_dtypes.int2), "w")
    node = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
    rewritten = rewrite(model([node], {}, {"y": "FLOAT"}, [small]), lowering)
    assert operators(rewritten) == ["Identity"]
    assert list(rewritten.graph.node[0].output) == ["y"]
    [constant] = rewritten.graph.initializer
    assert numpy_helper.to_array(constant).tolist() == [-2, 1]


@each_lowering
def test_an_initializer_that_is_also_an_input_is_not_folded(lowering: str) -> None:
    weight = numpy_helper.from_array(np.array([1.5], np.float32), "w")
    node = helper.make_node("Cast", ["w"], ["y"], to=code("INT2"))
    rewritten = rewrite(model([node], {"w": "FLOAT"}, {"y": "INT2"}, [weight]), lowering)
    assert any("w" in node.input for node in rewritten.graph.node)


@each_lowering
def test_the_roundings_fold_as_they_run(lowering: str) -> None:
    weight = numpy_helper.from_array(np.array([0.5, 1.5, 2.5, -1.5], np.float32), "w")
    node = helper.make_node("Cast", ["w"], ["y"], to=code("INT4"))
    source = model([node], {}, {"y": "INT4"}, [weight])
    for rounding, expected in {
        "nearest_even": [0, 2, 2, -2],
        "toward_zero": [0, 1, 2, -1],
        "half_away": [1, 2, 3, -2],
    }.items():
        rewritten = rewrite(source, lowering, rounding=rounding)
        [constant] = rewritten.graph.initializer
        assert numpy_helper.to_array(constant).tolist() == expected


@each_lowering
@pytest.mark.parametrize("inputs", [["x"], ["x", ""]])
def test_a_castlike_without_a_target_is_refused(inputs: list[str], lowering: str) -> None:
    node = helper.make_node("CastLike", inputs, ["y"], name="lost")
    with pytest.raises(ModelError, match=r"lost|CastLike"):
        ort_castlike.rewrite(model([node], {"x": "FLOAT"}, {"y": "INT2"}), lowering=lowering)


@each_lowering
def test_a_cast_between_stock_types_stays(lowering: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["half"], ["y"], to=code("INT2")),
    ]
    rewritten = rewrite(model(nodes, {"x": "FLOAT"}, {"y": "INT2"}), lowering)
    first = rewritten.graph.node[0]
    assert (first.domain, first.op_type, attributes(first)) == ("", "Cast", {"to": TensorProto.FLOAT16})


def test_an_unknown_lowering_is_refused() -> None:
    with pytest.raises(ort_castlike.CastLikeError, match=r"lowering='fast'.*'custom', 'standard'"):
        ort_castlike.rewrite(cast("FLOAT", "INT2"), lowering="fast")
