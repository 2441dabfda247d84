"""What memory a model with gigabytes of external data takes: to rewrite the file, and to make a session from it.

Usage: ``python benchmarks/big_model.py [GIBIBYTES] [FOLDER]``. The aim is that the memory of its own that the process
takes (RssAnon: pages of mapped files, which the system can take back, not counted) grows by less than 300 MiB for
4 GiB when a file is rewritten. The session is made without graph optimizations: what onnxruntime folds and rearranges
is its own affair, and so is the packed form that it keeps of each MatMulNBits layer beside its weights: what a session
takes without that form is this package's part. Linux only, since it reads /proc.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ROWS = 64
DEPTH = 4096  # columns of the matrices that are products
_LARGEST_TURNED = 128 << 20  # bytes of a matrix to transpose, which is mapped as a whole: 128 Ki x 4096
MIB = 1 << 20


def external(name: str, data_type: int, dims: list[int], offset: int, length: int) -> TensorProto:
    """A tensor in model.data."""
    tensor = TensorProto(name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "model.data"), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def make_model(folder: Path, gibibytes: float) -> Path:
    """A model of float weights, INT2 weights that are dequantized or reshaped, and 2-bit layers of com.microsoft."""
    total = int(gibibytes * 1024) * MIB
    pieces = [("float", 2), ("layer", 1), ("layer", 1), ("dequantized", 1), ("dequantized", 1), ("turned", 1)]
    pieces.append(("reshaped", 1))
    nodes, initializers, offset = [], [], 0
    index = helper.make_tensor_value_info("index", TensorProto.INT64, [1])
    outputs, halves = [], []
    for number, (kind, share) in enumerate(pieces):
        length = total * share // 8 // 4096 * 4096
        name = f"{kind}_{number}"
        if kind == "float":
            shape = [ROWS, length // ROWS // 4]
            initializers.append(external(name, TensorProto.FLOAT, shape, offset, length))
            source = name
        elif kind == "dequantized":
            shape = [ROWS, length // ROWS * 4]
            initializers.append(external(name, TensorProto.INT2, shape, offset, length))
            scale = helper.make_tensor(f"scale_{number}", TensorProto.FLOAT, [], [0.5])
            initializers.append(scale)
            nodes.append(helper.make_node("DequantizeLinear", [name, scale.name], [f"{name}_dq"]))
            source = f"{name}_dq"
        elif kind == "layer":
            # A MatMulNBits with 8 bytes of codes, a float16 scale and a float16 zero point of 1.5 for each block.
            blocks = length // 12 // DEPTH * DEPTH
            rows, start = blocks * 32 // DEPTH, offset
            inputs = ["x16"]
            for part, data_type, dims, size in (
                ("codes", TensorProto.UINT8, [rows, DEPTH // 32, 8], 8 * blocks),
                ("scales", TensorProto.FLOAT16, [rows, DEPTH // 32], 2 * blocks),
                ("zeros", TensorProto.FLOAT16, [rows, DEPTH // 32], 2 * blocks),
            ):
                initializers.append(external(f"{name}_{part}", data_type, dims, start, size))
                inputs.append(f"{name}_{part}")
                start += size
            halves.append((start - 2 * size, 2 * size))
            source = f"{name}_product"
            nodes.append(helper.make_node("MatMulNBits", inputs, [source], domain="com.microsoft", K=DEPTH, N=rows,
                                          bits=2, block_size=32))  # fmt: skip
        elif kind == "turned":
            length = min(length, _LARGEST_TURNED)
            shape = [length * 4 // DEPTH, DEPTH]
            initializers.append(external(name, TensorProto.INT2, shape, offset, length))
            scale = helper.make_tensor(f"scale_{number}", TensorProto.FLOAT, [], [0.5])
            initializers.append(scale)
            source = f"{name}_product"
            nodes.append(helper.make_node("DequantizeLinear", [name, scale.name], [f"{name}_dq"]))
            nodes.append(helper.make_node("Transpose", [f"{name}_dq"], [f"{name}_turned"], perm=[1, 0]))
            nodes.append(helper.make_node("MatMul", ["x", f"{name}_turned"], [source]))
        else:
            shape = [length * 4 // ROWS, ROWS]
            initializers.append(external(name, TensorProto.INT2, shape, offset, length))
            target = helper.make_tensor(f"shape_{number}", TensorProto.INT64, [2], [ROWS, -1])
            initializers.append(target)
            nodes.append(helper.make_node("Reshape", [name, target.name], [f"{name}_reshaped"]))
            source = f"{name}_reshaped"
        # One column of each is looked at.
        nodes.append(
            helper.make_node(
                "Shape" if kind != "float" else "Gather",
                [source] if kind != "float" else [source, "index"],
                [f"y_{number}"],
            )
        )
        data_type = TensorProto.FLOAT if kind == "float" else TensorProto.INT64
        outputs.append(helper.make_tensor_value_info(f"y_{number}", data_type, None))
        offset += length
    inputs = [index, *(helper.make_tensor_value_info(name, real, [1, DEPTH]) for name, real in
                       (("x", TensorProto.FLOAT), ("x16", TensorProto.FLOAT16)))]  # fmt: skip
    graph = helper.make_graph(nodes, "big", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", 25), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=13)
    block = np.random.default_rng(0).integers(0, 256, 16 * MIB, dtype=np.uint8).tobytes()
    with open(folder / "model.data", "wb") as file:
        while file.tell() < offset:
            file.write(block[: offset - file.tell()])
        for start, size in halves:
            file.seek(start)
            while file.tell() < start + size:
                file.write(np.full(min(MIB, start + size - file.tell()) // 2, 1.5, np.float16).tobytes())
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def memory() -> dict[str, int]:
    """Resident memory of this process by kind, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if line.startswith(("Rss", "VmHWM", "VmRSS")))
    return {name: int(value.split()[0]) * 1024 for name, value in fields.items()}


def measured(work: str, model: str) -> None:
    """Do one kind of work in this process and print what it took."""
    import onnx_ir  # noqa: F401  the imports are not what is measured
    import onnxruntime

    import ort_castlike

    before = memory()
    peak = dict(before)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.01):
            for name, value in memory().items():
                peak[name] = max(peak[name], value)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begin = time.perf_counter()
    if work == "rewrite_file":
        ort_castlike.rewrite_file(model, str(Path(model).with_name("rewritten.onnx")), weights="pack4")
    elif work == "rewrite_file into another folder":
        other = Path(model).parent / "other"
        other.mkdir()
        ort_castlike.rewrite_file(model, str(other / "rewritten.onnx"), weights="pack4")
    else:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if work.endswith("disable_prepacking"):
            options.add_session_config_entry("session.disable_prepacking", "1")
        ort_castlike.InferenceSession(model, options)
    seconds = time.perf_counter() - begin
    stop.set()
    watcher.join()
    growth = {name: (peak[name] - before[name]) // MIB for name in ("RssAnon", "RssFile", "VmHWM")}
    print(json.dumps({"seconds": round(seconds, 1), "peak": peak["VmHWM"] // MIB, **growth}))


def main(gibibytes: float, parent: str | None) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        model = make_model(Path(folder), gibibytes)
        print(f"{gibibytes} GiB of external data")
        for work in (
            "rewrite_file",
            "rewrite_file into another folder",
            "InferenceSession",
            "InferenceSession, disable_prepacking",
        ):
            command = [sys.executable, __file__, "--measure", work, str(model)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            result = json.loads(done.stdout.splitlines()[-1])
            print(
                f"{work}: {result['seconds']} s, growth of RssAnon {result['RssAnon']} MiB, "
                f"of RssFile {result['RssFile']} MiB, of VmHWM {result['VmHWM']} MiB to {result['peak']} MiB"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measured(*sys.argv[2:])
    else:
        main(float(sys.argv[1]) if len(sys.argv) > 1 else 4.0, sys.argv[2] if len(sys.argv) > 2 else None)
