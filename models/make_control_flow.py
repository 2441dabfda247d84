"""Make the example that carries INT2 through Loop, If and Scan: ``python make_control_flow.py [FOLDER]``.

The rows are Pascal's triangle modulo 4: each number is the sum of the two above it, and the cast into INT2 keeps the
low two bits of the sum. The expected outputs are plain numpy on int64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from example_files import write_example
from example_graphs import make_model, value
from onnx import GraphProto, ModelProto, NodeProto, helper

__all__ = ["make"]

WIDTH = 32
STEPS = 31


def make(folder: Path) -> None:
    """Write the model and its data to ``folder``."""
    first = np.zeros(WIDTH, np.int64)
    first[0] = 1
    rows = _expected_rows(first)
    inputs = {
        "first": first.astype(ml_dtypes.int2),
        "steps": np.array(STEPS, np.int64),
        "mirror": np.array(True),
    }
    outputs = {
        "last": rows[-1].astype(ml_dtypes.int2),
        "picture": rows[:, ::-1].astype(ml_dtypes.int2),
        "sums": _low_two_bits(rows.cumsum(axis=0)).astype(ml_dtypes.int2),
        "odd": np.array((rows & 1).sum(), np.int64),
    }
    write_example(folder, _model(), inputs, outputs)


def _low_two_bits(numbers: np.ndarray) -> np.ndarray:
    return ((numbers & 3) ^ 2) - 2


def _expected_rows(first: np.ndarray) -> np.ndarray:
    rows = []
    row = first
    for _ in range(STEPS):
        left = np.concatenate([np.zeros(1, np.int64), row[:-1]])
        row = _low_two_bits(row + left)
        rows.append(row)
    return np.stack(rows)


def _sum(first: str, second: str, like: str, output: str) -> list[NodeProto]:
    """The sum of two INT2 values, in INT2: cast like ``like``, which has the type alone to give."""
    return [
        helper.make_node("CastLike", [first, "like_int32"], [f"{output}_first"]),
        helper.make_node("CastLike", [second, "like_int32"], [f"{output}_second"]),
        helper.make_node("Add", [f"{output}_first", f"{output}_second"], [f"{output}_wide"]),
        helper.make_node("CastLike", [f"{output}_wide", like], [output]),
    ]


def _loop_body() -> GraphProto:
    nodes = [
        helper.make_node("Identity", ["going"], ["go_on"]),
        helper.make_node("Pad", ["row", "one_to_the_right", "zero"], ["shifted"]),
        *_sum("row", "shifted", "row", "next"),
        helper.make_node("Identity", ["next"], ["kept"]),
    ]
    return helper.make_graph(
        nodes,
        "step",
        [value("step", "INT64", []), value("going", "BOOL", []), value("row", "INT2", [WIDTH])],
        [value("go_on", "BOOL", []), value("next", "INT2", [WIDTH]), value("kept", "INT2", [WIDTH])],
    )


def _scan_body() -> GraphProto:
    nodes = [
        *_sum("so_far", "row_in", "so_far", "sum"),
        helper.make_node("Identity", ["sum"], ["sum_out"]),
    ]
    return helper.make_graph(
        nodes,
        "add",
        [value("so_far", "INT2", [WIDTH]), value("row_in", "INT2", [WIDTH])],
        [value("sum", "INT2", [WIDTH]), value("sum_out", "INT2", [WIDTH])],
    )


def _branches() -> tuple[GraphProto, GraphProto]:
    # INT2 has no operator that reverses an axis: one at a time, by a Scan that reads backwards.
    keep = helper.make_graph(
        [helper.make_node("Identity", ["cell_in"], ["cell_out"])],
        "keep",
        [value("cell_in", "INT2", ["rows"])],
        [value("cell_out", "INT2", ["rows"])],
    )
    mirrored = helper.make_node(
        "Scan",
        ["rows"],
        ["mirrored"],
        body=keep,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_input_directions=[1],
        scan_output_axes=[1],
    )
    shape = ["rows", WIDTH]
    as_is = helper.make_node("Identity", ["rows"], ["unmirrored"])
    return (
        helper.make_graph([mirrored], "mirror", [], [value("mirrored", "INT2", shape)]),
        helper.make_graph([as_is], "leave", [], [value("unmirrored", "INT2", shape)]),
    )


def _model() -> ModelProto:
    then_branch, else_branch = _branches()
    nodes = [
        helper.make_node("Loop", ["steps", "", "first"], ["last", "rows"], name="grow", body=_loop_body()),
        helper.make_node(
            "If", ["mirror"], ["picture"], name="mirror_if", then_branch=then_branch, else_branch=else_branch
        ),
        helper.make_node(
            "Scan", ["nothing", "rows"], ["total", "sums"], name="add_up", body=_scan_body(), num_scan_inputs=1
        ),
        helper.make_node("Cast", ["rows"], ["numbers"], name="widen", to=7),
        helper.make_node("Abs", ["numbers"], ["sizes"], name="sizes"),
        helper.make_node("Mod", ["sizes", "two"], ["parities"], name="parities"),
        helper.make_node("ReduceSum", ["parities"], ["odd"], name="count_odd", keepdims=0),
    ]
    initializers = {
        "like_int32": np.zeros(1, np.int32),
        "one_to_the_right": np.array([1, -1], np.int64),
        "zero": np.zeros((), ml_dtypes.int2),
        "nothing": np.zeros(WIDTH, ml_dtypes.int2),
        "two": np.array(2, np.int64),
    }
    return make_model(
        "control_flow",
        nodes,
        [value("first", "INT2", [WIDTH]), value("steps", "INT64", []), value("mirror", "BOOL", [])],
        [
            value("last", "INT2", [WIDTH]),
            value("picture", "INT2", ["rows", WIDTH]),
            value("sums", "INT2", ["rows", WIDTH]),
            value("odd", "INT64", []),
        ],
        initializers,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "control_flow")
