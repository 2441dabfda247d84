"""2-bit MatMulNBits layers against numpy: (q - z) * s in float64, written out."""

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ort_castlike import _legalize, _options

TYPES = {
    "float32": (np.float32, TensorProto.FLOAT, 2e-6),
    "float16": (np.float16, TensorProto.FLOAT16, 2e-3),
}
SHAPES = [(8, 64, 32), (5, 100, 32), (7, 48, 16), (3, 130, 128), (4, 300, 64), (1, 16, 16)]  # N, K, block size


def packed(codes, bits=2):
    """Rows of codes, lowest bits first, each row padded to whole bytes."""
    per_byte = 8 // bits
    codes = np.pad(codes, ((0, 0), (0, -codes.shape[1] % per_byte))).astype(np.int64)
    codes = codes.reshape(codes.shape[0], -1, per_byte)
    return (codes << np.arange(per_byte) * bits).sum(axis=2).astype(np.uint8)


def tensor(name, array):
    element = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int32): TensorProto.INT32}.get(array.dtype)
    if element is None:
        element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, element, array.shape, array.tobytes(), raw=True)


class Layer:
    """A layer of one MatMulNBits with random codes, and the matrix that it stands for."""

    def __init__(self, shape, zero_points="packed", dtype="float32", *, bias=False, g_idx=False, **attributes):
        columns, depth, block = shape
        blocks = -(-depth // block)
        self.real, self.element, self.tolerance = TYPES[dtype]
        random = np.random.default_rng(depth)
        codes = random.integers(0, 4, (columns, blocks * block))
        scales = (random.random((columns, blocks)) * 0.1 + 0.01).astype(self.real)
        tensors = {"B": packed(codes).reshape(columns, blocks, block // 4), "scales": scales}
        zeros = np.full((columns, blocks), 2.0)
        if isinstance(zero_points, np.ndarray | float):
            zeros = np.broadcast_to(zero_points, zeros.shape).astype(np.float64)
            tensors["zero_points"] = zeros.astype(self.real)
        elif zero_points == "packed":
            zeros = random.integers(0, 4, zeros.shape)
            tensors["zero_points"] = packed(zeros)
        inputs = ["A", "B", "scales", "zero_points" if "zero_points" in tensors else ""]
        if g_idx:
            tensors["g_idx"] = (np.arange(depth) // block).astype(np.int32)
        inputs.append("g_idx" if g_idx else "")
        self.bias = random.standard_normal(columns).astype(self.real) if bias else None
        if bias:
            tensors["bias"] = self.bias
        inputs.append("bias" if bias else "")
        while not inputs[-1]:
            inputs.pop()
        self.matrix = (codes.reshape(columns, blocks, block) - zeros[..., None]) * scales[..., None].astype(np.float64)
        self.matrix = self.matrix.reshape(columns, -1)[:, :depth]
        self.tensors = tensors
        node = helper.make_node(
            "MatMulNBits", inputs, ["Y"], "layer", domain="com.microsoft", K=depth, N=columns, bits=2,
            block_size=block, **attributes,
        )  # fmt: skip
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("A", self.element, ["M", depth])],
            [helper.make_tensor_value_info("Y", self.element, ["M", columns])],
            [tensor(name, array) for name, array in tensors.items()],
        )
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        self.model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        self.activations = random.standard_normal((3, depth)).astype(self.real)

    def error(self, model):
        """Largest difference from the written arithmetic, relative to the largest output."""
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (given,) = session.run(None, {"A": self.activations})
        expected = self.activations.astype(np.float64) @ self.matrix.T
        if self.bias is not None:
            expected += self.bias
        return np.abs(given - expected).max() / np.abs(expected).max()


def legalized(model, **options):
    options = {"target": None, "lowering": "custom", "rounding": "nearest_even", **options}
    ir_model = ir.serde.deserialize_model(model)
    report = _legalize.legalize(ir_model, _options.resolve_options(**options))
    return ir.serde.serialize_model(ir_model), report


def attributes(model):
    return {item.name: helper.get_attribute_value(item) for item in model.graph.node[0].attribute}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("zero_points", ["packed", "none", 1.5, 1.0, 7.5, np.array([[0.5], [2.0]])], ids=str)
def test_a_two_bit_layer_equals_the_written_arithmetic(shape, dtype, zero_points):
    if isinstance(zero_points, np.ndarray):
        zero_points = np.resize(zero_points, (shape[0], 1))
    layer = Layer(shape, zero_points, dtype)
    model, report = legalized(layer.model)
    assert attributes(model)["bits"] == 4
    assert [change.becomes for change in report.changes] == ["the same layer with bits=4"]
    assert layer.error(model) < layer.tolerance


@pytest.mark.parametrize(("bias", "g_idx"), list(itertools.product([False, True], repeat=2)))
def test_bias_and_group_index_are_carried_over(bias, g_idx):
    layer = Layer((6, 96, 32), 1.5, bias=bias, g_idx=g_idx)
    model, _ = legalized(layer.model)
    names = [name for name in model.graph.node[0].input if name]
    assert ("bias" in names, "g_idx" in names) == (bias, g_idx)
    assert layer.error(model) < layer.tolerance


def test_other_attributes_and_names_are_carried_over():
    layer = Layer((4, 64, 32), accuracy_level=4)
    model, _ = legalized(layer.model)
    node = model.graph.node[0]
    assert (node.name, node.domain, list(node.output)) == ("layer", "com.microsoft", ["Y"])
    assert attributes(model) == {"K": 64, "N": 4, "bits": 4, "block_size": 32, "accuracy_level": 4}


def test_one_zero_point_for_all_blocks_needs_no_input():
    model, _ = legalized(Layer((4, 64, 32), 1.5).model)
    assert len(model.graph.node[0].input) == 3
    assert {item.name for item in model.graph.initializer} == {"B_bits4_2_5", "scales_over_2"}


def test_weights_that_layers_share_stay_shared():
    layer = Layer((4, 64, 32), 1.5)
    graph = layer.model.graph
    graph.node.add().CopyFrom(graph.node[0])
    graph.node[1].name, graph.node[1].output[0] = "second", "Z"
    graph.output.add().CopyFrom(graph.output[0])
    graph.output[1].name = "Z"
    model, _ = legalized(layer.model)
    assert model.graph.node[0].input[1:] == model.graph.node[1].input[1:]
    assert len(model.graph.initializer) == 2


def test_scales_that_cannot_be_halved_exactly_are_left_alone():
    layer = Layer((2, 32, 32), 1.5)
    smallest = np.full((2, 1), np.finfo(np.float32).smallest_subnormal)
    layer.model.graph.initializer[1].raw_data = smallest.tobytes()
    model, report = legalized(layer.model, target="1.32")
    assert attributes(model)["bits"] == 2
    assert not report.changed
    assert "'layer' (MatMulNBits)" in report.notes[0]


def test_any_other_zero_points_stay_floats_where_two_bits_are_refused():
    layer = Layer((3, 64, 32), 1.37)
    model, _ = legalized(layer.model, target="1.20")
    assert attributes(model)["bits"] == 4
    assert layer.error(model) < layer.tolerance
    model, report = legalized(layer.model, target="1.32")
    assert attributes(model)["bits"] == 2
    assert "no integers" in report.notes[0]


@pytest.mark.parametrize("computed", ["B", "scales", "zero_points"])
def test_a_layer_with_computed_weights_is_left_alone(computed):
    layer = Layer((4, 64, 32))
    graph = layer.model.graph
    item = next(item for item in graph.initializer if item.name == computed)
    graph.input.append(helper.make_tensor_value_info(computed, item.data_type, item.dims))
    graph.initializer.remove(item)
    model, report = legalized(layer.model)
    assert attributes(model)["bits"] == 2
    assert "computed" in report.notes[0]


def test_weights_of_the_wrong_size_are_left_alone():
    layer = Layer((4, 64, 32))
    del layer.model.graph.initializer[0].dims[:]
    layer.model.graph.initializer[0].dims.extend([4, 1, 8])
    layer.model.graph.initializer[0].raw_data = bytes(32)
    _, report = legalized(layer.model)
    assert "size" in report.notes[0]


def test_keep_leaves_and_pack4_packs_on_every_target():
    model = Layer((4, 64, 32)).model
    assert attributes(legalized(model, weights="keep")[0])["bits"] == 2
    for target in ("1.20", "1.32"):
        assert attributes(legalized(model, weights="pack4", target=target)[0])["bits"] == 4


def test_bfloat16_scales_are_halved_in_their_own_type():
    layer = Layer((2, 64, 32), 1.5)
    scales = np.array([[0.1, 0.2], [0.3, 0.4]], ml_dtypes.bfloat16)
    zeros = np.full((2, 2), 1.5, ml_dtypes.bfloat16)
    graph = layer.model.graph
    for item, array in zip(graph.initializer[1:], (scales, zeros), strict=True):
        item.CopyFrom(tensor(item.name, array))
    graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    model, _ = legalized(layer.model)
    halved = next(item for item in model.graph.initializer if item.name == "scales_over_2")
    values = onnx.numpy_helper.to_array(halved).astype(np.float32)
    assert (values * 2 == scales.astype(np.float32)).all()
