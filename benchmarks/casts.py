"""What casts into and out of the emulated types cost, and a node that has next to nothing to do.

Usage: ``python benchmarks/casts.py [ROUNDS]``. Every contestant takes the same array, bound to a session of one thread
as its output is, so that no copy from or to the caller counts; ml_dtypes and the reference evaluator are called.
"""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import onnx
from _report import main
from _sessions import RELEASE, bound, one_node, options, python_operators
from _timing import Call, Figure, Table, Times, take_turns
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import ort_castlike
from ort_castlike._kernels import convert
from ort_castlike._types import ELEMENT_TYPES

SIZES = {"64 Ki": 1 << 16, "1 Mi": 1 << 20, "4 Mi": 1 << 22, "16 Mi": 1 << 24}
OURS, STOCK, FLOOR = "ort_castlike", "stock Cast to int2", "stock Cast to int8"
STANDARD, DEFAULT = "ort_castlike, stock operators alone", "Python operator, default path"
KERNEL = "its kernel, called"
ML_DTYPES, REFERENCE, COPY = "ml_dtypes astype", "ReferenceEvaluator", "memcpy"
WIDENING = "INT2 to float"
HEADLINES = {
    (STOCK, 1 << 20): "A million floats to INT2: {} times as fast as stock onnxruntime's own cast.",
    (WIDENING, 1 << 20): "A million INT2 to float: {} times the time of the stock cast of the standard lowering.",
}
LARGEST_LIST = 1 << 20  # elements: beyond, a Python object for each takes seconds


def cast_node(to: int) -> onnx.NodeProto:
    """A Cast from ``x`` to ``y``."""
    return helper.make_node("Cast", ["x"], ["y"], to=to)


def custom_cast(from_type: str, to_type: str, carriers: tuple[int, int]) -> bytes:
    """A model of the domain's CastLike alone."""
    node = helper.make_node(
        "CastLike", ["x", "like"], ["y"], domain="ort_castlike", from_type=from_type, to_type=to_type,
        rounding="nearest_even", saturate=1, round_mode="up",
    )  # fmt: skip
    return one_node(node, *carriers, initializers=[helper.make_tensor("like", carriers[1], [0], [])])


def reference(to: int, values: np.ndarray) -> Call:
    """The reference evaluator's Cast."""
    model = onnx.load_from_string(one_node(cast_node(to), TensorProto.FLOAT, to, opset=25, ir_version=13))
    evaluator = ReferenceEvaluator(model)
    return lambda: evaluator.run(None, {"x": values})


def narrowing(values: np.ndarray) -> dict[str, Call]:
    """From float to INT2."""
    int2 = one_node(cast_node(TensorProto.INT2), TensorProto.FLOAT, TensorProto.INT2, opset=25, ir_version=13)
    calls = {
        OURS: bound(custom_cast("FLOAT", "INT2", (TensorProto.FLOAT, TensorProto.INT8)), values),
        STANDARD: bound(ort_castlike.rewrite(int2, lowering="standard").SerializeToString(), values),
        FLOOR: bound(one_node(cast_node(TensorProto.INT8), TensorProto.FLOAT, TensorProto.INT8), values),
        ML_DTYPES: lambda: values.astype(ml_dtypes.int2),
        REFERENCE: reference(TensorProto.INT2, values),
        COPY: functools.partial(np.copyto, np.empty_like(values), values),
    }
    if RELEASE >= (1, 24):
        calls[STOCK] = bound(int2, values)
    if values.size <= LARGEST_LIST:
        node = helper.make_node("DefaultPath", ["x"], ["y"], domain="ai.onnx.contrib")
        calls[DEFAULT] = bound(one_node(node, TensorProto.FLOAT, TensorProto.INT8), values)
    return calls


def float4(values: np.ndarray) -> dict[str, Call]:
    """From float to FLOAT4E2M1."""
    source, target = ELEMENT_TYPES["FLOAT"], ELEMENT_TYPES["FLOAT4E2M1"]
    return {
        OURS: bound(custom_cast("FLOAT", "FLOAT4E2M1", (TensorProto.FLOAT, TensorProto.FLOAT)), values),
        KERNEL: lambda: convert(values, source, target),
        ML_DTYPES: lambda: values.astype(ml_dtypes.float4_e2m1fn),
    }


def widening(values: np.ndarray) -> dict[str, Call]:
    """From INT2, in int8, to float."""
    codes = (values.astype(np.int32) & 3).astype(np.int8) - np.int8(2)
    int2 = one_node(cast_node(TensorProto.FLOAT), TensorProto.INT2, TensorProto.FLOAT, opset=25, ir_version=13)
    return {
        OURS: bound(ort_castlike.rewrite(int2).SerializeToString(), codes),
        "stock Cast": bound(one_node(cast_node(TensorProto.FLOAT), TensorProto.INT8, TensorProto.FLOAT), codes),
    }


def small(values: np.ndarray) -> dict[str, Call]:
    """The domain's node, and one of a Python operator that does nothing."""
    node = helper.make_node("Empty", ["x"], ["y"], domain="ai.onnx.contrib")
    return {
        OURS: bound(custom_cast("FLOAT", "INT2", (TensorProto.FLOAT, TensorProto.INT8)), values),
        "empty Python operator": bound(one_node(node, TensorProto.FLOAT, TensorProto.INT8), values),
        FLOOR: bound(one_node(cast_node(TensorProto.INT8), TensorProto.FLOAT, TensorProto.INT8), values),
    }


def numbers(size: int) -> np.ndarray:
    """Normally distributed floats, a third of them beyond INT2's range."""
    return (3 * np.random.default_rng(0).standard_normal(size)).astype(np.float32)


def rows_of(label: str, times: Times, size: int) -> list[list[str]]:
    """A row for each contestant: ns per element."""
    return [[label, name, str(times.spread(name, 1e9 / size))] for name in times]


def casts_to_int2(rounds: int) -> Table:
    """Float to INT2 at every size."""
    table = Table(
        "Float to INT2",
        "One node in a session, one thread. `ort_castlike` is the domain's operator, with all that crossing into "
        "Python takes; the default path of a Python operator returns a plain numpy array.",
        columns=["elements", "contestant", "ns per element"],
        axes=("elements", "ns per element"),
    )
    for label, size in SIZES.items():
        times = take_turns(narrowing(numbers(size)), rounds if size <= 1 << 22 else max(5, rounds // 2))
        table.rows += rows_of(label, times, size)
        for name in times:
            table.curves.setdefault(name, []).append((size, times.spread(name, 1e9 / size).median))
        aims = {STOCK: 2.3 if size == 1 << 24 else 4.0, ML_DTYPES: None, REFERENCE: None, DEFAULT: None}
        table.figures += [
            Figure(f"{label}: {name} / {OURS}", times.ratio(name, OURS), aim, headline=HEADLINES.get((name, size), ""))
            for name, aim in aims.items()
            if name in times
        ]
        table.figures.append(Figure(f"{label}: {OURS} / {FLOOR}", times.ratio(OURS, FLOOR)))
        if STOCK in times:
            table.figures.append(Figure(f"{label}: {STOCK} / {STANDARD}", times.ratio(STOCK, STANDARD)))
    return table


def other_casts(rounds: int) -> Table:
    """FLOAT4E2M1 and widening."""
    table = Table(
        "Float to FLOAT4E2M1, and INT2 to float",
        "As above; `astype` of ml_dtypes and the kernel alone are called, without a session. INT2 to float is what a "
        "rewrite makes of it: the domain's node on int8, and a stock Cast, which the standard lowering has alone.",
        columns=["elements", "contestant", "ns per element"],
    )
    for label, size in list(SIZES.items())[:3]:
        times = take_turns(float4(numbers(size)), rounds)
        table.rows += rows_of(f"{label}, to FLOAT4E2M1", times, size)
        table.figures += [
            Figure(f"{label}: {ML_DTYPES} to float4 / {KERNEL}", times.ratio(ML_DTYPES, KERNEL), 4.0),
            Figure(f"{label}: {ML_DTYPES} to float4 / {OURS}, in a session", times.ratio(ML_DTYPES, OURS)),
        ]
        times = take_turns(widening(numbers(size)), rounds)
        table.rows += rows_of(f"{label}, {WIDENING}", times, size)
        # What is the same at every size, the way into Python and back, weighs most at 64 Ki.
        aim = None if size == 1 << 16 else 2.0
        ratio = times.ratio(OURS, "stock Cast")
        headline = HEADLINES.get((WIDENING, size), "")
        table.figures.append(
            Figure(f"{label}: {WIDENING} / stock int8 to float", ratio, aim, at_least=False, headline=headline)
        )
    return table


def small_nodes(rounds: int) -> Table:
    """One node at 1 and 64 elements."""
    table = Table(
        "One small node",
        "A whole run of a session with one node. What the domain's node adds to a Python operator that does nothing at "
        "all and has no attributes is reading five attributes, the cast, and holding Ctrl-C back.",
        columns=["elements", "contestant", "microseconds"],
    )
    for size in (1, 64):
        times = take_turns(small(numbers(size)), rounds)
        table.rows += [[str(size), name, str(times.spread(name, 1e6))] for name in times]
        table.figures.append(
            Figure(f"{size}: {OURS} / empty operator", times.ratio(OURS, "empty Python operator"), 3.5, at_least=False)
        )
    return table


def measure(rounds: int) -> list[Table]:
    """All of the above."""
    python_operators()
    options()
    return [casts_to_int2(rounds), other_casts(rounds), small_nodes(rounds)]


if __name__ == "__main__":
    main(measure)
