"""A tiny language model as exporters write them: everything around its 2-bit layers stays, and it gives the same."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import node, op_types, tensor

import ort_castlike


def loaded(name: str):
    """A script of the benchmarks as a module."""
    path = Path(__file__).parent.parent / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


decoder = loaded("decoder")
SIZES = {
    "layers": 2, "hidden": 256, "intermediate": 512, "heads": 4, "shared_heads": 2, "vocabulary": 96, "block": 32,
    "longest": 32,
}  # fmt: skip


def values_of(path: Path) -> dict[str, np.ndarray]:
    return {item.name: onnx.numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}


def four_bit(path: Path) -> Path:
    """The same decoder with 4-bit layers of the same values, written out code by code: what the rewrite must equal."""
    model = onnx.load(path)
    held = values_of(path)
    shifts = np.array([0, 2, 4, 6], np.uint8)
    for item in model.graph.node:
        bits = next((attribute for attribute in item.attribute if attribute.name == "bits"), None)
        if item.op_type != "MatMulNBits":
            continue
        bits.i = 4
        codes = (held[item.input[1]][..., None] >> shifts & 3).reshape(*held[item.input[1]].shape[:2], -1)
        scales, zeros = held[item.input[2]], 2
        if len(item.input) > 3:
            zeros = held[item.input[3]]
            if zeros.dtype == np.uint8:
                zeros = (zeros[..., None] >> shifts & 3).reshape(len(zeros), -1)[:, : scales.shape[1]]
        factor = 1 if np.all(zeros == np.floor(zeros)) else 2
        zeros = np.broadcast_to(zeros, scales.shape) * factor
        codes = (codes * factor).astype(np.uint8)
        names = [f"four.{item.output[0]}.{part}" for part in ("codes", "scales", "zeros")]
        packed = [codes[..., ::2] | codes[..., 1::2] << 4, (scales / factor).astype(np.float32)]
        zeros = np.pad(zeros.astype(np.uint8), ((0, 0), (0, zeros.shape[1] % 2)))
        packed.append(zeros[:, ::2] | zeros[:, 1::2] << 4)
        del item.input[1:]
        item.input.extend(names)
        model.graph.initializer.extend(map(onnx.numpy_helper.from_array, packed, names))
    table = next(item for item in model.graph.node if item.op_type == "GatherBlockQuantized")
    codes, scales = held["embedding.weight"], held["embedding.scales"]
    rows = (codes[..., None] >> shifts & 3).reshape(len(codes), -1).astype(np.float32)
    zeros = np.float32(2)
    if len(table.input) > 3:
        zeros = held[table.input[3]]
        zeros = (zeros[..., None] >> shifts & 3).reshape(len(zeros), -1)[:, : scales.shape[1]].repeat(32, axis=1)
    dense = (rows - zeros) * scales.repeat(32, axis=1)
    model.graph.initializer.append(onnx.numpy_helper.from_array(dense.astype(np.float32), "dense"))
    table.CopyFrom(node("Gather", ["dense", "input_ids"], list(table.output)))
    used = {name for item in model.graph.node for name in item.input}
    kept = [item for item in model.graph.initializer if item.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    reshape = next(item for item in model.graph.node if item.op_type == "Reshape")
    model.graph.node.remove(reshape)
    destination = path.with_name("reference.onnx")
    onnx.save(model, destination)
    return destination


def logits(path: Path, shape) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    generator = decoder.Generator(session, shape)
    return [generator.step(ids) for ids in ([1, 2, 3, 40], [17], [95])]


@pytest.mark.parametrize("zero_points", ["none", "packed"])
@pytest.mark.parametrize("level", [0, 4])
def test_a_decoder_gives_what_the_same_four_bit_decoder_gives(tmp_path, zero_points, level):
    shape = decoder.Shape(**SIZES, zero_points=zero_points, accuracy_level=level)
    path, rewritten = decoder.make(shape, tmp_path), tmp_path / "rewritten.onnx"
    ort_castlike.rewrite_file(path, rewritten, weights="pack4")
    # The last digits of an activation decide to which int8 it is rounded.
    tolerance = 1e-2 if level == 4 else 1e-4
    for given, expected in zip(logits(rewritten, shape), logits(four_bit(path), shape), strict=True):
        assert np.abs(given - expected).max() < tolerance * np.abs(expected).max()


def test_all_that_is_no_two_bit_layer_stays(tmp_path):
    shape = decoder.Shape(**SIZES)
    path, rewritten = decoder.make(shape, tmp_path), tmp_path / "rewritten.onnx"
    report = ort_castlike.rewrite_file(path, rewritten, target="1.23")
    before, after = onnx.load(path, load_external_data=False), onnx.load(rewritten, load_external_data=False)
    assert op_types(before) == op_types(after)
    for old, new in zip(before.graph.node, after.graph.node, strict=True):
        if old.op_type != "Reshape":  # of the codes that the table shares with the last layer
            assert (old.name, old.output) == (new.name, new.output)
        if old.op_type not in ("MatMulNBits", "GatherBlockQuantized", "Reshape"):
            assert old == new
    assert before.graph.input == after.graph.input
    assert before.graph.output == after.graph.output
    assert report.weights.layers == 2 * 7 + 2


def test_scales_that_do_not_change_are_read_from_where_they_are(tmp_path):
    path, rewritten = decoder.make(decoder.Shape(**SIZES), tmp_path), tmp_path / "rewritten.onnx"
    ort_castlike.rewrite_file(path, rewritten, target="1.23")
    locations = {
        item.name: entry.value
        for item in onnx.load(rewritten, load_external_data=False).graph.initializer
        for entry in item.external_data
        if entry.key == "location"
    }
    assert {name.rsplit(".", 1)[-1] for name, place in locations.items() if place == decoder.DATA} == {"scales"}
    assert len(set(locations.values())) == 2


def test_int2_tensors_beside_the_layers_are_rewritten_too(tmp_path):
    shape = decoder.Shape(**SIZES, zero_points="packed")
    path = decoder.make(shape, tmp_path)
    model = onnx.load(path)
    last = model.graph.node[-1]
    product = last.output[0]
    last.output[0] = "plain"
    model.graph.initializer.extend([tensor("gain", np.arange(96) % 2 + np.zeros(96), "INT2")])
    model.graph.initializer.append(tensor("half", 0.5, np.float32))
    model.graph.node.append(node("DequantizeLinear", ["gain", "half"], ["gains"]))
    model.graph.node.append(node("Add", ["plain", "gains"], [product]))
    model.opset_import[0].version, model.ir_version = 25, 13
    onnx.save(model, path)
    reference = logits(four_bit_without_tail(path, tmp_path, shape), shape)
    ort_castlike.rewrite_file(path, tmp_path / "rewritten.onnx", weights="pack4")
    for given, plain in zip(logits(tmp_path / "rewritten.onnx", shape), reference, strict=True):
        assert np.allclose(given, plain + (np.arange(96) % 2) * 0.5, atol=1e-3 * np.abs(plain).max())


def four_bit_without_tail(path: Path, folder: Path, shape) -> Path:
    """The 4-bit reference of the decoder itself."""
    other = folder / "plain"
    other.mkdir()
    return four_bit(decoder.make(shape, other))


def test_a_session_makes_the_layers_what_the_release_runs(tmp_path):
    shape = decoder.Shape(**SIZES, zero_points="packed", accuracy_level=0)
    path = decoder.make(shape, tmp_path)
    session = ort_castlike.InferenceSession(path, providers=["CPUExecutionProvider"])
    generator = decoder.Generator(session, shape)
    given = generator.step([1, 2, 3, 40])
    expected = logits(four_bit(path), shape)[0]
    assert np.abs(given - expected).max() < 1e-4 * np.abs(expected).max()
    assert [item.name for item in session.get_inputs()][:2] == ["input_ids", "attention_mask"]
