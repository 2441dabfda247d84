"""Lowering of opset and IR version, run on the installed runtime: ONNX's node tests, and arithmetic written here."""

import itertools
import re
import time
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from ort_castlike._errors import TargetError
from ort_castlike._opset import _gaps, _plan, lower
from ort_castlike._opset._bumps import ADDITIONS
from ort_castlike._opset._rules import RULES
from ort_castlike._targets import NEWEST, OLDEST, TARGETS, resolve_target

INSTALLED = resolve_target(None)
FLOAT = TensorProto.FLOAT


def model_of(nodes, inputs, outputs, *, opset, ir_version=10, initializers=(), functions=(), imports=()):
    """An onnx_ir model with inferred types, its inputs and outputs given as (name, type[, shape])."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        initializer=list(initializers),
    )
    opset_imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(*row) for row in imports)]
    model = helper.make_model(graph, opset_imports=opset_imports, ir_version=ir_version, functions=list(functions))
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))


def session_of(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    data = ir.serde.serialize_model(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def run(model, *feeds):
    session = session_of(model)
    return session.run(None, dict(zip((item.name for item in session.get_inputs()), feeds, strict=True)))


def op_types(model):
    return [node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)]


def target_of(release):
    return next(row for row in TARGETS if str(row) == release)


def one_node(op_type, inputs, outputs=(("y", FLOAT),), *, opset, **attributes):
    node = helper.make_node(op_type, [row[0] for row in inputs], [row[0] for row in outputs], **attributes)
    return model_of([node], inputs, outputs, opset=opset)


# --- the table of bumps ---


def all_bumps():
    rows = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            rows.setdefault(schema.name, {})[schema.since_version] = schema
    for name, history in rows.items():
        versions = sorted(history)
        for before, since in itertools.pairwise(versions):
            if since > OLDEST.opset:
                yield name, since, history[before], history[since]


def types_of(formal, schema):
    """The types that a formal input or output may have; ``formal.types`` cannot be read in onnx 1.20."""
    constraints = {constraint.type_param_str: constraint for constraint in schema.type_constraints}
    named = constraints.get(formal.type_str)
    return {formal.type_str} if named is None else set(named.allowed_type_strs)


@pytest.mark.opset(28)
def test_every_bump_of_onnx_is_either_an_addition_or_has_a_rule():
    bumps = {(name, since) for name, since, _, _ in all_bumps() if since <= 28}
    assert set(RULES) <= bumps
    assert bumps >= ADDITIONS
    assert not ADDITIONS & set(RULES)
    assert bumps == ADDITIONS | set(RULES)


def test_bumps_called_additions_take_nothing_away_and_change_no_default():
    # These two gave up integers, on which a logarithm has no meaning.
    gave_up_types = {("ReduceLogSum", 28), ("ReduceLogSumExp", 28)}
    for name, since, old, new in all_bumps():
        if (name, since) not in ADDITIONS:
            continue
        label = f"{name} {since}"
        for kind in ("inputs", "outputs"):
            for formal_old, formal_new in zip(getattr(old, kind), getattr(new, kind), strict=True):
                assert formal_old.option == formal_new.option, label
                if (name, since) not in gave_up_types and (name, kind) != ("DequantizeLinear", "outputs"):
                    assert types_of(formal_old, old) <= types_of(formal_new, new), label
        assert (old.min_input, old.max_input, old.max_output) == (new.min_input, new.max_input, new.max_output), label
        assert set(old.attributes) == set(new.attributes), label
        for attribute in old.attributes:
            assert old.attributes[attribute].default_value == new.attributes[attribute].default_value, label


def test_a_bump_that_the_table_does_not_know_is_refused(monkeypatch):
    monkeypatch.setattr(_plan, "ADDITIONS", ADDITIONS - {("Reshape", 25)})
    model = model_of(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [("x", FLOAT, [2]), ("shape", TensorProto.INT64, [1])],
        [("y", FLOAT)],
        opset=25,
    )
    with pytest.raises(TargetError, match="what Reshape changed with opset 25 is not known"):
        lower(model, OLDEST)


# --- ONNX's node tests ---

# Node tests that lowering refuses, by the reason. What no pattern matches must be lowered.
REFUSED = {
    r"bitcast_(2d_|scalar_)?(float|int)(32|64)_to_(float|int)(32|64)$": "no operator before BitCast reads bits",
    r"(celu|compress|einsum_\w+|onehot_with|reversesequence|unique)_bfloat16\w*$": "bfloat16 came with opset 28",
}
# Node tests that are lowered and that some runtime cannot run at the lower opset, as at any other.
STOCK_FAILS = {
    r"(gru|lstm|simple_rnn)_batchwise$": "layout=1 is not implemented",
    r"top_k_uint64$": "TopK has no uint64 kernel",
    r"maxunpool_export_with_output_shape$": "MaxUnpool ignores the padding of output_shape",
    r"(training_dropout|bernoulli)": "random numbers",
    r"flexattention": "the preview domain is not there",
    r"bf16|celu_bfloat16": "bfloat16 has no kernel for arithmetic",
    r"deform_conv": "DeformConv has no kernel before 1.25",
    r"reversesequence_batch$": "a length of 0 leaves the row unwritten before 1.29",
    r"averagepool_3d_dilations_large_count_include_pad_is_1_ceil_mode_is_True$": "wrong divisor on 1.20",
    r"l2normalization_axis_0$": "onnx 1.20 expects NaN of 0 / 0",
    r"attention\w*(fullymasked|nan_robustness|mode3)": "a row that is masked in full gives NaN on 1.23 and 1.24",
}
EMULATED = {"INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT8E8M0", "FLOAT6E2M3", "FLOAT6E3M2"}


def matches(patterns, name):
    return any(re.search(pattern, name) for pattern in patterns)


def as_array(item):
    if isinstance(item, TensorProto):
        return numpy_helper.to_array(item)
    if isinstance(item, list | tuple):
        return [as_array(inner) for inner in item]
    return item if item is None else np.asarray(item)


def is_numpy(item):
    if isinstance(item, list):
        return all(map(is_numpy, item))
    return item is not None and item.dtype.isbuiltin == 1


def same(got, expected, case):
    if isinstance(expected, list):
        return len(got) == len(expected) and all(same(*pair, case) for pair in zip(got, expected, strict=True))
    if got.shape != expected.shape or (got.dtype != expected.dtype and expected.dtype.kind not in "OUS"):
        return False
    if expected.dtype.kind == "f":
        # Two units in the last place of float16: its sums are rounded in another order on every release.
        rtol = max(case.rtol, 2**-9) if expected.dtype == np.float16 else case.rtol
        return np.allclose(got, expected, rtol=rtol, atol=case.atol, equal_nan=True)
    return np.array_equal(got, expected)


def uses_emulated_type(model):
    values = [*model.graph.inputs, *model.graph.outputs]
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        values.extend(node.outputs)
        to = node.attributes.get("to")
        if to is not None and not to.is_ref() and ir.DataType(to.as_int()).name in EMULATED:
            return True
        tensor = node.attributes.get("value")
        if tensor is not None and tensor.type == ir.AttributeType.TENSOR and tensor.value.dtype.name in EMULATED:
            return True
    return any(value.dtype is not None and value.dtype.name in EMULATED for value in values)


@pytest.fixture(scope="module")
def node_tests():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return [
        case
        for case in cases
        if case.kind == "node"
        and any(row.domain == "" and row.version > OLDEST.opset for row in case.model.opset_import)
    ]


@pytest.mark.parametrize("target", sorted({OLDEST, INSTALLED}), ids=str)
def test_node_tests_of_newer_opsets_give_the_same_when_lowered(node_tests, target):
    wrong, refused, right = {}, set(), 0
    for case in node_tests:
        model = ir.serde.deserialize_model(case.model)
        if uses_emulated_type(model):
            continue
        try:
            changes = lower(model, target)
        except TargetError as error:
            if not matches(REFUSED, case.name):
                wrong[case.name] = f"refused: {error}"
            refused.add(case.name)
            continue
        assert model.opset_imports[""] <= target.opset
        assert model.ir_version <= target.ir_version
        if not any("IR version" not in line for line in changes) or matches(STOCK_FAILS, case.name):
            continue
        for inputs, outputs in case.data_sets:
            feeds, expected = as_array(list(inputs)), as_array(list(outputs))
            if not is_numpy(feeds) or not is_numpy(expected):
                session_of(model)
                continue
            try:
                got = run(model, *feeds)
            except Exception as error:
                wrong[case.name] = str(error)[:200]
                continue
            if not same(got, expected, case):
                wrong[case.name] = f"differs after {changes}"
            right += 1
    assert wrong == {}
    if target == OLDEST and onnx.defs.onnx_opset_version() >= 28:
        assert right > 650
        assert len(refused) == 15


# --- lower forms, at opset 21 on whatever runtime is installed ---


def test_models_that_fit_are_left_alone():
    model = one_node("Swish", [("x", FLOAT, [3])], opset=24)
    model.opset_imports[""] = 21
    model.graph[0].op_type = "Sigmoid"
    before = ir.serde.serialize_model(model).SerializeToString()
    assert lower(model, OLDEST) == []
    assert ir.serde.serialize_model(model).SerializeToString() == before


def test_lowering_twice_changes_nothing_more():
    model = one_node("Swish", [("x", FLOAT, [3])], opset=25)
    assert lower(model, OLDEST)
    assert lower(model, OLDEST) == []


def test_the_report_says_what_was_changed():
    model = one_node("Swish", [("x", FLOAT, [3])], opset=25)
    model.ir_version = 13
    assert lower(model, OLDEST) == [
        "opset of the model lowered from 25 to 21",
        "IR version lowered from 13 to 10",
        "Swish: replaced by ONNX's function body of Swish (1 node)",
    ]


@pytest.mark.opset(28)
def test_replaced_nodes_feed_replaced_nodes_and_no_name_is_taken_twice():
    nodes = [
        helper.make_node("Swish", ["x"], ["a"], name="act", alpha=2.0),
        helper.make_node("Swish", ["a"], ["b"], name="act2"),
        helper.make_node("Identity", ["b"], ["act/AlphaMulX"]),
        helper.make_node("SwiGLU", ["act/AlphaMulX", "x"], ["y"], name="act3"),
    ]
    model = model_of(nodes, [("x", FLOAT, [5])], [("y", FLOAT), ("a", FLOAT)], opset=28)
    lower(model, OLDEST)
    names = [value.name for node in model.graph for value in node.outputs]
    assert len(names) == len(set(names))
    assert "Swish" not in op_types(model)
    x = np.linspace(-3, 3, 5, dtype=np.float32)

    def swish(value, alpha):
        return value / (1 + np.exp(-alpha * value))

    a = swish(x, 2)
    y, a_out = run(model, x)
    np.testing.assert_allclose(a_out, a, rtol=1e-5)
    np.testing.assert_allclose(y, swish(swish(a, 1), 1) * x, rtol=1e-5, atol=1e-6)


def branch(name, *nodes, output):
    return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(output, FLOAT, None)])


def test_nodes_in_subgraphs_at_any_depth_are_lowered():
    inner = helper.make_node(
        "If",
        ["c"],
        ["inner"],
        then_branch=branch("deep", helper.make_node("Swish", ["outer"], ["deep_y"]), output="deep_y"),
        else_branch=branch("flat", helper.make_node("Identity", ["x"], ["flat_y"]), output="flat_y"),
    )
    nodes = [
        helper.make_node("Swish", ["x"], ["outer"]),
        helper.make_node(
            "If",
            ["c"],
            ["y"],
            then_branch=branch("then", inner, output="inner"),
            else_branch=branch("else", helper.make_node("Identity", ["outer"], ["else_y"]), output="else_y"),
        ),
    ]
    model = model_of(nodes, [("x", FLOAT, [4]), ("c", TensorProto.BOOL, [])], [("y", FLOAT)], opset=25)
    lower(model, OLDEST)
    assert "Swish" not in op_types(model)
    x = np.array([-2, -1, 1, 2], np.float32)
    once = x / (1 + np.exp(-x))
    np.testing.assert_allclose(run(model, x, np.array(True))[0], once / (1 + np.exp(-once)), rtol=1e-5)
    np.testing.assert_allclose(run(model, x, np.array(False))[0], once, rtol=1e-5)


def function_of(*nodes, inputs, outputs, opset, attributes=()):
    return helper.make_function(
        "local", "F", inputs, outputs, list(nodes), [helper.make_opsetid("", opset)], list(attributes)
    )


def test_functions_are_lowered_and_their_attributes_pass_through():
    swish = helper.make_node("Swish", ["x"], ["y"])
    swish.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.AttributeType.FLOAT)
    )
    function = function_of(swish, inputs=["x"], outputs=["y"], opset=25, attributes=["slope"])
    call = helper.make_node("F", ["x"], ["y"], domain="local", slope=3.0)
    model = model_of(
        [call], [("x", FLOAT, [4])], [("y", FLOAT)], opset=25, functions=[function], imports=[("local", 1)]
    )
    changes = lower(model, OLDEST)
    assert "opset of function local::F lowered from 25 to 21" in changes
    assert model.opset_imports == {"": 21, "local": 1}
    x = np.array([-2, -0.5, 1, 2], np.float32)
    np.testing.assert_allclose(run(model, x)[0], x / (1 + np.exp(-3 * x)), rtol=1e-5)


@pytest.mark.parametrize("kind", [FLOAT, TensorProto.BFLOAT16])
def test_values_without_a_type_are_lowered_only_if_no_newer_type_occurs_in_the_model(kind):
    # Sin came to bfloat16 with opset 22; a value in a function has no type of its own.
    function = function_of(helper.make_node("Sin", ["x"], ["y"]), inputs=["x"], outputs=["y"], opset=22)
    call = helper.make_node("F", ["x"], ["y"], domain="local")
    model = model_of([call], [("x", kind, [1])], [("y", kind)], opset=22, functions=[function], imports=[("local", 1)])
    if kind == FLOAT:
        lower(model, OLDEST)
        np.testing.assert_allclose(run(model, np.ones(1, np.float32))[0], np.sin([1.0]), rtol=1e-6)
    else:
        with pytest.raises(TargetError, match=r"Sin \(output 'y', in function local::F\).*could be tensor\(bfloat16\)"):
            lower(model, OLDEST)


@pytest.mark.opset(28)
@pytest.mark.parametrize("precision", [0, TensorProto.FLOAT])
@pytest.mark.parametrize("scale_kind", [np.float16, np.float32])
def test_quantize_linear_divides_in_the_precision_it_asks_for(precision, scale_kind):
    kinds = {np.float16: TensorProto.FLOAT16, np.float32: FLOAT}
    attributes = {"precision": precision} if precision else {}
    model = one_node(
        "QuantizeLinear",
        [("x", FLOAT, [6]), ("s", kinds[scale_kind], []), ("z", TensorProto.INT8, [])],
        [("y", TensorProto.INT8)],
        opset=28,
        **attributes,
    )
    lower(model, OLDEST)
    x = np.array([-300, -1, 0.25, 0.75, 1.25, 300], np.float32)
    if scale_kind is np.float16 and not precision:
        # A division in float16: onnxruntime before 1.30 truncates where it should round, so whole quotients only.
        x = np.array([-300, -1, 0, 0.5, 1.5, 300], np.float32)
    expected = np.clip(np.rint(x / 0.5) + 3, -128, 127).astype(np.int8)
    assert run(model, x, np.array(0.5, scale_kind), np.array(3, np.int8))[0].tolist() == expected.tolist()


def test_dequantize_linear_multiplies_in_its_output_type():
    model = one_node(
        "DequantizeLinear",
        [("x", TensorProto.UINT8, [3]), ("s", TensorProto.FLOAT16, []), ("z", TensorProto.UINT8, [])],
        opset=25,
        output_dtype=FLOAT,
    )
    lower(model, OLDEST)
    scale = np.array(0.1, np.float16)
    (y,) = run(model, np.array([0, 7, 255], np.uint8), scale, np.array(5, np.uint8))
    assert y.dtype == np.float32
    assert y.tolist() == (np.array([-5, 2, 250], np.float32) * np.float32(scale)).tolist()


@pytest.mark.opset(28)
def test_int4_constants_of_dequantize_linear_are_kept():
    packed = helper.make_tensor("q", TensorProto.INT4, [2, 2], [-8, 7, 3, -1])
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=0, block_size=2)
    model = model_of([node], [("s", FLOAT, [1, 2])], [("y", FLOAT)], opset=28, initializers=[packed])
    lower(model, OLDEST)
    assert model.graph.initializers["q"].dtype == ir.DataType.INT4
    assert run(model, np.array([[0.5, 2]], np.float32))[0].tolist() == [[-4, 14], [1.5, -2]]


@pytest.mark.parametrize("target", [OLDEST, NEWEST], ids=str)
def test_round_mode_without_effect_goes_at_every_opset(target):
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT8, round_mode="nearest")
    model = model_of([node], [("x", FLOAT, [3])], [("y", TensorProto.INT8)], opset=25)
    assert "Cast: round_mode dropped, it has no effect (1 node)" in lower(model, target)
    assert model.opset_imports[""] == min(25, target.opset)
    lower(model, INSTALLED)
    assert run(model, np.array([-1.5, 0.5, 100], np.float32))[0].tolist() == [-1, 0, 100]


@pytest.mark.parametrize(("name", "largest"), [("FLOAT8E4M3FNUZ", 240.0), ("FLOAT8E5M2FNUZ", 57344.0)])
def test_saturating_casts_of_infinity_mean_the_same_at_the_lower_opset(name, largest):
    nodes = [
        helper.make_node("Cast", ["x"], ["f8"], to=getattr(TensorProto, name)),
        helper.make_node("Cast", ["f8"], ["y"], to=FLOAT),
    ]
    model = model_of(nodes, [("x", FLOAT, [2])], [("y", FLOAT)], opset=25)
    lower(model, OLDEST)
    assert run(model, np.array([np.inf, -np.inf], np.float32))[0].tolist() == [largest, -largest]


@pytest.mark.opset(28)
def test_mod_of_floats_is_the_floored_remainder():
    model = one_node("Mod", [("a", FLOAT, [None]), ("b", FLOAT, [None])], opset=28)
    lower(model, OLDEST)
    edge = np.array([-np.inf, -7.5, -4, -0.0, 0.0, 0.25, 4, np.inf, np.nan], np.float32)
    a, b = (grid.ravel() for grid in np.meshgrid(edge, edge))
    (y,) = run(model, a, b)
    with np.errstate(invalid="ignore"):
        expected = np.remainder(a, b)
    np.testing.assert_array_equal(y, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(y[known]), np.signbit(expected[known]))


@pytest.mark.opset(28)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_bit_shift_of_any_integer_by_any_amount(dtype, direction):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = one_node(
        "BitShift", [("x", kind, [None]), ("n", kind, [None])], [("y", kind)], opset=28, direction=direction
    )
    lower(model, OLDEST)
    info = np.iinfo(dtype)
    values = [info.min, info.min // 2 - 1, -1, 0, 1, 5, info.max] if info.min < 0 else [0, 1, 5, info.max]
    amounts = [*range(info.bits + 2), info.max, *([-1, info.min] if info.min < 0 else [])]
    pairs = [(value, amount) for value in values for amount in amounts]
    (y,) = run(model, np.array([p[0] for p in pairs], dtype), np.array([p[1] for p in pairs], dtype))
    for (value, amount), got in zip(pairs, y.tolist(), strict=True):
        if not 0 <= amount < info.bits:
            expected = -1 if direction == "RIGHT" and value < 0 else 0
        elif direction == "RIGHT":
            expected = value >> amount
        else:
            low = (value << amount) & ((1 << info.bits) - 1)
            expected = low - (1 << info.bits) if info.min < 0 and low >> (info.bits - 1) else low
        assert got == expected, (value, amount)


@pytest.mark.opset(28)
def test_a_constant_shift_within_the_width_keeps_its_node():
    amount = numpy_helper.from_array(np.array([3], np.uint8), "n")
    node = helper.make_node("BitShift", ["x", "n"], ["y"], direction="LEFT")
    model = model_of(
        [node], [("x", TensorProto.UINT8, [2])], [("y", TensorProto.UINT8)], opset=28, initializers=[amount]
    )
    lower(model, OLDEST)
    assert op_types(model) == ["BitShift"]
    assert run(model, np.array([1, 255], np.uint8))[0].tolist() == [8, 248]


@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_pools_leave_out_windows_that_start_in_the_padding(op_type, size):
    inputs = [("x", FLOAT, ["n", 1, "h", "w"])]
    model = one_node(op_type, inputs, opset=22, kernel_shape=[1, 2], strides=[2, 3], pads=[0, 0, 0, 1], ceil_mode=1)
    lower(model, OLDEST)
    x = np.arange(size * size, dtype=np.float32).reshape(1, 1, size, size)
    rows = range(0, size, 2)
    columns = [x[..., start : start + 2] for start in range(0, size, 3)]
    pool = np.mean if op_type == "AveragePool" else np.max
    expected = np.stack([pool(part, axis=-1) for part in columns], axis=-1)[:, :, list(rows)]
    np.testing.assert_allclose(run(model, x)[0], expected)


def test_pools_whose_windows_cannot_start_in_the_padding_keep_their_node():
    model = one_node(
        "MaxPool",
        [("x", FLOAT, [1, 1, 6, 6])],
        opset=22,
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        ceil_mode=1,
    )
    lower(model, OLDEST)
    assert op_types(model) == ["MaxPool"]


@pytest.mark.opset(26)
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_cum_prod_along_an_axis_given_at_run_time(axis, exclusive, reverse):
    inputs = [("x", TensorProto.INT64, ["a", "b", "c"]), ("axis", TensorProto.INT32, [])]
    model = one_node("CumProd", inputs, [("y", TensorProto.INT64)], opset=26, exclusive=exclusive, reverse=reverse)
    lower(model, OLDEST)
    x = np.arange(1, 13, dtype=np.int64).reshape(2, 3, 2)
    moved = np.moveaxis(x, axis, 0)
    moved = moved[::-1] if reverse else moved
    expected = np.cumprod(moved, axis=0)
    if exclusive:
        expected = np.concatenate([np.ones_like(expected[:1]), expected[:-1]])
    expected = np.moveaxis(expected[::-1] if reverse else expected, 0, axis)
    np.testing.assert_array_equal(run(model, x, np.array(axis, np.int32))[0], expected)


@pytest.mark.opset(26)
def test_bit_cast_between_integers_wraps():
    model = one_node(
        "BitCast", [("x", TensorProto.UINT8, [3])], [("y", TensorProto.INT8)], opset=26, to=TensorProto.INT8
    )
    lower(model, OLDEST)
    assert run(model, np.array([0, 127, 200], np.uint8))[0].tolist() == [0, 127, -56]


@pytest.mark.opset(28)
def test_attention_without_what_newer_versions_added_stays_an_attention():
    shapes = [(name, FLOAT, [1, 2, 4, 8]) for name in "qkv"]
    model = one_node("Attention", shapes, opset=26, left_window_size=-1)
    lower(model, target_of("1.23"))
    assert op_types(model) == ["Attention"]
    assert "left_window_size" not in model.graph[0].attributes


def test_attention_with_a_mask_that_may_be_short_is_replaced():
    shapes = [*((name, FLOAT, [1, 2, 4, 8]) for name in "qkv"), ("mask", FLOAT, [4, "m"])]
    model = one_node("Attention", shapes, opset=24)
    lower(model, target_of("1.23"))
    assert "Attention" not in op_types(model)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 2, 4, 8)).astype(np.float32) for _ in range(3))
    # A mask for two keys leaves the other two out.
    lower(model, INSTALLED)
    (y,) = run(model, q, k, v, np.zeros((4, 2), np.float32))
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(8))[..., :2]
    np.testing.assert_allclose(y, scores / scores.sum(-1, keepdims=True) @ v[:, :, :2], rtol=1e-4, atol=1e-5)


# --- what a release loads and cannot run ---


@pytest.mark.opset(28)
@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
def test_quantization_stamped_28_runs_on_the_installed_release(op_type):
    kinds = (FLOAT, TensorProto.UINT8) if op_type == "QuantizeLinear" else (TensorProto.UINT8, FLOAT)
    model = one_node(op_type, [("x", kinds[0], [2]), ("s", FLOAT, [])], [("y", kinds[1])], opset=28)
    lower(model, INSTALLED)
    x = np.array([4, 10]).astype(helper.tensor_dtype_to_np_dtype(kinds[0]))
    expected = [2, 5] if op_type == "QuantizeLinear" else [8, 20]
    assert run(model, x, np.array(2, np.float32))[0].tolist() == expected


@pytest.mark.opset(28)
def test_only_models_that_hold_an_operator_without_kernel_are_lowered_below_the_opset_of_the_release():
    model = one_node("QuantizeLinear", [("x", FLOAT, [2]), ("s", FLOAT, [])], [("y", TensorProto.UINT8)], opset=28)
    assert "opset of the model lowered from 28 to 27" in lower(model, target_of("1.32"))
    model = one_node("Celu", [("x", FLOAT, [2])], opset=28)
    assert lower(model, target_of("1.32")) == []
    assert model.opset_imports[""] == 28


def test_an_operator_without_kernel_that_has_a_body_leaves_the_opset_alone():
    model = one_node("Swish", [("x", FLOAT, [2])], opset=25)
    lower(model, target_of("1.24"))
    assert model.opset_imports[""] == 25
    assert "Swish" not in op_types(model)


def test_what_a_release_cannot_run_was_so_from_the_first_release_that_loads_it():
    # Else a model that was lowered for one release might not run on the next.
    for op_type, gaps in _gaps._GAPS.items():
        for gap in gaps:
            loads = next(target.release for target in TARGETS if target.opset >= gap.since[0])
            assert gap.first == loads, (op_type, gap.since)


@pytest.mark.parametrize("kinds", [(np.float32, np.float16), (np.float16, np.float32)])
def test_quantization_in_mixed_types_runs_on_the_installed_release(kinds):
    wide, narrow = (helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in kinds)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], output_dtype=wide),
    ]
    inputs = [("x", wide, [3]), ("s", narrow, []), ("z", TensorProto.INT8, [])]
    model = model_of(nodes, inputs, [("q", TensorProto.INT8), ("y", wide)], opset=25)
    lower(model, INSTALLED)
    q, y = run(model, np.array([-3, 4, 1000], kinds[0]), np.array(0.5, kinds[1]), np.array(1, np.int8))
    assert q.tolist() == [-5, 9, 127]
    assert y.dtype == kinds[0]
    assert y.tolist() == [-3, 4, 63]


def test_quantization_divides_in_its_precision_on_the_installed_release():
    inputs = [("x", TensorProto.FLOAT16, [400]), ("s", TensorProto.FLOAT16, []), ("z", TensorProto.UINT8, [])]
    model = one_node("QuantizeLinear", inputs, [("y", TensorProto.UINT8)], opset=25, precision=FLOAT)
    lower(model, INSTALLED)
    x, scale = np.linspace(100, 500, 400).astype(np.float16), np.float16(3.3)
    expected = np.rint(x.astype(np.float32) / np.float32(scale))
    assert not np.array_equal(expected, np.rint(x / scale))
    assert run(model, x, np.array(scale), np.array(0, np.uint8))[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("op_type", "kinds"),
    [("QuantizeLinear", (FLOAT, FLOAT, TensorProto.INT8)), ("DequantizeLinear", (TensorProto.INT8, FLOAT, FLOAT))],
)
def test_an_output_dtype_that_repeats_what_is_known_goes_at_every_opset(op_type, kinds):
    inputs = [("x", kinds[0], [1]), ("s", kinds[1], []), ("z", TensorProto.INT8, [])]
    model = one_node(op_type, inputs, [("y", kinds[2])], opset=25, output_dtype=kinds[2])
    assert f"{op_type}: output_dtype dropped, it has no effect (1 node)" in lower(model, NEWEST)
    assert model.opset_imports[""] == 25


# --- refusals ---


@pytest.mark.opset(26)
def test_a_refusal_names_every_node_and_the_release_that_takes_them():
    nodes = [
        helper.make_node("BitCast", ["x"], ["a"], to=TensorProto.INT32, name="bits"),
        helper.make_node("Swish", ["x"], ["s"]),
        helper.make_node(
            "If",
            ["c"],
            ["b"],
            then_branch=branch("t", helper.make_node("BitCast", ["a"], ["t_y"], to=FLOAT), output="t_y"),
            else_branch=branch("e", helper.make_node("Identity", ["x"], ["e_y"]), output="e_y"),
        ),
    ]
    model = model_of(nodes, [("x", FLOAT, [1]), ("c", TensorProto.BOOL, [])], [("b", FLOAT), ("s", FLOAT)], opset=26)
    before = ir.serde.serialize_model(model).SerializeToString()
    with pytest.raises(TargetError) as raised:
        lower(model, OLDEST)
    lines = str(raised.value).splitlines()
    assert lines[0] == (
        "the model cannot be lowered to what onnxruntime 1.20 runs (from opset 26 to 21, IR version 10):"
    )
    assert lines[1].startswith("  - BitCast 'bits' (output 'a', in the main graph): BitCast came with opset 26;")
    assert lines[2].startswith("  - BitCast (output 't_y', in then_branch of If 'b' in the main graph): ")
    assert lines[3].startswith("onnxruntime 1.25 is the lowest supported release")
    assert len(lines) == 4
    assert raised.value.reasons == tuple(line.removeprefix("  - ") for line in lines[1:3])
    assert ir.serde.serialize_model(model).SerializeToString() == before


@pytest.mark.opset(28)
def test_a_type_that_came_with_a_newer_opset_is_refused():
    model = one_node("Compress", [("x", TensorProto.BFLOAT16, [2]), ("c", TensorProto.BOOL, [2])], opset=28)
    with pytest.raises(TargetError, match=r"Compress takes no tensor\(bfloat16\) as input input \('x'\)") as raised:
        lower(model, OLDEST)
    assert "onnxruntime 1.32 is the lowest supported release" in str(raised.value)


def test_an_opset_that_onnx_does_not_know_is_refused():
    model = one_node("Relu", [("x", FLOAT, [1])], opset=21)
    model.opset_imports[""] = 99
    with pytest.raises(TargetError, match="imports opset 99, and the installed onnx knows none above"):
        lower(model, NEWEST)


def test_a_context_dependent_body_without_types_is_refused_with_advice():
    function = function_of(
        helper.make_node("RMSNormalization", ["x", "s"], ["y"]), inputs=["x", "s"], outputs=["y"], opset=23
    )
    call = helper.make_node("F", ["x", "s"], ["y"], domain="local")
    model = model_of(
        [call],
        [("x", FLOAT, [2, 2]), ("s", FLOAT, [2])],
        [("y", FLOAT)],
        opset=23,
        functions=[function],
        imports=[("local", 1)],
    )
    with pytest.raises(TargetError, match="inline the function that holds it, or infer shapes"):
        lower(model, OLDEST)


# --- IR version and other domains ---


def test_multi_device_plans_are_dropped_where_the_ir_version_has_none():
    model = one_node("Relu", [("x", FLOAT, [1])], opset=21)
    model.ir_version = 11
    plan = ir.ModelConfiguration(name="two", num_devices=2)
    model.device_configurations = (plan,)
    model.graph[0].device_configurations = (ir.NodeDeviceConfiguration(configuration=plan),)
    assert lower(model, target_of("1.23")) == []
    assert lower(model, OLDEST) == [
        "IR version lowered from 11 to 10",
        "multi-device configurations dropped, IR version 10 has none (2)",
    ]
    assert run(model, np.ones(1, np.float32))[0].tolist() == [1]


def test_a_type_that_the_ir_version_lacks_is_refused():
    codes = ir.Value(
        name="w",
        const_value=ir.tensor(np.ones(2, ml_dtypes.float8_e8m0fnu), name="w"),
        type=ir.TensorType(ir.DataType.FLOAT8E8M0),
    )
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    node = ir.Node("com.example", "Decode", [codes], outputs=[y])
    graph = ir.Graph([], [y], nodes=[node], initializers=[codes], opset_imports={"com.example": 1})
    model = ir.Model(graph, ir_version=12)
    with pytest.raises(TargetError, match="float8e8m0 needs IR version 12") as raised:
        lower(model, OLDEST)
    assert "onnxruntime 1.24 is the lowest supported release" in str(raised.value)


def test_other_domains_keep_their_nodes_and_imports():
    nodes = [
        helper.make_node("CastLike", ["x", "x"], ["a"], domain="ort_castlike", round_mode="up"),
        helper.make_node("Swish", ["b"], ["y"]),
        helper.make_node("FusedThing", ["a"], ["b"], domain="com.microsoft"),
    ]
    nodes[1], nodes[2] = nodes[2], nodes[1]
    model = model_of(
        nodes, [("x", FLOAT, [1])], [("y", FLOAT)], opset=25, imports=[("ort_castlike", 1), ("com.microsoft", 1)]
    )
    lower(model, OLDEST)
    assert model.opset_imports == {"": 21, "ort_castlike": 1, "com.microsoft": 1}
    assert model.graph[0].attributes["round_mode"].as_string() == "up"
    assert op_types(model)[1] == "FusedThing"


def test_the_alias_of_the_default_domain_is_lowered_too():
    model = one_node("Reshape", [("x", FLOAT, [2]), ("shape", TensorProto.INT64, [1])], opset=25)
    model.opset_imports["ai.onnx"] = model.opset_imports.pop("")
    lower(model, OLDEST)
    assert model.opset_imports == {"": 21}


def test_thousands_of_nodes_take_little_time():
    kinds = [("Identity", []), ("Reshape", ["s"]), ("Swish", [])]
    nodes = [
        helper.make_node(op_type, [f"v{index}", *more], [f"v{index + 1}"])
        for index, (op_type, more) in enumerate(kinds * 500)
    ]
    model = model_of(nodes, [("v0", FLOAT, [2]), ("s", TensorProto.INT64, [1])], [("v1500", FLOAT)], opset=25)
    start = time.process_time()
    lower(model, OLDEST)
    assert time.process_time() - start < 5
    assert "Swish" not in op_types(model)
