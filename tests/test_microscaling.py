"""MXFP4 and NVFP4 models as their producers write them, end to end, against the arithmetic of the formats.

MXFP4 is FLOAT4E2M1 in blocks of 32 with a power of two each. NVFP4 is FLOAT4E2M1 in blocks of 16 with a FLOAT8E4M3FN
scale each, and a float for the whole tensor that scales the scales.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from arithmetic import cast, dtype_of, values_of
from graphs import graph, model, node, op_types, value
from onnx import helper

import ort_castlike
from ort_castlike._types import element_type

COLUMNS = 6


def code(name: str) -> int:
    return element_type(name).code


def random_codes(random: np.random.Generator, name: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    return random.integers(low, high, shape).astype(np.uint8).view(dtype_of(name))


def packed(name: str, array: np.ndarray, element: str) -> onnx.TensorProto:
    """The tensor as its bytes, two 4-bit codes in each, the first in the low half."""
    codes = array.view(np.uint8).reshape(-1)
    if element == "FLOAT4E2M1":
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        codes = codes[0::2] | codes[1::2] << 4
    return onnx.TensorProto(name=name, data_type=code(element), dims=array.shape, raw_data=codes.tobytes())


def spread(scales: np.ndarray, block_size: int, axis: int, length: int) -> np.ndarray:
    return np.repeat(scales, block_size, axis).take(np.arange(length), axis)


def feeds(random: np.random.Generator, depth: int) -> dict[str, np.ndarray]:
    return {"x": random.integers(-4, 5, (3, depth)).astype(np.float32)}


def run(proto: onnx.ModelProto, given: dict[str, np.ndarray], lowering: str) -> list[np.ndarray]:
    onnx.checker.check_model(proto)
    options = onnxruntime.SessionOptions()
    # The fused product of 4- and 8-bit weights would quantize what it multiplies them with.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    session = ort_castlike.InferenceSession(proto, options, ["CPUExecutionProvider"], lowering=lowering)
    return session.run(None, given)


def lists_as_inputs(proto: onnx.ModelProto) -> None:
    """List every initializer as a graph input too, as exporters of old IR versions do."""
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def make(nodes, depth, initializers, outputs, opset=25) -> onnx.ModelProto:
    return model(nodes, [value("x", "FLOAT", [None, depth])], outputs, initializers, opset=opset)


@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("depth", [64, 80])
@pytest.mark.parametrize("listed", [False, True])
def test_mxfp4_weights_of_a_linear_layer(depth, lowering, listed):
    """Blocks along the input features, the last one partial, and a transpose before the product."""
    random = np.random.default_rng(1)
    weights = random_codes(random, "FLOAT4E2M1", (COLUMNS, depth), 0, 16)
    scales = random_codes(random, "FLOAT8E8M0", (COLUMNS, -(-depth // 32)), 125, 130)
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["dq"], axis=1, block_size=32, output_dtype=code("FLOAT")),
        node("Transpose", ["dq"], ["t"], perm=[1, 0]),
        node("MatMul", ["x", "t"], ["y"]),
    ]
    initializers = [packed("w", weights, "FLOAT4E2M1"), packed("s", scales, "FLOAT8E8M0")]
    outputs = [value("y", "FLOAT", [None, COLUMNS]), value("dq", "FLOAT", [COLUMNS, depth])]
    proto = make(nodes, depth, initializers, outputs)
    if listed:
        lists_as_inputs(proto)
    given = feeds(random, depth)
    y, dq = run(proto, given, lowering)
    matrix = values_of(weights, "FLOAT4E2M1") * spread(values_of(scales, "FLOAT8E8M0"), 32, 1, depth)
    np.testing.assert_array_equal(dq, matrix.astype(np.float32))
    # Every partial sum is a multiple of 1/8 below 2**15, so a float holds it.
    np.testing.assert_array_equal(y, (given["x"].astype(np.float64) @ matrix.T).astype(np.float32))


@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("through", ["FLOAT", "FLOAT16"])
def test_mxfp4_scales_that_are_cast_first(through, lowering):
    random = np.random.default_rng(2)
    weights = random_codes(random, "FLOAT4E2M1", (64, COLUMNS), 0, 16)
    scales = random_codes(random, "FLOAT8E8M0", (2, COLUMNS), 120, 135)
    nodes = [
        node("Cast", ["s"], ["wide"], to=code(through)),
        node("DequantizeLinear", ["w", "wide"], ["dq"], axis=0, block_size=32),
        node("Cast", ["dq"], ["f"], to=code("FLOAT")),
        node("MatMul", ["x", "f"], ["y"]),
    ]
    initializers = [packed("w", weights, "FLOAT4E2M1"), packed("s", scales, "FLOAT8E8M0")]
    outputs = [value("y", "FLOAT", [None, COLUMNS]), value("f", "FLOAT", [64, COLUMNS])]
    given = feeds(random, 64)
    y, f = run(make(nodes, 64, initializers, outputs, opset=23), given, lowering)
    matrix = values_of(weights, "FLOAT4E2M1") * spread(values_of(scales, "FLOAT8E8M0"), 32, 0, 64)
    np.testing.assert_array_equal(f, matrix.astype(np.float32))
    np.testing.assert_allclose(y, given["x"].astype(np.float64) @ matrix, rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_mxfp4_activations_are_quantized_by_powers_of_two_of_their_own(lowering):
    """Blocks of 32: the scale is the largest magnitude over 4, rounded down to a power of two, as OCP MX has it."""
    random = np.random.default_rng(3)
    x = random.normal(0, 8, (3, 64)).astype(np.float32)
    nodes = [
        node("Reshape", ["x", "blocks"], ["b"]),
        node("Abs", ["b"], ["magnitude"]),
        node("ReduceMax", ["magnitude", "last"], ["top"], keepdims=0),
        node("Mul", ["top", "quarter"], ["share"]),
        node("Cast", ["share"], ["scale"], to=code("FLOAT8E8M0"), round_mode="down"),
        node("QuantizeLinear", ["x", "scale"], ["q"], axis=1, block_size=32, output_dtype=code("FLOAT4E2M1")),
        node("DequantizeLinear", ["q", "scale"], ["y"], axis=1, block_size=32, output_dtype=code("FLOAT")),
    ]
    initializers = [
        helper.make_tensor("blocks", code("INT64"), [3], [3, 2, 32]),
        helper.make_tensor("last", code("INT64"), [1], [-1]),
        helper.make_tensor("quarter", code("FLOAT"), [], [0.25]),
    ]
    outputs = [value("y", "FLOAT", [3, 64]), value("q", "FLOAT4E2M1", [3, 64]), value("scale", "FLOAT8E8M0", [3, 2])]
    proto = model(nodes, [value("x", "FLOAT", [3, 64])], outputs, initializers, opset=25)
    y, q, scale = run(proto, {"x": x}, lowering)
    tops = np.abs(x).reshape(3, 2, 32).max(axis=-1)
    scales = cast((tops * np.float32(0.25)).astype(np.float32), "FLOAT", "FLOAT8E8M0", round_mode="down")
    wide = spread(values_of(scales, "FLOAT8E8M0"), 32, 1, 64)
    codes = cast((x / wide).astype(np.float32), "FLOAT", "FLOAT4E2M1")
    assert scale.tobytes() == scales.tobytes()
    assert q.tobytes() == codes.tobytes()
    np.testing.assert_array_equal(y, (values_of(codes, "FLOAT4E2M1") * wide).astype(np.float32))


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_a_block_whose_scale_is_no_number_is_no_number(lowering):
    weights = random_codes(np.random.default_rng(4), "FLOAT4E2M1", (64, 1), 0, 16)
    scales = np.array([[127], [255]], np.uint8).view(dtype_of("FLOAT8E8M0"))
    nodes = [node("DequantizeLinear", ["w", "s"], ["dq"], axis=0, block_size=32, output_dtype=code("FLOAT"))]
    initializers = [packed("w", weights, "FLOAT4E2M1"), packed("s", scales, "FLOAT8E8M0")]
    proto = model(nodes, [], [value("dq", "FLOAT", [64, 1])], initializers, opset=25)
    (dq,) = run(proto, {}, lowering)
    np.testing.assert_array_equal(dq[:32, 0], values_of(weights, "FLOAT4E2M1")[:32, 0].astype(np.float32))
    assert np.isnan(dq[32:]).all()


def nvfp4_layer(random: np.random.Generator, depth: int, half: bool) -> tuple[onnx.ModelProto, np.ndarray]:
    """A layer with two-level scales: every initializer an input too, and nodes without names, casts among them."""
    weights = random_codes(random, "FLOAT4E2M1", (depth, COLUMNS), 0, 16)
    scales = random_codes(random, "FLOAT8E4M3FN", (depth // 16, COLUMNS), 0x20, 0x7F)
    scalar = np.float32(0.0123)
    nodes = [
        node("DequantizeLinear", ["w_f8_scale", "w_f32_scale"], ["scale"]),
        node("DequantizeLinear", ["w_f4", "scale"], ["dq"], axis=0, block_size=16),
    ]
    product = ["x", "dq"]
    if half:
        nodes += [node("Cast", ["dq"], ["dq_h"], to=code("FLOAT16")), node("Cast", ["x"], ["x_h"], to=code("FLOAT16"))]
        product = ["x_h", "dq_h"]
    nodes.append(node("MatMul", product, ["y_h" if half else "y"]))
    if half:
        nodes.append(node("Cast", ["y_h"], ["y"], to=code("FLOAT")))
    initializers = [
        packed("w_f4", weights, "FLOAT4E2M1"),
        packed("w_f8_scale", scales, "FLOAT8E4M3FN"),
        helper.make_tensor("w_f32_scale", code("FLOAT"), [], [scalar]),
    ]
    outputs = [value("y", "FLOAT", [None, COLUMNS]), value("dq", "FLOAT", [depth, COLUMNS])]
    proto = make(nodes, depth, initializers, outputs, opset=23)
    lists_as_inputs(proto)
    wide = spread((values_of(scales, "FLOAT8E4M3FN") * scalar).astype(np.float32), 16, 0, depth)
    return proto, (values_of(weights, "FLOAT4E2M1") * wide).astype(np.float32)


@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("half", [False, True])
def test_nvfp4_weights_with_two_levels_of_scales(half, lowering):
    random = np.random.default_rng(5)
    proto, matrix = nvfp4_layer(random, 64, half)
    given = feeds(random, 64)
    y, dq = run(proto, given, lowering)
    np.testing.assert_array_equal(dq, matrix)
    exact = given["x"].astype(np.float64) @ (matrix.astype(np.float16) if half else matrix).astype(np.float64)
    np.testing.assert_allclose(y, exact, rtol=2e-3 if half else 1e-5, atol=0.5 if half else 1e-3)


def test_nvfp4_weights_that_are_inputs_too_can_be_given_in_a_run():
    random = np.random.default_rng(6)
    proto, matrix = nvfp4_layer(random, 32, half=False)
    other = random_codes(random, "FLOAT4E2M1", (32, COLUMNS), 0, 16)
    session = ort_castlike.InferenceSession(proto, providers=["CPUExecutionProvider"])
    types = {argument.name: argument.type for argument in session.get_overridable_initializers()}
    assert types == {
        "w_f4": "tensor(float4e2m1)",
        "w_f8_scale": "tensor(float8e4m3fn)",
        "w_f32_scale": "tensor(float)",
    }
    given = feeds(random, 32)
    _, dq = session.run(None, given)
    np.testing.assert_array_equal(dq, matrix)
    _, dq = session.run(None, {**given, "w_f4": other})
    scales = values_of(onnx.numpy_helper.to_array(proto.graph.initializer[1]), "FLOAT8E4M3FN")
    wide = spread((scales * np.float32(0.0123)).astype(np.float32), 16, 0, 32)
    np.testing.assert_array_equal(dq, (values_of(other, "FLOAT4E2M1") * wide).astype(np.float32))


def test_weights_inside_the_branches_of_an_if():
    """Mixtures of experts choose a layer at run time."""
    random = np.random.default_rng(7)
    experts, matrices = [], []
    for name in ("a", "b"):
        weights = random_codes(random, "FLOAT4E2M1", (32, COLUMNS), 0, 16)
        scales = random_codes(random, "FLOAT8E8M0", (1, COLUMNS), 125, 130)
        nodes = [
            node("DequantizeLinear", [f"w{name}", f"s{name}"], [f"d{name}"], axis=0, block_size=32, output_dtype=1),
            node("MatMul", ["x", f"d{name}"], [f"y{name}"]),
        ]
        initializers = [packed(f"w{name}", weights, "FLOAT4E2M1"), packed(f"s{name}", scales, "FLOAT8E8M0")]
        experts.append(graph(nodes, name, [], [value(f"y{name}", "FLOAT")], initializers))
        matrices.append(values_of(weights, "FLOAT4E2M1") * spread(values_of(scales, "FLOAT8E8M0"), 32, 0, 32))
    chooser = node("If", ["c"], ["y"], then_branch=experts[0], else_branch=experts[1])
    inputs = [value("x", "FLOAT", [None, 32]), value("c", "BOOL", [])]
    proto = model([chooser], inputs, [value("y", "FLOAT", [None, COLUMNS])], opset=25)
    given = feeds(random, 32)
    for chosen, matrix in zip((True, False), matrices, strict=True):
        (y,) = run(proto, {**given, "c": np.array(chosen)}, "custom")
        np.testing.assert_array_equal(y, (given["x"].astype(np.float64) @ matrix).astype(np.float32))


@pytest.mark.parametrize("target", ["1.20", "1.32"])
def test_what_is_left_of_such_a_layer_are_stock_operators(target):
    proto, _ = nvfp4_layer(np.random.default_rng(8), 32, half=False)
    assert all("::" not in op_type for op_type in op_types(ort_castlike.rewrite(proto, target=target)))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("element", ["FLOAT4E2M1", "INT4", "UINT2", "INT2"])
def test_weights_of_the_main_graph_used_inside_branches(element, shared):
    """Exporters keep all weights in the main graph; the runtimes look for those of a fused product in the branch."""
    random = np.random.default_rng(9)
    bits = element_type(element).bits
    weights = [random_codes(random, element, (32, COLUMNS), 0, 2**bits) for _ in range(1 if shared else 2)]
    scale = helper.make_tensor("s", code("FLOAT"), [1, COLUMNS], [0.25] * COLUMNS)
    names = ["w", "w"] if shared else ["w0", "w1"]
    branches = [
        graph(
            [
                node("DequantizeLinear", [name, "s"], [f"d{index}"], axis=0, block_size=32),
                node("MatMul", ["x", f"d{index}"], [f"y{index}"]),
            ],
            f"branch{index}",
            [],
            [value(f"y{index}", "FLOAT")],
        )
        for index, name in enumerate(names)
    ]
    chooser = node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    inputs = [value("x", "FLOAT", [None, 32]), value("c", "BOOL", [])]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in zip(names, weights, strict=False)]
    proto = model([chooser], inputs, [value("y", "FLOAT", [None, COLUMNS])], [*constants, scale], opset=25)
    given = feeds(random, 32)
    for chosen in (True, False):
        (y,) = run(proto, {**given, "c": np.array(chosen)}, "custom")
        matrix = values_of(weights[0 if chosen or shared else 1], element) * 0.25
        np.testing.assert_allclose(y, given["x"] @ matrix, rtol=1e-6)
