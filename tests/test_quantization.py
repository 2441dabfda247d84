"""QuantizeLinear and DequantizeLinear through a session, against the standard's arithmetic written out in numpy."""

import math

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import since
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import dequantizelinear, quantizelinear

import ort_castlike

INTEGERS = {
    "INT2": (ml_dtypes.int2, -2, 1),
    "UINT2": (ml_dtypes.uint2, 0, 3),
    "INT4": (ml_dtypes.int4, -8, 7),
    "UINT4": (ml_dtypes.uint4, 0, 15),
}
FLOATS = {"FLOAT": np.float32, "FLOAT16": np.float16, "BFLOAT16": ml_dtypes.bfloat16}
DTYPES = {
    **{name: row[0] for name, row in INTEGERS.items()},
    **FLOATS,
    "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
    "FLOAT6E2M3": ml_dtypes.float6_e2m3fn,
    "FLOAT6E3M2": ml_dtypes.float6_e3m2fn,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E8M0": ml_dtypes.float8_e8m0fnu,
    "INT32": np.int32,
    "INT8": np.int8,
    "INT64": np.int64,
    "UINT8": np.uint8,
}
# Shape of the data, shape of the scale, axis, block size.
LAYOUTS = [
    ((3, 5), (), 1, 0),
    ((3, 5), (1,), 1, 0),
    ((3, 5), (5,), 1, 0),
    ((3, 5), (3,), -2, 0),
    ((2, 3, 5), (2,), 0, 0),
    ((2, 3, 5), (3,), 1, 0),
    ((7,), (7,), 0, 0),
    ((5, 3), (3, 3), 0, 2),
    ((3, 5), (3, 2), 1, 4),
    ((3, 5), (3, 2), -1, 3),
    ((4, 6), (2, 6), 0, 2),
    ((2, 5, 3), (2, 2, 3), 1, 3),
    ((5, 2, 3), (1, 2, 3), 0, 8),
    ((2, 3, 5), (2, 3, 3), -1, 2),
    ((), (), 1, 0),
    ((), (1,), 1, 0),
    ((3,), (1,), 0, 4),
    ((4,), (1,), -1, 4),
]


def code(name):
    return TensorProto.DataType.Value(name)


def info(name, element, shape):
    return helper.make_tensor_value_info(name, code(element), shape)


def constant(name, array):
    array = np.asarray(array)
    return numpy_helper.from_array(array, name)


def make_model(nodes, inputs, outputs, initializers=(), opset=25):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("test", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=13 if opset > 24 else 10)


def linear(op_type, inputs, output, axis=1, block_size=0, **attributes):
    if block_size:
        attributes["block_size"] = block_size
    return helper.make_node(op_type, inputs, [output], axis=axis, **attributes)


def options(optimized=None):
    chosen = onnxruntime.SessionOptions()
    chosen.log_severity_level = 3
    chosen.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    if optimized is not None:
        chosen.optimized_model_filepath = str(optimized)
    return chosen


def run(model, feeds=None, **kwargs):
    session = ort_castlike.InferenceSession(model, options(), **kwargs)
    return session.run(None, feeds or {})


def optimized_operators(model, path):
    ort_castlike.InferenceSession(model, options(path))
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def spread(value, shape, axis, block_size):
    """A scale or zero point, one for each element of a tensor of ``shape``."""
    value = np.asarray(value)
    if block_size:
        return np.repeat(value, block_size, axis=axis).take(np.arange(shape[axis]), axis=axis)
    if value.size == 1:
        return value.reshape(())
    aligned = [1] * len(shape)
    aligned[axis] = -1
    return value.reshape(aligned)


def dequantized(x, scale, zero_point, axis, block_size, dtype=None):
    """(x - zero_point) * scale, exact in float64, rounded to a float32 and to the result's type."""
    offset = 0 if zero_point is None else spread(zero_point.astype(np.float64), x.shape, axis, block_size)
    product = (x.astype(np.float64) - offset) * spread(scale.astype(np.float64), x.shape, axis, block_size)
    return product.astype(np.float32).astype(dtype or scale.dtype)


def quotient(x, scale, axis, block_size, precision):
    """x / scale in float64, rounded to the precision."""
    with np.errstate(over="ignore"):
        x, scale = (np.asarray(value).astype(precision).astype(np.float64) for value in (x, scale))
        return (x / spread(scale, x.shape, axis, block_size)).astype(precision).astype(np.float64)


def saturated(values, low, high, dtype):
    return np.clip(values, low, high).astype(np.int64).astype(dtype)


def random_integers(random, element, shape):
    dtype, low, high = INTEGERS.get(element, (DTYPES[element], -6, 6))
    return random.integers(low, high + 1, shape).astype(dtype)


def random_scale(random, shape, dtype):
    return np.asarray(random.uniform(0.3, 3, shape)).astype(dtype)


class Site:
    """A graph under construction, whose operands are constants, graph inputs or the results of nodes."""

    def __init__(self, opset=25):
        self.nodes, self.inputs, self.outputs, self.initializers = [], [], [], []
        self.feeds, self.expected, self.opset = {}, [], opset

    def operand(self, array, element, kind):
        name = f"v{len(self.feeds) + len(self.initializers)}"
        if kind == "constant":
            self.initializers.append(constant(name, array))
            return name
        self.inputs.append(info(name, element, array.shape))
        self.feeds[name] = array
        if kind == "input":
            return name
        self.nodes.append(helper.make_node("Reshape", [name, self.shape_of(array)], [f"{name}_computed"]))
        return f"{name}_computed"

    def shape_of(self, array):
        return self.operand(np.array(array.shape, np.int64), "INT64", "constant")

    def output(self, node, element, expected):
        node.output[0] = f"y{len(self.outputs)}"
        self.nodes.append(node)
        self.outputs.append(info(node.output[0], element, expected.shape))
        self.expected.append(expected)

    def model(self):
        return make_model(self.nodes, self.inputs, self.outputs, self.initializers, self.opset)

    def check(self, **kwargs):
        results = run(self.model(), self.feeds, **kwargs)
        for result, expected in zip(results, self.expected, strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


# DequantizeLinear of 2- and 4-bit integers


@pytest.mark.parametrize("kinds", [("constant", "constant"), ("computed", "constant"), ("constant", "input")])
@pytest.mark.parametrize("scale_type", FLOATS)
@pytest.mark.parametrize("element", INTEGERS)
def test_dequantize_integers_in_every_layout(element, scale_type, kinds):
    random = np.random.default_rng(1)
    site = Site()
    for shape, scale_shape, axis, block_size in LAYOUTS:
        for with_zero_point in (False, True):
            x = random_integers(random, element, shape)
            scale = random_scale(random, scale_shape, FLOATS[scale_type])
            zero_point = random_integers(random, element, scale_shape) if with_zero_point else None
            inputs = [site.operand(x, element, kinds[0]), site.operand(scale, scale_type, "constant")]
            if with_zero_point:
                inputs.append(site.operand(zero_point, element, kinds[1]))
            expected = dequantized(x, scale, zero_point, axis, block_size)
            site.output(linear("DequantizeLinear", inputs, "", axis, block_size), scale_type, expected)
    site.check()


@pytest.mark.parametrize("output", FLOATS)
@pytest.mark.parametrize("scale_type", FLOATS)
@pytest.mark.parametrize("scale_kind", ["constant", "input"])
def test_dequantize_into_an_output_type_of_its_own(scale_type, output, scale_kind):
    random = np.random.default_rng(2)
    site = Site()
    for element in INTEGERS:
        for shape, scale_shape, axis, block_size in (LAYOUTS[2], LAYOUTS[8]):
            x = random_integers(random, element, shape)
            scale = random_scale(random, scale_shape, FLOATS[scale_type])
            inputs = [site.operand(x, element, "constant"), site.operand(scale, scale_type, scale_kind)]
            node = linear("DequantizeLinear", inputs, "", axis, block_size, output_dtype=code(output))
            site.output(node, output, dequantized(x, scale, None, axis, block_size, FLOATS[output]))
    site.check()


@pytest.mark.parametrize("opset", [parameter for opset in range(21, 29) for parameter in since(opset, opset)])
def test_every_source_opset(opset):
    random = np.random.default_rng(3)
    site = Site(opset)
    shape, scale_shape, axis, block_size = LAYOUTS[9]
    for element in INTEGERS if opset >= 25 else ("INT4", "UINT4"):
        dtype, low, high = INTEGERS[element]
        scale, zero_point = random_scale(random, scale_shape, np.float32), random_integers(random, element, scale_shape)
        names = [site.operand(scale, "FLOAT", "constant"), site.operand(zero_point, element, "constant")]
        q = random_integers(random, element, shape)
        node = linear("DequantizeLinear", [site.operand(q, element, "computed"), *names], "", axis, block_size)
        site.output(node, "FLOAT", dequantized(q, scale, zero_point, axis, block_size))
        x = random.standard_normal(shape).astype(np.float32) * 9
        node = linear("QuantizeLinear", [site.operand(x, "FLOAT", "input"), *names], "", axis, block_size)
        moved = np.rint(quotient(x, scale, axis, block_size, np.float32))
        moved += spread(zero_point.astype(np.float64), shape, axis, block_size)
        site.output(node, element, saturated(moved, low, high, dtype))
    site.check()


# What the runtime makes of constants


def weights(element, shape, axis, block_size, *, zero_point=True, dtype=np.float32, seed=4):
    """Initializers q, s and (if wanted) z, and the matrix that they stand for."""
    random = np.random.default_rng(seed)
    scale_shape = list(shape)
    if block_size:
        scale_shape[axis] = -(-shape[axis] // block_size)
    else:
        scale_shape = [] if axis is None else [shape[axis]]
    axis = axis or 0
    q, z = random_integers(random, element, shape), random_integers(random, element, scale_shape)
    s = random_scale(random, scale_shape, dtype)
    initializers = [constant("q", q), constant("s", s)] + ([constant("z", z)] if zero_point else [])
    node = linear("DequantizeLinear", [tensor.name for tensor in initializers], "w", axis, block_size)
    return node, initializers, dequantized(q, s, z if zero_point else None, axis, block_size)


MATRICES = [
    # K, N, axis, block size, fused by every release that was tried
    (64, 7, 0, 32, True),
    (70, 7, 0, 32, True),
    (64, 5, 0, 16, True),
    (600, 5, 0, 512, True),
    (1030, 6, 0, 1024, True),
    (600, 5, 0, 384, False),
    (64, 7, 1, 4, False),
    (64, 7, 1, 0, False),
    (64, 9, 0, 0, False),
    (64, 9, None, 0, False),
]


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("element", [*INTEGERS, "FLOAT4E2M1"])
@pytest.mark.parametrize(("depth", "columns", "axis", "block_size", "fuses"), MATRICES)
def test_matmul_with_constant_weights(tmp_path, element, depth, columns, axis, block_size, fuses, zero_point):
    dequantize, initializers, matrix = weights(element, (depth, columns), axis, block_size, zero_point=zero_point)
    x = np.random.default_rng(5).integers(-4, 5, (3, depth)).astype(np.float32)
    nodes = [dequantize, helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = make_model(nodes, [info("x", "FLOAT", ["M", depth])], [info("y", "FLOAT", None)], initializers)
    (y,) = run(model, {"x": x})
    expected = x.astype(np.float64) @ matrix.astype(np.float64)
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
    if fuses and element in INTEGERS:
        assert optimized_operators(model, tmp_path / "optimized.onnx") == ["MatMulNBits"]


MOVERS = {
    "Transpose": ({"perm": [1, 0, 2]}, [], lambda w: w.transpose(1, 0, 2)),
    "Reshape": ({}, [[6, 8]], lambda w: w.reshape(6, 8)),
    "Flatten": ({}, [], lambda w: w.reshape(2, 24)),
    "Squeeze": ({}, [], lambda w: w),
    "Unsqueeze": ({}, [[0]], lambda w: w[None]),
    "Slice": ({}, [[1], [3], [1]], lambda w: w[:, 1:3]),
    "MaxPool": ({"kernel_shape": [2]}, [], lambda w: np.maximum(w[..., :-1], w[..., 1:])),
    "Gather": ({}, [[1, 0]], lambda w: w[[1, 0]]),
    "Concat": ({"axis": 0}, [], lambda w: w),
    "Identity": ({}, [], lambda w: w),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("constant_data", [False, True])
@pytest.mark.parametrize("op_type", MOVERS)
def test_operators_that_the_optimizer_moves_are_right(op_type, constant_data, dtype):
    attributes, extra, move = MOVERS[op_type]
    element_of_scale = "FLOAT" if dtype == np.float32 else "FLOAT16"
    site = Site()
    random = np.random.default_rng(6)
    for element in [*INTEGERS, "FLOAT4E2M1"]:
        for scale_shape, axis, block_size in (((), 1, 0), ((2,), 0, 0), ((2, 2, 8), 1, 2)):
            for zero_point in (False, True):
                q = random_integers(random, element, (2, 3, 8))
                s, z = random_scale(random, scale_shape, dtype), random_integers(random, element, scale_shape)
                data = site.operand(q, element, "constant" if constant_data else "input")
                inputs = [data, site.operand(s, element_of_scale, "constant")]
                if zero_point:
                    inputs.append(site.operand(z, element, "constant"))
                w = f"w{len(site.nodes)}"
                site.nodes.append(linear("DequantizeLinear", inputs, w, axis, block_size))
                site.nodes.append(helper.make_node("Identity", [w], [f"{w}_same"]))
                more = [site.operand(np.array(values, np.int64), "INT64", "constant") for values in extra]
                site.nodes.append(helper.make_node(op_type, [f"{w}_same", *more], [f"{w}_moved"], **attributes))
                one = site.operand(np.ones((), dtype), element_of_scale, "input")
                expected = move(dequantized(q, s, z if zero_point else None, axis, block_size))
                site.output(helper.make_node("Mul", [f"{w}_moved", one], [""]), element_of_scale, expected)
    site.check()


def test_transposed_weights_are_right_without_zero_point():
    for element in [*INTEGERS, "FLOAT4E2M1"]:
        for axis, block_size in ((1, 32), (0, 0), (None, 0)):
            dequantize, initializers, matrix = weights(element, (7, 64), axis, block_size, zero_point=False)
            nodes = [
                dequantize,
                helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
                helper.make_node("MatMul", ["x", "t"], ["y"]),
            ]
            x = np.random.default_rng(7).integers(-4, 5, (3, 64)).astype(np.float32)
            model = make_model(nodes, [info("x", "FLOAT", [3, 64])], [info("y", "FLOAT", [3, 7])], initializers)
            (y,) = run(model, {"x": x})
            expected = x.astype(np.float64) @ matrix.astype(np.float64).T
            assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()


def test_embedding_lookup_in_constant_weights():
    for element in [*INTEGERS, "FLOAT4E2M1"]:
        for zero_point in (False, True):
            dequantize, initializers, matrix = weights(element, (9, 64), 1, 32, zero_point=zero_point)
            nodes = [dequantize, helper.make_node("Gather", ["w", "rows"], ["y"], axis=0)]
            model = make_model(nodes, [info("rows", "INT64", [3])], [info("y", "FLOAT", [3, 64])], initializers)
            rows = np.array([8, 0, 3])
            np.testing.assert_array_equal(run(model, {"rows": rows})[0], matrix[rows])


def test_a_constant_used_elsewhere_too_serves_both(tmp_path):
    dequantize, initializers, matrix = weights("INT2", (64, 6), 0, 32)
    nodes = [
        dequantize,
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Transpose", ["q"], ["q_transposed"]),
    ]
    outputs = [info("y", "FLOAT", [2, 6]), info("q_transposed", "INT2", [6, 64])]
    model = make_model(nodes, [info("x", "FLOAT", [2, 64])], outputs, initializers)
    x = np.random.default_rng(8).integers(-4, 5, (2, 64)).astype(np.float32)
    y, transposed = run(model, {"x": x})
    np.testing.assert_allclose(y, x @ matrix, rtol=1e-5, atol=1e-3)
    np.testing.assert_array_equal(transposed, numpy_helper.to_array(initializers[0]).T)
    assert "MatMulNBits" in optimized_operators(model, tmp_path / "optimized.onnx")


@pytest.mark.parametrize("element", ["INT4", "UINT4"])
@pytest.mark.parametrize("block_size", [0, 32])
def test_a_model_of_nothing_but_packed_constants_comes_back_unchanged(element, block_size):
    dequantize, initializers, _ = weights(element, (64, 6), 0, block_size, zero_point=False)
    nodes = [dequantize, helper.make_node("MatMul", ["x", "w"], ["y"])]
    arguments = (nodes, [info("x", "FLOAT", [2, 64])], [info("y", "FLOAT", [2, 6])], initializers)
    model = make_model(*arguments, opset=21)
    assert not ort_castlike.inspect(model, target="1.20").changed
    assert ort_castlike.rewrite(model, target="1.20") == model


def test_packed_constants_of_other_domains_stay_as_they_are():
    q = np.arange(-8, 8).astype(ml_dtypes.int4)
    node = helper.make_node("Custom", ["x", "q"], ["y"], domain="test")
    arguments = ([node], [info("x", "FLOAT", [16])], [info("y", "FLOAT", [16])], [constant("q", q)])
    model = make_model(*arguments, opset=21)
    assert ort_castlike.rewrite(model, target="1.20") == model


@pytest.mark.parametrize("element", ["INT2", "UINT4"])
def test_other_values_of_other_domains_are_refused(element):
    node = helper.make_node("Custom", ["x", "q"], ["y"], domain="test")
    q = np.zeros(4, INTEGERS[element][0])
    initializers = [constant("q", q)] if element == "INT2" else []
    inputs = [info("x", "FLOAT", [4])] + ([] if initializers else [info("q", element, [4])])
    model = make_model([node], inputs, [info("y", "FLOAT", [4])], initializers)
    with pytest.raises(ort_castlike.CastLikeError, match=r"test::Custom takes or gives 'q'"):
        ort_castlike.rewrite(model)


def test_operands_from_outer_scopes():
    dequantize, initializers, matrix = weights("INT2", (64, 6), 0, 32)
    quantize = linear("QuantizeLinear", ["x", "xs", "xz"], "xq", -1)
    back = linear("DequantizeLinear", ["xq", "xs", "xz"], "then_y", -1)
    then = helper.make_graph([quantize, back], "then", [], [info("then_y", "FLOAT", [2, 64])])
    product = [dequantize, helper.make_node("Slice", ["w", "zero", "two"], ["rows"])]
    product.append(helper.make_node("MatMul", ["rows", "wide"], ["else_y"]))
    other = helper.make_graph(product, "else", [], [info("else_y", "FLOAT", [2, 64])])
    node = helper.make_node("If", ["condition"], ["y"], then_branch=then, else_branch=other)
    xs = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    wide = np.eye(6, 64, dtype=np.float32)
    initializers += [constant("xs", xs), constant("xz", np.ones(64).astype(ml_dtypes.uint2))]
    initializers += [constant("wide", wide), constant("zero", np.array([0])), constant("two", np.array([2]))]
    inputs = [info("condition", "BOOL", []), info("x", "FLOAT", [2, 64])]
    model = make_model([node], inputs, [info("y", "FLOAT", [2, 64])], initializers)
    x = np.random.default_rng(9).standard_normal((2, 64)).astype(np.float32)
    feeds = {"x": x, "condition": np.array(True)}
    expected = (np.clip(np.rint(x / xs) + 1, 0, 3) - 1) * xs
    np.testing.assert_array_equal(run(model, feeds)[0], expected.astype(np.float32))
    feeds["condition"] = np.array(False)
    np.testing.assert_array_equal(run(model, feeds)[0], matrix[:2] @ wide)


# QuantizeLinear into 2- and 4-bit integers


def awkward(random, shape, dtype):
    """Numbers around the ranges, with ties, huge ones and infinities."""
    with np.errstate(over="ignore"):
        values = np.concatenate(
            [
                random.integers(-36, 37, 400) / 4,
                random.uniform(-20, 20, 400),
                [3e9, -3e9, 1e30, -1e30, np.inf, -np.inf, -0.0, 127.5, 255.5, -128.5],
            ]
        ).astype(dtype)
    return random.permutation(values)[: math.prod(shape)].reshape(shape)


@pytest.mark.parametrize("mode", ["zero point", "output_dtype"])
@pytest.mark.parametrize("x_type", [*FLOATS, "INT32"])
@pytest.mark.parametrize("element", INTEGERS)
def test_quantize_in_every_layout(element, x_type, mode):
    dtype, low, high = INTEGERS[element]
    random = np.random.default_rng(10)
    site = Site()
    scale_type = "FLOAT" if x_type == "INT32" else x_type
    precision = FLOATS[scale_type]
    for shape, scale_shape, axis, block_size in LAYOUTS:
        x = random.integers(-30, 30, shape).astype(np.int32) if x_type == "INT32" else awkward(random, shape, precision)
        scale = np.asarray(2.0 ** random.integers(-1, 2, scale_shape)).astype(precision)
        if block_size:
            scale = random_scale(random, scale_shape, precision)
        zero_point = random_integers(random, element, scale_shape) if mode == "zero point" else None
        inputs = [site.operand(x, x_type, "input"), site.operand(scale, scale_type, "constant")]
        attributes = {}
        if zero_point is None:
            attributes["output_dtype"] = code(element)
        else:
            inputs.append(site.operand(zero_point, element, "constant" if block_size else "computed"))
        moved = np.rint(quotient(x, scale, axis, block_size, precision))
        if zero_point is not None:
            moved += spread(zero_point.astype(np.float64), shape, axis, block_size)
        node = linear("QuantizeLinear", inputs, "", axis, block_size, **attributes)
        site.output(node, element, saturated(moved, low, high, dtype))
    site.check()


@pytest.mark.parametrize(
    ("x_type", "scale_type", "precision", "divides_in"),
    [
        ("FLOAT", "FLOAT16", None, "FLOAT16"),
        ("FLOAT16", "FLOAT", None, "FLOAT"),
        ("FLOAT", "BFLOAT16", None, "BFLOAT16"),
        ("FLOAT", "FLOAT", "FLOAT16", "FLOAT16"),
        ("FLOAT16", "FLOAT16", "FLOAT", "FLOAT"),
        ("BFLOAT16", "FLOAT16", "BFLOAT16", "BFLOAT16"),
    ],
)
def test_the_scale_or_the_attribute_says_the_precision_of_the_division(x_type, scale_type, precision, divides_in):
    random = np.random.default_rng(11)
    site = Site()
    for element, (dtype, low, high) in INTEGERS.items():
        # Quotients a hair from a tie, on the side that a coarser type rounds away.
        half = random.integers(-12, 12, 4000) + 0.5
        scale = random_scale(random, (), FLOATS[scale_type])
        x = (half * (1 + random.uniform(-0.004, 0.004, 4000)) * scale.astype(np.float64)).astype(FLOATS[x_type])
        attributes = {"precision": code(precision)} if precision else {}
        inputs = [site.operand(x, x_type, "input"), site.operand(scale, scale_type, "constant")]
        moved = np.rint(quotient(x, scale, 0, 0, FLOATS[divides_in]))
        node = linear("QuantizeLinear", inputs, "", 0, output_dtype=code(element), **attributes)
        site.output(node, element, saturated(moved, low, high, dtype))
    site.check()


@pytest.mark.parametrize("element", INTEGERS)
def test_saturating_in_the_carrier_first_changes_nothing(element):
    _, low, high = INTEGERS[element]
    carrier = np.iinfo(np.int8 if low < 0 else np.uint8)
    values = np.arange(-1000, 1001)
    np.testing.assert_array_equal(
        np.clip(np.clip(values, carrier.min, carrier.max), low, high), np.clip(values, low, high)
    )


@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
def test_blocks_on_an_axis_of_unknown_size(op_type):
    random = np.random.default_rng(12)
    x = awkward(random, (5, 3), np.float16)
    scale = random_scale(random, (3, 3), np.float16)
    q = awkward(random, (5, 3), ml_dtypes.float4_e2m1fn)
    quantizes = op_type == "QuantizeLinear"
    feeds = {"x": x if quantizes else q, "s": scale}
    types = ("FLOAT16", "INT4") if quantizes else ("FLOAT4E2M1", "FLOAT16")
    attributes = {"output_dtype": code("INT4")} if quantizes else {}
    node = linear(op_type, ["x", "s"], "y", 0, 2, **attributes)
    inputs = [info("x", types[0], ["N", "M"]), info("s", "FLOAT16", ["B", "M"])]
    (y,) = run(make_model([node], inputs, [info("y", types[1], None)]), feeds)
    if quantizes:
        expected = saturated(np.rint(quotient(x, scale, 0, 2, np.float16)), -8, 7, ml_dtypes.int4)
    else:
        expected = dequantized(q, scale, None, 0, 2)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("size", ["N", 4])
@pytest.mark.parametrize("element", [*INTEGERS, "FLOAT4E2M1"])
@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
def test_a_vector_of_unknown_size_may_be_one_block(op_type, element, size):
    types = ("FLOAT", element) if op_type == "QuantizeLinear" else (element, "FLOAT")
    nodes = [linear(op_type, ["x", "s", "z"], "y", 0, 4)]
    inputs = [info("x", types[0], [size]), info("s", "FLOAT", ["B"]), info("z", element, ["B"])]
    session = ort_castlike.InferenceSession(make_model(nodes, inputs, [info("y", types[1], None)]), options())
    for blocks in (1, 2) if size == "N" else (1,):
        scale = np.array([0.5, 2][:blocks], np.float32)
        wide = np.array([1, 0, 0, 1, 1, 1, 0, 1][: 4 * blocks])
        zero_point = np.array([1, 0][:blocks]).astype(DTYPES[element])
        real = dequantized(wide, scale, zero_point, 0, 4)
        given, wanted = (real, wide.astype(DTYPES[element]))[:: 1 if op_type == "QuantizeLinear" else -1]
        (y,) = session.run(None, {"x": given, "s": scale, "z": zero_point})
        assert y.dtype == wanted.dtype
        np.testing.assert_array_equal(y, wanted)


def test_a_zero_point_for_a_scale_of_unknown_size():
    x = np.linspace(-4, 4, 6, dtype=np.float32).reshape(2, 3)
    node = linear("QuantizeLinear", ["x", "s"], "y", output_dtype=code("INT2"))
    inputs = [info("x", "FLOAT", ["N", "M"]), info("s", "FLOAT", ["M"])]
    scale = np.array([0.5, 1, 2], np.float32)
    (y,) = run(make_model([node], inputs, [info("y", "INT2", None)]), {"x": x, "s": scale})
    np.testing.assert_array_equal(y, saturated(np.rint(x / scale), -2, 1, ml_dtypes.int2))


@pytest.mark.parametrize("element", INTEGERS)
@pytest.mark.parametrize("scale_shape", [(), (6,)])
def test_fake_quantization_chains_survive_the_optimizer(element, scale_shape):
    """Q -> DQ -> Q -> DQ, then MatMul and a last Q -> DQ, at full optimization."""
    dtype, low, high = INTEGERS[element]
    random = np.random.default_rng(13)
    scale = np.asarray(random.integers(2, 9, scale_shape) / 4).astype(np.float32)
    zero_point = random_integers(random, element, scale_shape)
    w, w_scale = random_integers(random, element, (6, 4)), np.float32(0.5)
    nodes = [
        linear("QuantizeLinear", ["x", "s", "z"], "q1", -1),
        linear("DequantizeLinear", ["q1", "s", "z"], "d1", -1),
        linear("QuantizeLinear", ["d1", "t", "u"], "q2"),
        linear("DequantizeLinear", ["q2", "t", "u"], "d2"),
        linear("DequantizeLinear", ["w", "ws"], "wd"),
        helper.make_node("MatMul", ["d2", "wd"], ["m"]),
        linear("QuantizeLinear", ["m", "t", "u"], "q3"),
        linear("DequantizeLinear", ["q3", "t", "u"], "y"),
    ]
    u = np.asarray(1 if low == 0 else -1).astype(dtype)
    initializers = [
        *(constant("s", scale), constant("z", zero_point), constant("t", np.float32(1)), constant("u", u)),
        *(constant("w", w), constant("ws", w_scale)),
    ]
    outputs = [info("y", "FLOAT", [5, 4]), info("d2", "FLOAT", [5, 6]), info("q1", element, [5, 6])]
    model = make_model(nodes, [info("x", "FLOAT", [5, 6])], outputs, initializers)
    x = (random.integers(-60, 61, (5, 6)) / 8).astype(np.float32)

    def fake(values, scale, zero_point):
        zero_point = zero_point.astype(np.float64)
        q = np.clip(np.rint(values / scale.astype(np.float64)) + zero_point, low, high)
        return (q - zero_point) * scale, q

    d1, q1 = fake(x, scale, zero_point)
    d2, _ = fake(d1, np.float32(1), u)
    product = d2 @ (w.astype(np.float64) * w_scale)  # multiples of 1/2, exact in every order of summing
    y, _ = fake(product, np.float32(1), u)
    got_y, got_d2, got_q1 = run(model, {"x": x})
    np.testing.assert_array_equal(got_q1.astype(np.float64), q1)
    np.testing.assert_array_equal(got_d2, d2)
    np.testing.assert_array_equal(got_y, y)
    only_y = make_model(nodes, [info("x", "FLOAT", [5, 6])], outputs[:1], initializers)
    np.testing.assert_array_equal(run(only_y, {"x": x})[0], y)


@pytest.mark.parametrize("moved", [None, "Identity", "Transpose"])
@pytest.mark.parametrize("op_type", ["Add", "AveragePool", "Mul"])
@pytest.mark.parametrize("element", INTEGERS)
def test_ties_behind_fused_operators_go_to_even_with_an_odd_zero_point(element, op_type, moved):
    dtype, low, high = INTEGERS[element]
    a, b = np.meshgrid(np.arange(low, high + 1), np.arange(low, high + 1))
    if op_type == "AveragePool":
        feeds = {"a": np.stack([a, b], axis=-1)[None]}
        operator = helper.make_node(op_type, ["da"], ["f"], kernel_shape=[1, 2], strides=[1, 2])
        halves, scale = (a + b)[None, :, :, None], 0.5
    else:
        feeds = {"a": a, "b": b}
        operator = helper.make_node(op_type, ["da", "db"], ["f"])
        halves, scale = (a + b, 1.0) if op_type == "Add" else (a * b, 0.5)
    nodes = [helper.make_node("DequantizeLinear", [name, "half"], [f"d{name}"]) for name in feeds]
    nodes.append(operator)
    if moved is not None:
        nodes.append(helper.make_node(moved, ["f"], ["moved"]))
        halves = halves.T if moved == "Transpose" else halves
    nodes.append(helper.make_node("QuantizeLinear", ["f" if moved is None else "moved", "scale", "one"], ["q"]))
    constants = [constant("half", np.float32(0.5)), constant("scale", np.float32(scale)), constant("one", dtype(1))]
    inputs = [info(name, element, values.shape) for name, values in feeds.items()]
    model = make_model(nodes, inputs, [info("q", element, halves.shape)], constants)
    [q] = run(model, {name: values.astype(dtype) for name, values in feeds.items()})
    np.testing.assert_array_equal(q, saturated(np.rint(halves / 2) + 1, low, high, dtype))


@pytest.mark.parametrize("element", INTEGERS)
def test_quantized_convolution_survives_the_optimizer(element):
    _, low, high = INTEGERS[element]
    random = np.random.default_rng(14)
    w = random_integers(random, element, (3, 2, 1, 1))
    initializers = [constant("s", np.float32(0.5)), constant("w", w), constant("bias", np.zeros(3, np.float32))]
    nodes = [
        linear("QuantizeLinear", ["x", "s"], "q", output_dtype=code(element)),
        linear("DequantizeLinear", ["q", "s"], "d"),
        linear("DequantizeLinear", ["w", "s"], "wd"),
        helper.make_node("Conv", ["d", "wd", "bias"], ["c"]),
        linear("QuantizeLinear", ["c", "s"], "q2", output_dtype=code(element)),
        linear("DequantizeLinear", ["q2", "s"], "y"),
    ]
    model = make_model(nodes, [info("x", "FLOAT", [1, 2, 4, 4])], [info("y", "FLOAT", [1, 3, 4, 4])], initializers)
    x = (random.integers(-30, 31, (1, 2, 4, 4)) / 8).astype(np.float32)
    d = np.clip(np.rint(x.astype(np.float64) / 0.5), low, high) * 0.5
    c = np.einsum("nchw,oc->nohw", d, w[:, :, 0, 0].astype(np.float64) * 0.5)
    y = np.clip(np.rint(c / 0.5), low, high) * 0.5
    np.testing.assert_array_equal(run(model, {"x": x})[0], y)


@pytest.mark.parametrize("activation", ["UINT2", "UINT8"])
@pytest.mark.parametrize("per_channel", [True, False], ids=["channels", "tensor"])
@pytest.mark.parametrize("op_type", ["Conv", "Gemm", "MatMul"])
def test_a_bias_keeps_its_fractions(op_type, per_channel, activation):
    # The scales' product is 0.5 or 0.25: a bias in eighths is no multiple of it. What is quantized again is rounded.
    random = np.random.default_rng(15)
    w = random_integers(random, "INT2", (8, 4))
    scale = np.array([1, 0.5, 1, 0.5] if per_channel else 1, np.float32)
    bias = (np.array([1, 3, -5, 7]) / 8).astype(np.float32)
    x = random.integers(0, 4, (5, 8))
    expected = x * 0.5 @ (w.astype(np.float64) * scale) + bias
    spatial = [1, 1] if op_type == "Conv" else []
    dtype = {"UINT2": ml_dtypes.uint2, "UINT8": np.uint8}[activation]
    stored = np.ascontiguousarray(w.T).reshape(4, 8, 1, 1) if op_type == "Conv" else w
    product = {
        "Conv": [helper.make_node("Conv", ["d", "wd", "bias"], ["y"])],
        "Gemm": [helper.make_node("Gemm", ["d", "wd", "bias"], ["y"])],
        "MatMul": [helper.make_node("MatMul", ["d", "wd"], ["m"]), helper.make_node("Add", ["m", "bias"], ["y"])],
    }[op_type]
    nodes = [
        linear("DequantizeLinear", ["x", "half"], "d"),
        linear("DequantizeLinear", ["w", "scale"], "wd", axis=0 if op_type == "Conv" else 1),
        *product,
        linear("QuantizeLinear", ["y", "eighth", "middle"], "q"),
    ]
    initializers = [
        constant("half", np.float32(0.5)),
        constant("eighth", np.float32(0.125)),
        constant("middle", np.uint8(128)),
        constant("w", stored),
        constant("scale", scale),
        constant("bias", bias),
    ]
    model = make_model(
        nodes, [info("x", activation, [5, 8, *spatial])], [info("q", "UINT8", [5, 4, *spatial])], initializers
    )
    got = run(model, {"x": x.reshape(5, 8, *spatial).astype(dtype)})[0]
    np.testing.assert_array_equal(got.reshape(5, 4), np.clip(expected * 8 + 128, 0, 255))


# Small floats


def random_floats(random, element, shape):
    return random.uniform(-6, 6, shape).astype(DTYPES[element])


@pytest.mark.parametrize("kind", ["constant", "input"])
@pytest.mark.parametrize("scale_type", [*FLOATS, "FLOAT8E8M0"])
@pytest.mark.parametrize("element", ["FLOAT4E2M1", *since(28, "FLOAT6E2M3", "FLOAT6E3M2")])
def test_dequantize_small_floats_in_every_layout(element, scale_type, kind):
    random = np.random.default_rng(15)
    site = Site(25 if element == "FLOAT4E2M1" else 28)
    output = "FLOAT" if scale_type == "FLOAT8E8M0" else scale_type
    for shape, scale_shape, axis, block_size in LAYOUTS:
        for with_zero_point in (False, True):
            x = random_floats(random, element, shape)
            scale = random_scale(random, scale_shape, DTYPES[scale_type])
            zero_point = random_floats(random, element, scale_shape) if with_zero_point else None
            inputs = [site.operand(x, element, kind), site.operand(scale, scale_type, "constant")]
            if with_zero_point:
                inputs.append(site.operand(zero_point, element, "constant"))
            attributes = {"output_dtype": code("FLOAT")} if scale_type == "FLOAT8E8M0" else {}
            node = linear("DequantizeLinear", inputs, "", axis, block_size, **attributes)
            site.output(node, output, dequantized(x, scale, zero_point, axis, block_size, FLOATS[output]))
    site.check()


@pytest.mark.parametrize("scale", [2.0**-149, 3 * 2.0**-149, 2.0**-126, 3e38 / 6, np.nan])
def test_float4_weights_are_exact_with_extreme_scales(scale):
    x = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn)
    site = Site()
    scale = np.array(scale, np.float32)
    inputs = [site.operand(x, "FLOAT4E2M1", "constant"), site.operand(scale, "FLOAT", "constant")]
    site.output(linear("DequantizeLinear", inputs, "", 0), "FLOAT", dequantized(x, scale, None, 0, 0))
    site.check()


@pytest.mark.parametrize("data_is_input", [False, True])
@pytest.mark.parametrize("block_size", [16, 512])
def test_nvfp4_weights(data_is_input, block_size):
    """FLOAT8 scales of blocks, dequantized by a scalar; the weights are also listed as a graph input, or not."""
    random = np.random.default_rng(16)
    q = random_floats(random, "FLOAT4E2M1", (600, 6))
    block_scales = random.uniform(0.1, 300, (-(-600 // block_size), 6)).astype(ml_dtypes.float8_e4m3fn)
    scalar = np.float32(0.0123)
    scales = (block_scales.astype(np.float64) * scalar).astype(np.float32)
    matrix = dequantized(q, scales, None, 0, block_size).astype(np.float64)
    nodes = [
        linear("DequantizeLinear", ["bs", "scalar"], "s"),
        linear("DequantizeLinear", ["q", "s"], "w", 0, block_size),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    inputs = [info("x", "FLOAT", [2, 600])] + ([info("q", "FLOAT4E2M1", q.shape)] if data_is_input else [])
    outputs = [info("y", "FLOAT", [2, 6]), info("w", "FLOAT", q.shape)]
    initializers = [constant("bs", block_scales), constant("scalar", scalar), constant("q", q)]
    x = random.integers(-4, 5, (2, 600)).astype(np.float32)
    y, w = run(make_model(nodes, inputs, outputs, initializers), {"x": x})
    np.testing.assert_array_equal(w, matrix.astype(np.float32))
    np.testing.assert_allclose(y, x @ matrix, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("block_size", [32, 512])
@pytest.mark.parametrize("data_type", ["FLOAT4E2M1", "FLOAT8E4M3FN", "INT8", "INT4"])
def test_powers_of_two_as_scales(data_type, block_size):
    random = np.random.default_rng(17)
    q = random.uniform(-6, 6, (600, 7)).astype(DTYPES[data_type])
    scales = np.exp2(random.integers(-4, 5, (-(-600 // block_size), 7))).astype(ml_dtypes.float8_e8m0fnu)
    matrix = dequantized(q, scales, None, 0, block_size, np.float32).astype(np.float64)
    nodes = [
        linear("DequantizeLinear", ["q", "s"], "w", 0, block_size, output_dtype=code("FLOAT")),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x = random.integers(-4, 5, (2, 600)).astype(np.float32)
    initializers = [constant("q", q), constant("s", scales)]
    model = make_model(nodes, [info("x", "FLOAT", [2, 600])], [info("y", "FLOAT", [2, 7])], initializers)
    np.testing.assert_allclose(run(model, {"x": x})[0], x @ matrix, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("scale_type", [*FLOATS, "FLOAT8E8M0"])
def test_quantize_to_float4(scale_type, lowering):
    random = np.random.default_rng(18)
    site = Site()
    precision = np.float32 if scale_type == "FLOAT8E8M0" else FLOATS[scale_type]
    for shape, scale_shape, axis, block_size in LAYOUTS:
        for with_zero_point in (False, True):
            x = awkward(random, shape, np.float32)
            scale = random_scale(random, scale_shape, DTYPES[scale_type])
            zero_point = random_floats(random, "FLOAT4E2M1", scale_shape) if with_zero_point else None
            inputs = [site.operand(x, "FLOAT", "input"), site.operand(scale, scale_type, "constant")]
            moved = quotient(x, scale, axis, block_size, precision).astype(np.float32)
            attributes = {}
            if with_zero_point:
                inputs.append(site.operand(zero_point, "FLOAT4E2M1", "constant"))
                moved += spread(zero_point.astype(np.float32), shape, axis, block_size)
            else:
                attributes["output_dtype"] = code("FLOAT4E2M1")
            node = linear("QuantizeLinear", inputs, "", axis, block_size, **attributes)
            site.output(node, "FLOAT4E2M1", nearest_float4(moved))
    site.check(lowering=lowering)


def nearest_float4(values):
    """Nearest on the grid, ties to the even mantissa, saturating."""
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    middles, evens = (grid[1:] + grid[:-1]) / 2, np.array([True, False] * 4)[1:]
    size = np.abs(values)
    places = sum((size > middle) | ((size == middle) & even) for middle, even in zip(middles, evens, strict=True))
    return np.copysign(grid[places], values).astype(ml_dtypes.float4_e2m1fn)


@pytest.mark.parametrize("output", ["INT8", "UINT8", "FLOAT8E4M3FN"])
def test_quantize_to_stock_types_by_powers_of_two(output):
    random = np.random.default_rng(19)
    site = Site()
    for shape, scale_shape, axis, block_size in LAYOUTS:
        x = (random.integers(-4000, 4000, shape) / 8).astype(np.float16)
        scale = np.exp2(random.integers(-2, 3, scale_shape)).astype(ml_dtypes.float8_e8m0fnu)
        inputs = [site.operand(x, "FLOAT16", "input"), site.operand(scale, "FLOAT8E8M0", "constant")]
        ratio = quotient(x, scale, axis, block_size, np.float32)
        if output == "FLOAT8E4M3FN":
            expected = np.clip(ratio, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
        else:
            limits = np.iinfo(DTYPES[output])
            expected = saturated(np.rint(ratio), limits.min, limits.max, DTYPES[output])
        node = linear("QuantizeLinear", inputs, "", axis, block_size, output_dtype=code(output))
        site.output(node, output, expected)
    site.check()


# What releases get wrong with stock types alone


@pytest.mark.parametrize("mode", ["zero point", "output_dtype"])
@pytest.mark.parametrize("output", ["INT8", "UINT8", "INT16", "UINT16"])
def test_float16_rounds_in_every_layout(output, mode):
    random = np.random.default_rng(21)
    dtype = np.dtype(output.lower())
    limits = np.iinfo(dtype)
    site = Site()
    for shape, scale_shape, axis, block_size in LAYOUTS:
        if block_size:
            continue
        x = awkward(random, shape, np.float16)
        scale = random_scale(random, scale_shape, np.float16)
        inputs = [site.operand(x, "FLOAT16", "input"), site.operand(scale, "FLOAT16", "constant")]
        moved, attributes = np.rint(quotient(x, scale, axis, 0, np.float16)), {"output_dtype": code(output)}
        if mode == "zero point":
            zero_point = random.integers(0, 100, scale_shape).astype(dtype)
            inputs.append(site.operand(zero_point, output, "constant"))
            moved, attributes = moved + spread(zero_point.astype(np.float64), shape, axis, 0), {}
        expected = saturated(moved, limits.min, limits.max, dtype)
        site.output(linear("QuantizeLinear", inputs, "", axis, **attributes), output, expected)
    beside = np.array([1, -2], ml_dtypes.int2)
    site.output(helper.make_node("Identity", [site.operand(beside, "INT2", "input")], [""]), "INT2", beside)
    rewritten = ort_castlike.rewrite(site.model(), target="1.20")
    assert "QuantizeLinear" not in {node.op_type for node in rewritten.graph.node}
    for result, expected in zip(run(rewritten, site.feeds), site.expected, strict=True):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


def float16_quantization(x="FLOAT16", shape=(2, 3), scale_shape=(), beside="INT2", **attributes):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], "to_int8", **attributes),
        helper.make_node("Identity", ["a"], ["b"], "beside"),
    ]
    inputs = [info("x", x, shape), info("s", x, scale_shape), info("z", "INT8", scale_shape), info("a", beside, [1])]
    return make_model(nodes, inputs, [info("y", "INT8", shape), info("b", beside, [1])], opset=25)


def test_a_session_rounds_float16():
    x = np.array([[0.75, 1.25, -0.75], [2.4, -2.6, 1000]], np.float16)
    feeds = {"x": x, "s": np.array(0.5, np.float16), "z": np.array(1, np.int8), "a": np.array([1], ml_dtypes.int2)}
    y, _ = run(float16_quantization(), feeds)
    np.testing.assert_array_equal(y, [[3, 3, -1], [6, -4, 127]])


def test_inspect_says_why_float16_is_written_out():
    changes = ort_castlike.inspect(float16_quantization(), target="1.29").changes
    (change,) = (change for change in changes if "to_int8" in change.node)
    assert "drops what is behind the point of a FLOAT16" in change.becomes


@pytest.mark.parametrize(
    ("model", "target"),
    [
        (float16_quantization(), "1.32"),
        (float16_quantization(x="FLOAT"), "1.20"),
        (float16_quantization(scale_shape=(2, 1), block_size=3), "1.20"),
        (float16_quantization(shape=None, scale_shape=(3,)), "1.20"),
        (float16_quantization(beside="INT8"), "1.20"),
    ],
    ids=["rounds", "float", "blocks", "unknown rank", "no emulated type"],
)
def test_other_quantizations_of_stock_types_stay(model, target):
    assert model.graph.node[0] in ort_castlike.rewrite(model, target=target).graph.node


# What is refused


def test_a_power_of_two_scale_without_output_type_is_refused():
    node = linear("DequantizeLinear", ["q", "s"], "y")
    inputs = [info("q", "INT4", [4]), info("s", "FLOAT8E8M0", [])]
    with pytest.raises(ort_castlike.CastLikeError, match=r"'y'.*set output_dtype"):
        ort_castlike.rewrite(make_model([node], inputs, [info("y", "FLOAT8E8M0", [4])]))


def test_a_precision_that_does_not_divide_is_refused():
    node = linear("QuantizeLinear", ["x", "s"], "y", output_dtype=code("INT4"), precision=code("INT8"))
    inputs = [info("x", "FLOAT", [4]), info("s", "FLOAT", [])]
    with pytest.raises(ort_castlike.CastLikeError, match=r"precision INT8 is no type to divide in"):
        ort_castlike.rewrite(make_model([node], inputs, [info("y", "INT4", [4])]))


@pytest.mark.parametrize("data_is_constant", [False, True])
@pytest.mark.parametrize("element", ["INT2", "FLOAT4E2M1"])
@pytest.mark.parametrize(
    ("scale_shape", "axis", "block_size"),
    [((4, 2), 1, 0), ((3,), 1, 0), ((4,), 2, 0), ((4, 1), 1, 3), ((4,), 1, 2), ((4, 2), 2, 3), ((4, 2), 1, -2)],
)
def test_scales_that_do_not_fit_are_refused(element, scale_shape, axis, block_size, data_is_constant):
    site = Site()
    kind = "constant" if data_is_constant else "input"
    q = site.operand(np.ones((4, 6)).astype(DTYPES[element]), element, kind)
    s = site.operand(np.ones(scale_shape, np.float32), "FLOAT", "constant")
    site.nodes.append(linear("DequantizeLinear", [q, s], "w", axis, block_size))
    site.output(helper.make_node("Transpose", ["w"], [""]), "FLOAT", np.ones((6, 4), np.float32))
    with pytest.raises(ort_castlike.CastLikeError, match=r"'w'|inference"):
        ort_castlike.rewrite(site.model())


@pytest.mark.parametrize("element", ["INT2", "FLOAT4E2M1"])
def test_a_scale_of_unknown_size_may_be_one_for_a_scalar(element):
    nodes = [
        linear("QuantizeLinear", ["x", "s"], "q", output_dtype=code(element)),
        linear("DequantizeLinear", ["q", "s"], "y"),
    ]
    outputs = [info("q", element, []), info("y", "FLOAT", [])]
    model = make_model(nodes, [info("x", "FLOAT", []), info("s", "FLOAT", ["n"])], outputs)
    q, y = run(model, {"x": np.array(0.5, np.float32), "s": np.array([0.5], np.float32)})
    assert q.shape == y.shape == ()
    assert (q.astype(np.float32), y) == (1, 0.5)


# ONNX's own


@pytest.mark.parametrize("module", [quantizelinear, dequantizelinear])
def test_onnx_node_tests(module, monkeypatch):
    cases = []
    monkeypatch.setattr(module, "expect", lambda node, inputs, outputs, name: cases.append((node, inputs, outputs)))
    operator = module.QuantizeLinear if module is quantizelinear else module.DequantizeLinear
    for name in dir(operator):
        if name.startswith("export") and name.endswith(("int2", "int4", "float4e2m1")):
            getattr(operator, name)()
    assert len(cases) == 5
    for node, inputs, outputs in cases:
        inputs, (expected,) = ([as_array(item) for item in items] for items in (inputs, outputs))
        graph_inputs, graph_outputs = (
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(item.dtype), item.shape)
                for name, item in zip(names, items, strict=True)
            ]
            for names, items in ((node.input, inputs), (node.output, [expected]))
        )
        (result,) = run(
            make_model([node], graph_inputs, graph_outputs, opset=min(28, onnx.defs.onnx_opset_version())),
            dict(zip(node.input, inputs, strict=True)),
        )
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


def as_array(item):
    return numpy_helper.to_array(item) if isinstance(item, TensorProto) else np.asarray(item)
