"""2-bit weights in front of a matrix product: right, and as one of the forms that onnxruntime fuses."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import model, node, op_types, tensor, value

import ort_castlike

K, N = 100, 24
# How the weights lie: the axis of the scales in (K, N), blocks along K, and whether the matrix is kept as (N, K).
LAYOUTS = ["one scale", "one element", "columns", "blocks", "rows of (N, K)", "blocks of (N, K)", "one scale of (N, K)"]


class Product:
    """A product by a random matrix, and what it gives by arithmetic."""

    def __init__(self, layout, dtype="INT2", *, zero_points=False, product="MatMul", depth=K, block=32, bias=True):
        rng = np.random.default_rng(len(layout))
        low, high = (-2, 2) if dtype == "INT2" else (0, 4)
        blocks = -(-depth // block)
        codes = rng.integers(low, high, (depth, N))
        is_blocked, turned = layout.startswith("blocks"), layout.endswith("(N, K)")
        if is_blocked:
            shape = (blocks, N)
        elif layout.startswith("one"):
            shape = (1,) if layout == "one element" else ()
        else:
            shape = (N,)
        scale = (rng.random(shape) * 0.1 + 0.01).astype(np.float32)
        zeros = rng.integers(low, high, shape) if zero_points else np.zeros(shape, int)
        index = np.arange(depth) // block
        spread = (lambda array: array[index]) if is_blocked else (lambda array: array)
        self.matrix = (codes - spread(zeros)) * spread(scale).astype(np.float64)
        self.bias = rng.standard_normal(N).astype(np.float32) if bias else np.zeros(N, np.float32)
        turn = np.transpose if turned else np.asarray
        attributes = {"axis": 0 if is_blocked != turned else 1}
        if is_blocked:
            attributes["block_size"] = block
        held = [tensor("q", turn(codes), dtype), tensor("s", turn(scale) if is_blocked else scale, np.float32)]
        if zero_points:
            held.append(tensor("z", turn(zeros) if is_blocked else zeros, dtype))
        nodes = [node("DequantizeLinear", [item.name for item in held], ["w"], **attributes)]
        if product == "Gemm":
            inputs = ["A", "w", "C"] if bias else ["A", "w"]
            nodes.append(node("Gemm", inputs, ["Y"], transB=int(turned)))
            held.append(tensor("C", self.bias, np.float32))
        else:
            self.bias = np.zeros(N, np.float32)
            if turned:
                nodes.append(node("Transpose", ["w"], ["turned"], perm=[1, 0]))
            nodes.append(node("MatMul", ["A", "turned" if turned else "w"], ["Y"]))
        self.model = model(nodes, [value("A", "FLOAT", ["M", depth])], [value("Y", "FLOAT", ["M", N])], held)
        self.activations = rng.standard_normal((3, depth)).astype(np.float32)

    def check(self, **options):
        session_options = onnxruntime.SessionOptions()
        session_options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
        session = ort_castlike.InferenceSession(
            self.model, session_options, providers=["CPUExecutionProvider"], **options
        )
        (got,) = session.run(None, {"A": self.activations})
        expected = self.activations.astype(np.float64) @ self.matrix + self.bias
        assert np.abs(got - expected).max() < 3e-6 * np.abs(expected).max() + 1e-6


def attributes_of(source):
    found = next(item for item in source.graph.node if item.op_type == "DequantizeLinear")
    return {item.name: item.i for item in found.attribute}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["INT2", "UINT2"])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
def test_every_layout_is_right_and_has_blocks_in_front_of_a_matmul(layout, dtype, zero_points, product):
    case = Product(layout, dtype, zero_points=zero_points, product=product)
    rewritten = ort_castlike.rewrite(case.model)
    assert op_types(rewritten)[:2] == ["DequantizeLinear", "MatMul"]
    block = 32 if layout.startswith("blocks") else 128
    assert attributes_of(rewritten) in ({"axis": 0, "block_size": block}, {"block_size": block, "axis": 0})
    case.check()


@pytest.mark.parametrize("depth", [16, 17, 30, 255, 256, 257, 300, 700])
@pytest.mark.parametrize("layout", ["columns", "rows of (N, K)", "blocks of (N, K)"])
def test_every_depth_is_right(depth, layout):
    Product(layout, zero_points=True, depth=depth, block=16).check()


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_bias_is_subtracted_for_releases_that_would_make_a_gemm(product, is_constant):
    case = Product("rows of (N, K)", product=product)
    graph = case.model.graph
    bias = np.linspace(-2, 2, N, dtype=np.float32)
    if product == "MatMul":
        graph.node[-1].output[0] = "product"
        graph.node.append(node("Add", ["C", "product"], ["Y"]))
        graph.initializer.append(tensor("C", bias, np.float32))
        case.bias = bias
    if not is_constant:
        graph.node.insert(0, node("Mul", ["C", "one"], ["D"]))
        graph.initializer.append(tensor("one", 1, np.float32))
        taker = graph.node[-1]
        taker.input[list(taker.input).index("C")] = "D"
    old = op_types(ort_castlike.rewrite(case.model, target="1.23"))
    assert ("Sub" in old, "Neg" in old) == (True, not is_constant)
    assert "Add" in op_types(ort_castlike.rewrite(case.model, target="1.32"))
    case.check()


def test_blocks_are_as_few_as_can_be():
    assert attributes_of(ort_castlike.rewrite(Product("columns", depth=700).model))["block_size"] == 256
    assert attributes_of(ort_castlike.rewrite(Product("columns", depth=16).model))["block_size"] == 16


def test_a_gemm_without_a_bias_is_a_matmul():
    case = Product("rows of (N, K)", product="Gemm", bias=False)
    assert op_types(ort_castlike.rewrite(case.model)) == ["DequantizeLinear", "MatMul"]
    case.check()


def test_a_transpose_that_nothing_takes_any_more_goes():
    rewritten = ort_castlike.rewrite(Product("rows of (N, K)").model)
    assert op_types(rewritten) == ["DequantizeLinear", "MatMul"]
    assert len(rewritten.graph.initializer) == 2


@pytest.mark.parametrize("attributes", [{"alpha": 2.0}, {"beta": 0.5}, {"transA": 1}], ids=["alpha", "beta", "transA"])
def test_a_gemm_that_does_more_stays(attributes):
    case = Product("rows of (N, K)", product="Gemm")
    case.model.graph.node[1].attribute.extend(onnx.helper.make_attribute(*item) for item in attributes.items())
    assert "Gemm" in op_types(ort_castlike.rewrite(case.model))


def test_a_matrix_with_another_use_stays():
    case = Product("columns")
    case.model.graph.output.append(value("w", "FLOAT", [K, N]))
    rewritten = ort_castlike.rewrite(case.model)
    assert "block_size" not in attributes_of(rewritten)


def test_scales_of_each_row_of_what_is_summed_over_stay():
    scale = tensor("s", np.full(K, 0.5), np.float32)
    codes = tensor("q", np.ones((K, N)), "INT2")
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"], axis=0), node("MatMul", ["A", "w"], ["Y"])]
    source = model(nodes, [value("A", "FLOAT", [1, K])], [value("Y", "FLOAT", [1, N])], [codes, scale])
    assert "block_size" not in attributes_of(ort_castlike.rewrite(source))


def test_products_of_both_kinds_leave_the_matrix_as_it_is():
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("MatMul", ["A", "w"], ["Y"]),
        node("Gemm", ["A", "w"], ["Z"], transB=1),
    ]
    codes = tensor("q", np.arange(32 * 32).reshape(32, 32) % 4 - 2, "INT2")
    outputs = [value("Y", "FLOAT", [1, 32]), value("Z", "FLOAT", [1, 32])]
    source = model(nodes, [value("A", "FLOAT", [1, 32])], outputs, [codes, tensor("s", 0.5, np.float32)])
    assert "Gemm" in op_types(ort_castlike.rewrite(source))
    activations = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    matrix = (np.arange(32 * 32).reshape(32, 32) % 4 - 2) * 0.5
    session = ort_castlike.InferenceSession(source, providers=["CPUExecutionProvider"])
    straight, turned = session.run(None, {"A": activations})
    assert np.allclose(straight, activations @ matrix, atol=0.1)
    assert np.allclose(turned, activations @ matrix.T, atol=0.1)


def test_a_model_of_int4_weights_alone_is_left_alone():
    codes = np.ones((K, N), ml_dtypes.int4)
    held = [onnx.numpy_helper.from_array(codes, "q"), tensor("s", np.ones(N), np.float32)]
    nodes = [node("DequantizeLinear", ["q", "s"], ["w"], axis=1), node("MatMul", ["A", "w"], ["Y"])]
    source = model(nodes, [value("A", "FLOAT", [1, K])], [value("Y", "FLOAT", [1, N])], held, opset=21)
    source.ir_version = 10
    assert ort_castlike.rewrite(source) == source


def test_weights_that_two_products_share_stay_shared():
    case = Product("rows of (N, K)")
    graph = case.model.graph
    for item in list(graph.node):
        copy = graph.node.add()
        copy.CopyFrom(item)
        copy.output[0] += "2"
        for index, name in enumerate(copy.input):
            if name in ("w", "turned"):
                copy.input[index] = name + "2"
    graph.output.append(value("Y2", "FLOAT", ["M", N]))
    assert len(ort_castlike.rewrite(case.model).graph.initializer) == 2
