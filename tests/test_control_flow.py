"""If, Loop and Scan that carry emulated types: run on the installed onnxruntime, expected values from numpy."""

from __future__ import annotations

import graphs
import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import assert_same, graph, model, node, sequence, tensor, untyped, value
from onnx import TensorProto

import ort_castlike

INT2 = ml_dtypes.int2
TRUE = tensor("true", True, np.bool_)


def to(name: str) -> int:
    return TensorProto.DataType.Value(name)


def low_bits(values) -> np.ndarray:
    """Floats to INT2 by arithmetic of its own: to the even integer, then two bits of two's complement."""
    codes = np.rint(np.asarray(values, np.float64)).astype(np.int64) & 3
    return np.where(codes > 1, codes - 4, codes).astype(np.int8).astype(INT2)


X = np.array([-3.5, -1.0, 0.5, 1.5, 2.0, 7.0], np.float32)


@pytest.mark.parametrize("chosen", [True, False])
def test_if_gives_int2_from_a_cast_and_from_an_initializer_of_its_own(chosen):
    then = graph([node("Cast", ["x"], ["a"], to=to("INT2"))], "then", [], [value("a", "INT2", [6])])
    otherwise = graph([], "else", [], [value("w", "INT2", [6])], [tensor("w", [1, -2, 0, -1, 1, 1], "INT2")])
    built = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
        [value("c", "BOOL", []), value("x", "FLOAT", [6])],
        [value("y", "INT2", [6])],
    )
    [got] = graphs.run(built, {"c": np.array(chosen), "x": X})
    assert_same(got, low_bits(X) if chosen else np.array([1, -2, 0, -1, 1, 1], np.int8).astype(INT2))


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("source", ["input", "initializer", "node"])
def test_branch_that_returns_an_outer_value_as_it_is(chosen, source):
    feeds = {"c": np.array(chosen), "x": X}
    inputs = [value("c", "BOOL", []), value("x", "FLOAT", [6])]
    nodes, initializers = [], []
    outer = np.array([1, -2, 0, -1, 1, 1], np.int8).astype(INT2)
    if source == "input":
        inputs.append(value("q", "INT2", [6]))
        feeds["q"] = outer
    elif source == "initializer":
        initializers.append(tensor("q", outer.astype(np.int8), "INT2"))
    else:
        nodes.append(node("Cast", ["x"], ["q"], to=to("INT2")))
        outer = low_bits(X)
    then = graph([], "then", [], [value("q", "INT2", [6])])
    otherwise = graph([node("Cast", ["x"], ["b"], to=to("INT2"))], "else", [], [value("b", "INT2", [6])])
    nodes.append(node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise))
    [got] = graphs.run(model(nodes, inputs, [value("y", "INT2", [6])], initializers), feeds)
    assert_same(got, outer if chosen else low_bits(X))


def test_outer_value_two_scopes_up_is_returned_by_an_inner_branch():
    inner = [graph([], f"inner_{name}", [], [value("q", "INT2", [6])]) for name in "ab"]
    outer = graph([node("If", ["d"], ["r"], then_branch=inner[0], else_branch=inner[1])], "outer", [], [untyped("r")])
    other = graph([node("Identity", ["q"], ["s"])], "other", [], [untyped("s")])
    built = model(
        [node("If", ["c"], ["y"], then_branch=outer, else_branch=other)],
        [value("c", "BOOL", []), value("d", "BOOL", []), value("q", "INT2", [6])],
        [value("y", "INT2", [6])],
    )
    for c in (True, False):
        [got] = graphs.run(built, {"c": np.array(c), "d": np.array(True), "q": low_bits(X)})
        assert_same(got, low_bits(X))


def test_subgraph_that_returns_what_no_scope_gives_is_refused():
    branch = graph([], "then", [], [value("nowhere", "INT2", [6])])
    built = model(
        [node("If", ["c"], ["y"], name="choose", then_branch=branch, else_branch=branch)],
        [value("c", "BOOL", [])],
        [value("y", "INT2", [6])],
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'nowhere'.*'choose'"):
        ort_castlike.rewrite(built)


def test_castlike_in_a_branch_takes_its_target_type_from_an_outer_scope():
    then = graph([node("CastLike", ["x", "like"], ["a"])], "then", [], [untyped("a")])
    otherwise = graph([node("CastLike", ["x", "w"], ["b"])], "else", [], [untyped("b")], [tensor("w", [0], "INT2")])
    built = model(
        [node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)],
        [value("c", "BOOL", []), value("x", "FLOAT", [6])],
        [value("y", "INT2", [6])],
        [tensor("like", [0], "INT2")],
    )
    for chosen in (True, False):
        [got] = graphs.run(built, {"c": np.array(chosen), "x": X})
        assert_same(got, low_bits(X))


def counting_body(*, typed: bool, direct: bool = False) -> onnx.GraphProto:
    """Adds the INT2 state to a float one, hands the INT2 state on halved, and scans both."""
    nodes = [
        node("Cast", ["q"], ["q_f"], to=to("FLOAT")),
        node("Add", ["q_f", "f"], ["f_out"]),
        node("Mul", ["f_out", "half"], ["halved"]),
        node("CastLike", ["halved", "q"], ["q_out"]),
        node("Identity", ["go"], ["go_out"]),
        node("Identity", ["f_out"], ["f_scan"]),
    ]
    scanned = "q" if direct else "q_scan"
    if not direct:
        nodes.append(node("Identity", ["q"], ["q_scan"]))
    dtypes = {"i": "INT64", "go": "BOOL", "q": "INT2", "f": "FLOAT", "go_out": "BOOL", "q_out": "INT2"}
    dtypes |= {"f_out": "FLOAT", scanned: "INT2", "f_scan": "FLOAT"}

    def formal(name: str) -> onnx.ValueInfoProto:
        return value(name, dtypes[name]) if typed else untyped(name)

    return graph(
        nodes,
        "body",
        [formal(name) for name in ("i", "go", "q", "f")],
        [formal(name) for name in ("go_out", "q_out", "f_out", scanned, "f_scan")],
        [tensor("half", 0.5, np.float32)],
    )


def count(q: np.ndarray, f: np.ndarray, times: int):
    q_scan, f_scan = [], []
    for _ in range(times):
        f = f + q.astype(np.float32)
        q_scan.append(q)
        q = low_bits(f * np.float32(0.5))
        f_scan.append(f)
    return [q, f, np.stack(q_scan), np.stack(f_scan)]


@pytest.mark.parametrize("typed", [True, False], ids=["typed", "untyped"])
@pytest.mark.parametrize("direct", [True, False], ids=["formal returned", "copy returned"])
def test_loop_carries_int2_and_scans_it(typed, direct):
    built = model(
        [node("Loop", ["n", "", "q0", "f0"], ["q", "f", "qs", "fs"], body=counting_body(typed=typed, direct=direct))],
        [value("n", "INT64", []), value("q0", "INT2", [6]), value("f0", "FLOAT", [6])],
        [value("q", "INT2"), value("f", "FLOAT"), value("qs", "INT2"), value("fs", "FLOAT")],
    )
    got = graphs.run(built, {"n": np.array(3), "q0": low_bits(X), "f0": X})
    assert_same(got, count(low_bits(X), X, 3))


def test_loop_leaves_out_dead_outputs():
    built = model(
        [node("Loop", ["n", "", "q0", "f0"], ["", "f", "qs", ""], body=counting_body(typed=False))],
        [value("n", "INT64", []), value("q0", "INT2", [6]), value("f0", "FLOAT", [6])],
        [value("f", "FLOAT"), value("qs", "INT2")],
    )
    expected = count(low_bits(X), X, 2)
    got = graphs.run(built, {"n": np.array(2), "q0": low_bits(X), "f0": X})
    assert_same(got, [expected[1], expected[2]])


@pytest.mark.parametrize("dtype", sorted(graphs.DTYPES))
def test_loop_and_scan_carry_every_emulated_type(dtype):
    values = np.array([[1, 2], [0.5, 3]]).astype(graphs.DTYPES[dtype])
    body = graph(
        [node("Identity", ["go"], ["go_out"]), node("Identity", ["v"], ["v_out"])],
        "b",
        [untyped("i"), untyped("go"), untyped("v")],
        [untyped("go_out"), untyped("v_out"), untyped("v")],
    )
    scan = graph([node("Identity", ["s"], ["s_out"])], "s", [untyped("s"), untyped("e")], [untyped("e"), untyped("s")])
    built = model(
        [
            node("Loop", ["n", "", "x"], ["y", "ys"], body=body),
            node("Scan", ["first", "x"], ["last", "shifted"], body=scan, num_scan_inputs=1),
        ],
        [value("n", "INT64", []), value("x", dtype, [2, 2]), value("first", dtype, [2])],
        [value("y", dtype), value("ys", dtype), value("last", dtype), value("shifted", dtype)],
    )
    first = values[1][::-1].copy()
    got = graphs.run(built, {"n": np.array(2), "x": values, "first": first})
    assert_same(got, [values, np.stack([values, values]), values[1], np.stack([first, values[0]])])


def test_scan_narrows_its_slices_and_carries_int2():
    body = graph(
        [
            node("Cast", ["s"], ["s_f"], to=to("FLOAT")),
            node("Add", ["s_f", "e"], ["sum"]),
            node("CastLike", ["sum", "s"], ["s_out"]),
            node("Cast", ["e"], ["e_q"], to=to("UINT2")),
        ],
        "body",
        [untyped("s"), untyped("e")],
        [untyped("s_out"), untyped("e_q")],
    )
    rows = np.stack([X, X[::-1], X + 1])
    built = model(
        [node("Scan", ["s0", "rows"], ["s", "es"], body=body, num_scan_inputs=1)],
        [value("s0", "INT2", [6]), value("rows", "FLOAT", [3, 6])],
        [value("s", "INT2"), value("es", "UINT2")],
    )
    state = low_bits(X)
    for row in rows:
        expected_state = state = low_bits(state.astype(np.float32) + row)
    codes = (np.rint(rows).astype(np.int64) & 3).astype(np.uint8).astype(ml_dtypes.uint2)
    assert_same(graphs.run(built, {"s0": low_bits(X), "rows": rows}), [expected_state, codes])


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_scan_knows_the_shape_of_what_a_cast_in_its_body_gives(lowering):
    body = graph([node("Cast", ["e"], ["f"], to=to("FLOAT"))], "body", [untyped("e")], [untyped("f")])
    built = model(
        [node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)],
        [value("x", "INT2", [2, 3])],
        [value("y", "FLOAT", [2, 3])],
    )
    x = low_bits(X).reshape(2, 3)
    assert_same(graphs.run(built, {"x": x}, lowering=lowering), [x.astype(np.float32)])


def test_if_in_scan_in_loop_sees_values_of_every_scope_and_types_them_by_inference():
    branch = graph([node("Cast", ["e"], ["narrow"], to=to("INT2"))], "then", [], [untyped("narrow")])
    other = graph(
        [node("CastLike", ["c", "carried"], ["const"])], "else", [], [untyped("const")], [tensor("c", 5.0, np.float32)]
    )
    scan = graph(
        [
            node("Greater", ["e", "limit"], ["above"]),
            node("If", ["above"], ["chosen"], then_branch=branch, else_branch=other),
        ],
        "scan",
        [untyped("e")],
        [untyped("chosen")],
    )
    body = graph(
        [
            node("Cast", ["carried"], ["carried_f"], to=to("FLOAT")),
            node("Add", ["carried_f", "x"], ["sum"]),
            node("Scan", ["sum"], ["next"], body=scan, num_scan_inputs=1),
            node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [untyped("i"), untyped("go"), value("carried", "INT2", [6])],
        [untyped("go_out"), untyped("next")],
    )
    built = model(
        [
            node("Cast", ["x"], ["start"], to=to("INT2")),
            node("Loop", ["n", "true", "start"], ["last"], body=body),
            node("Cast", ["last"], ["y"], to=to("FLOAT")),
        ],
        [value("n", "INT64", []), value("x", "FLOAT", [6])],
        [value("y", "FLOAT", [6])],
        [tensor("limit", 0.0, np.float32), TRUE],
    )
    carried = low_bits(X)
    for _ in range(3):
        total = carried.astype(np.float32) + X
        carried = np.where(total > 0, low_bits(total).astype(np.int8), 1).astype(np.int8).astype(INT2)
    for lowering in ("custom", "standard"):
        [got] = graphs.run(built, {"n": np.array(3), "x": X}, lowering=lowering)
        assert_same(got, carried.astype(np.float32))


def test_new_names_clash_with_no_name_of_any_scope():
    taken = ["y_Cast", "y_CastLike", "ort_castlike_like_INT8", "q_folded", "t_inner"]
    inner = graph(
        [node("Add", ["v", "ort_castlike_like_INT8"], ["y_Cast"])],
        "inner",
        [],
        [untyped("y_Cast")],
        [tensor("ort_castlike_like_INT8", 1.0, np.float32)],
    )
    other = graph(
        [node("Identity", ["v"], ["y_CastLike"])],
        "other",
        [],
        [untyped("y_CastLike")],
        [tensor("q_folded", 1.0, np.float32), tensor("t_inner", 1.0, np.float32)],
    )
    built = model(
        [
            node("Cast", ["x"], ["v"], to=to("FLOAT")),
            node("If", ["c"], ["w"], then_branch=inner, else_branch=other),
            node("Cast", ["half"], ["q"], to=to("INT2")),
            node("Cast", ["x"], ["y"], to=to("INT2")),
        ],
        [value("c", "BOOL", []), value("x", "FLOAT16", [6])],
        [value("w", "FLOAT"), value("q", "INT2"), value("y", "INT2", [6])],
        [tensor("half", [0.5, 1.0], np.float32)],
    )
    got = graphs.run(built, {"c": np.array(True), "x": X.astype(np.float16)})
    assert_same(got, [X + 1, low_bits([0.5, 1.0]), low_bits(X)])
    names = [name for name in all_names(ort_castlike.rewrite(built).graph) if name in taken]
    assert sorted(names) == sorted(taken)


def all_names(main: onnx.GraphProto) -> list[str]:
    """The names that nodes and initializers give, in every scope."""
    found = [entry.name for entry in main.initializer]
    for entry in main.node:
        found += entry.output
        for attribute in entry.attribute:
            if attribute.HasField("g"):
                found += all_names(attribute.g)
    return found


def test_sequences_of_int2_go_through_loop_and_if():
    body = graph(
        [node("SequenceInsert", ["s", "x"], ["s_out"]), node("Identity", ["go"], ["go_out"])],
        "body",
        [value("i", "INT64", []), value("go", "BOOL", []), sequence("s", "INT2")],
        [value("go_out", "BOOL", []), sequence("s_out", "INT2")],
    )
    then = graph([node("Identity", ["filled"], ["a"])], "then", [], [sequence("a", "INT2")])
    otherwise = graph([node("Identity", ["empty"], ["b"])], "else", [], [sequence("b", "INT2")])
    built = model(
        [
            node("SequenceEmpty", [], ["empty"], dtype=to("INT2")),
            node("Loop", ["n", "", "empty"], ["filled"], body=body),
            node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise),
        ],
        [value("n", "INT64", []), value("c", "BOOL", []), value("x", "INT2", [6])],
        [sequence("y", "INT2")],
    )
    for chosen in (True, False):
        [got] = graphs.run(built, {"n": np.array(2), "c": np.array(chosen), "x": low_bits(X)})
        assert_same(got, [low_bits(X)] * 2 if chosen else [])


@pytest.mark.parametrize("wrong", ["INT8", "INT4"])
def test_branches_of_different_types_are_refused_though_one_carrier_holds_both(wrong):
    then = graph([node("Cast", ["x"], ["a"], to=to("INT2"))], "then", [], [untyped("a")])
    otherwise = graph([node("Cast", ["x"], ["b"], to=to(wrong))], "else", [], [untyped("b")])
    built = model(
        [node("If", ["c"], ["y"], name="choose", then_branch=then, else_branch=otherwise)],
        [value("c", "BOOL", []), value("x", "FLOAT", [6])],
        [value("y", "INT2", [6])],
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'choose'.*int2|type inference"):
        ort_castlike.rewrite(built)


def test_loop_whose_body_changes_the_type_is_refused():
    body = graph(
        [node("Cast", ["v"], ["v_out"], to=to("INT4")), node("Identity", ["go"], ["go_out"])],
        "body",
        [value("i", "INT64", []), value("go", "BOOL", []), value("v", "INT2")],
        [value("go_out", "BOOL", []), value("v_out", "INT4")],
    )
    built = model(
        [node("Loop", ["n", "", "x"], ["y"], name="again", body=body)],
        [value("n", "INT64", []), value("x", "INT2", [6])],
        [value("y", "INT4", [6])],
    )
    with pytest.raises(ort_castlike.CastLikeError, match=r"'again'.*tensor\(int|type inference"):
        ort_castlike.rewrite(built)


def test_nodes_of_one_name_get_names_of_their_own():
    then = graph([node("Cast", ["x"], ["t"], to=to("INT2"), name="same")], "then", [], [untyped("t")])
    otherwise = graph(
        [node("Neg", ["x"], ["n"], name="same"), node("Cast", ["n"], ["f"], to=to("INT2"), name="same")],
        "else",
        [],
        [untyped("f")],
    )
    built = model(
        [
            node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise, name="same"),
            node("Cast", ["y"], ["z"], to=to("FLOAT"), name="same"),
        ],
        [value("c", "BOOL", []), value("x", "FLOAT", [6])],
        [value("z", "FLOAT", [6])],
    )
    for chosen in (True, False):
        [got] = graphs.run(built, {"c": np.array(chosen), "x": X})
        assert_same(got, low_bits(X if chosen else -X).astype(np.float32))
