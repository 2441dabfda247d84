"""inspect: what is emulated, what would change, what blocks, and which releases run it."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from graphs import model, node, sequence, tensor, value
from onnx import TensorProto, helper

import ort_castlike
from ort_castlike._errors import ModelError, TargetError, UnsupportedOperatorError
from ort_castlike._report import size_text
from ort_castlike._rules import RULES
from ort_castlike._targets import TARGETS
from ort_castlike._types import ELEMENT_TYPES

RELEASES = [str(target) for target in TARGETS]


def from_release(release: str) -> list[str]:
    return RELEASES[RELEASES.index(release) :]


def mixed_model():
    """An INT2 input and output, an INT2 weight, an UINT2 constant."""
    nodes = [
        node("Transpose", ["x"], ["t"], name="turn"),
        node("DequantizeLinear", ["w", "s"], ["d"], name="dequantize"),
        node("Constant", [], ["c"], value=tensor("c", [1, 2, 3], "UINT2")),
        node("Cast", ["c"], ["i"], name="widen", to=TensorProto.INT32),
        node("Cast", ["f"], ["q"], name="narrow", to=TensorProto.UINT2),
    ]
    outputs = [value(*arguments) for arguments in (("t", "INT2", [3, 2]), ("d", "FLOAT", [4]), ("i", "INT32", [3]))]
    outputs.append(value("q", "UINT2", [3]))
    initializers = [tensor("w", [1, -2, -1, 0], "INT2"), tensor("s", 0.5, np.float32)]
    return model(nodes, [value("x", "INT2", [2, 3]), value("f", "FLOAT", [3])], outputs, initializers)


def blocked_model():
    """Two operators that no rule covers, one of them twice."""
    nodes = [
        node("Relu", ["x"], ["a"], name="first"),
        node("Identity", ["x"], ["b"]),
        node("NoSuch", ["b"], ["c"], name="second", domain="org.example"),
        node("Relu", ["b"], ["d"], name="third"),
    ]
    outputs = [value("a", "INT2", [4]), value("c", "FLOAT", [4]), value("d", "INT2", [4])]
    proto = model(nodes, [value("x", "INT2", [4])], outputs)
    proto.opset_import.append(helper.make_opsetid("org.example", 1))
    return proto


def test_emulated_tensors_are_listed_with_role_and_carrier():
    report = ort_castlike.inspect(mixed_model())
    listed = {item.name: (item.type, item.role, item.carrier) for item in report.tensors}
    assert listed == {
        "x": ("tensor(int2)", "input", "tensor(int8)"),
        "t": ("tensor(int2)", "output", "tensor(int8)"),
        "w": ("tensor(int2)", "initializer", "tensor(int4)"),
        "c": ("tensor(uint2)", "constant", "tensor(uint8)"),
        "q": ("tensor(uint2)", "output", "tensor(uint8)"),
    }


def test_nodes_that_change_are_listed_with_what_they_become():
    changes = {item.node: (item.op_type, item.becomes) for item in ort_castlike.inspect(mixed_model()).changes}
    assert changes["'narrow' (Cast)"] == ("Cast", "ort_castlike::CastLike from FLOAT to UINT2")
    assert not any("turn" in name for name in changes)


def test_versions_before_and_after_are_those_of_the_rewrite():
    report = ort_castlike.inspect(mixed_model(), target="1.20")
    assert (report.target, report.opset, report.ir_version) == ("1.20", (25, 21), (13, 10))
    assert report.changed
    rewritten = ort_castlike.rewrite(mixed_model(), target="1.20")
    assert (rewritten.opset_import[0].version, rewritten.ir_version) == (21, 10)


def test_all_that_blocks_is_listed():
    report = ort_castlike.inspect(blocked_model())
    assert not report.changed
    assert len(report.blockers) == 3
    for name, blocker in zip(("'first'", "'second'", "'third'"), report.blockers, strict=True):
        assert name in blocker
        assert "tensor(int2)" in blocker
    assert [item.name for item in report.tensors] == ["x", "a", "b", "d"]
    assert report.runs_on_after == ()


@pytest.mark.parametrize(("element", "instead"), [("INT2", "int8 or float"), ("FLOAT4E2M1", "float")])
@pytest.mark.parametrize("op_type", ["Relu", "Add", "Concat", "SplitToSequence", "RandomNormalLike"])
def test_an_operator_that_onnx_keeps_from_a_type_is_called_so(op_type, element, instead):
    attributes = {"Concat": {"axis": 0}, "RandomNormalLike": {"dtype": TensorProto.DataType.Value(element)}}
    source = "f" if op_type == "RandomNormalLike" else "x"
    entry = node(op_type, [source] * (1 + (op_type == "Add")), ["y"], **attributes.get(op_type, {}))
    output = sequence("y", element) if op_type == "SplitToSequence" else value("y", element)
    proto = model([entry], [value("x", element, [2]), value("f", "FLOAT", [2])], [output])
    with pytest.raises(UnsupportedOperatorError) as caught:
        ort_castlike.rewrite(proto)
    kind = f"tensor({element.lower()})"
    assert f"of type {kind}, which ONNX does not allow; cast to {instead} before the node" in str(caught.value)


@pytest.mark.parametrize(("op_type", "advice"), [("Reshap", r"did you mean Reshape\?"), ("NoSuchThing", "its name")])
def test_an_operator_that_onnx_does_not_have_is_called_so(op_type, advice):
    proto = model([node(op_type, ["x"], ["y"])], [value("x", "INT2", [4])], [value("y", "INT2", [4])])
    message = rf"node \({op_type} that gives 'y'\): ONNX has no operator {op_type} up to .*'x' .*int2.*{advice}"
    with pytest.raises(UnsupportedOperatorError, match=message):
        ort_castlike.rewrite(proto)


def test_an_operator_of_another_domain_has_no_rule():
    proto = model(
        [node("NoSuch", ["x"], ["y"], domain="org.example")], [value("x", "INT2", [4])], [value("y", "INT2", [4])]
    )
    proto.opset_import.append(helper.make_opsetid("org.example", 1))
    with pytest.raises(
        UnsupportedOperatorError, match=r"NoSuch takes or gives 'x' .*, and no rule says what it becomes"
    ):
        ort_castlike.rewrite(proto)


def test_an_operator_that_onnx_allows_has_no_rule_while_none_is_there(monkeypatch):
    monkeypatch.delitem(RULES, ("", "Transpose"))
    with pytest.raises(UnsupportedOperatorError, match=r"'turn' \(Transpose\): .*, and no rule says what it becomes"):
        ort_castlike.rewrite(mixed_model())


@pytest.mark.parametrize(("first", "second", "culprit"), [("FLOAT", "INT2", "w"), ("INT4", "FLOAT", "x")])
def test_arithmetic_of_floats_and_an_emulated_type_needs_a_dequantization(first, second, culprit):
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", first, [2, 2]), value("w", second, [2, 2])],
        [value("y", "FLOAT", [2, 2])],
    )
    with pytest.raises(ModelError, match=f"put a DequantizeLinear or a Cast between '{culprit}' and the node$"):
        ort_castlike.rewrite(proto)


def test_the_error_of_a_rewrite_names_all_that_blocks():
    with pytest.raises(UnsupportedOperatorError, match="3 things") as caught:
        ort_castlike.rewrite(blocked_model())
    assert caught.value.reasons == tuple(ort_castlike.inspect(blocked_model()).blockers)
    proto = blocked_model()
    del proto.graph.node[2:], proto.graph.output[1:]
    with pytest.raises(UnsupportedOperatorError) as caught:
        ort_castlike.rewrite(proto)
    assert caught.value.reasons == (str(caught.value),)


def test_what_the_target_lacks_blocks():
    # Acos takes bfloat16 from opset 22 on.
    nodes = [node("Cast", ["x"], ["q"], to=TensorProto.INT2), node("Acos", ["b"], ["y"])]
    inputs = [value("x", "FLOAT", [4]), value("b", "BFLOAT16", [4])]
    proto = model(nodes, inputs, [value("q", "INT2", [4]), value("y", "BFLOAT16", [4])])
    report = ort_castlike.inspect(proto, target="1.20")
    assert len(report.blockers) == 1
    assert "Acos" in report.blockers[0]
    assert report.runs_on_after == tuple(from_release("1.21"))
    assert not ort_castlike.inspect(proto, target="1.21").blockers


@pytest.mark.parametrize(
    ("nodes", "dtype", "first"),
    [
        ([node("DequantizeLinear", ["w", "s"], ["y"])], "INT4", "1.20"),
        ([node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], "INT4", "1.23"),
        ([node("Transpose", ["w"], ["t"]), node("DequantizeLinear", ["t", "s"], ["y"])], "UINT4", "1.20"),
        ([node("Identity", ["w"], ["i"]), node("DequantizeLinear", ["i", "s"], ["y"])], "UINT4", None),
        ([node("DequantizeLinear", ["w", "s"], ["d"]), node("Reshape", ["d", "n"], ["y"])], "INT4", None),
        ([node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], "UINT2", "1.24"),
        ([node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], "FLOAT8E8M0", "1.27"),
        ([node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)], "FLOAT4E2M1", None),
        ([node("Reshape", ["w", "n"], ["r"]), node("DequantizeLinear", ["r", "s"], ["y"])], "INT2", None),
    ],
    ids=lambda item: item[0].op_type if isinstance(item, list) else None,
)
def test_releases_that_run_a_model_as_it_is(nodes, dtype, first):
    codes = {"FLOAT8E8M0": [1, 2, 4, 0.5], "FLOAT4E2M1": [1, 2, 4, 0.5]}.get(dtype, [1, 0, 1, 1])
    initializers = [tensor("w", codes, dtype), tensor("s", 0.5, np.float32), tensor("n", [4], np.int64)]
    # At the lowest opset that has the type, so that the type alone decides.
    opset, ir_version = {"INT4": (21, 10), "UINT4": (21, 10), "FLOAT4E2M1": (23, 11)}.get(dtype, (25, 13))
    if dtype == "FLOAT8E8M0":
        opset, ir_version = 24, 12
    used = {name for item in nodes for name in item.input}
    proto = model(nodes, [], [value("y", "FLOAT", [4])], [item for item in initializers if item.name in used])
    proto.opset_import[0].version, proto.ir_version = opset, ir_version
    report = ort_castlike.inspect(proto)
    assert report.runs_on_before == (tuple(from_release(first)) if first else ())
    assert report.runs_on_after == tuple(RELEASES)
    installed = ".".join(onnxruntime.__version__.split(".")[:2])
    if installed in report.runs_on_before:
        onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {})


def test_releases_that_err_on_two_bit_weights_are_counted_out():
    nodes = [node("DequantizeLinear", ["w", "s"], ["y"])]
    initializers = [tensor("w", [1, 0, 1, 1], "INT2"), tensor("s", 0.5, np.float32)]
    proto = model(nodes, [], [value("y", "FLOAT", [4])], initializers)
    assert ort_castlike.inspect(proto).runs_on_before == ("1.24",)


@pytest.mark.opset(28)
def test_opset_that_a_release_has_no_kernels_for_is_counted_out():
    # 1.32 loads opset 28 and has no QuantizeLinear of it.
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    initializers = [tensor("s", 0.5, np.float32), tensor("z", 0, np.uint8)]
    proto = model(nodes, [value("x", "FLOAT", [4])], [value("y", "UINT8", [4])], initializers, opset=28)
    report = ort_castlike.inspect(proto, target="1.32")
    assert report.runs_on_before == ()
    assert report.changed
    assert report.runs_on_after == tuple(RELEASES)


def test_model_that_needs_nothing_runs_where_its_opset_is_loaded():
    proto = model([node("Relu", ["x"], ["y"])], [value("x", "FLOAT", [4])], [value("y", "FLOAT", [4])], opset=23)
    proto.ir_version = 11
    report = ort_castlike.inspect(proto, target="1.23")
    assert not report.changed
    assert report.runs_on_before == report.runs_on_after == tuple(from_release("1.23"))
    assert (report.tensors, report.changes, report.notes, report.blockers) == ([], [], [], [])


def test_rewritten_model_runs_on_releases_that_load_its_versions(tmp_path):
    (tmp_path / "model.onnx").write_bytes(mixed_model().SerializeToString())
    report = ort_castlike.rewrite_file(tmp_path / "model.onnx", tmp_path / "new.onnx", target="1.23")
    assert report.opset == (25, 23)
    assert report.runs_on_after == tuple(from_release("1.23"))
    assert not ort_castlike.inspect(tmp_path / "new.onnx", target="1.23").changed


def test_report_is_plain_data_for_json():
    for proto in (mixed_model(), blocked_model()):
        report = ort_castlike.inspect(proto, target="1.20")
        data = json.loads(json.dumps(report.to_dict()))
        assert data == report.to_dict()
        assert data["opset"] == list(report.opset)
        assert data["tensors"][0] == {
            "name": "x",
            "type": "tensor(int2)",
            "role": "input",
            "carrier": "tensor(int8)",
        }


def test_report_reads_as_text():
    text = str(ort_castlike.inspect(mixed_model(), target="1.20"))
    for part in (
        "to be rewritten for onnxruntime 1.20",
        "opset 25 to 21",
        "IR version 13 to 10",
        "as it is, it runs right on: no supported release",
        "rewritten for 1.20, it runs on: onnxruntime 1.20, 1.21",
        "input 'x': tensor(int2) in tensor(int8)",
        "'narrow' (Cast) becomes ort_castlike::CastLike",
    ):
        assert part in text, part
    blocked = str(ort_castlike.inspect(blocked_model(), target="1.20"))
    assert blocked.startswith("cannot be rewritten for onnxruntime 1.20\n  blocked: node 'first' (Relu)")


def test_every_kind_of_source_gives_the_same_report(tmp_path):
    proto = mixed_model()
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    expected = ort_castlike.inspect(proto)
    for source in (tmp_path / "model.onnx", proto.SerializeToString(), ir.serde.deserialize_model(proto)):
        assert ort_castlike.inspect(source) == expected


def test_broken_model_and_wrong_target_are_errors():
    with pytest.raises(ModelError):
        ort_castlike.inspect(b"no model")
    with pytest.raises(TargetError):
        ort_castlike.inspect(mixed_model(), target="0.9")


def test_broken_payload_blocks():
    proto = mixed_model()
    proto.graph.initializer[0].raw_data = b"too long"
    report = ort_castlike.inspect(proto)
    assert len(report.blockers) == 1
    assert "'w'" in report.blockers[0]


def cast_model(source, to, *, like=False):
    """A cast of an input, by Cast or by CastLike."""
    if like:
        nodes, initializers = (
            [node("CastLike", ["x", "like"], ["y"])],
            [tensor("like", [1], to if ELEMENT_TYPES[to].is_emulated else ELEMENT_TYPES[to].dtype)],
        )
    else:
        nodes, initializers = [node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(to))], []
    return model(nodes, [value("x", source, [2])], [value("y", to, [2])], initializers)


@pytest.mark.parametrize("like", [False, True])
@pytest.mark.parametrize(
    ("source", "to", "first"),
    [
        ("FLOAT", "INT2", None),
        ("FLOAT16", "UINT4", None),
        ("BFLOAT16", "UINT2", None),
        ("FLOAT8E8M0", "INT4", None),
        ("FLOAT4E2M1", "FLOAT", None),
        ("FLOAT8E8M0", "BOOL", None),
        ("INT32", "INT2", "1.24"),
        ("INT2", "FLOAT", "1.24"),
        ("STRING", "UINT4", "1.27"),
        ("FLOAT", "FLOAT8E8M0", "1.27"),
        ("DOUBLE", "FLOAT16", None),
        ("DOUBLE", "FLOAT", "1.24"),
    ],
)
def test_casts_that_stock_gets_wrong_are_not_called_right(source, to, first, like):
    # Measured with every value of the small types; stock rounds halves away from zero. Opset 25 loads from 1.24 on.
    report = ort_castlike.inspect(cast_model(source, to, like=like))
    assert report.runs_on_before == (tuple(from_release(first)) if first else ())


def test_a_cast_with_a_round_mode_is_not_called_right():
    proto = cast_model("FLOAT", "FLOAT8E8M0")
    proto.graph.node[0].attribute.append(helper.make_attribute("round_mode", "down"))
    assert ort_castlike.inspect(proto).runs_on_before == ()


def layer_model(zero_points, **attributes):
    """A MatMulNBits of 8 columns of 32 codes in one block."""
    bits = attributes.setdefault("bits", 2)
    codes = np.full((8, 1, 4 * bits), 27, np.uint8)
    initializers = [tensor("w", codes, np.uint8), tensor("s", np.ones((8, 1)), np.float32)]
    names = ["x", "w", "s"]
    if zero_points is not None:
        initializers.append(tensor("z", zero_points, np.float32))
        names.append("z")
    settings = {"K": 32, "N": 8, "block_size": 32, **attributes}
    layer = node("MatMulNBits", names, ["y"], name="layer", domain="com.microsoft", **settings)
    proto = model([layer], [value("x", "FLOAT", [1, 32])], [value("y", "FLOAT", [1, 8])], initializers, opset=21)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.ir_version = 10
    return proto


@pytest.mark.parametrize("weights", ["auto", "keep"])
@pytest.mark.parametrize(("zero_points", "first"), [(np.full((8, 1), 1.5), "1.27"), (None, "1.24")])
def test_two_bit_layers_run_where_the_release_takes_them(zero_points, first, weights):
    report = ort_castlike.inspect(layer_model(zero_points), target="1.20", weights=weights)
    assert report.runs_on_before == tuple(from_release(first))
    assert report.runs_on_after == tuple(from_release("1.20" if weights == "auto" else first))
    refusals = (
        []
        if weights == "auto"
        else ["onnxruntime 1.20 refuses node 'layer' (MatMulNBits) with bits=2, which stays as it is"]
    )
    assert report.notes == refusals


def test_a_layer_that_is_left_and_that_the_target_refuses_is_noted(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(layer_model(np.full((8, 1), 1.5), weight_prepacked=1).SerializeToString())
    report = ort_castlike.rewrite_file(path, tmp_path / "new.onnx", target="1.20")
    assert report.runs_on_after == tuple(from_release("1.27"))
    assert len(report.notes) == 2
    assert report.notes[0].startswith("left node 'layer' (MatMulNBits) at bits=2")
    assert report.notes[1].startswith("onnxruntime 1.20 refuses node 'layer'")


@pytest.mark.parametrize(("bits", "first"), [(3, None), (4, "1.20"), (8, "1.23")])
def test_layers_of_other_bits_run_where_the_release_takes_them(bits, first):
    report = ort_castlike.inspect(layer_model(None, bits=bits), target="1.20")
    expected = tuple(from_release(first)) if first else ()
    assert (report.runs_on_before, report.runs_on_after) == (expected, expected)
    assert bool(report.notes) == (first != "1.20")
    installed = ".".join(onnxruntime.__version__.split(".")[:2])
    if installed in expected:
        onnxruntime.InferenceSession(layer_model(None, bits=bits).SerializeToString()).run(
            None, {"x": np.ones((1, 32), np.float32)}
        )


@pytest.mark.parametrize("target", ["1.20", "1.32"])
@pytest.mark.parametrize("declared", ["INT8", "FLOAT"])
def test_a_cast_whose_output_is_declared_as_another_type_is_refused(declared, target):
    cast = node("Cast", ["x"], ["y"], name="cast", to=TensorProto.INT2)
    proto = model([cast], [value("x", "FLOAT", [2])], [value("y", declared, [2])])
    with pytest.raises(
        ModelError, match=f"'cast' .Cast. casts to element type INT2 and 'y' is {declared} in the model"
    ):
        ort_castlike.rewrite(proto, target=target)


def test_a_newer_target_is_taken_as_the_newest_known_and_noted():
    note = "is newer than 1.32, the newest known; treated as that"
    assert f"onnxruntime 1.99 {note}" in ort_castlike.inspect(mixed_model(), target="1.99").notes
    proto = model([node("Relu", ["x"], ["y"])], [value("x", "FLOAT", [4])], [value("y", "FLOAT", [4])], opset=21)
    report = ort_castlike.inspect(proto, target="2.0")
    assert (report.target, report.notes) == ("1.32", [f"onnxruntime 2.0 {note}"])
    assert ort_castlike.inspect(proto, target="1.32.4").notes == []


@pytest.mark.parametrize("target", ["1.200", "1.20.x", 1.20, "1", "", "v1.20", "1.20.", "latest"])
def test_what_is_no_release_is_refused_with_the_form_to_give(target):
    with pytest.raises(TargetError, match=r"give a string like '1\.20'"):
        ort_castlike.inspect(mixed_model(), target=target)


@pytest.mark.parametrize("target", ["1.20.1", "1.24.0rc1", "1.25.0.dev20260101", "1.32.0+cu12"])
def test_full_version_numbers_are_releases(target):
    assert ort_castlike.inspect(mixed_model(), target=target).target == target[:4]


def test_transposed_weights_are_listed_as_what_they_become():
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"], name="dequantize", axis=1, block_size=16),
        node("Transpose", ["d"], ["t"], name="turn"),
        node("MatMul", ["x", "t"], ["y"], name="product"),
    ]
    initializers = [tensor("w", np.ones((4, 32)), "INT2"), tensor("s", np.ones((4, 2)), np.float32)]
    proto = model(nodes, [value("x", "FLOAT", [1, 32])], [value("y", "FLOAT", [1, 4])], initializers)
    report = ort_castlike.inspect(proto)
    [weight] = report.tensors
    assert (weight.name, weight.role, weight.carrier) == ("w", "initializer", "tensor(int4)")
    changes = {change.node: change.becomes for change in report.changes}
    assert changes["'turn' (Transpose)"] == "nothing: the weights are laid out as the product takes them"


def test_memory_of_weights_is_in_units_that_suit_it():
    text = str(ort_castlike.inspect(layer_model(None), target="1.20"))
    # 8 columns of 32 codes, 2 and then 4 bits each, and 8 scales of 4 bytes.
    assert "1 layer goes from 2 to 4 bits: 96 B of weights become 160 B" in text
    assert [size_text(size) for size in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


def test_a_written_report_says_rewritten(tmp_path):
    (tmp_path / "model.onnx").write_bytes(mixed_model().SerializeToString())
    report = ort_castlike.rewrite_file(tmp_path / "model.onnx", tmp_path / "new.onnx", target="1.20")
    assert str(report).startswith("rewritten for onnxruntime 1.20\n")
