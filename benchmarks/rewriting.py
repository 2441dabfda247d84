"""What rewriting costs by the number of nodes, and by the kind of model.

Usage: ``python benchmarks/rewriting.py [NODES ...]``. The aims are less than 20 s for 16,000 nodes on two cores, and a
time per node there within 1.5 times of that at 1,000.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ort_castlike

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


def main(counts: list[int]) -> None:
    """Measure and print."""
    ort_castlike.rewrite(make_model(casts, 10), target="1.20")  # imports and tables
    for part in (casts, layers, shared, moves, folded):
        print(part.__doc__)
        for count in counts:
            model = make_model(part, count)
            best = float("inf")
            for _ in range(3 if count <= 1000 else 1):
                begin = time.perf_counter()
                ort_castlike.rewrite(model, target="1.20")
                best = min(best, time.perf_counter() - begin)
            print(f"    {count} nodes: {best:.2f} s, {best / count * 1e6:.0f} us per node")


if __name__ == "__main__":
    main([int(count) for count in sys.argv[1:]] or [1000, 4000, 16000])
