"""2-bit layers of com.microsoft against numpy: (q - z) * s in float64, written out."""

import itertools

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from graphs import function
from onnx import TensorProto, helper

import ort_castlike
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

    def __init__(
        self, shape, zero_points="packed", dtype="float32", *, bias=False, g_idx=False, bits=2, flat=False, **attributes
    ):
        columns, depth, block = shape
        blocks = -(-depth // block)
        self.real, self.element, self.tolerance = TYPES[dtype]
        random = np.random.default_rng(depth)
        codes = random.integers(0, 1 << bits, (columns, blocks * block))
        scales = (random.random((columns, blocks)) * 0.1 + 0.01).astype(self.real)
        tensors = {"B": packed(codes, bits).reshape(columns, blocks, block * bits // 8), "scales": scales}
        zeros = np.full((columns, blocks), float(1 << bits - 1))
        if isinstance(zero_points, np.ndarray | float):
            zeros = np.broadcast_to(zero_points, zeros.shape).astype(np.float64)
            tensors["zero_points"] = zeros.astype(self.real)
        elif zero_points == "packed":
            zeros = random.integers(0, 1 << bits, zeros.shape)
            tensors["zero_points"] = packed(zeros, bits)
        if flat:
            tensors |= {name: tensors[name].reshape(-1) for name in ("scales", "zero_points") if name in tensors}
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
            "MatMulNBits", inputs, ["Y"], "layer", domain="com.microsoft", K=depth, N=columns, bits=bits,
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


def bound(shape, dtype, **options):
    """The error that this release's own 4-bit layers of a shape have."""
    layers = [Layer(shape, form, dtype, bits=4, **options) for form in ("packed", "none")]
    return max(layer.error(layer.model) for layer in layers)


@pytest.mark.parametrize("shape", [(40, 256, 32), (33, 520, 64), (17, 2048, 256), (9, 288, 32)], ids=str)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("level", [0, 1, 4])
@pytest.mark.parametrize("flat", [False, True], ids=["rows", "flat"])
def test_the_error_is_that_of_a_four_bit_layer(shape, dtype, level, flat):
    allowed = 2 * bound(shape, dtype, accuracy_level=level, bias=True, flat=flat) + 1e-6
    for zero_points in ("packed", "none", 1.5, 1.25, 2.0):
        layer = Layer(shape, zero_points, dtype, accuracy_level=level, bias=True, flat=flat)
        model, _ = legalized(layer.model, weights="pack4")
        assert attributes(model)["bits"] == 4
        assert layer.error(model) < allowed


@pytest.mark.parametrize("zero_points", [0.0, 3.0, 0.25, 3.75, -1.5, -3.0, 6.0], ids=str)
@pytest.mark.parametrize("mixed", [False, True])
def test_quarters_and_zero_points_out_of_the_range_of_the_codes_are_exact(zero_points, mixed):
    zeros = np.full((6, 3), zero_points)
    if mixed:
        zeros[2, 1] += 0.5
    layer = Layer((6, 96, 32), zeros)
    model, _ = legalized(layer.model, weights="pack4")
    assert attributes(model)["bits"] == 4
    assert not any(item.data_type == TensorProto.FLOAT for item in model.graph.initializer[2:])
    assert layer.error(model) < layer.tolerance


@pytest.mark.parametrize("zero_points", ["packed", 1.5])
def test_rows_of_packed_zero_points_end_in_whole_bytes(zero_points):
    for blocks in range(1, 10):
        layer = Layer((5, 16 * blocks, 16), zero_points)
        model, _ = legalized(layer.model, weights="pack4")
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
    model, _ = legalized(layer.model, target="1.32", weights="pack4")
    assert layer.error(model) < layer.tolerance


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e30])
def test_zero_points_that_are_no_numbers_of_four_bits_are_no_integers(wrong):
    zeros = np.full((4, 2), 1.5)
    zeros[1, 1] = wrong
    model, report = legalized(Layer((4, 64, 32), zeros).model, target="1.32")
    assert attributes(model)["bits"] == 2
    assert "no integers" in report.notes[0]


@pytest.mark.parametrize(
    ("target", "zero_points", "dtype", "block", "level", "bits"),
    [
        ("1.23", "packed", "float32", 64, 4, 4),
        ("1.24", "packed", "float32", 64, 4, 4),
        ("1.27", "none", "float32", 128, 4, 4),
        ("1.28", "none", "float32", 128, 4, 2),
        ("1.28", "packed", "float16", 64, 4, 2),
        ("1.32", "packed", "float32", 128, 4, 2),
        ("1.32", "packed", "float32", 32, 4, 4),
        ("1.32", "packed", "float32", 16, 4, 4),
        ("1.32", "packed", "float32", 128, 0, 4),
        ("1.32", 1.5, "float32", 128, 4, 4),
    ],
)
def test_auto_packs_where_a_release_refuses_or_is_slow(target, zero_points, dtype, block, level, bits):
    layer = Layer((4, 256, block), zero_points, dtype, accuracy_level=level)
    model, _ = legalized(layer.model, target=target)
    assert attributes(model)["bits"] == bits


def test_regrouped_columns_are_not_computed_in_int8():
    layer = Layer((4, 256, 128), accuracy_level=4, g_idx=True)
    assert attributes(legalized(layer.model, target="1.32")[0])["bits"] == 4


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


def moved_to_constants(model):
    graph = model.graph
    for item in list(graph.initializer):
        graph.node.insert(0, helper.make_node("Constant", [], [item.name], value=item))
    del graph.initializer[:]
    return model


def test_weights_may_be_constant_nodes():
    layer = Layer((6, 96, 32), 1.5)
    model, _ = legalized(moved_to_constants(layer.model))
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits"]
    assert layer.error(model) < layer.tolerance


def test_a_layer_inside_a_subgraph_is_packed():
    layer = Layer((6, 96, 32), 1.5)
    graph = layer.model.graph
    branches = []
    for name in ("yes", "no"):
        node = onnx.NodeProto()
        node.CopyFrom(graph.node[0])
        node.name, node.output[0] = f"layer_{name}", name
        info = helper.make_tensor_value_info(name, layer.element, ["M", 6])
        branches.append(helper.make_graph([node], name, [], [info]))
    del graph.node[:]
    graph.node.append(helper.make_node("If", ["flag"], ["Y"], then_branch=branches[0], else_branch=branches[1]))
    graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    model, report = legalized(layer.model)
    assert len(report.changes) == 2
    for flag in (True, False):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (given,) = session.run(None, {"A": layer.activations, "flag": np.array(flag)})
        assert np.allclose(given, layer.activations @ layer.matrix.T, atol=1e-4)


@pytest.mark.parametrize("target", ["1.20", "1.32"])
def test_a_layer_inside_a_function_is_inlined_and_packed(target):
    layer = Layer((6, 96, 32), 1.5)
    graph = layer.model.graph
    names = ["A", "B", "scales", "zero_points"]
    body = function("Linear", names, ["Y"], [graph.node[0]], opset=21)
    body.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    layer.model.functions.append(body)
    layer.model.opset_import.append(helper.make_opsetid("local", 1))
    graph.node[0].CopyFrom(helper.make_node("Linear", names, ["Y"], domain="local"))
    model, report = legalized(layer.model, target=target)
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits"]
    assert attributes(model)["bits"] == 4
    assert any("inlined" in note for note in report.notes)
    if target == "1.20":
        assert layer.error(model) < layer.tolerance
    kept, report = legalized(layer.model, target="1.32", weights="keep")
    assert not report.changed
    assert len(kept.functions) == 1


@pytest.mark.parametrize("is_default", [False, True])
@pytest.mark.parametrize("bits", [2, 4])
def test_a_function_may_be_told_the_bits_of_its_layer(is_default, bits):
    layer = Layer((6, 96, 32), 1.5)
    graph = layer.model.graph
    names = ["A", "B", "scales", "zero_points"]
    inner = onnx.NodeProto()
    inner.CopyFrom(graph.node[0])
    attribute = next(item for item in inner.attribute if item.name == "bits")
    attribute.CopyFrom(onnx.AttributeProto(name="bits", ref_attr_name="width", type=onnx.AttributeProto.INT))
    default = [helper.make_attribute("width", bits)] if is_default else []
    body = function(
        "Linear", names, ["Y"], [inner], opset=21, attributes=[] if is_default else ["width"], defaults=default
    )
    outer = function(
        "Outer",
        names,
        ["Y"],
        [helper.make_node("Linear", names, ["Y"], domain="local", **({} if is_default else {"width": bits}))],
        opset=21,
    )
    for item in (body, outer):
        item.opset_import.append(helper.make_opsetid("com.microsoft", 1))
        layer.model.functions.append(item)
    layer.model.opset_import.append(helper.make_opsetid("local", 1))
    graph.node[0].CopyFrom(helper.make_node("Outer", names, ["Y"], domain="local"))
    model, report = legalized(layer.model, target="1.20")
    if bits == 4:
        assert not report.changed
        return
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits"]
    assert attributes(model)["bits"] == 4
    assert layer.error(model) < layer.tolerance


def test_weights_that_a_feed_may_replace_are_left_alone():
    layer = Layer((4, 64, 32))
    scales = layer.model.graph.initializer[1]
    layer.model.graph.input.append(helper.make_tensor_value_info("scales", scales.data_type, scales.dims))
    model, report = legalized(layer.model)
    assert attributes(model)["bits"] == 2
    assert "'scales' is an input of the graph too" in report.notes[0]


def test_weights_that_are_packed_for_a_provider_are_left_alone():
    layer = Layer((4, 64, 32), weight_prepacked=1)
    _, report = legalized(layer.model)
    assert "packed for one execution provider" in report.notes[0]


def test_every_public_function_knows_of_two_bit_layers(tmp_path):
    layer = Layer((6, 96, 32), 1.5)
    path, packed_path = tmp_path / "model.onnx", tmp_path / "packed.onnx"
    onnx.save(layer.model, path)
    for source in (layer.model, path, layer.model.SerializeToString()):
        assert attributes(ort_castlike.rewrite(source, weights="pack4"))["bits"] == 4
        assert attributes(ort_castlike.rewrite(source, weights="keep"))["bits"] == 2
    report = ort_castlike.rewrite_file(path, packed_path, weights="pack4")
    assert report.weights == ort_castlike.inspect(path, weights="pack4").weights
    packed_model = onnx.load(packed_path)
    options = {entry.key: entry.value for entry in packed_model.metadata_props}["ort_castlike.options"]
    assert '"weights": "pack4"' in options
    assert ort_castlike.LegalizePass(weights="pack4")(ir.serde.deserialize_model(layer.model)).modified
    for source in (layer.model, path):
        session = ort_castlike.InferenceSession(source, providers=["CPUExecutionProvider"], weights="pack4")
        (given,) = session.run(None, {"A": layer.activations})
        assert np.allclose(given, layer.activations @ layer.matrix.T, atol=1e-4)
    with pytest.raises(ort_castlike.CastLikeError, match="weights='pack8'"):
        ort_castlike.rewrite(layer.model, weights="pack8")


def test_a_model_of_four_bit_layers_is_left_alone():
    model = Layer((6, 96, 32), bits=4).model
    assert ort_castlike.rewrite(model, weights="pack4") == model


def test_inspect_says_what_it_costs_in_memory():
    layer = Layer((6, 96, 32), "packed")
    graph = layer.model.graph
    graph.node.add().CopyFrom(graph.node[0])
    graph.node[1].name, graph.node[1].output[0] = "second", "Z"
    graph.output.add().CopyFrom(graph.output[0])
    graph.output[1].name = "Z"
    report = ort_castlike.inspect(layer.model, weights="pack4")
    codes, scales = 6 * 96, 6 * 3 * 4
    assert report.weights.layers == 2
    assert report.weights.bytes_before == codes // 4 + scales + 6 * 1
    assert report.weights.bytes_after == codes // 2 + scales + 6 * 2
    assert "2 layers go from 2 to 4 bits" in str(report)
    assert report.to_dict()["weights"] == {"layers": 2, "bytes_before": 222, "bytes_after": 372}
    assert ort_castlike.inspect(layer.model, weights="keep").weights is None


class Table:
    """A GatherBlockQuantized of random codes, and the matrix that it stands for."""

    def __init__(self, zero_points, columns=96, block=32, rows=7):
        random = np.random.default_rng(columns)
        blocks = -(-columns // block)
        codes = random.integers(0, 4, (rows, columns))
        scales = (random.random((rows, blocks)) + 0.1).astype(np.float32)
        tensors = {"data": packed(codes), "scales": scales}
        zeros = np.full((rows, blocks), 2)
        if zero_points is not None:
            zeros = np.resize(zero_points, (rows, blocks))
            tensors["zero_points"] = packed(zeros)
        index = np.arange(columns) // block
        self.matrix = (codes - zeros[:, index]) * scales[:, index]
        node = helper.make_node(
            "GatherBlockQuantized", ["data", "ids", *list(tensors)[1:]], ["Y"], "table", domain="com.microsoft",
            bits=2, block_size=block, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, [None, None])],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None, None, columns])],
            [tensor(name, array) for name, array in tensors.items()],
        )
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        self.model = helper.make_model(graph, opset_imports=imports, ir_version=9)

    def check(self, model):
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        ids = np.array([[0, 6, 3], [2, 2, 5]])
        (given,) = session.run(["Y"], {"ids": ids, **self.other_feeds(session, ids)})
        assert np.allclose(given, self.matrix[ids], rtol=1e-6, atol=1e-7)

    @staticmethod
    def other_feeds(session, ids):
        return {item.name: np.ones((2, 96), np.float32) for item in session.get_inputs() if item.name != "ids"}


@pytest.mark.parametrize("columns", [32, 64, 96, 160])
@pytest.mark.parametrize("zero_points", [None, [2], [0], [3], [1, 2, 3, 0, 1]], ids=str)
@pytest.mark.parametrize("target", ["1.20", None])
def test_a_two_bit_table_equals_the_written_arithmetic(columns, zero_points, target):
    table = Table(zero_points, columns)
    model, report = legalized(table.model, target=target, weights="pack4")
    assert report.changes[0].becomes == "the same table with 4 bits"
    assert report.weights.layers == 1
    table.check(model)


def test_a_table_stays_where_the_release_gathers_two_bits():
    model = Table([1, 2], columns=64).model
    assert attributes(legalized(model, target="1.26")[0])["bits"] == 4
    assert attributes(legalized(model, target="1.27")[0])["bits"] == 2
    assert "bits" not in attributes(legalized(model, target="1.22")[0])
    assert "bits" not in attributes(legalized(Table([1, 2], columns=96).model, target="1.26")[0])


def tied(zero_points=None):
    """A table whose codes are those of a MatMulNBits."""
    table = Table(zero_points)
    graph = table.model.graph
    data = graph.initializer[0]
    codes = onnx.numpy_helper.to_array(data)
    graph.initializer.append(tensor("B", codes.reshape(7, 3, 8)))
    graph.initializer.append(helper.make_tensor("shape", TensorProto.INT64, [2], [7, -1]))
    graph.initializer.remove(data)
    graph.node[0].input[0] = "reshaped"
    graph.node.insert(0, helper.make_node("Reshape", ["B", "shape"], ["reshaped"]))
    inputs = ["A", "B", "scales", *(["zero_points"] if zero_points else [])]
    graph.node.append(
        helper.make_node("MatMulNBits", inputs, ["Z"], domain="com.microsoft", K=96, N=7, bits=2, block_size=32)
    )
    graph.input.append(helper.make_tensor_value_info("A", TensorProto.FLOAT, ["M", 96]))
    graph.output.append(helper.make_tensor_value_info("Z", TensorProto.FLOAT, ["M", 7]))
    return table


@pytest.mark.parametrize("zero_points", [None, [1, 2, 3, 0, 1]], ids=str)
def test_a_table_that_is_a_layer_too_goes_on_sharing_its_codes(zero_points):
    table = tied(zero_points)
    model, report = legalized(table.model, target="1.32")
    assert report.weights.layers == 2
    bytes_held = [item for item in model.graph.initializer if item.data_type == TensorProto.UINT8]
    assert len(bytes_held) == (2 if zero_points else 1)
    assert report.weights.bytes_after - report.weights.bytes_before == 7 * (96 // 4 + bool(zero_points))
    model, _ = legalized(table.model, target=None, weights="pack4")
    table.check(model)


def test_a_table_stays_where_the_layer_that_shares_it_stays():
    model = tied().model
    layer = next(item for item in model.graph.node if item.op_type == "MatMulNBits")
    layer.attribute.append(helper.make_attribute("accuracy_level", 4))
    next(item for item in layer.attribute if item.name == "block_size").i = 64
    assert not legalized(model, target="1.32")[1].changed


def test_a_table_with_codes_that_are_no_matrix_is_left_alone():
    table = Table(None)
    table.model.graph.initializer[0].dims[:] = [7, 24, 1]
    _, report = legalized(table.model, target="1.20")
    assert "no constant matrix" in report.notes[0]
