"""What the domain's operators give: a result of a shape that nobody expects is an error and never ends the process."""

from __future__ import annotations

import graphs
import numpy as np
import onnxruntime
import pytest
from graphs import graph, model, node, untyped, value
from onnx import TensorProto

import ort_castlike

CPU = ["CPUExecutionProvider"]


def plain_session(source, level="ORT_ENABLE_ALL"):
    """What a user has who rewrites, registers, and makes a session of onnxruntime's own."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    ort_castlike.register(options)
    rewritten = ort_castlike.rewrite(source)
    return onnxruntime.InferenceSession(rewritten.SerializeToString(), options, providers=CPU)


def quiet():
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    return options


def narrowing(shape):
    return model(
        [node("Cast", ["x"], ["y"], to=TensorProto.INT2)], [value("x", "FLOAT", shape)], [value("y", "INT2", shape)]
    )


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("shape", [["n"], [4], None])
def test_a_buffer_of_another_shape_bound_to_an_output_is_refused(level, shape):
    session = plain_session(narrowing(shape), level)
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(4, np.float32))
    buffer = np.zeros(7, np.int8)
    binding.bind_output("y", "cpu", 0, np.int8, buffer.shape, buffer.ctypes.data)
    with pytest.raises(Exception, match=r"shape|dimension|size"):
        session.run_with_iobinding(binding, quiet())


def test_a_buffer_of_the_right_shape_takes_the_result():
    session = plain_session(narrowing(["n"]))
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.array([3, 1, -2, 6], np.float32))
    buffer = np.zeros(4, np.int8)
    binding.bind_output("y", "cpu", 0, np.int8, buffer.shape, buffer.ctypes.data)
    session.run_with_iobinding(binding)
    assert buffer.tolist() == [-1, 1, -2, -2]


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_memory_that_was_planned_by_a_wrong_shape_is_not_used_for_a_result(level):
    nodes = [
        *(node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Sqrt", ["b"], ["c"])),
        *(node("Concat", ["c", "c"], ["d"], axis=0), node("Neg", ["d"], ["e"])),
        *(node("Cast", ["e"], ["q"], to=TensorProto.INT2), node("Cast", ["q"], ["f"], to=TensorProto.FLOAT)),
        node("Neg", ["f"], ["y"]),
    ]
    source = model(nodes, [value("x", "FLOAT", ["n"])], [value("y", "FLOAT", ["m"])])
    source.graph.value_info.append(value("q", "INT2", ["n"]))  # which is of size 2n
    session = plain_session(source, level)
    assert session.run(None, {"x": np.ones(4, np.float32)})[0].tolist() == [1] * 8


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_a_branch_that_gives_another_shape_than_the_model_says_is_refused(level):
    branches = {
        name: graph([node("Cast", ["x"], [name], to=TensorProto.INT2)], name, [], [value(name, "INT2", [3])])
        for name in ("then_branch", "else_branch")
    }
    source = model(
        [node("If", ["c"], ["y"], **branches)],
        [value("c", "BOOL", []), value("x", "FLOAT", ["n"])],
        [value("y", "INT2", [3])],
    )
    session = plain_session(source, level)
    feeds = {"c": np.array(True), "x": np.array([3, 1, 5], np.float32)}
    assert session.run(None, feeds)[0].tolist() == [-1, 1, 1]
    with pytest.raises(Exception, match="shape"):
        session.run(None, {**feeds, "x": np.ones(5, np.float32)}, quiet())


@pytest.mark.parametrize("values", [np.array(2), np.zeros((0, 3)), np.ones((2, 0)), np.array([[5, -1]])])
@pytest.mark.parametrize("dtype", ["INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT8E8M0"])
def test_an_output_keeps_any_shape(values, dtype):
    wide = model(
        [node("Cast", ["x"], ["q"], to=TensorProto.DataType.Value(dtype)), node("Cast", ["q"], ["y"], to=6)],
        [value("x", "FLOAT", values.shape)],
        [value("q", dtype, values.shape), value("y", "INT32", values.shape)],
    )
    narrow, back = graphs.run(wide, {"x": abs(values).astype(np.float32)})
    assert narrow.shape == back.shape == values.shape


def test_a_scan_of_casts_knows_the_shapes_of_what_it_gives():
    body = graph(
        [
            *(node("Cast", ["e"], ["q"], to=TensorProto.INT2), node("Cast", ["q"], ["f"], to=TensorProto.FLOAT)),
            node("Neg", ["f"], ["g"]),
        ],
        "body",
        [value("e", "FLOAT", [2])],
        [untyped("f"), untyped("g")],
    )
    source = model(
        [node("Scan", ["x"], ["y", "z"], num_scan_inputs=1, body=body)],
        [value("x", "FLOAT", ["n", 2])],
        [value("y", "FLOAT", ["n", 2]), value("z", "FLOAT", ["n", 2])],
    )
    y, z = graphs.run(source, {"x": np.array([[1, 2], [3, -1]], np.float32)})
    assert y.tolist() == [[1, -2], [-1, -1]]
    assert z.tolist() == [[-1, 2], [1, 1]]
