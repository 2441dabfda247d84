"""What casts cost as stock operators alone, in ns per element, beside the runtime's own int2 and int4 Cast.

Usage: ``python benchmarks/standard_lowering.py [MEBI_ELEMENTS]``. Both sides run in one process, turn by turn, on a
plain session with its default threads, input and output bound; the least time of each is given, so that other work on
the machine counts little. The aim is 2.3 times the speed of stock for float to INT2 at 1 Mi elements on the newest
onnxruntime. Releases without a 2-bit Cast show the standard lowering alone.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ort_castlike

ROUNDS, RUNS = 20, 10

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


class Timed:
    """A session with its input bound, and the least time that a run took."""

    def __init__(self, model: onnx.ModelProto, values: np.ndarray) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        serialized = model.SerializeToString()
        self._session = onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
        self._binding = self._session.io_binding()
        self._binding.bind_ortvalue_input("x", onnxruntime.OrtValue.ortvalue_from_numpy(values))
        self._binding.bind_output("y")
        self.least = float("inf")

    def run(self) -> None:
        """Run a few times."""
        for _ in range(RUNS):
            start = time.perf_counter()
            self._session.run_with_iobinding(self._binding)
            self.least = min(self.least, time.perf_counter() - start)


def stock(model: onnx.ModelProto, values: np.ndarray) -> Timed | None:
    """The model as it is, where this runtime runs it."""
    try:
        return Timed(model, values)
    except Exception:  # onnxruntime has an exception class for each status, and no root of them all
        return None


def main() -> None:
    """Print a line for each case."""
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 1) * (1 << 20))
    print(f"onnxruntime {onnxruntime.__version__}, {size} elements, ns per element")
    print(f"{'from':8} {'to':11} {'rounding':13} {'standard':>8} {'stock':>8} {'times as fast':>14}")
    generator = np.random.default_rng(0)
    for from_name, to_name, rounding in CASES:
        dtype = helper.tensor_dtype_to_np_dtype(getattr(TensorProto, from_name))
        values = (generator.standard_normal(size) * 3).astype(dtype)
        model = cast_model(from_name, to_name)
        standard = Timed(ort_castlike.rewrite(model, lowering="standard", rounding=rounding), values)
        other = stock(model, values)
        for _ in range(ROUNDS):
            standard.run()
            if other is not None:
                other.run()
        ours = standard.least / size * 1e9
        line = f"{from_name:8} {to_name:11} {rounding:13} {ours:8.2f}"
        if other is not None:
            theirs = other.least / size * 1e9
            line += f" {theirs:8.2f} {theirs / ours:14.1f}"
        print(line)


if __name__ == "__main__":
    main()
