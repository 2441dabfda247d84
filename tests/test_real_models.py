"""Real exported models: silero-vad's files, as they are and with 2-bit weights, and functions of PyTorch's exporter.

The files come from the silero-vad package; it is installed without its dependencies, since only its data is read.
"""

import importlib.metadata
from pathlib import Path

import example_files
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, version_converter

import ort_castlike

FILES = {path.name: path for path in importlib.metadata.files("silero-vad") if path.suffix == ".onnx"}
RANDOM_SHAPES = {"input": (1, 512), "state": (2, 1, 128), "h": (1, 1, 128), "c": (1, 1, 128)}
# Operators with weights, and the axis that the quantizer gives scales along.
WEIGHT_AXES = {"Conv": 0, "Gemm": 0, "MatMul": 1, "LSTM": 1}


def load(name):
    return onnx.load(FILES[name].locate())


def plain_session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # the files hold initializers that nothing uses, which it warns of
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def feeds(session):
    random = np.random.default_rng(0)
    arrays = {}
    for item in session.get_inputs():
        if item.name == "sr":
            arrays["sr"] = np.array(16000, np.int64)
            continue
        usual = RANDOM_SHAPES[item.name]
        shape = [dim if isinstance(dim, int) and dim else usual[axis] for axis, dim in enumerate(item.shape)]
        arrays[item.name] = random.standard_normal(shape).astype(np.float32)
    return arrays


def pack(codes):
    codes = codes.astype(np.int64).ravel() & 3
    codes = np.pad(codes, (0, -codes.size % 4)).reshape(-1, 4)
    return (codes << np.array([0, 2, 4, 6])).sum(axis=1).astype(np.uint8).tobytes()


class Quantizer:
    """Puts 2-bit weights with DequantizeLinear into one copy of a model, and the floats that they mean into another."""

    def __init__(self, model, element):
        self.element = element
        self.quantized = version_converter.convert_version(model, 25)
        self.quantized.ir_version = 13
        self.floats = onnx.ModelProto()
        self.floats.CopyFrom(self.quantized)
        self.count = 0
        self._convert(self.quantized.graph, self.floats.graph, {})

    def _convert(self, graph, twin, outer):
        constants = outer | {item.name: item for item in twin.initializer}
        for node in twin.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                constants[node.output[0]] = node.attribute[0].t
        nodes = []
        for node, other in zip(graph.node, twin.node, strict=True):
            for attribute, attribute_twin in zip(node.attribute, other.attribute, strict=True):
                if attribute.type == onnx.AttributeProto.GRAPH:
                    self._convert(attribute.g, attribute_twin.g, constants)
            for index in range(1, min(len(node.input), 3)):
                weights = constants.get(node.input[index])
                if node.op_type in WEIGHT_AXES and weights is not None and len(weights.dims) > 1:
                    nodes.append(self._quantize(weights, WEIGHT_AXES[node.op_type], graph, twin))
                    node.input[index] = other.input[index] = nodes[-1].output[0]
            nodes.append(node)
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)

    def _quantize(self, tensor, axis, graph, twin):
        weights = numpy_helper.to_array(tensor).astype(np.float32)
        others = tuple(index for index in range(weights.ndim) if index != axis)
        lowest, largest = weights.min(axis=others, keepdims=True), weights.max(axis=others, keepdims=True)
        if self.element == TensorProto.UINT2:
            scale = np.maximum((largest - lowest) / 3, 1e-6)
            zero = np.clip(np.rint(-lowest / scale), 0, 3)
            codes = np.clip(np.rint(weights / scale) + zero, 0, 3)
        else:
            scale = np.maximum(np.maximum(largest, -lowest) / 1.5, 1e-6)
            zero = np.zeros_like(scale)
            codes = np.clip(np.rint(weights / scale), -2, 1)
        self.count += 1
        name = f"weights_{self.count}"
        graph.initializer.extend(
            [
                helper.make_tensor(f"{name}_codes", self.element, weights.shape, pack(codes), raw=True),
                numpy_helper.from_array(scale.ravel(), f"{name}_scale"),
                helper.make_tensor(f"{name}_zero", self.element, [scale.size], pack(zero), raw=True),
            ]
        )
        twin.initializer.append(numpy_helper.from_array(((codes - zero) * scale).astype(np.float32), name))
        inputs = [f"{name}_codes", f"{name}_scale", f"{name}_zero"]
        return helper.make_node("DequantizeLinear", inputs, [name], name, axis=axis)


@pytest.mark.parametrize("name", FILES)
def test_an_exported_model_comes_back_unchanged_and_runs_the_same(name):
    model = load(name)
    assert ort_castlike.rewrite(model) == model
    assert not ort_castlike.inspect(model).changed
    stock = plain_session(model)
    ours = ort_castlike.InferenceSession(model, providers=["CPUExecutionProvider"])
    given = feeds(stock)
    for expected, result in zip(stock.run(None, given), ours.run(None, given), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("element", [TensorProto.INT2, TensorProto.UINT2], ids=TensorProto.DataType.Name)
@pytest.mark.parametrize("name", FILES)
def test_two_bit_weights_in_an_exported_model_equal_the_floats_that_they_mean(name, element):
    both = Quantizer(load(name), element)
    assert both.count >= 4
    floats = plain_session(ort_castlike.rewrite(both.floats))
    given = feeds(floats)
    expected = floats.run(None, given)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    session = ort_castlike.InferenceSession(both.quantized, options, providers=["CPUExecutionProvider"])
    for result, floats_result in zip(session.run(None, given), expected, strict=True):
        np.testing.assert_allclose(result, floats_result, rtol=1e-4, atol=1e-5)


def test_functions_of_pytorchs_exporter_stay_functions_and_run():
    folder = Path(__file__).parent.parent / "models" / "torchlib_functions"
    model, inputs, outputs = example_files.read_example(folder)
    inside = [node for function in model.functions for node in function.node if node.op_type == "CastLike"]
    assert len(inside) == 11
    rewritten = ort_castlike.rewrite(model)
    assert [function.name for function in rewritten.functions] == [function.name for function in model.functions]
    assert sum(node.domain == "ort_castlike" for node in rewritten.graph.node) == 12
    results = ort_castlike.InferenceSession(model).run(list(outputs), inputs)
    for (name, expected), result in zip(outputs.items(), results, strict=True):
        tolerance = 0 if name.endswith("_back") else 1e-6
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance, err_msg=name)
