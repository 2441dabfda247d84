"""``lowering="standard"``: stock operators alone, the numbers that the standard defines, on every release."""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import since
from onnx import TensorProto, helper, numpy_helper

import ort_castlike
from ort_castlike._types import CASTLIKE_TYPES, EMULATED_TYPES, ElementType, element_type

SMALL_INTEGERS = ("INT2", "UINT2", "INT4", "UINT4")
# The types that the installed onnx has: the float6 types came late.
EMULATED = {name: row for name, row in EMULATED_TYPES.items() if hasattr(TensorProto, name)}
TYPES = tuple(dict.fromkeys((*CASTLIKE_TYPES, *EMULATED)))
SMALL_FLOATS = tuple(name for name in ("FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2") if name in EMULATED)
FLOAT8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
STOCK_INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
ROUNDINGS = ("nearest_even", "toward_zero", "half_away")

# onnxruntime takes no numpy array of these; they go in and out of the test models as float, which holds them.
AS_FLOAT = ("BFLOAT16", *FLOAT8)


def casts_model(from_name: str, to_names: Sequence[str], **attributes: object) -> onnx.ModelProto:
    """A model that casts its input to each type, in one node each."""
    nodes, outputs, source = [], [], "x"
    input_name = "FLOAT" if from_name in AS_FLOAT else from_name
    if from_name in AS_FLOAT:
        nodes.append(helper.make_node("Cast", ["x"], ["crossed"], to=TensorProto.FLOAT))
        nodes[0].attribute[0].i = element_type(from_name).code
        source = "crossed"
    for to_name in to_names:
        only_float8 = {key: value for key, value in attributes.items() if to_name.startswith("FLOAT8")}
        if to_name != "FLOAT8E8M0":
            only_float8.pop("round_mode", None)
        code = element_type(to_name).code
        result = f"raw_{to_name}" if to_name in AS_FLOAT else to_name
        nodes.append(helper.make_node("Cast", [source], [result], name=f"to {to_name}", to=code, **only_float8))
        if to_name in AS_FLOAT:
            nodes.append(helper.make_node("Cast", [result], [to_name], name=f"from {to_name}", to=TensorProto.FLOAT))
        code = TensorProto.FLOAT if to_name in AS_FLOAT else code
        outputs.append(helper.make_tensor_value_info(to_name, code, ["n"]))
    graph_input = helper.make_tensor_value_info("x", element_type(input_name).code, ["n"])
    graph = helper.make_graph(nodes, "casts", [graph_input], outputs)
    float6 = any(name.startswith("FLOAT6") for name in (from_name, *to_names))
    opset, ir_version = (28, 14) if float6 else (25, 13)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def fed(values: np.ndarray, from_name: str) -> np.ndarray:
    """Values of a type as the rewritten models take them: in the carrier, or in float."""
    carrier = element_type(from_name).carrier or ("FLOAT" if from_name in AS_FLOAT else from_name)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return values if from_name == "STRING" else values.astype(element_type(carrier).dtype)


def run(model: onnx.ModelProto, values: np.ndarray, **options: object) -> dict[str, np.ndarray]:
    """Rewrite with the standard lowering, check the result, and run it on a plain session."""
    rewritten = ort_castlike.rewrite(model, lowering="standard", **options)
    assert [entry.domain for entry in rewritten.opset_import] == [""]
    onnx.checker.check_model(rewritten, full_check=True)
    session = onnxruntime.InferenceSession(rewritten.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": values}), strict=True))


def same(result: np.ndarray, expected: np.ndarray) -> None:
    """The two arrays have the same type and the same bits; any NaN is like any other."""
    assert result.dtype == expected.dtype
    if result.dtype.kind == "f":
        np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[numbers]), np.signbit(expected[numbers]))
    np.testing.assert_array_equal(result, expected)


# What is tried -----------------------------------------------------------------------------------------------


@functools.cache
def grid(name: str) -> np.ndarray:
    """Values of a float type: every one of a 16-bit or smaller type, the awkward ones and random ones of a larger."""
    dtype = element_type(name).dtype
    if dtype.itemsize <= 2:
        bits = {"FLOAT4E2M1": 4, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}.get(name, dtype.itemsize * 8)
        return np.arange(1 << bits).astype(f"u{dtype.itemsize}").view(dtype)
    info = np.finfo(dtype)
    exponents = [k for k in range(info.minexp - info.nmant, info.maxexp) if abs(k) < 160 or k % 37 == 0]
    powers = np.ldexp(dtype.type(1), exponents)
    near = [powers + k * np.spacing(powers) for k in range(-5, 6)]
    ties = [np.arange(-80, 81) / 2, powers * 1.5, powers[powers < 1e30] * 6]
    single = [np.array([1e30, info.max, 33554434.0, 0.0, np.inf, np.nan])]
    random = np.random.default_rng(0).integers(0, 1 << 63, 2000, dtype=np.uint64).astype(f"u{dtype.itemsize}")
    with np.errstate(all="ignore"):
        values = np.concatenate([*near, *ties, *single, random.view(dtype)]).astype(dtype)
        around = [np.nextafter(values, dtype.type(end)) for end in (0, np.inf)]
    values = np.concatenate([values, *around])
    return np.concatenate([values, -values])


def integers(name: str) -> np.ndarray:
    """Values of an integer type: all of a small one, the ends, powers of two and random ones of a larger."""
    low, high = element_type(name).integer_range
    if high - low < 1 << 16:
        return np.arange(low, high + 1)
    near = [sign * (1 << k) + d for k in range(64) for d in (-1025, -1024, -3, -2, -1, 0, 1, 2, 5) for sign in (1, -1)]
    near += [(3 << k) + d for k in range(62) for d in (-1, 0, 1)]
    generator = np.random.default_rng(0)
    near += [
        low,
        low + 1,
        high - 1,
        high,
        *map(int, generator.integers(low, high, 500, dtype=element_type(name).dtype)),
    ]
    return np.array(sorted({value for value in near if low <= value <= high}), element_type(name).dtype)


# What is expected --------------------------------------------------------------------------------------------


def rounded(value: float, rounding: str) -> int:
    """A number at an integer, in rational arithmetic; what is no finite number at 0."""
    if not math.isfinite(value):
        return 0
    exact = Fraction(value)
    if rounding == "nearest_even":
        return round(exact)
    if rounding == "toward_zero":
        return math.trunc(exact)
    return int(math.copysign(1, exact)) * math.floor(abs(exact) + Fraction(1, 2))


def wrapped(value: int, element: ElementType) -> int:
    """The low bits of the two's complement, read as a value of the type."""
    low = element.integer_range[0]
    return (value - low) % (1 << element.bits) + low


def expected_integers(values: Sequence[int], to_name: str) -> np.ndarray:
    element = element_type(to_name)
    return np.array([wrapped(value, element) for value in values], element_type(element.carrier or to_name).dtype)


def magnitudes(name: str) -> list[float]:
    """The numbers of a small float type from 0 up; those with an even mantissa have an even index."""
    mantissa, bias, codes = {"FLOAT4E2M1": (1, 1, 8), "FLOAT6E2M3": (3, 1, 32), "FLOAT6E3M2": (2, 3, 32)}[name]
    numbers = []
    for code in range(codes):
        exponent, fraction = code >> mantissa, (code & ((1 << mantissa) - 1)) / (1 << mantissa)
        numbers.append((1 + fraction) * 2.0 ** (exponent - bias) if exponent else fraction * 2.0 ** (1 - bias))
    return numbers


def nearest(value: float, numbers: Sequence[float]) -> float:
    """The nearest number, ties to the even index, saturating, with the value's sign."""
    if math.isnan(value):
        return -0.0
    size = abs(value)
    at = bisect.bisect_left(numbers, size)
    if at == len(numbers) or math.isinf(size):
        index = len(numbers) - 1
    elif at == 0:
        index = 0
    else:
        below, above = Fraction(size) - Fraction(numbers[at - 1]), Fraction(numbers[at]) - Fraction(size)
        index = at if above < below or (above == below and at % 2 == 0) else at - 1
    return math.copysign(numbers[index], value)


def power(value: float, round_mode: str, saturate: bool) -> float:
    """A number at a power of two that FLOAT8E8M0 holds."""
    if math.isnan(value) or value < 0:
        return math.nan
    if value < 2.0**-127 or value > 2.0**127:
        return (2.0**-127 if value < 1 else 2.0**127) if saturate else math.nan
    exact = Fraction(value)
    below = Fraction(2) ** ((value.bit_length() if isinstance(value, int) else math.frexp(value)[1]) - 1)
    up = {"down": False, "up": exact > below, "nearest": exact >= below * Fraction(3, 2)}[round_mode]
    return float(below * (2 if up else 1))


# Into the small integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["1.20", None])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("from_name", ["FLOAT", "FLOAT16", "DOUBLE", "BFLOAT16"])
def test_floats_are_rounded_and_wrapped_whatever_their_size(from_name: str, rounding: str, target: str | None) -> None:
    values = grid(from_name)
    if from_name == "BFLOAT16":
        values = values[:: 1 if target else 7]
    results = run(casts_model(from_name, SMALL_INTEGERS), fed(values, from_name), rounding=rounding, target=target)
    whole = [rounded(value, rounding) for value in fed(values, "DOUBLE").tolist()]
    for to_name in SMALL_INTEGERS:
        same(results[to_name], expected_integers(whole, to_name))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("from_name", [*FLOAT8, *SMALL_FLOATS, "FLOAT8E8M0"])
def test_small_floats_are_rounded_and_wrapped(from_name: str, rounding: str) -> None:
    values = grid(from_name).astype(np.float32)
    results = run(casts_model(from_name, SMALL_INTEGERS), fed(values, from_name), rounding=rounding)
    whole = [rounded(value, rounding) for value in values.tolist()]
    for to_name in SMALL_INTEGERS:
        same(results[to_name], expected_integers(whole, to_name))


@pytest.mark.parametrize(
    ("value", "nearest_even", "toward_zero", "half_away"),
    [(0.5, 0, 0, 1), (1.5, 2, 1, 2), (2.5, 2, 2, 3), (-0.5, 0, 0, -1), (-1.5, -2, -1, -2), (0.49999997, 0, 0, 0)],
)
def test_the_rounding_is_the_one_asked_for(value: float, nearest_even: int, toward_zero: int, half_away: int) -> None:
    model, feed = casts_model("FLOAT", ["INT4"]), np.array([value], np.float32)
    for rounding, expected in zip(ROUNDINGS, (nearest_even, toward_zero, half_away), strict=True):
        assert run(model, feed, rounding=rounding)["INT4"].tolist() == [expected]


@pytest.mark.parametrize("from_name", [*STOCK_INTEGERS, *SMALL_INTEGERS])
def test_the_low_bits_of_integers_are_kept(from_name: str) -> None:
    values = integers(from_name)
    to_names = [name for name in SMALL_INTEGERS if name != from_name]
    results = run(casts_model(from_name, to_names), fed(values, from_name), target="1.20")
    for to_name in to_names:
        same(results[to_name], expected_integers(values.tolist(), to_name))


def test_a_bool_becomes_0_or_1_everywhere() -> None:
    results = run(casts_model("BOOL", list(EMULATED)), np.array([False, True]))
    for name, row in EMULATED.items():
        zero = 2.0**-127 if name == "FLOAT8E8M0" else 0
        same(results[name], np.array([zero, 1], element_type(row.carrier or "").dtype))


def test_a_string_is_read_as_a_double() -> None:
    texts = np.array(["1.5", "-2.5", "1e30", "NaN", "INF", "-inf", "0.49999999999999994", "-0"], object)
    results = run(casts_model("STRING", ["INT4", "FLOAT4E2M1", "FLOAT8E8M0"]), texts)
    assert results["INT4"].tolist() == [2, -2, 0, 0, 0, 0, 0, 0]
    same(results["FLOAT4E2M1"], np.array([1.5, -2, 6, -0.0, 6, -6, 0.5, -0.0], np.float16))
    lowest, largest, nan = 2.0**-127, 2.0**127, np.nan
    same(results["FLOAT8E8M0"], np.array([2, nan, 2.0**100, nan, largest, nan, 0.5, lowest], np.float32))


def test_a_string_that_is_no_number_is_an_error_of_the_runtime() -> None:
    with pytest.raises(Exception, match=r"(?i)stod|invalid|parse|argument|cast"):
        run(casts_model("STRING", ["INT2"]), np.array(["two"], object))


# Into the small floats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_name", ["FLOAT", "FLOAT16", "DOUBLE", *FLOAT8, *since(28, *SMALL_FLOATS), "FLOAT8E8M0"])
def test_floats_become_the_nearest_small_float(from_name: str) -> None:
    values = grid(from_name)
    to_names = [name for name in SMALL_FLOATS if name != from_name]
    results = run(casts_model(from_name, to_names), fed(values, from_name), target="1.20")
    for to_name in to_names:
        numbers = magnitudes(to_name)
        expected = [nearest(value, numbers) for value in fed(values, "DOUBLE").tolist()]
        same(results[to_name], np.array(expected, np.float16))


@pytest.mark.parametrize("from_name", [*STOCK_INTEGERS, *SMALL_INTEGERS])
def test_integers_become_the_nearest_small_float(from_name: str) -> None:
    values = integers(from_name)
    results = run(casts_model(from_name, SMALL_FLOATS), fed(values, from_name))
    for to_name in SMALL_FLOATS:
        expected = [nearest(value, magnitudes(to_name)) for value in values.tolist()]
        same(results[to_name], np.array(expected, np.float16))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_numbers_become_powers_of_two_as_asked(round_mode: str, saturate: int) -> None:
    sources = ("FLOAT", "FLOAT16", "DOUBLE", "FLOAT8E5M2", "FLOAT4E2M1", "INT32", "INT64", "UINT64", "INT2", "UINT4")
    for from_name in sources:
        values = integers(from_name) if element_type(from_name).is_integer else grid(from_name)[::5]
        model = casts_model(from_name, ["FLOAT8E8M0"], round_mode=round_mode, saturate=saturate)
        result = run(model, fed(values, from_name), target="1.20")["FLOAT8E8M0"]
        exact = (values if values.dtype.kind in "iu" else fed(values, "DOUBLE")).tolist()
        same(result, np.array([power(value, round_mode, bool(saturate)) for value in exact], np.float32))


# Out of the emulated types -----------------------------------------------------------------------------------


@pytest.mark.parametrize("from_name", SMALL_INTEGERS)
def test_small_integers_come_out_exact(from_name: str) -> None:
    values = integers(from_name)
    to_names = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", "STRING", *STOCK_INTEGERS]
    results = run(casts_model(from_name, to_names), fed(values, from_name), target="1.20")
    for to_name in STOCK_INTEGERS:
        same(results[to_name], expected_integers(values.tolist(), to_name))
    for to_name, dtype in {"FLOAT": "f4", "DOUBLE": "f8", "FLOAT16": "f2", "BFLOAT16": "f4", "BOOL": "?"}.items():
        same(results[to_name], values.astype(dtype))
    assert results["STRING"].tolist() == [str(value) for value in values.tolist()]


@pytest.mark.parametrize("from_name", [*SMALL_FLOATS, "FLOAT8E8M0"])
def test_small_floats_come_out_exact_or_rounded_once(from_name: str) -> None:
    values = grid(from_name).astype(np.float32)
    to_names = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", *STOCK_INTEGERS]
    results = run(casts_model(from_name, to_names), fed(values, from_name), target="1.20")
    for to_name in STOCK_INTEGERS:
        whole = [rounded(value, "toward_zero") for value in values.tolist()]
        same(results[to_name], expected_integers(whole, to_name))
    same(results["FLOAT"], values)
    same(results["BFLOAT16"], values)
    same(results["DOUBLE"], values.astype(np.float64))
    with np.errstate(over="ignore"):
        same(results["FLOAT16"], values.astype(np.float16))
    same(results["BOOL"], np.array([value != 0 for value in values.tolist()]))


@pytest.mark.parametrize("from_name", SMALL_FLOATS)
def test_small_floats_become_text(from_name: str) -> None:
    values = grid(from_name).astype(np.float32)
    texts = run(casts_model(from_name, ["STRING"]), fed(values, from_name))["STRING"].tolist()
    assert [float(text) for text in texts] == values.tolist()


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("from_name", [*SMALL_INTEGERS, *SMALL_FLOATS, "FLOAT8E8M0"])
def test_emulated_types_become_float8(from_name: str, saturate: int) -> None:
    values = (integers(from_name) if from_name in SMALL_INTEGERS else grid(from_name)).astype(np.float32)
    results = run(casts_model(from_name, FLOAT8, saturate=saturate), fed(values, from_name))
    for to_name in FLOAT8:
        codes = np.arange(256, dtype=np.uint8).view(element_type(to_name).dtype).astype(np.float64)
        largest = np.nanmax(codes[np.isfinite(codes)])
        infinite = bool(np.isinf(codes).any())
        zero_signed = not to_name.endswith("FNUZ")
        numbers = np.unique(codes[np.isfinite(codes) & (codes >= 0)]).tolist()
        expected = []
        for value in values.tolist():
            small = nearest(value, [*numbers, 2 * numbers[-1] - numbers[-2]])
            if math.isnan(value):
                small = value
            elif abs(small) > largest and not math.isnan(value):
                beyond = math.inf if infinite else math.nan
                small = math.copysign(largest if saturate else beyond, value)
            elif small == 0 and not zero_signed:
                small = 0.0
            expected.append(small)
        same(results[to_name], np.array(expected, np.float32))


# The lowering as a whole -------------------------------------------------------------------------------------


BOTH = [(name, "nearest_even") for name in TYPES]
BOTH += [(name, rounding) for name in ("FLOAT", "DOUBLE", "FLOAT16") for rounding in ROUNDINGS[1:]]


@pytest.mark.parametrize(("from_name", "rounding"), BOTH)
def test_both_lowerings_give_the_same_numbers(from_name: str, rounding: str) -> None:
    if from_name == "STRING":
        numbers = grid("DOUBLE")[::41]
        normal = ~(np.abs(numbers) < np.finfo(np.float64).smallest_normal)  # stock Cast refuses to read the others
        values = np.array([repr(value) for value in numbers[normal].tolist()], object)
    elif from_name == "BOOL":
        values = np.array([False, True])
    elif element_type(from_name).is_integer:
        values = fed(integers(from_name), from_name)
    else:
        values = fed(grid(from_name)[:: 1 if element_type(from_name).bits < 16 else 11], from_name)
    others = TYPES if from_name in EMULATED else EMULATED
    model = casts_model(from_name, [name for name in others if name != from_name])
    results = run(model, values, rounding=rounding)
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    custom = ort_castlike.rewrite(model, lowering="custom", rounding=rounding)
    session = onnxruntime.InferenceSession(custom.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for output, expected in zip(session.get_outputs(), session.run(None, {"x": values}), strict=True):
        same(results[output.name], expected)


def test_a_cast_in_a_subgraph_uses_the_outer_constants() -> None:
    def branch(name: str, to_name: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Cast", ["x"], [f"{name}_small"], to=element_type(to_name).code),
            helper.make_node("Cast", [f"{name}_small"], [f"{name}_out"], to=TensorProto.FLOAT),
        ]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, ["n"])]
        )

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("then", "INT2"), else_branch=branch("else", "INT4"))
    graph = helper.make_graph(
        [node],
        "branches",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    rewritten = ort_castlike.rewrite(model, lowering="standard", target="1.20")
    onnx.checker.check_model(rewritten, full_check=True)
    session = onnxruntime.InferenceSession(rewritten.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([-3, 2, 7.5], np.float32)
    assert session.run(None, {"x": x, "c": np.array(True)})[0].tolist() == [1, -2, 0]
    assert session.run(None, {"x": x, "c": np.array(False)})[0].tolist() == [-3, 2, -8]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3)])
def test_any_shape_is_cast(shape: tuple[int, ...]) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT2)
    graph = helper.make_graph(
        [node],
        "shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT2, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    result = run(model, np.full(shape, 1.0, np.float32))["y"]
    same(result, np.ones(shape, np.int8))


def test_the_choice_is_recorded_in_the_model() -> None:
    rewritten = ort_castlike.rewrite(casts_model("FLOAT", ["INT2"]), lowering="standard", rounding="half_away")
    record = {entry.key: entry.value for entry in rewritten.metadata_props}
    assert '"lowering": "standard"' in record["ort_castlike.options"]
    assert '"rounding": "half_away"' in record["ort_castlike.options"]
    assert record["ort_castlike.outputs"] == '{"INT2": "tensor(int2)"}'


def test_the_session_gives_the_original_types_of_a_standard_model() -> None:
    rewritten = ort_castlike.rewrite(casts_model("FLOAT", ["INT2"]), lowering="standard")
    session = ort_castlike.InferenceSession(rewritten)
    assert session.get_outputs()[0].type == "tensor(int2)"
    [result] = session.run(None, {"x": np.array([-3, 1.5], np.float32)})
    assert result.dtype == ml_dtypes.int2
    assert result.astype(int).tolist() == [1, -2]


def test_the_graph_says_what_its_inputs_and_outputs_were() -> None:
    source = casts_model("INT4", ["INT2", "FLOAT"])
    rewritten = ort_castlike.rewrite(source, lowering="standard")
    ports = [*rewritten.graph.input, *rewritten.graph.output]
    original = {"x": "tensor(int4) in the original model", "INT2": "tensor(int2) in the original model", "FLOAT": ""}
    assert {port.name: port.doc_string for port in ports} == original


@pytest.mark.parametrize(
    ("to_name", "last", "first", "beyond"),
    [("FLOAT8E4M3FN", 464.0, 464.1, math.nan), ("FLOAT8E5M2", 61439.0, 61440.0, math.inf)],
)
def test_a_quantization_overflows_where_the_standard_says(
    to_name: str, last: float, first: float, beyond: float
) -> None:
    scale = numpy_helper.from_array(np.array(1, ml_dtypes.float8_e8m0fnu), "scale")
    zero = numpy_helper.from_array(np.array(0, element_type(to_name).dtype), "zero")
    quantize = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], saturate=0)
    graph = helper.make_graph(
        [quantize, helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)],
        "quantize",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [scale, zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    largest = {"FLOAT8E4M3FN": 448.0, "FLOAT8E5M2": 57344.0}[to_name]
    x = np.array([last, first, 1.03 * first, 2 * first, np.inf, 1e30, 1.0, 0.0], np.float32)
    y = run(model, np.concatenate([x, -x[:-1]]))["y"]
    expected = np.array([largest, beyond, beyond, beyond, beyond, beyond, 1, 0], np.float32)
    same(y, np.concatenate([expected, -expected[:-1]]))
