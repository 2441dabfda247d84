"""Model-local functions: those that touch an emulated type are inlined call by call, all others stay as they are."""

from __future__ import annotations

import time

import graphs
import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import assert_same, function, graph, model, node, op_types, tensor, untyped, value
from onnx import TensorProto, helper

import ort_castlike

INT2, UINT2 = ml_dtypes.int2, ml_dtypes.uint2
X = np.array([-3.5, -1.0, 0.5, 1.5, 2.0, 7.0], np.float32)


def to(name: str) -> int:
    return TensorProto.DataType.Value(name)


def low_bits(values, dtype=INT2) -> np.ndarray:
    """Floats to INT2 or UINT2 by arithmetic of its own."""
    codes = np.rint(np.asarray(values, np.float64)).astype(np.int64) & 3
    if dtype == UINT2:
        return codes.astype(np.uint8).astype(UINT2)
    return np.where(codes > 1, codes - 4, codes).astype(np.int8).astype(INT2)


def reference(name: str, source: str, kind: int) -> onnx.AttributeProto:
    return onnx.AttributeProto(name=name, ref_attr_name=source, type=kind)


def with_references(entry: onnx.NodeProto, **names: str) -> onnx.NodeProto:
    """The node with INT attributes that take their value from the function's attributes."""
    entry.attribute.extend(reference(name, source, onnx.AttributeProto.INT) for name, source in names.items())
    return entry


ROUND_TRIP = function(
    "RoundTrip", ["x", "like"], ["y"], [node("CastLike", ["x", "like"], ["q"]), node("CastLike", ["q", "x"], ["y"])]
)
DOUBLE = function("Double", ["x"], ["y"], [node("Add", ["x", "x"], ["y"])])


def notes(built: onnx.ModelProto) -> list[str]:
    return [note for note in ort_castlike.inspect(built).notes if note.startswith("inlined")]


def test_calls_with_an_emulated_target_are_inlined_and_others_stay():
    built = model(
        [
            node("RoundTrip", ["x", "int2"], ["a"], domain="local"),
            node("RoundTrip", ["x", "uint2"], ["b"], domain="local"),
            node("RoundTrip", ["x", "int8"], ["c"], domain="local"),
            node("Double", ["x"], ["d"], domain="local"),
        ],
        [value("x", "FLOAT", [6])],
        [value(name, "FLOAT", [6]) for name in "abcd"],
        [tensor("int2", [0], "INT2"), tensor("uint2", [0], "UINT2"), tensor("int8", [0], np.int8)],
        functions=[ROUND_TRIP, DOUBLE],
    )
    got = graphs.run(built, {"x": X})
    wrapped = low_bits(X).astype(np.float32), low_bits(X, UINT2).astype(np.float32)
    assert_same(got, [*wrapped, np.trunc(X), X + X])
    assert notes(built) == ["inlined function local::RoundTrip (2 calls)"]
    rewritten = ort_castlike.rewrite(built, target="1.32")
    assert [entry for entry in op_types(rewritten) if entry.startswith("local::")] == [
        "local::RoundTrip",
        "local::Double",
    ]
    assert list(rewritten.functions) == [ROUND_TRIP, DOUBLE]


def test_functions_that_nothing_calls_any_more_go_and_unused_ones_stay():
    built = model(
        [node("RoundTrip", ["x", "int2"], ["a"], domain="local")],
        [value("x", "FLOAT", [6])],
        [value("a", "FLOAT", [6])],
        [tensor("int2", [0], "INT2")],
        functions=[ROUND_TRIP, DOUBLE],
    )
    assert [entry.name for entry in ort_castlike.rewrite(built).functions] == ["Double"]


def test_model_whose_functions_touch_nothing_emulated_is_returned_unchanged():
    built = model(
        [node("Double", ["x"], ["y"], domain="local")],
        [value("x", "FLOAT", [6])],
        [value("y", "FLOAT", [6])],
        functions=[DOUBLE],
    )
    assert ort_castlike.rewrite(built, target="1.32") == built


@pytest.mark.parametrize("given", ["reference", "default", "constant", "default constant", "through another function"])
def test_type_that_only_the_body_or_an_attribute_names_is_found(given):
    cast = with_references(node("Cast", ["x"], ["q"]), to="element")
    body = [cast, node("Cast", ["q"], ["y"], to=to("FLOAT"))]
    attributes = {"element": to("INT2")}
    if given == "reference":
        functions = [function("Narrow", ["x"], ["y"], body, attributes=["element"])]
    elif given == "default":
        defaults = [helper.make_attribute("element", to("INT2"))]
        functions, attributes = [function("Narrow", ["x"], ["y"], body, defaults=defaults)], {}
    elif given == "default constant":
        like = node("Constant", [], ["like"])
        like.attribute.append(reference("value", "like", onnx.AttributeProto.TENSOR))
        body = [like, node("CastLike", ["x", "like"], ["q"]), node("Cast", ["q"], ["y"], to=to("FLOAT"))]
        defaults = [helper.make_attribute("like", tensor("like", [0], "INT2"))]
        functions, attributes = [function("Narrow", ["x"], ["y"], body, defaults=defaults)], {}
    elif given == "constant":
        like = node("Constant", [], ["like"], value=tensor("like", [0], "INT2"))
        body = [like, node("CastLike", ["x", "like"], ["q"]), node("Cast", ["q"], ["y"], to=to("FLOAT"))]
        functions, attributes = [function("Narrow", ["x"], ["y"], body)], {}
    else:
        call = with_references(node("Inner", ["x"], ["y"], domain="local"), element="outer_element")
        functions = [
            function("Narrow", ["x"], ["y"], [call], attributes=["outer_element"]),
            function("Inner", ["x"], ["y"], body, attributes=["element"]),
        ]
        attributes = {"outer_element": to("INT2")}
    built = model(
        [node("Narrow", ["x"], ["y"], domain="local", **attributes)],
        [value("x", "FLOAT", [6])],
        [value("y", "FLOAT", [6])],
        functions=functions,
    )
    [got] = graphs.run(built, {"x": X})
    assert_same(got, low_bits(X).astype(np.float32))
    assert not ort_castlike.rewrite(built).functions


def test_attribute_of_the_same_number_as_a_type_is_no_type():
    transpose = with_references(node("Concat", ["x", "x"], ["y"]), axis="n")
    functions = [function("Twice", ["x"], ["y"], [transpose], attributes=["n"]), ROUND_TRIP]
    shape = [1] * 26 + [6]
    built = model(
        [
            node("Twice", ["x"], ["y"], domain="local", n=to("INT2")),
            node("RoundTrip", ["x", "int2"], ["a"], domain="local"),
        ],
        [value("x", "FLOAT", shape)],
        [value("y", "FLOAT"), value("a", "FLOAT")],
        [tensor("int2", [0], "INT2")],
        functions=functions,
    )
    assert notes(built) == ["inlined function local::RoundTrip (1 call)"]


def test_inner_functions_are_inlined_only_where_they_touch_an_emulated_type():
    nodes = [
        node("Double", ["x"], ["two_x"], domain="local"),
        node("RoundTrip", ["two_x", "like"], ["y"], domain="local"),
    ]
    outer = function("Outer", ["x", "like"], ["y"], nodes)
    built = model(
        [node("Outer", ["x", "like"], ["y"], domain="local")],
        [value("x", "FLOAT", [6]), value("like", "INT2", [1])],
        [value("y", "FLOAT", [6])],
        functions=[outer, ROUND_TRIP, DOUBLE],
    )
    [got] = graphs.run(built, {"x": X, "like": low_bits([0])})
    assert_same(got, low_bits(X + X).astype(np.float32))
    assert [entry.name for entry in ort_castlike.rewrite(built).functions] == ["Double"]


def test_function_with_subgraphs_called_in_a_subgraph_and_twice():
    then = graph([node("CastLike", ["x", "like"], ["t"])], "then", [], [untyped("t")])
    otherwise = graph([], "else", [], [untyped("w")], [tensor("w", [1, 1, 1, 1, 1, 1], "INT2")])
    choose = function(
        "Choose",
        ["c", "x", "like"],
        ["y"],
        [node("If", ["c"], ["q"], then_branch=then, else_branch=otherwise), node("CastLike", ["q", "x"], ["y"])],
    )
    call = node("Choose", ["c", "x", "like"], ["inner"], domain="local")
    branches = [
        graph([call], "calls", [], [untyped("inner")]),
        graph([node("Choose", ["d", "x", "like"], ["t"], domain="local")], "calls too", [], [untyped("t")]),
    ]
    built = model(
        [
            node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1]),
            node("Choose", ["d", "x", "like"], ["w"], domain="local"),
        ],
        [value("c", "BOOL", []), value("d", "BOOL", []), value("x", "FLOAT", [6]), value("like", "INT2", [1])],
        [value("y", "FLOAT"), value("w", "FLOAT")],
        functions=[choose],
    )
    narrow, ones = low_bits(X).astype(np.float32), np.ones(6, np.float32)
    for c in (True, False):
        for d in (True, False):
            feeds = {"c": np.array(c), "d": np.array(d), "x": X, "like": low_bits([0])}
            assert_same(graphs.run(built, feeds), [narrow if c or d else ones, narrow if d else ones])
    assert notes(built) == ["inlined function local::Choose (3 calls)"]
    assert_unique_names(ort_castlike.rewrite(built))


def assert_unique_names(built: onnx.ModelProto) -> None:
    nodes, values = [], [entry.name for entry in built.graph.input]
    pending = [built.graph]
    while pending:
        current = pending.pop()
        values += [entry.name for entry in current.initializer]
        for entry in current.node:
            nodes += [entry.name] if entry.name else []
            values += [name for name in entry.output if name]
            for attribute in entry.attribute:
                if attribute.HasField("g"):
                    pending.append(attribute.g)
                    values += [formal.name for formal in attribute.g.input]
    assert len(set(nodes)) == len(nodes)
    assert len(set(values)) == len(values)


def test_names_of_the_body_give_way_to_names_of_the_model():
    body = graph(
        [node("Add", ["v", "step"], ["v_out"]), node("Identity", ["go"], ["go_out"])],
        "body",
        [value("i", "INT64", []), value("go", "BOOL", []), value("v", "FLOAT", [6])],
        [value("go_out", "BOOL", []), value("v_out", "FLOAT", [6])],
        [tensor("step", 1.0, np.float32)],
    )
    looped = function(
        "Looped",
        ["n", "x", "like"],
        ["q"],
        [node("Loop", ["n", "", "x"], ["y"], name="only", body=body), node("CastLike", ["y", "like"], ["q"], name="z")],
    )
    call = {"domain": "local"}
    built = model(
        [
            node("Add", ["x", "v"], ["y"], name="only"),
            node("Looped", ["n", "y", "like"], ["a"], name="z", **call),
            node("Looped", ["n", "v", "like"], ["step"], **call),
        ],
        [value("n", "INT64", []), value("x", "FLOAT", [6]), value("v", "FLOAT", [6]), value("like", "INT2", [1])],
        [value("y", "FLOAT"), value("a", "INT2"), value("step", "INT2")],
        functions=[looped],
    )
    got = graphs.run(built, {"n": np.array(2), "x": X, "v": X, "like": low_bits([0])})
    assert_same(got, [X + X, low_bits(X + X + 2), low_bits(X + 2)])
    assert_unique_names(ort_castlike.rewrite(built))


def test_outputs_that_are_inputs_or_given_twice_or_left_out():
    nodes = [node("CastLike", ["x", "like"], ["q"])]
    spread = function("Spread", ["x", "like"], ["x", "q", "q", "like"], nodes)
    built = model(
        [
            node("Spread", ["x", "like"], ["a", "b", "c", ""], domain="local"),
            node("Spread", ["a", "like"], ["", "d", "", "e"], domain="local"),
        ],
        [value("x", "FLOAT", [6]), value("like", "INT2", [1])],
        [value("a", "FLOAT"), *(value(name, "INT2") for name in "bcde")],
        functions=[spread],
    )
    got = graphs.run(built, {"x": X, "like": low_bits([1])})
    assert_same(got, [X, *[low_bits(X)] * 3, low_bits([1])])


def test_input_and_attribute_that_a_call_leaves_out_are_left_out_in_the_body():
    clipped = function(
        "Clipped",
        ["x", "like", "low", "high"],
        ["y"],
        [node("Clip", ["x", "low", "high"], ["c"]), node("CastLike", ["c", "like"], ["y"])],
    )
    flat = function(
        "Flat",
        ["x", "like"],
        ["y"],
        [with_references(node("Flatten", ["x"], ["f"]), axis="axis"), node("CastLike", ["f", "like"], ["y"])],
        attributes=["axis"],
    )
    built = model(
        [
            node("Clipped", ["x", "like", "", "one"], ["a"], domain="local"),
            node("Flat", ["x", "like"], ["b"], domain="local"),
            node("Flat", ["x", "like"], ["c"], domain="local", axis=0),
        ],
        [value("x", "FLOAT", [2, 3]), value("like", "INT2", [1])],
        [value("a", "INT2"), value("b", "INT2"), value("c", "INT2")],
        [tensor("one", 1.0, np.float32)],
        functions=[clipped, flat],
    )
    x = X.reshape(2, 3)
    got = graphs.run(built, {"x": x, "like": low_bits([0])})
    assert_same(got, [low_bits(np.minimum(x, 1)), low_bits(x), low_bits(x).reshape(1, 6)])


@pytest.mark.opset(28)
def test_function_of_another_opset_is_inlined_where_its_nodes_mean_the_same():
    older = function("Older", ["x"], ["y"], [node("Cast", ["x"], ["y"], to=to("FLOAT"))], opset=21)
    newer = function("Newer", ["x"], ["y"], [node("Cast", ["x"], ["y"], to=to("INT2"))], opset=28)
    built = model(
        [node("Newer", ["x"], ["q"], domain="local"), node("Older", ["q"], ["y"], domain="local")],
        [value("x", "FLOAT", [6])],
        [value("y", "FLOAT", [6])],
        functions=[older, newer],
    )
    [got] = graphs.run(built, {"x": X})
    assert_same(got, low_bits(X).astype(np.float32))


def test_function_of_another_opset_is_refused_where_an_operator_changed():
    body = [node("Cast", ["x"], ["f"], to=to("FLOAT")), node("ReduceMean", ["f"], ["y"], name="mean", keepdims=1)]
    older = function("Older", ["x"], ["y"], body, opset=13)
    built = model(
        [node("Older", ["q"], ["y"], domain="local")],
        [value("q", "INT2", [6])],
        [value("y", "FLOAT")],
        functions=[older],
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"local::Older.* 13 and 25.*'mean'"):
        ort_castlike.rewrite(built)


def test_functions_that_call_each_other_in_a_cycle_are_refused_by_name():
    functions = [
        function(name, ["x"], ["y"], [node(called, ["x"], ["y"], domain="local")])
        for name, called in (("A", "B"), ("B", "C"), ("C", "A"))
    ]
    built = model(
        [node("A", ["x"], ["y"], domain="local")],
        [value("x", "INT2", [6])],
        [value("y", "INT2", [6])],
        functions=functions,
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"cycle: local::[ABC] -> local::[ABC] -> local::[ABC]"):
        ort_castlike.rewrite(built)


def test_functions_that_multiply_are_refused_at_once():
    functions = [
        function(
            f"F{level}",
            ["x"],
            ["y"],
            [node(f"F{level + 1}", ["x"], ["a"], domain="local"), node(f"F{level + 1}", ["a"], ["y"], domain="local")],
        )
        for level in range(60)
    ]
    functions.append(function("F60", ["x"], ["y"], [node("Identity", ["x"], ["y"])]))
    built = model(
        [node("F0", ["x"], ["y"], domain="local")],
        [value("x", "INT2", [6])],
        [value("y", "INT2", [6])],
        functions=functions,
    )
    start = time.perf_counter()
    with pytest.raises(ort_castlike.CastLikeError, match="expand to more than"):
        ort_castlike.rewrite(built)
    assert time.perf_counter() - start < 5


def test_functions_that_nest_too_deep_are_refused():
    functions = [
        function(f"F{level}", ["x"], ["y"], [node(f"F{level + 1}", ["x"], ["y"], domain="local")])
        for level in range(5000)
    ]
    functions.append(function("F5000", ["x"], ["y"], [node("Identity", ["x"], ["y"])]))
    built = model(
        [node("F0", ["x"], ["y"], domain="local")],
        [value("x", "INT2", [6])],
        [value("y", "INT2", [6])],
        functions=functions,
    )
    with pytest.raises(ort_castlike.CastLikeError, match="nest more than"):
        ort_castlike.rewrite(built)


def test_chain_of_functions_as_deep_as_is_taken_is_inlined():
    depth = 99
    functions = [
        function(
            f"F{level}",
            ["x"],
            ["y"],
            [node("Identity", ["x"], ["i"]), node(f"F{level + 1}", ["i"], ["y"], domain="local")],
        )
        for level in range(depth)
    ]
    functions.append(function(f"F{depth}", ["x"], ["y"], [node("Cast", ["x"], ["y"], to=to("FLOAT"))]))
    built = model(
        [node("F0", ["x"], ["y"], domain="local")],
        [value("x", "INT2", [6])],
        [value("y", "FLOAT", [6])],
        functions=functions,
    )
    [got] = graphs.run(built, {"x": low_bits(X)})
    assert_same(got, low_bits(X).astype(np.float32))


@pytest.mark.parametrize("broken", ["inputs", "outputs", "body"])
def test_call_that_does_not_fit_its_function_is_refused(broken):
    body = [node("CastLike", ["x", "nowhere" if broken == "body" else "like"], ["y"])]
    inputs = ["x", "like"] + (["like"] if broken == "inputs" else [])
    outputs = ["a", "b"] if broken == "outputs" else ["a"]
    built = model(
        [node("F", inputs, outputs, name="call", domain="local")],
        [value("x", "FLOAT", [6]), value("like", "INT2", [1])],
        [value("a", "INT2", [6])],
        functions=[function("F", ["x", "like"], ["y"], body)],
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'call'|'F'|inference"):
        ort_castlike.rewrite(built)
