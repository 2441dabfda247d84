"""External data: what is outside the model's folder, missing, short or no file is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto

import ort_castlike
from ort_castlike._errors import ModelError

PACKED = bytes([0b11_10_01_00] * 16)  # 0, 1, -2, -1, sixteen times


def external_model(location: str, *, dtype: str = "INT2", **entries: object) -> onnx.ModelProto:
    """A model that dequantizes 64 INT2 weights, or scales 16 FLOAT ones, from ``location``."""
    weight = TensorProto(name="w", data_type=TensorProto.DataType.Value(dtype), data_location=TensorProto.EXTERNAL)
    weight.dims.append(64 if dtype == "INT2" else 4)
    for key, text in {"location": location, **entries}.items():
        weight.external_data.add(key=key, value=str(text))
    operator = "DequantizeLinear" if dtype == "INT2" else "Mul"
    nodes = [node(operator, ["w", "s"], ["y"]), node("Cast", ["x"], ["q"], to=TensorProto.INT2)]
    outputs = [value("y", "FLOAT", list(weight.dims)), value("q", "INT2", [1])]
    return model(nodes, [value("x", "FLOAT", [1])], outputs, [weight, tensor("s", 0.5, np.float32)])


def every_way(path: Path):
    """The functions that read external data."""
    return [
        lambda: ort_castlike.rewrite(path),
        lambda: ort_castlike.rewrite_file(path, path.with_name("rewritten.onnx")),
        lambda: ort_castlike.InferenceSession(path, providers=["CPUExecutionProvider"]),
    ]


def assert_refused(folder: Path, message: str, location: str, **entries: object) -> None:
    """Both a tensor to encode anew and one that only moves along."""
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    for dtype in ("INT2", "FLOAT"):
        path.write_bytes(external_model(location, dtype=dtype, **entries).SerializeToString())
        before = sorted(os.listdir(folder))
        for function in every_way(path):
            with pytest.raises(ModelError, match=message) as caught:
                function()
            assert "'w'" in str(caught.value)
        assert sorted(os.listdir(folder)) == before


def test_data_beside_the_model_and_below_it_is_read(tmp_path):
    (tmp_path / "weights").mkdir()
    for location in ("data.bin", "weights/data.bin", "./weights/../data.bin"):
        (tmp_path / location).write_bytes(b"xx" + PACKED)
        (tmp_path / "model.onnx").write_bytes(external_model(location, offset=2, length=16).SerializeToString())
        session = ort_castlike.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
        [y] = session.run(["y"], {"x": np.zeros(1, np.float32)})
        assert y.tolist() == [0, 0.5, -1, -0.5] * 16


def test_location_above_the_folder_is_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED)
    assert_refused(tmp_path / "models", "outside the model's folder", "../data.bin")


def test_folder_whose_name_begins_like_the_models_is_outside(tmp_path):
    (tmp_path / "models_of_others").mkdir()
    (tmp_path / "models_of_others" / "data.bin").write_bytes(PACKED)
    assert_refused(tmp_path / "models", "outside the model's folder", "../models_of_others/data.bin")


def test_absolute_location_is_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED)
    assert_refused(tmp_path, "outside the model's folder", str(tmp_path / "data.bin"))


def test_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "data.bin").symlink_to(tmp_path / "data.bin")
    assert_refused(tmp_path / "models", "outside the model's folder", "data.bin")


def test_link_to_a_folder_outside_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data.bin").write_bytes(PACKED)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "weights").symlink_to(tmp_path / "elsewhere")
    assert_refused(tmp_path / "models", "outside the model's folder", "weights/data.bin")


def test_link_within_the_folder_is_followed(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED)
    (tmp_path / "link.bin").symlink_to("data.bin")
    (tmp_path / "model.onnx").write_bytes(external_model("link.bin").SerializeToString())
    assert ort_castlike.rewrite(tmp_path / "model.onnx").graph.initializer[0].raw_data


def test_missing_file_is_refused(tmp_path):
    assert_refused(tmp_path, "cannot be found", "data.bin")


def test_dangling_link_is_refused(tmp_path):
    (tmp_path / "data.bin").symlink_to("absent.bin")
    assert_refused(tmp_path, "cannot be found", "data.bin")


def test_short_file_is_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED[:-1])
    assert_refused(tmp_path, "has 15 bytes and the tensor needs bytes 0 to 16", "data.bin")
    assert_refused(tmp_path, "has 15 bytes and the tensor needs bytes 0 to 16", "data.bin", length=16)
    assert_refused(tmp_path, "has 15 bytes and the tensor needs bytes 8 to 24", "data.bin", offset=8, length=16)


def test_folder_is_refused(tmp_path):
    (tmp_path / "data.bin").mkdir()
    assert_refused(tmp_path, "no regular file", "data.bin")


def test_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "data.bin")
    assert_refused(tmp_path, "no regular file", "data.bin")


@pytest.mark.parametrize("entry", [{"offset": -1}, {"length": -16}, {"offset": 1 << 62, "length": 16}])
def test_impossible_offsets_and_lengths_are_refused(entry, tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED)
    assert_refused(tmp_path, "(needs bytes|non-negative)", "data.bin", **entry)


def test_length_that_the_shape_contradicts_is_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED * 2)
    assert_refused(tmp_path, "has 20 bytes of external data and should have 16", "data.bin", length=20)


def test_offset_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "data.bin").write_bytes(PACKED)
    path = tmp_path / "model.onnx"
    path.write_bytes(external_model("data.bin", offset="many").SerializeToString())
    for function in every_way(path):
        with pytest.raises(ModelError, match="many"):
            function()


def test_location_with_a_nul_is_refused(tmp_path):
    assert_refused(tmp_path, "outside the model's folder", "data\0.bin")


def test_file_of_several_names_is_read(tmp_path):
    # Other tools take it for an attack; package managers and caches link files like this.
    (tmp_path / "data.bin").write_bytes(PACKED)
    os.link(tmp_path / "data.bin", tmp_path / "twin.bin")
    (tmp_path / "model.onnx").write_bytes(external_model("data.bin").SerializeToString())
    for function in every_way(tmp_path / "model.onnx"):
        function()


def test_proto_reads_its_data_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "data.bin").write_bytes(PACKED)
    monkeypatch.chdir(tmp_path)
    rewritten = ort_castlike.rewrite(external_model("data.bin"))
    [weight] = [item for item in rewritten.graph.initializer if item.name == "w"]
    assert weight.data_type == TensorProto.INT4
    assert weight.raw_data == bytes([0x10, 0xFE] * 16)  # 0, 1, -2, -1 in four bits each
