"""What the drop-in session adds to onnxruntime's: to a run, to making it, and for arrays of ml_dtypes' types.

Usage: ``python benchmarks/sessions.py [ROUNDS]``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from _report import main
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


def originals() -> dict[str, onnx.ModelProto]:
    """Small models that need a rewrite."""
    weights = helper.make_tensor("w", TensorProto.INT2, [64, 64], bytes(range(256)) * 4, raw=True)
    scales = helper.make_tensor("s", TensorProto.FLOAT, [2, 64], [0.5] * 128)
    layer = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    cast = [helper.make_node("Cast", ["x"], ["q"], to=TensorProto.INT2)]
    cast.append(helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy")
    imports = [helper.make_opsetid("", 25)]
    return {
        name: helper.make_model(
            helper.make_graph(nodes, "small", [x], [y], constants), opset_imports=imports, ir_version=13
        )
        for name, nodes, constants in (("INT2 weights", layer, [weights, scales]), ("casts to INT2", cast, []))
    }


def makings(rounds: int) -> Table:
    """The making of sessions of small models from files, with and without a rewrite, first and again."""
    table = Table(
        "Making a session of a small model",
        "From a file: one that has to be rewritten, one that was rewritten before, and that by onnxruntime alone. "
        "The first session is that of a fresh process in which onnxruntime and this package are imported.",
        columns=["model", "contestant", "first, ms", "again, ms"],
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, model in originals().items():
            before, after = (str(Path(folder) / f"{name}{end}.onnx") for end in (" before", " after"))
            onnx.save(model, before)
            ort_castlike.rewrite_file(before, after)
            paths = {"to be rewritten": before, "rewritten before": after, "onnxruntime": after}
            times = take_turns({kind: lambda k=kind, p=path: made(k, p) for kind, path in paths.items()}, rounds)
            for kind, path in paths.items():
                firsts = Spread.of([first(kind, path) for _ in range(3)])
                table.rows.append([name, kind, str(firsts), str(times.spread(kind, 1e3))])
            for kind in ("to be rewritten", "rewritten before"):
                ratio = times.ratio(kind, "onnxruntime")
                aim = 3.0 if (name, kind) == ("INT2 weights", "rewritten before") else None
                headline = "" if aim is None else "Making a session of a rewritten model: {} times a plain one."
                table.figures.append(
                    Figure(f"{name}: {kind} / onnxruntime", ratio, aim, at_least=False, headline=headline)
                )
    return table


def made(kind: str, path: str) -> onnxruntime.InferenceSession:
    """A session; onnxruntime alone needs the operators registered where there are casts."""
    options = plain_options()
    if kind != "onnxruntime":
        return ort_castlike.InferenceSession(path, options, PROVIDERS)
    if Path(path).name.startswith("casts"):
        ort_castlike.register(options)
    return onnxruntime.InferenceSession(path, options, PROVIDERS)


def first(kind: str, path: str) -> float:
    """Milliseconds of the first session in a fresh process."""
    command = [sys.executable, __file__, "--first", kind, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def print_first(kind: str, path: str) -> None:
    """Make a session in this process and print how many milliseconds it took."""
    begin = time.perf_counter()
    made(kind, path)
    print(json.dumps(1e3 * (time.perf_counter() - begin)))


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
    return [runs(rounds), makings(rounds), arrays(rounds)]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--first"]:
        print_first(*sys.argv[2:])
    else:
        main(measure)
