"""What casts cost as stock operators alone, beside the runtime's own casts to the same types.

Usage: ``python benchmarks/standard_lowering.py [ROUNDS]``. Sessions have the runtime's own number of threads, since
that is what these operators can use. Releases without a cast of their own show the rewritten one alone.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from _report import main
from _sessions import bound
from _timing import Call, Figure, Table, take_turns
from onnx import TensorProto, helper

import ort_castlike

SIZE = 1 << 20
STANDARD, STOCK = "stock operators", "stock Cast"

CASES = (
    ("FLOAT", "INT2", "nearest_even"),
    ("FLOAT", "UINT2", "nearest_even"),
    ("FLOAT", "INT4", "nearest_even"),
    ("FLOAT", "INT2", "toward_zero"),
    ("FLOAT", "INT2", "half_away"),
    ("FLOAT16", "INT2", "nearest_even"),
    ("DOUBLE", "INT2", "nearest_even"),
    ("INT32", "INT2", "nearest_even"),
    ("FLOAT", "FLOAT4E2M1", "nearest_even"),
    ("FLOAT", "FLOAT8E8M0", "nearest_even"),
)


def cast_model(from_name: str, to_name: str) -> onnx.ModelProto:
    """A model of one Cast."""
    types = getattr(TensorProto, from_name), getattr(TensorProto, to_name)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=types[1])],
        "cast",
        [helper.make_tensor_value_info("x", types[0], ["n"])],
        [helper.make_tensor_value_info("y", types[1], ["n"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def call_of(model: onnx.ModelProto, values: np.ndarray) -> Call | None:
    """A call that runs a model; None where this release refuses it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return bound(model.SerializeToString(), values, options)
    except Exception:  # onnxruntime has an exception class for each status, and no root of them all
        return None


def measure(rounds: int) -> list[Table]:
    """Each case."""
    table = Table(
        "Casts as stock operators alone",
        '`lowering="standard"`, 1 Mi elements, the runtime\'s own number of threads on both sides.',
        columns=["from", "to", "rounding", "contestant", "ns per element"],
    )
    generator = np.random.default_rng(0)
    for from_name, to_name, rounding in CASES:
        dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, from_name))
        values = (generator.standard_normal(SIZE) * 3).astype(dtype)
        model = cast_model(from_name, to_name)
        rewritten = ort_castlike.rewrite(model, lowering="standard", rounding=rounding)
        calls = {STANDARD: call_of(rewritten, values), STOCK: call_of(model, values)}
        times = take_turns({name: call for name, call in calls.items() if call is not None}, rounds)
        table.rows += [[from_name, to_name, rounding, name, str(times.spread(name, 1e9 / SIZE))] for name in times]
        if STOCK in times:
            aim = 2.3 if (from_name, to_name, rounding) == CASES[0] else None
            label = f"{from_name} to {to_name}, {rounding}: {STOCK} / {STANDARD}"
            table.figures.append(Figure(label, times.ratio(STOCK, STANDARD), aim))
    return [table]


if __name__ == "__main__":
    main(measure)
