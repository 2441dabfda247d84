"""What rewriting costs by the number of nodes and by the kind of model, what it adds to a session, and repacking.

Usage: ``python benchmarks/rewriting.py [ROUNDS]``, or ``FEW MANY`` for the time by the number of nodes alone.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from _report import main, show
from _sessions import options, plain_options
from _timing import Figure, Spread, Table, take_turns
from onnx import TensorProto, helper, numpy_helper

import ort_castlike
from ort_castlike import _constants

PROVIDERS = ["CPUExecutionProvider"]
Parts = tuple[list[onnx.NodeProto], list[onnx.TensorProto], str]


def casts(index: int, source: str) -> Parts:
    """A float goes to INT2 and back."""
    nodes = [
        helper.make_node("Cast", [source], [f"q{index}"], to=TensorProto.INT2),
        helper.make_node("CastLike", [f"q{index}", "like"], [f"v{index}"]),
    ]
    return nodes, [], f"v{index}"


def layers(index: int, source: str) -> Parts:
    """A layer with INT2 weights of its own."""
    codes = np.arange(64, dtype=np.uint8)
    weights = helper.make_tensor(f"w{index}", TensorProto.INT2, [16, 16], codes.tobytes(), raw=True)
    scales = numpy_helper.from_array(np.full(16, 0.01, np.float32), f"s{index}")
    nodes = [
        helper.make_node("DequantizeLinear", [f"w{index}", f"s{index}"], [f"d{index}"], axis=0),
        helper.make_node("MatMul", [source, f"d{index}"], [f"v{index}"]),
    ]
    return nodes, [weights, scales], f"v{index}"


def shared(index: int, source: str) -> Parts:
    """Every layer takes the same INT2 weights."""
    nodes = [
        helper.make_node("DequantizeLinear", ["shared", "scale"], [f"d{index}"]),
        helper.make_node("MatMul", [source, f"d{index}"], [f"v{index}"]),
    ]
    return nodes, [], f"v{index}"


def moves(index: int, source: str) -> Parts:
    """INT2 values are only moved about; the float result is taken along."""
    nodes = [
        helper.make_node("Transpose", ["moved" if index == 0 else f"m{index - 1}"], [f"m{index}"]),
        helper.make_node("Relu", [source], [f"v{index}"]),
    ]
    return nodes, [], f"v{index}"


def folded(index: int, source: str) -> Parts:
    """A constant is cast to INT2 and dequantized, as exporters leave it."""
    constant = numpy_helper.from_array(np.arange(256, dtype=np.float32).reshape(16, 16) % 4 - 2, f"c{index}")
    nodes = [
        helper.make_node("Constant", [], [f"k{index}"], value=constant),
        helper.make_node("Cast", [f"k{index}"], [f"q{index}"], to=TensorProto.INT2),
        helper.make_node("DequantizeLinear", [f"q{index}", "scale"], [f"d{index}"]),
        helper.make_node("MatMul", [source, f"d{index}"], [f"v{index}"]),
    ]
    return nodes, [], f"v{index}"


def make_model(part: Callable[[int, str], Parts], count: int) -> onnx.ModelProto:
    """A chain of parts with about ``count`` nodes."""
    nodes: list[onnx.NodeProto] = []
    initializers = [
        numpy_helper.from_array(np.zeros(1, np.float32), "like"),
        numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        helper.make_tensor("shared", TensorProto.INT2, [16, 16], bytes(64), raw=True),
        helper.make_tensor("moved", TensorProto.INT2, [16, 16], bytes(64), raw=True),
    ]
    source, index = "x", 0
    while len(nodes) < count:
        new_nodes, new_initializers, source = part(index, source)
        nodes += new_nodes
        initializers += new_initializers
        index += 1
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])
    y = helper.make_tensor_value_info(source, TensorProto.FLOAT, [16, 16])
    graph = helper.make_graph(nodes, "chain", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def nodes(rounds: int, counts: tuple[int, int] = (1000, 16000)) -> Table:
    """The time for each node, in small and in large models."""
    few, many = counts
    ort_castlike.rewrite(make_model(casts, 10), target="1.20")  # imports and tables
    table = Table(
        "Rewriting by the number of nodes",
        "`rewrite` of a ModelProto to a ModelProto, target 1.20; time of the CPU.",
        columns=["model", "nodes", "seconds", "microseconds per node"],
    )
    for part in (casts, layers, shared, moves, folded):
        assert part.__doc__ is not None
        kind = part.__doc__.rstrip(".")
        models = {count: make_model(part, count) for count in counts}
        taken = {count: [] for count in counts}
        for _ in range(max(1, rounds // 5)):
            for count, model in models.items():
                taken[count].append(statistics.fmean(timed(model) for _ in range(4 if count == few else 1)))
        for count, seconds in taken.items():
            per_node = Spread.of([1e6 * second / count for second in seconds])
            table.rows.append([kind, str(count), str(Spread.of(seconds)), str(per_node)])
        ratio = Spread.of([few * b / (many * a) for a, b in zip(taken[few], taken[many], strict=True)])
        table.figures.append(Figure(f"{kind}: per node at {many} / at {few}", ratio, 1.5, at_least=False))
        table.figures.append(Figure(f"{kind}: seconds for {many}", Spread.of(taken[many]), 20.0, at_least=False))
    return table


def timed(model: onnx.ModelProto) -> float:
    """CPU seconds of a rewrite, which has one thread; it takes too long for turns to even out other work."""
    begin = time.process_time()
    ort_castlike.rewrite(model, target="1.20")
    return time.process_time() - begin


def sessions(rounds: int) -> Table:
    """Making a session of a model that is rewritten, beside a plain one of the result."""
    table = Table(
        "Making a session with a rewrite",
        "`ort_castlike.InferenceSession` of the original, beside `onnxruntime.InferenceSession` of what it was "
        "rewritten to: layers with INT2 weights of their own.",
        columns=["nodes", "contestant", "ms"],
    )
    for count in (10, 1000):
        original = make_model(layers, count).SerializeToString()
        rewritten = ort_castlike.rewrite(original).SerializeToString()
        calls = {
            "ort_castlike": lambda data=original: ort_castlike.InferenceSession(data, plain_options(), PROVIDERS),
            "onnxruntime": lambda data=rewritten: onnxruntime.InferenceSession(data, options(), PROVIDERS),
        }
        times = take_turns(calls, max(3, rounds // 3))
        table.rows += [[str(count), name, str(times.spread(name, 1e3))] for name in times]
        ratio = times.ratio("ort_castlike", "onnxruntime")
        table.figures.append(Figure(f"{count} nodes: with the rewrite / without", ratio))
    return table


def repacking(rounds: int) -> Table:
    """2-bit payloads to packed 4-bit ones and to carriers."""
    data = np.random.default_rng(0).integers(0, 256, 1 << 24, np.uint8)
    tensor = ir.PackedTensor(data, ir.DataType.INT2, shape=ir.Shape([1 << 12, 1 << 14]), name="weights")

    def consume(made: ir.TensorProtocol) -> Callable[[], object]:
        return lambda: [None for _ in made.blocks()]

    calls = {
        "to packed INT4": consume(_constants.packed_tensor(tensor)),
        "to int8": consume(_constants.carrier_tensor(tensor)),
    }
    times = take_turns(calls, rounds)
    table = Table(
        "Repacking weights",
        "A payload of 16 MiB of INT2, a block at a time.",
        columns=["to", "ms"],
        rows=[[name, str(times.spread(name, 1e3))] for name in times],
    )
    for name, seconds in times.items():
        rate = Spread.of([data.size / 1e9 / second for second in seconds])
        table.figures.append(Figure(f"{name}: GB of 2-bit weights per second", rate, 0.5))
    return table


def measure(rounds: int) -> list[Table]:
    """All of the above."""
    return [repacking(rounds), sessions(rounds), nodes(rounds)]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        show([nodes(5, (int(sys.argv[1]), int(sys.argv[2])))])
    else:
        main(measure)
