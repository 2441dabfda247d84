"""What a cast from float to INT2 costs: through the domain's operator, the stock runtime's own, and beside them.

Usage: ``python benchmarks/casts.py [ROUNDS]``. All of them take turns in one process, on one thread, on the same
array, which is an OrtValue already, so that no copy from or to the caller is counted. The aim is at most a quarter
of the stock int2 Cast's time at 1 Mi elements (onnxruntime 1.24 and later have one).
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import ort_castlike

SIZES = {"64 Ki": 1 << 16, "1 Mi": 1 << 20, "4 Mi": 1 << 22, "16 Mi": 1 << 24}
OURS, STOCK, FLOOR = "ort_castlike, int2", "stock Cast, int2", "stock Cast, int8"


def one_node(node: object, element_type: int, opset: int, ir_version: int, **parts: object) -> bytes:
    """A model from a float ``x`` to a ``y`` by one node."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None])
    y = helper.make_tensor_value_info("y", element_type, [None])
    graph = helper.make_graph([node], "cast", [x], [y], **parts)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ort_castlike", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version).SerializeToString()


def models() -> dict[str, bytes]:
    """The models that the installed onnxruntime can run."""
    attributes = {"from_type": "FLOAT", "rounding": "nearest_even", "saturate": 1, "round_mode": "up"}
    found = {}
    for name, to, carrier in (
        (OURS, "INT2", TensorProto.INT8),
        ("ort_castlike, float4", "FLOAT4E2M1", TensorProto.FLOAT),
    ):
        node = helper.make_node("CastLike", ["x", "t"], ["y"], domain="ort_castlike", to_type=to, **attributes)
        target = helper.make_tensor("t", carrier, [0], [])
        found[name] = one_node(node, carrier, 21, 10, initializer=[target])
    to_int8 = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT8)
    found[FLOOR] = one_node(to_int8, TensorProto.INT8, 21, 10)
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 24):
        to_int2 = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT2)
        found[STOCK] = one_node(to_int2, TensorProto.INT2, 25, 13)
    return found


def contestants(values: np.ndarray) -> dict[str, Callable[[], object]]:
    """What takes turns: a call for each name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    ort_castlike.register(options)
    feed = {"x": onnxruntime.OrtValue.ortvalue_from_numpy(values)}
    calls: dict[str, Callable[[], object]] = {}
    for name, model in models().items():
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        calls[name] = lambda session=session: session.run_with_ort_values(["y"], feed)
    calls["ml_dtypes, int2"] = lambda: values.astype(ml_dtypes.int2)
    calls["ml_dtypes, float4"] = lambda: values.astype(ml_dtypes.float4_e2m1fn)
    return calls


def measure(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call, round by round."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - begin)
    return taken


def cpu_name() -> str:
    """The CPU's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main(rounds: int) -> None:
    """Measure and print."""
    packages = ("onnxruntime", "onnxruntime-extensions", "numpy", "ml_dtypes")
    print(", ".join(f"{name} {version(name)}" for name in packages), f"Python {platform.python_version()}", sep=", ")
    print(f"{cpu_name()}, one thread, {rounds} rounds; ns per element: median (fastest to slowest)")
    rng = np.random.default_rng(0)
    for label, size in SIZES.items():
        values = (3 * rng.standard_normal(size)).astype(np.float32)
        taken = measure(contestants(values), rounds)
        print(f"\n{label} elements")
        for name, seconds in taken.items():
            median, *ends = (1e9 * f(seconds) / size for f in (statistics.median, min, max))
            print(f"    {name:22}{median:6.2f} ({ends[0]:.2f} to {ends[1]:.2f})")
        for name in (STOCK, "ml_dtypes, int2"):
            if name in taken:
                ratios = sorted(other / ours for other, ours in zip(taken[name], taken[OURS], strict=True))
                print(f"    {name} / {OURS}: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
