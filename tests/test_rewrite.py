"""rewrite: what it keeps of a model, what it leaves alone, and that it does the same thing each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from graphs import function, graph, model, node, tensor, value
from onnx import TensorProto, helper

import ort_castlike
from ort_castlike._errors import ModelError, OptionError, TargetError


def metadata(target, **entries: str) -> None:
    for key, text in entries.items():
        target.metadata_props.add(key=key, value=text)


def sparse_tensor(name: str) -> onnx.SparseTensorProto:
    """Four elements, of which the third is 7."""
    return helper.make_sparse_tensor(
        helper.make_tensor(name, TensorProto.FLOAT, [1], [7.0]),
        helper.make_tensor(f"{name}_indices", TensorProto.INT64, [1], [2]),
        [4],
    )


def rich_model() -> onnx.ModelProto:
    """A model that says something in every field that ONNX has, around a single cast to INT2."""
    then_graph = helper.make_graph(
        [node("Add", ["relu", "s"], ["then_y"], name="then_add")], "then_graph", [], [value("then_y", "FLOAT", ["N"])]
    )
    then_graph.doc_string = "doc of a subgraph"
    metadata(then_graph, where="subgraph")
    else_graph = helper.make_graph(
        [node("Identity", ["relu"], ["else_y"])], "else_graph", [], [value("else_y", "FLOAT", ["N"])]
    )
    nodes = [
        node("Relu", ["x"], ["relu"], name="relu_node", doc_string="doc of a node"),
        node("Cast", ["relu"], ["q"], name="cast_node", to=TensorProto.INT2),
        node("Cast", ["q"], ["back"], to=TensorProto.FLOAT),
        node("Twice", ["back"], ["twice"], name="call_node", domain="local"),
        node("Add", ["twice", "w"], ["sum"], name="sum_node"),
        node("If", ["condition"], ["branch"], name="if_node", then_branch=then_graph, else_branch=else_graph),
        node("Max", ["sum", "branch", ""], ["max"]),
        node("Add", ["max", "s"], ["y"]),
    ]
    nodes[6].input.pop()
    metadata(nodes[0], where="node", origin="module.0")
    twice = function("Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"], name="inner", doc_string="inner doc")])
    twice.doc_string = "doc of a function"
    metadata(twice, where="function")
    weight = tensor("w", [1, 2, 3, 4], np.float32)
    weight.doc_string = "doc of a tensor"
    metadata(weight, where="tensor", unit="volt")
    inputs = [value("x", "FLOAT", ["N"]), value("condition", "BOOL", [])]
    inputs[0].doc_string = "doc of an input"
    inputs[0].type.denotation = "TENSOR"
    inputs[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    metadata(inputs[0], where="input")
    outputs = [value("y", "FLOAT", ["N"])]
    metadata(outputs[0], where="output")
    proto = model(nodes, inputs, outputs, [weight], functions=[twice])
    info = value("relu", "FLOAT", ["N"])
    info.doc_string = "doc of a value"
    metadata(info, where="value")
    proto.graph.value_info.append(info)
    proto.graph.doc_string = "doc of a graph"
    metadata(proto.graph, where="graph", zebra="last", apple="first")
    proto.graph.sparse_initializer.append(sparse_tensor("s"))
    annotation = proto.graph.quantization_annotation.add(tensor_name="relu")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    proto.producer_name, proto.producer_version = "maker", "1.2"
    proto.domain, proto.model_version, proto.doc_string = "org.example", 7, "doc of a model"
    metadata(proto, author="somebody")
    training = proto.training_info.add()
    training.algorithm.name = "algorithm"
    training.algorithm.node.append(node("Identity", ["w"], ["w_new"]))
    training.update_binding.add(key="w", value="w_new")
    onnx.checker.check_model(proto)
    return proto


def entries(message) -> dict[str, str]:
    return {entry.key: entry.value for entry in message.metadata_props}


def ordered(item: onnx.NodeProto) -> onnx.NodeProto:
    """A copy with its metadata, which has no order, in that of the keys."""
    copy = onnx.NodeProto()
    copy.CopyFrom(item)
    copy.metadata_props.sort(key=lambda entry: entry.key)
    return copy


def named(items) -> dict:
    return {item.name: item for item in items}


def test_what_a_model_says_of_itself_survives():
    before = rich_model()
    after = ort_castlike.rewrite(before, target="1.20")
    for field in ("producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(after, field) == getattr(before, field), field
    assert entries(after)["author"] == "somebody"
    assert set(entries(after)) - {"author"} == {
        "ort_castlike.version",
        "ort_castlike.options",
        "ort_castlike.inputs",
        "ort_castlike.outputs",
    }
    assert list(after.training_info) == list(before.training_info)
    for field in ("name", "doc_string", "sparse_initializer", "quantization_annotation", "input", "output"):
        assert getattr(after.graph, field) == getattr(before.graph, field), field
    assert entries(after.graph) == entries(before.graph)


def test_tensors_and_types_of_values_survive_as_they_are_written():
    before = rich_model().graph
    after = ort_castlike.rewrite(rich_model()).graph
    assert named(after.initializer)["w"] == named(before.initializer)["w"]
    assert named(after.value_info)["relu"] == named(before.value_info)["relu"]
    # Beside what the model had, only the values whose types changed are written.
    added = set(named(after.value_info)) - set(named(before.value_info))
    assert all(not name.startswith(("w", "sum", "max", "twice", "branch")) for name in added)


def test_untouched_nodes_survive_field_by_field():
    before = rich_model()
    after = ort_castlike.rewrite(before)
    kept = {item.output[0]: item for item in after.graph.node}
    for item in before.graph.node:
        if item.op_type in ("Cast", "If"):
            assert kept[item.output[0]].name == item.name
        else:
            assert ordered(kept[item.output[0]]) == ordered(item), item.op_type
    [before_if] = [item for item in before.graph.node if item.op_type == "If"]
    for old, new in zip(before_if.attribute, kept["branch"].attribute, strict=True):
        assert (new.name, new.g.name, new.g.doc_string) == (old.name, old.g.name, old.g.doc_string)
        assert list(new.g.node) == list(old.g.node)
        assert entries(new.g) == entries(old.g)


def test_functions_that_touch_no_emulated_type_survive():
    before, after = rich_model(), ort_castlike.rewrite(rich_model(), target="1.32")
    assert after.functions == before.functions


def test_names_of_inputs_and_outputs_and_their_dimensions_survive():
    after = ort_castlike.rewrite(rich_model())
    assert [item.name for item in after.graph.input] == ["x", "condition"]
    assert after.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert after.graph.input[0].type.tensor_type.shape.dim[0].denotation == "DATA_BATCH"


def test_rich_model_still_computes():
    session = ort_castlike.InferenceSession(rich_model(), providers=["CPUExecutionProvider"])
    x = np.array([-1, 0.6, 1.4, 3], np.float32)
    [y] = session.run(None, {"x": x, "condition": np.array(True)})
    relu = np.array([0, 0.6, 1.4, 3], np.float32)
    quantized = np.array([0, 1, 1, -1], np.float32)  # round, then keep two bits
    sparse = np.array([0, 0, 7, 0], np.float32)
    weights = np.array([1, 2, 3, 4], np.float32)
    np.testing.assert_array_equal(y, np.maximum(2 * quantized + weights, relu + sparse) + sparse)


def test_value_of_a_sparse_initializer_has_a_type_for_inference():
    # Nothing but the sparse initializer says that the cast is from FLOAT.
    nodes = [node("Cast", ["s"], ["q"], to=TensorProto.INT2), node("Cast", ["q"], ["y"], to=TensorProto.INT32)]
    proto = model(nodes, [], [value("y", "INT32", [4])])
    proto.graph.sparse_initializer.append(sparse_tensor("s"))
    assert ort_castlike.inspect(proto).changed
    [y] = ort_castlike.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, {})
    np.testing.assert_array_equal(y, [0, 0, -1, 0])  # 7 is 0b111, and its two low bits are -1


def test_sparse_initializer_of_an_emulated_type_is_refused_by_name():
    proto = model([node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)], [], [value("y", "FLOAT", [4])])
    values = tensor("s", [1], "INT2")
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [2])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))
    with pytest.raises(ModelError, match="'s' holds INT2"):
        ort_castlike.rewrite(proto)


def test_external_reference_that_is_not_touched_keeps_all_its_entries():
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "absent.bin"), ("offset", "16"), ("length", "16"), ("checksum", "0a0b")):
        weight.external_data.add(key=key, value=text)
    nodes = [node("Cast", ["x"], ["q"], to=TensorProto.INT2), node("Identity", ["w"], ["y"])]
    proto = model(nodes, [value("x", "FLOAT", [4])], [value("q", "INT2", [4]), value("y", "FLOAT", [4])], [weight])
    # Its file is not there: only what is encoded anew is read.
    assert named(ort_castlike.rewrite(proto).graph.initializer)["w"] == weight


def test_model_that_needs_nothing_comes_back_equal():
    proto = rich_model()
    del proto.graph.node[1:3]
    proto.graph.node[1].input[0] = "relu"
    proto.opset_import[0].version, proto.ir_version = 21, 10
    proto.functions[0].opset_import[0].version = 21
    after = ort_castlike.rewrite(proto, target="1.20")
    assert after == proto
    assert after is not proto


def test_four_bit_weights_alone_come_back_equal():
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    initializers = [tensor("q", np.ones((4, 4)), "INT4"), tensor("s", 0.5, np.float32)]
    proto = model(nodes, [value("x", "FLOAT", [2, 4])], [value("y", "FLOAT", [2, 4])], initializers, opset=21)
    proto.ir_version = 10
    assert ort_castlike.rewrite(proto, target="1.20") == proto


def test_model_with_types_that_the_rewriter_does_not_know_comes_back_equal():
    # A classifier of ai.onnx.ml gives a sequence of maps, which onnx_ir cannot hold.
    zip_map = node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[0, 1])
    output = onnx.ValueInfoProto(name="y")
    output.type.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
    output.type.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = TensorProto.FLOAT
    proto = model([zip_map], [value("x", "FLOAT", [2, 2])], [output], opset=21)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    proto.ir_version = 10
    assert ort_castlike.rewrite(proto, target="1.20") == proto
    assert ort_castlike.inspect(proto, target="1.20").runs_on_before[0] == "1.20"
    session = ort_castlike.InferenceSession(proto, providers=["CPUExecutionProvider"])
    [y] = session.run(None, {"x": np.array([[1, 2], [3, 4]], np.float32)})
    assert y == [{0: 1.0, 1: 2.0}, {0: 3.0, 1: 4.0}]


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_rewriting_twice_changes_nothing(lowering):
    once = ort_castlike.rewrite(rich_model(), lowering=lowering)
    twice = ort_castlike.rewrite(once, lowering=lowering)
    assert twice == once
    assert not ort_castlike.inspect(once).changed


def test_input_is_never_changed():
    proto = rich_model()
    before = proto.SerializeToString()
    ort_castlike.rewrite(proto)
    ort_castlike.inspect(proto)
    ort_castlike.InferenceSession(proto, providers=["CPUExecutionProvider"])
    assert proto.SerializeToString() == before


def test_input_whose_constant_is_copied_into_a_subgraph_is_not_changed():
    branch = graph([node("DequantizeLinear", ["q", "scale"], ["inner"])], "branch", [], [value("inner", "FLOAT", [2])])
    proto = model(
        [
            node("CastLike", ["x", "code"], ["q"]),
            node("If", ["c"], ["y"], then_branch=branch, else_branch=branch),
            node("DequantizeLinear", ["q", "scale"], ["z"]),
        ],
        [value("x", "FLOAT", [2]), value("c", "BOOL", [])],
        [value("y", "FLOAT", [2]), value("z", "FLOAT", [2])],
        [tensor("code", [0], "INT2"), tensor("scale", 0.5, np.float32)],
    )
    before = proto.SerializeToString()
    assert len(ort_castlike.rewrite(proto).graph.node) >= 3
    assert proto.SerializeToString() == before
    source = ir.serde.deserialize_model(proto)
    ort_castlike.rewrite(source)
    assert [value.const_value.name for value in source.graph.initializers.values()] == ["code", "scale"]


def test_input_of_onnx_ir_is_never_changed():
    proto = rich_model()
    del proto.graph.sparse_initializer[:]
    proto.graph.initializer.append(tensor("s", [0, 0, 7, 0], np.float32))
    source = ir.serde.deserialize_model(proto)
    before = ir.serde.serialize_model(source).SerializeToString()
    after = ort_castlike.rewrite(source)
    assert isinstance(after, ir.Model)
    assert after is not source
    assert ir.serde.serialize_model(source).SerializeToString() == before
    ort_castlike.inspect(source)
    assert ir.serde.serialize_model(source).SerializeToString() == before


def test_the_same_bytes_come_out_whatever_the_hash_seed(tmp_path):
    (tmp_path / "model.onnx").write_bytes(rich_model().SerializeToString())
    script = (
        "import sys, ort_castlike\n"
        "model = ort_castlike.rewrite(sys.argv[1], target='1.20', lowering='standard')\n"
        "sys.stdout.buffer.write(model.SerializeToString())"
    )
    results = {
        subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "model.onnx")],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(ort_castlike.__file__).parents[1])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(results) == 1


def test_path_bytes_and_proto_give_the_same_model(tmp_path):
    proto = rich_model()
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    expected = ort_castlike.rewrite(proto)
    assert ort_castlike.rewrite(path) == expected
    assert ort_castlike.rewrite(str(path)) == expected
    assert ort_castlike.rewrite(proto.SerializeToString()) == expected


def test_path_gives_a_model_with_its_external_data(tmp_path):
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("Mul", ["w", "f"], ["y"]),
    ]
    initializers = [
        tensor("q", np.tile([1, -2, -1, 0], 300), "INT2"),
        tensor("s", 0.5, np.float32),
        tensor("f", np.arange(1200), np.float32),
    ]
    proto = model(nodes, [], [value("y", "FLOAT", [1200])], initializers)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.data", size_threshold=64)
    before = path.read_bytes()
    after = ort_castlike.rewrite(path)
    assert path.read_bytes() == before
    assert not any(item.data_location == TensorProto.EXTERNAL for item in after.graph.initializer)
    session = onnxruntime.InferenceSession(after.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = np.tile([0.5, -1, -0.5, 0], 300).astype(np.float32) * np.arange(1200, dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {})[0], expected)


def test_result_beyond_the_protobuf_limit_says_to_use_rewrite_file(tmp_path):
    # 3 GiB of INT2 in a file with a hole: as int8, four times that.
    length = 3 << 30
    weight = TensorProto(name="q", data_type=TensorProto.INT2, dims=[length * 4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "model.data"), ("length", str(length))):
        weight.external_data.add(key=key, value=text)
    proto = model([node("Identity", ["q"], ["y"])], [], [value("y", "INT2", [length * 4])], [weight])
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    with open(tmp_path / "model.data", "wb") as file:
        file.truncate(length)
    with pytest.raises(ModelError, match="use rewrite_file"):
        ort_castlike.rewrite(tmp_path / "model.onnx")


def test_broken_sources_are_model_errors(tmp_path):
    with pytest.raises(ModelError, match="no file"):
        ort_castlike.rewrite(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="no file"):
        ort_castlike.rewrite(tmp_path)
    with pytest.raises(ModelError, match="is the file complete"):
        ort_castlike.rewrite(rich_model().SerializeToString()[:-5])
    with pytest.raises(ModelError, match="is the file complete"):
        ort_castlike.rewrite(b"")
    with pytest.raises(ModelError, match="and not int"):
        ort_castlike.rewrite(3)  # type: ignore[type-var]


def test_wrong_options_are_refused():
    with pytest.raises(OptionError, match="rounding='up'"):
        ort_castlike.rewrite(rich_model(), rounding="up")
    with pytest.raises(OptionError, match="lowering='none'"):
        ort_castlike.rewrite(rich_model(), lowering="none")
    with pytest.raises(TargetError, match=r"1\.19"):
        ort_castlike.rewrite(rich_model(), target="1.19")
