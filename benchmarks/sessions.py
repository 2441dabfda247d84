"""What the drop-in session adds to onnxruntime's: to a run, to making it, and for arrays of ml_dtypes' types.

Usage: ``python benchmarks/sessions.py [ROUNDS]``.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime
from _sessions import one_node, plain_options
from _timing import Figure, Spread, Table, take_turns
from onnx import TensorProto, helper

import ort_castlike
from ort_castlike._io._arrays import from_carrier, to_carrier
from ort_castlike._types import ELEMENT_TYPES

PROVIDERS = ["CPUExecutionProvider"]
TYPES = ("INT2", "UINT4", "FLOAT4E2M1", "FLOAT8E8M0")


def runs(rounds: int) -> Table:
    """A run, and making a session, of a model that needs no rewrite."""
    model = one_node(helper.make_node("Relu", ["x"], ["y"]), TensorProto.FLOAT, TensorProto.FLOAT)
    feed = {"x": np.ones(8, np.float32)}
    ours = ort_castlike.InferenceSession(model, plain_options(), PROVIDERS)
    stock = onnxruntime.InferenceSession(model, plain_options(), PROVIDERS)
    calls = {
        "run, ort_castlike": lambda: ours.run(None, feed),
        "run, onnxruntime": lambda: stock.run(None, feed),
        "make, ort_castlike": lambda: ort_castlike.InferenceSession(model, plain_options(), PROVIDERS),
        "make, onnxruntime": lambda: onnxruntime.InferenceSession(model, plain_options(), PROVIDERS),
    }
    times = take_turns(calls, rounds)
    table = Table(
        "The drop-in session on a model of stock types",
        "One Relu of 8 floats: what a run and the making of a session cost beside onnxruntime's own.",
        columns=["call", "microseconds"],
        rows=[[name, str(times.spread(name, 1e6))] for name in calls],
    )
    for what, aim in (("run", 2.0), ("make", None)):
        pairs = zip(times[f"{what}, ort_castlike"], times[f"{what}, onnxruntime"], strict=True)
        added = Spread.of([1e6 * (ours - stock) for ours, stock in pairs])
        table.figures.append(Figure(f"{what}: microseconds added", added, aim, at_least=False))
    return table


def arrays(rounds: int) -> Table:
    """Arrays of ml_dtypes' types to carriers and back."""
    table = Table(
        "Arrays of ml_dtypes' types",
        "From an array that a user gives to one of the carrier and back, 1 Mi elements, beside a copy of the carrier.",
        columns=["type", "to the carrier, ns per element", "back", "a copy of the carrier"],
    )
    size = 1 << 20
    for name in TYPES:
        element = ELEMENT_TYPES[name]
        values = (np.arange(size) % 2).astype(np.float32).astype(element.dtype)
        carrier = to_carrier(values, element)
        copy = np.empty_like(carrier)
        times = take_turns(
            {
                "to": lambda v=values, e=element: to_carrier(v, e),
                "back": lambda c=carrier, e=element: from_carrier(c, e),
                "copy": lambda c=carrier, d=copy: np.copyto(d, c),
            },
            rounds,
        )
        table.rows.append([name, *(str(times.spread(key, 1e9 / size)) for key in times)])
        if name == "INT2":
            for key in ("to", "back"):
                ratio = Spread.of([1e9 / size * seconds for seconds in times[key]])
                table.figures.append(Figure(f"{name} {key}: ns per element", ratio, 0.1, at_least=False))
    return table


def measure(rounds: int) -> list[Table]:
    """All of the above."""
    return [runs(rounds), arrays(rounds)]


if __name__ == "__main__":
    from _report import show

    show(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15))
