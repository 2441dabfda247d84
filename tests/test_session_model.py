"""What a session hands to onnxruntime: settled models without a rewrite, large ones without a copy of their weights."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto, helper
from processes import python

import ort_castlike
from ort_castlike import _free_memory, _session, _session_model
from ort_castlike._files import _skeleton
from ort_castlike._packed_weights import packed_weights

DEPTH, COLUMNS, BLOCK = 64, 3, 32
CODES = (np.arange(DEPTH * COLUMNS) % 4 - 2).reshape(DEPTH, COLUMNS)
SCALES = np.array([[0.5, 1, 2], [1, 2, 4]], np.float32)
EXPECTED = (CODES * SCALES.repeat(BLOCK, axis=0)).sum(axis=0, keepdims=True)
FEED = {"x": np.ones((1, DEPTH), np.float32)}


def layer(dtype: str = "INT2", **attributes: int) -> onnx.ModelProto:
    """y = x @ (codes * scales), blocks along the depth."""
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["w"], **{"axis": 0, "block_size": BLOCK, **attributes}),
        node("MatMul", ["x", "w"], ["y"]),
    ]
    constants = [tensor("q", CODES, dtype), tensor("s", SCALES, np.float32), tensor("z", SCALES * 0, dtype)]
    made = model(nodes, [value("x", "FLOAT", [1, DEPTH])], [value("y", "FLOAT", [1, COLUMNS])], constants)
    made.opset_import[0].version, made.ir_version = 21, 10
    return made


def test_a_rewritten_model_needs_no_rewriter(tmp_path):
    cast = model([node("Cast", ["x"], ["y"], to=TensorProto.INT2)], [value("x", "FLOAT")], [value("y", "INT2")])
    for name, original in (("weights", layer()), ("cast", cast)):
        onnx.save(ort_castlike.rewrite(original), tmp_path / f"{name}.onnx")
    done = python(
        """
        import ort_castlike
        for name in ("weights", "cast"):
            session = ort_castlike.InferenceSession(f"{sys.argv[1]}/{name}.onnx", providers=["CPUExecutionProvider"])
            print(session.get_outputs()[0].type)
        print("onnx_ir" in sys.modules)
        """,
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tensor(float)", "tensor(int2)", "False"]


def test_weights_that_a_rewrite_leaves_are_packed_weights():
    assert packed_weights(layer("INT4")) == 2
    # Four bits are what the rewrite of two bits gives, and it gives the same when it is done again.
    rewritten = ort_castlike.rewrite(layer())
    assert packed_weights(rewritten) == 2
    assert ort_castlike.rewrite(rewritten) == rewritten


def drop_block(made: onnx.ModelProto) -> None:
    made.graph.node[0].attribute.pop()


def feed_weights(made: onnx.ModelProto) -> None:
    made.graph.input.append(value("q", "INT4", [DEPTH, COLUMNS]))


def feed_scales(made: onnx.ModelProto) -> None:
    made.graph.input.append(value("s", "FLOAT", SCALES.shape))


def give_weights(made: onnx.ModelProto) -> None:
    made.graph.output.append(onnx.ValueInfoProto(name="q"))


def take_elsewhere(made: onnx.ModelProto) -> None:
    made.graph.node.append(node("Identity", ["z"], ["other"]))


def take_inside(made: onnx.ModelProto) -> None:
    inner = helper.make_graph([node("Identity", ["q"], ["other"])], "inner", [], [value("other", "INT4")])
    made.graph.node.append(node("If", ["c"], ["given"], then_branch=inner, else_branch=inner))


def add_unused(made: onnx.ModelProto) -> None:
    made.graph.initializer.append(tensor("unused", CODES, "INT4"))


def shorten(made: onnx.ModelProto) -> None:
    made.graph.initializer[0].raw_data = made.graph.initializer[0].raw_data[1:]


def drop_scales(made: onnx.ModelProto) -> None:
    made.graph.initializer[1].CopyFrom(tensor("s", SCALES[:1], np.float32))


def change_zero_points(made: onnx.ModelProto) -> None:
    made.graph.initializer[2].CopyFrom(tensor("z", SCALES * 0, "UINT4"))


def move_out(made: onnx.ModelProto) -> None:
    weights = made.graph.initializer[0]
    onnx.external_data_helper.set_external_data(weights, "elsewhere.bin", 0, len(weights.raw_data))
    weights.ClearField("raw_data")


@pytest.mark.parametrize(
    "change",
    [
        drop_block,
        feed_weights,
        feed_scales,
        give_weights,
        take_elsewhere,
        take_inside,
        add_unused,
        shorten,
        drop_scales,
        change_zero_points,
        move_out,
    ],
)
def test_any_other_weights_are_none(change):
    made = layer("INT4")
    change(made)
    assert packed_weights(made) == 0


def test_blocks_to_split_and_other_attributes_are_for_the_rewriter():
    assert packed_weights(layer("INT4", block_size=512)) == 0
    assert packed_weights(layer("INT4", axis=5)) == 0
    assert packed_weights(layer("INT4", output_dtype=TensorProto.FLOAT)) == 0


def big(folder: Path) -> Path:
    """A model file with 128 KiB of weights and 512 KiB of floats in it."""
    codes = np.tile([0, 1, -2, -1], 1 << 17)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("ReduceSum", ["w"], ["sum"], keepdims=0),
        node("ReduceSum", ["f"], ["other"], keepdims=0),
        node("Add", ["sum", "other"], ["y"]),
    ]
    constants = [tensor("q", codes, "INT2"), tensor("s", 0.5, np.float32), tensor("f", np.full(1 << 17, 3), np.float32)]
    made = model(nodes, [], [value("y", "FLOAT", [])], constants)
    made.metadata_props.add(key="kept", value="as it is")
    onnx.save(made, folder / "model.onnx")
    return folder / "model.onnx"


def test_a_skeleton_is_the_model_with_references_in_place_of_large_data(tmp_path):
    path = big(tmp_path)
    skeleton = _skeleton.read_skeleton(path)
    assert len(skeleton.proto.SerializeToString()) < 1 << 12
    assert {item.name: item.data_location for item in skeleton.proto.graph.initializer} == {"q": 1, "s": 0, "f": 1}
    onnx.load_external_data_for_model(skeleton.proto, str(tmp_path))
    for item in skeleton.proto.graph.initializer:
        item.ClearField("data_location")
        del item.external_data[:]
    assert skeleton.proto == onnx.load(path)


def test_what_is_no_plain_model_has_no_skeleton(tmp_path):
    path = big(tmp_path)
    whole = path.read_bytes()
    broken = tmp_path / "broken.onnx"
    for data in (b"", whole[:-1], whole[:100], b"\xff" * 40, b"\x0b" + whole):
        broken.write_bytes(data)
        assert _skeleton.read_skeleton(broken) is None
    external = tmp_path / "external.onnx"
    onnx.save(onnx.load(path), external, save_as_external_data=True, location="data.bin", size_threshold=1 << 19)
    assert _skeleton.read_skeleton(external) is None
    assert _skeleton.read_skeleton(tmp_path / "missing.onnx") is None


@pytest.mark.parametrize("linked", [False, True])
def test_a_session_of_a_large_file_computes(linked, tmp_path, monkeypatch):
    monkeypatch.setattr(_session_model, "IN_MEMORY", 1 << 10)
    path = big(tmp_path)
    if linked:  # as caches of models keep them
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "link.onnx").symlink_to(path)
        path = tmp_path / "elsewhere" / "link.onnx"
    session = ort_castlike.InferenceSession(path, providers=["CPUExecutionProvider"])
    # The codes are 0, 1, -2, -1 over and over, the floats are threes.
    assert session.run(None, {})[0] == (1 << 17) * (-2 * 0.5 + 3)
    assert session.get_modelmeta().custom_metadata_map["kept"] == "as it is"


def test_a_large_model_that_is_settled_is_handed_over_as_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(_session_model, "IN_MEMORY", 1 << 10)
    path = tmp_path / "layer.onnx"
    weights = tensor("f", np.ones((1 << 15, 4)), np.float32)
    made = model([node("MatMul", ["x", "f"], ["y"])], [value("x", "FLOAT")], [value("y", "FLOAT")], [weights])
    made.opset_import[0].version, made.ir_version = 21, 10
    onnx.save(made, path)
    given = []

    class Session:
        def __init__(self, source, *rest, **options):
            given.append(source)
            raise KeyboardInterrupt

    monkeypatch.setattr(_session.onnxruntime.InferenceSession, "__init__", Session.__init__)
    with pytest.raises(KeyboardInterrupt):
        ort_castlike.InferenceSession(path)
    assert given == [str(path)]


def test_a_session_keeps_no_copy_of_what_it_was_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(_session_model, "IN_MEMORY", 1 << 10)
    made = []
    original = ir.serde.deserialize_model

    def observed(proto):
        result = original(proto)
        made.append(weakref.ref(result.graph))
        return result

    monkeypatch.setattr(ir.serde, "deserialize_model", observed)
    gc.disable()
    try:
        session = ort_castlike.InferenceSession(big(tmp_path), providers=["CPUExecutionProvider"])
        assert made
        assert not any(reference() for reference in made)
    finally:
        gc.enable()
    assert session.run(None, {})


def test_memory_is_given_back_after_large_models_alone(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(_session, "give_back_free_memory", lambda: calls.append(True))
    ort_castlike.InferenceSession(big(tmp_path), providers=["CPUExecutionProvider"])
    assert not calls
    monkeypatch.setattr(_session_model, "IN_MEMORY", 1 << 10)
    ort_castlike.InferenceSession(big(tmp_path), providers=["CPUExecutionProvider"])
    assert len(calls) == 1
    _free_memory.give_back_free_memory()  # does no harm


def test_a_layer_gives_what_its_blocks_say():
    session = ort_castlike.InferenceSession(layer("INT4"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, FEED)[0], EXPECTED, rtol=1e-2)
