"""LegalizePass among onnx_ir's own passes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
import onnxruntime
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto

import ort_castlike
from ort_castlike._errors import OptionError, TargetError, UnsupportedOperatorError

X = np.array([-1.5, -0.4, 0.6, 2.5], np.float32)
QUANTIZED = np.array([-2, 0, 1, -2], np.float32)  # ties to even, then two bits: 2 is -2
WEIGHTS = np.array([1, -2, -1, 0], np.float32)


def weights_model():
    """y = cast(x) + INT2 weights * 0.5, with an Identity and a value that nobody uses on the way."""
    nodes = [
        node("Cast", ["x"], ["q"], name="narrow", to=TensorProto.INT2),
        node("Identity", ["q"], ["q_same"]),
        node("Cast", ["q_same"], ["c"], to=TensorProto.FLOAT),
        node("DequantizeLinear", ["w", "s"], ["d"]),
        node("Neg", ["x"], ["unused"]),
        node("Add", ["c", "d"], ["y"]),
    ]
    initializers = [tensor("w", WEIGHTS, "INT2"), tensor("s", 0.5, np.float32)]
    return model(nodes, [value("x", "FLOAT", [4])], [value("y", "FLOAT", [4])], initializers)


def emulated_types(source: ir.Model) -> set[str]:
    values = [*source.graph.inputs, *source.graph.initializers.values()]
    values += [output for item in source.graph.all_nodes() for output in item.outputs]
    names = {item.dtype.name for item in values if item.dtype is not None}
    return names & {"INT2", "UINT2", "FLOAT4E2M1", "FLOAT8E8M0"}


def assert_computes(source: ir.Model) -> None:
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    data = ir.serde.serialize_model(source).SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], QUANTIZED + WEIGHTS / 2)


def read() -> ir.Model:
    return ir.serde.deserialize_model(weights_model())


def test_pass_works_in_place_and_says_that_it_did():
    source = read()
    result = ort_castlike.LegalizePass()(source)
    assert result.modified
    assert result.model is source
    assert not emulated_types(source)
    assert_computes(source)


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_pass_gives_what_rewrite_gives(lowering):
    source = read()
    ort_castlike.LegalizePass(target="1.20", lowering=lowering, rounding="half_away")(source)
    options = {"target": "1.20", "lowering": lowering, "rounding": "half_away"}
    expected = ort_castlike.rewrite(read(), **options)
    assert ir.serde.serialize_model(source) == ir.serde.serialize_model(expected)


def test_second_run_modifies_nothing():
    source = read()
    legalize = ort_castlike.LegalizePass()
    legalize(source)
    before = ir.serde.serialize_model(source).SerializeToString()
    assert not legalize(source).modified
    assert ir.serde.serialize_model(source).SerializeToString() == before


def test_model_that_needs_nothing_is_not_modified():
    nodes = [node("Neg", ["x"], ["t"]), node("Neg", ["t"], ["y"])]
    proto = model(nodes, [value("x", "FLOAT", [4])], [value("y", "FLOAT", [4])], opset=21)
    proto.ir_version = 10
    source = ir.serde.deserialize_model(proto)
    before = ir.serde.serialize_model(source).SerializeToString()
    assert not ort_castlike.LegalizePass(target="1.20")(source).modified
    assert ir.serde.serialize_model(source).SerializeToString() == before


PASSES = [
    common.CheckerPass,
    common.ShapeInferencePass,
    common.TopologicalSortPass,
    common.NameFixPass,
    common.IdentityEliminationPass,
    common.CommonSubexpressionEliminationPass,
    common.DeduplicateInitializersPass,
    common.LiftConstantsToInitializersPass,
    common.RemoveUnusedNodesPass,
    common.RemoveUnusedOpsetsPass,
    common.AddDefaultAttributesPass,
]


@pytest.mark.parametrize("each", PASSES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_pass_composes_with_those_of_onnx_ir(each, lowering):
    legalize = ort_castlike.LegalizePass(lowering=lowering)
    for passes in ([legalize, each()], [each(), legalize]):
        result = ir.passes.Sequential(*passes)(read())
        assert result.modified
        assert not emulated_types(result.model)
        assert_computes(result.model)


def test_whole_pipeline_until_nothing_changes():
    passes = [ort_castlike.LegalizePass(target="1.20"), *(each() for each in PASSES)]
    result = ir.passes.PassManager(passes, steps=4, early_stop=True)(read())
    assert_computes(result.model)
    kinds = [item.op_type for item in result.model.graph]
    assert "Identity" not in kinds
    assert "Neg" not in kinds
    assert not ir.passes.Sequential(*passes)(result.model).modified


def test_functional_wrapper_leaves_the_input_alone():
    source = read()
    before = ir.serde.serialize_model(source).SerializeToString()
    result = ir.passes.functionalize(ort_castlike.LegalizePass())(source)
    assert result.model is not source
    assert ir.serde.serialize_model(source).SerializeToString() == before
    assert_computes(result.model)


def test_postcondition_names_what_is_left():
    with pytest.raises(ir.passes.PostconditionError, match="'w' of the graph still has the type INT2"):
        ort_castlike.LegalizePass().ensures(read())


def test_refusal_is_the_error_of_rewrite():
    proto = weights_model()
    proto.graph.node[1].op_type = "Relu"
    with pytest.raises(UnsupportedOperatorError, match="Relu"):
        ort_castlike.LegalizePass()(ir.serde.deserialize_model(proto))
    with pytest.raises(ir.passes.PassError) as caught:
        ir.passes.Sequential(ort_castlike.LegalizePass())(ir.serde.deserialize_model(proto))
    assert isinstance(caught.value.__cause__, UnsupportedOperatorError)


def test_wrong_options_are_refused_when_the_pass_is_made():
    with pytest.raises(OptionError):
        ort_castlike.LegalizePass(rounding="up")
    with pytest.raises(TargetError):
        ort_castlike.LegalizePass(target="1.2")


def test_tensors_are_shared_and_encoded_when_they_are_asked_for():
    source = read()
    weights = source.graph.initializers["w"].const_value
    clone = source.clone()
    ort_castlike.LegalizePass()(clone)
    assert source.graph.initializers["w"].const_value is weights
    assert source.graph.initializers["w"].dtype == ir.DataType.INT2
    assert clone.graph.initializers["w"].const_value.numpy().tolist() == [1, -2, -1, 0]
