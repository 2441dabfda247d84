"""verify: what is right passes, a planted error is found at the node that makes it, and no other is blamed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import graph, model, node, tensor, value
from onnx import helper, numpy_helper

import ort_castlike
from ort_castlike._check._verify import verify
from ort_castlike._errors import FeedError, ModelError

MODELS = Path(__file__).parent.parent / "models"
MIXED = MODELS / "mixed_int2" / "model.onnx"
EXAMPLES = (MIXED, *sorted((MODELS / "castlike").glob("*/model.onnx")))


def save(folder: Path, proto: onnx.ModelProto, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(proto, path)
    return path


def with_initializer(proto: onnx.ModelProto, name: str, change) -> onnx.ModelProto:
    """A copy with the array of one initializer changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    [found] = [item for item in copy.graph.initializer if item.name == name]
    array = numpy_helper.to_array(found).copy()
    change(array)
    found.CopyFrom(numpy_helper.from_array(array, name))
    return copy


def layer() -> onnx.ModelProto:
    """A 2-bit layer with blocked weights, then a quantization and a cast."""
    generator = np.random.default_rng(1)
    return model(
        [
            node("DequantizeLinear", ["w", "s", "z"], ["wide"], "dequantize", axis=0, block_size=16),
            node("MatMul", ["x", "wide"], ["product"], "matmul"),
            node("Relu", ["product"], ["positive"], "relu"),
            node("QuantizeLinear", ["positive", "step", "zero"], ["q"], "quantize"),
            node("CastLike", ["q", "product"], ["y"], "cast"),
        ],
        [value("x", "FLOAT", ["n", 32])],
        [value("y", "FLOAT", ["n", 8]), value("q", "INT2", ["n", 8])],
        [
            tensor("w", generator.integers(-2, 2, (32, 8)), "INT2"),
            tensor("s", generator.random((2, 8)) + 0.5, np.float32),
            tensor("z", generator.integers(-2, 2, (2, 8)), "INT2"),
            tensor("step", 3, np.float32),
            tensor("zero", 0, "INT2"),
        ],
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_example_is_right_in_every_node(path, lowering):
    result = verify(path, options={"lowering": lowering})
    assert result.is_right
    assert result.compared == result.nodes > 0
    assert not result.unknown


@pytest.mark.parametrize("rounding", ["toward_zero", "half_away"])
def test_rounding_of_the_rewrite_is_the_rounding_it_is_checked_for(rounding):
    assert verify(MIXED, options={"rounding": rounding}).is_right


def test_model_rewritten_with_a_rounding_and_saved_as_another_differs(tmp_path):
    rewritten = ort_castlike.rewrite(str(MIXED), rounding="half_away")
    for entry in rewritten.metadata_props:
        entry.value = entry.value.replace("half_away", "nearest_even")
    [first, *_] = verify(MIXED, save(tmp_path, rewritten)).mismatches
    assert (first.node, first.op_type, first.value) == ("cast_in", "CastLike", "narrow")


@pytest.mark.parametrize("target", ["1.20", None])
def test_model_in_a_file_is_right(tmp_path, target):
    path = tmp_path / "rewritten.onnx"
    ort_castlike.rewrite_file(MIXED, path, target=target)
    assert verify(MIXED, path).is_right


def test_layer_of_weights_is_right(tmp_path):
    result = verify(save(tmp_path, layer()), default_dim=3)
    assert result.is_right
    assert result.compared == result.nodes == 5


def test_changed_constant_is_found_at_the_node_that_uses_it(tmp_path):
    def planted(array):
        array[...] = 1

    changed = with_initializer(ort_castlike.rewrite(str(MIXED)), "pad_value", planted)
    result = verify(MIXED, save(tmp_path, changed))
    assert not result.is_right
    assert [(item.node, item.op_type, item.value) for item in result.mismatches] == [("pad", "Pad", "padded")]
    difference = result.mismatches[0].difference
    # The pad is -2 in the original: 5 elements of the first column and 7 of the last row, one of them in both.
    assert (difference.expected, difference.given, difference.index, difference.count) == ("-2", "1", (0, 0), 11)


def test_one_changed_weight_among_many_is_found(tmp_path):
    original = layer()
    rewritten = ort_castlike.rewrite(original)
    for item in rewritten.graph.initializer:
        if item.name == "w":
            data = bytearray(item.raw_data)
            data[5] ^= 1
            item.raw_data = bytes(data)
    [only] = verify(save(tmp_path, original), save(tmp_path, rewritten, "rewritten.onnx")).mismatches
    assert (only.node, only.difference.count, only.difference.size) == ("dequantize", 1, 256)


def test_changed_operator_is_found(tmp_path):
    rewritten = ort_castlike.rewrite(str(MIXED))
    [moved] = [item for item in rewritten.graph.node if item.name == "identity"]
    moved.op_type = "Neg"
    [only] = verify(MIXED, save(tmp_path, rewritten)).mismatches
    assert (only.node, only.value) == ("identity", "codes")


def test_a_lost_attribute_of_a_cast_is_found(tmp_path):
    source = model(
        [node("Cast", ["x"], ["y"], "narrow", to=onnx.TensorProto.FLOAT8E8M0, round_mode="down", saturate=0)],
        [value("x", "FLOAT", [64])],
        [value("y", "FLOAT8E8M0", [64])],
    )
    rewritten = ort_castlike.rewrite(source)
    assert verify(save(tmp_path, source), save(tmp_path, rewritten, "right.onnx")).is_right
    for item in rewritten.graph.node:
        for attribute in item.attribute:
            if attribute.name == "round_mode":
                attribute.s = b"up"
    [only] = verify(save(tmp_path, source), save(tmp_path, rewritten, "wrong.onnx")).mismatches
    assert only.node == "narrow"


def test_error_inside_a_loop_is_found_at_the_loop(tmp_path):
    body = graph(
        [
            node("CastLike", ["carried", "code"], ["narrow"], "inner"),
            node("CastLike", ["narrow", "carried"], ["again"], "outer"),
            node("Identity", ["going"], ["goes"], "same"),
        ],
        "body",
        [value("index", "INT64", []), value("going", "BOOL", []), value("carried", "FLOAT", [4])],
        [value("goes", "BOOL", []), value("again", "FLOAT", [4])],
    )
    source = model(
        [node("Loop", ["count", "", "x"], ["y"], "loop", body=body)],
        [value("x", "FLOAT", [4])],
        [value("y", "FLOAT", [4])],
        [tensor("count", 2, np.int64), tensor("code", [0], "INT2")],
    )
    path = save(tmp_path, source)
    assert verify(path).is_right
    rewritten = ort_castlike.rewrite(source)
    [loop] = [item for item in rewritten.graph.node if item.op_type == "Loop"]
    for item in loop.attribute[0].g.node:
        for attribute in item.attribute:
            if attribute.s == b"INT2":
                attribute.s = b"INT4"
    [only] = verify(path, save(tmp_path, rewritten, "wrong.onnx"), rounds=4).mismatches
    assert (only.node, only.op_type) == ("loop", "Loop")


def test_operator_that_is_not_known_is_told_and_the_rest_is_compared(tmp_path):
    source = model(
        [
            node("Gelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
            node("CastLike", ["g", "code"], ["y"], "cast"),
        ],
        [value("x", "FLOAT", [6])],
        [value("y", "INT2", [6])],
        [tensor("code", [0], "INT2")],
    )
    source.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    source.graph.value_info.append(value("g", "FLOAT", [6]))
    result = verify(save(tmp_path, source))
    assert result.is_right
    assert list(result.unknown) == ["gelu"]
    assert (result.compared, result.nodes, result.not_compared) == (1, 2, 1)


def without_record(proto: onnx.ModelProto) -> onnx.ModelProto:
    del proto.metadata_props[:]
    return proto


def nested_custom_node() -> onnx.ModelProto:
    """A model with a node that a rewrite makes in the branches of an If, and no record."""
    branches = [
        graph(
            [node("CastLike", ["x"], [name], domain="ort_castlike", target_type="INT2", rounding="nearest_even")],
            name,
            [],
            [value(name, "INT8", [2])],
        )
        for name in ("then", "else")
    ]
    source = model(
        [node("If", ["which"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        [value("which", "BOOL", []), value("x", "FLOAT", [2])],
        [value("y", "INT8", [2])],
    )
    source.opset_import.append(helper.make_opsetid("ort_castlike", 1))
    return source


@pytest.mark.parametrize(
    "source",
    [
        ort_castlike.rewrite(str(MIXED), lowering="standard"),
        without_record(ort_castlike.rewrite(str(MIXED))),
        nested_custom_node(),
    ],
    ids=["record", "node", "nested node"],
)
def test_original_that_was_rewritten_is_refused(tmp_path, source):
    with pytest.raises(ModelError, match="the original was rewritten already: give the model that it was made from"):
        verify(save(tmp_path, source))


def test_model_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ModelError, match="is the one a rewrite of the other"):
        verify(MIXED, save(tmp_path, layer()))


def test_given_input_is_used(tmp_path):
    values = np.full((2, 3, 4), 0.5, np.float32)
    path = tmp_path / "x.npy"
    np.save(path, values)
    result = verify(MIXED, files={"x": str(path)})
    assert result.is_right
    assert result.feeds == ["the given inputs"]


def test_input_of_a_name_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FeedError, match="no input 'nobody'; its inputs are x"):
        verify(MIXED, files={"nobody": str(tmp_path)})


def test_progress_ends_where_all_is_done():
    seen: list[tuple[int, int]] = []
    result = verify(MIXED, rounds=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (result.nodes * len(result.feeds),) * 2


def test_result_is_plain_data():
    plain = verify(MIXED).to_dict()
    assert plain["right"] is True
    assert plain["compared"] == 7


def test_weights_of_two_bits_of_com_microsoft_are_right(tmp_path):
    generator = np.random.default_rng(2)
    source = model(
        [
            node(
                "MatMulNBits",
                ["x", "w", "s", "z"],
                ["y"],
                "layer",
                domain="com.microsoft",
                K=64,
                N=6,
                bits=2,
                block_size=32,
            )
        ],
        [value("x", "FLOAT", [3, 64])],
        [value("y", "FLOAT", [3, 6])],
        [
            tensor("w", generator.integers(0, 256, (6, 2, 8)), np.uint8),
            tensor("s", generator.random((6, 2)) + 0.5, np.float32),
            tensor("z", generator.integers(0, 4, (6, 1)), np.uint8),
        ],
    )
    source.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert verify(save(tmp_path, source)).is_right
    rewritten = ort_castlike.rewrite(source, weights="pack4")
    [name] = [item.input[1] for item in rewritten.graph.node if item.op_type == "MatMulNBits"]
    [packed] = [item for item in rewritten.graph.initializer if item.name == name]
    data = bytearray(packed.raw_data)
    data[0] ^= 0x0F
    packed.raw_data = bytes(data)
    [only, *_] = verify(tmp_path / "model.onnx", save(tmp_path, rewritten, "wrong.onnx")).mismatches
    assert only.node == "layer"


def test_what_onnx_leaves_open_is_not_compared(tmp_path):
    source = model(
        [
            node("Cast", ["x"], ["wide"], "to_int8", to=onnx.TensorProto.INT8),
            node("Cast", ["x"], ["narrow"], "to_int2", to=onnx.TensorProto.INT2),
        ],
        [value("x", "FLOAT", [16])],
        [value("wide", "INT8", [16]), value("narrow", "INT2", [16])],
    )
    # Among the boundary inputs are infinities, NaN and numbers beyond the range of INT8.
    result = verify(save(tmp_path, source))
    assert result.is_right
    assert result.compared == 2


def test_made_up_scales_are_positive(tmp_path):
    source = model(
        [node("QuantizeLinear", ["x", "s", "z"], ["y"], "quantize")],
        [value("x", "FLOAT", [5]), value("s", "FLOAT", []), value("z", "INT4", [])],
        [value("y", "INT4", [5])],
    )
    result = verify(save(tmp_path, source), rounds=5)
    assert result.is_right
    assert result.compared == 1


def test_input_that_the_model_fails_on_is_told(tmp_path):
    source = model(
        [
            node("CastLike", ["x", "code"], ["narrow"], "cast"),
            node("Reshape", ["narrow", "shape"], ["y"], "reshape"),
        ],
        [value("x", "FLOAT", [2, 3]), value("shape", "INT64", [2])],
        [value("y", "INT2", [None, None])],
        [tensor("code", [0], "INT2")],
    )
    path = save(tmp_path, source)
    np.save(tmp_path / "shape.npy", np.int64([3, 2]))
    assert verify(path, files={"shape": str(tmp_path / "shape.npy")}).is_right
    with pytest.raises(Exception, match="eshape"):
        verify(path, rounds=1)
