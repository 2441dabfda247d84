"""What a 2-bit MatMulNBits layer costs: as stock onnxruntime runs it, and as the 4-bit layer that it is rewritten to.

Usage: ``python benchmarks/matmul_nbits.py [--rounds N] [--threads N] [--size N] [--block N] [--table]``. The layer is
2048 x 2048 in blocks of 128. Contestants get OrtValues that exist already. The aim is 8 times the speed at one row for
zero points of 1.5, and 20 times for packed ones in float32. ``mlas.use_lut_gemm`` is a session option of newer
releases, off by default, for 2-bit layers.

``--table`` prints the row for the installed release in the rewriter's table of targets.
"""

from __future__ import annotations

import argparse
import statistics
from importlib.metadata import version

import numpy as np
import onnx
import onnxruntime
from _report import machine
from _timing import Call, Figure, Spread, Table, take_turns
from onnx import TensorProto, helper

import ort_castlike

# The zero points of the layer: the form as the table of targets names it, and one value for all blocks.
FORMS: dict[str, tuple[str, float | None]] = {
    "none": ("none", None),
    "packed": ("packed", None),
    "floats, 1.5": ("floats", 1.5),
    "floats, 1.37": ("other_floats", 1.37),
}
HEADLINES = {
    ("packed", 0, 1): "2-bit MatMulNBits, packed zero points, level 0, one row: {} times as fast with 4 bits.",
    ("floats, 1.5", 4, 1): "2-bit MatMulNBits, zero points of 1.5, level 4, one row: {} times as fast with 4 bits.",
}
STOCK, OURS, TABLES = "stock, bits=2", "rewritten, bits=4", "stock, bits=2, mlas.use_lut_gemm"
ROWS = (1, 64)


def layer(size: int, block: int, form: str, accuracy_level: int, real: type = np.float32) -> onnx.ModelProto:
    """A model of one layer with random codes."""
    rng = np.random.default_rng(0)
    blocks = size // block
    tensors = {
        "B": rng.integers(0, 256, (size, blocks, block // 4), np.uint8),
        "scales": (rng.random((size, blocks)) * 0.1 + 0.01).astype(real),
    }
    kind, zero_point = FORMS[form]
    if kind == "packed":
        tensors["zero_points"] = rng.integers(0, 256, (size, -(-blocks // 4)), np.uint8)
    elif zero_point is not None:
        tensors["zero_points"] = np.full((size, blocks), zero_point, real)
    node = helper.make_node(
        "MatMulNBits", ["A", *tensors], ["Y"], domain="com.microsoft", K=size, N=size, bits=2, block_size=block,
        accuracy_level=accuracy_level,
    )  # fmt: skip
    element = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("A", element(np.dtype(real)), ["rows", size])],
        [helper.make_tensor_value_info("Y", element(np.dtype(real)), ["rows", size])],
        [helper.make_tensor(name, element(a.dtype), a.shape, a.tobytes(), raw=True) for name, a in tensors.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run_of(model: onnx.ModelProto, rows: int, threads: int, **config: str) -> Call | None:
    """A call that runs a layer on some rows; None where this release refuses to."""
    item = model.graph.input[0].type.tensor_type
    real = helper.tensor_dtype_to_np_dtype(item.elem_type)
    values = np.random.default_rng(1).standard_normal((rows, item.shape.dim[1].dim_value)).astype(real)
    return call_of(model, {"A": onnxruntime.OrtValue.ortvalue_from_numpy(values)}, threads, **config)


def call_of(model: onnx.ModelProto, feed: dict[str, object], threads: int, **config: str) -> Call | None:
    """A call that runs a model; None where this release refuses to."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run_with_ort_values(["Y"], feed)
    except Exception:  # onnxruntime has an exception for each kind of refusal, and no root for them
        return None
    return lambda: session.run_with_ort_values(["Y"], feed)


def measured(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, round by round."""
    return {name: [1e3 * second for second in times] for name, times in take_turns(calls, rounds).items()}


def contest(
    arguments: argparse.Namespace, form: str, level: int, rows: int, real: type = np.float32
) -> dict[str, list[float]]:
    """The times of those that this release runs."""
    model = layer(arguments.size, arguments.block, form, level, real)
    packed = ort_castlike.rewrite(model, weights="pack4")
    calls = {
        STOCK: run_of(model, rows, arguments.threads),
        TABLES: run_of(model, rows, arguments.threads, mlas__use_lut_gemm="1"),
        OURS: run_of(packed, rows, arguments.threads),
    }
    return measured({name: call for name, call in calls.items() if call is not None}, arguments.rounds)


def ratio_of(taken: dict[str, list[float]]) -> tuple[float, float, float] | None:
    """Stock time over ours, round by round: median, lowest, highest."""
    if STOCK not in taken:
        return None
    ratios = [stock / ours for stock, ours in zip(taken[STOCK], taken[OURS], strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def print_table(arguments: argparse.Namespace) -> None:
    """The row of the table of targets."""

    def ratio(form: str, level: int, block: int, real: type = np.float32) -> float | None:
        taken = contest(argparse.Namespace(**{**vars(arguments), "block": block}), form, level, 1, real)
        found = ratio_of(taken)
        return None if found is None else float(f"{found[0]:.2g}")

    cells = [f"{kind}={ratio(form, 0, arguments.block)}" for form, (kind, _) in FORMS.items()]
    cells.append(f"gather={ratio_of_gather(arguments)}")
    cells.append(f"float16={ratio('packed', 0, arguments.block, np.float16) is not None}")
    eights = [(block, ratio("packed", 4, block)) for block in (16, 32, 64, 128, 256)]
    cells.append(f"int8={tuple(cell for cell in eights if cell[1] is not None and cell[1] < 5)}")
    print(f"{onnxruntime.__version__}: TwoBitSlowdown({', '.join(cells)})", flush=True)


def ratio_of_gather(arguments: argparse.Namespace) -> float | None:
    """The same for a GatherBlockQuantized of one row."""
    size, block = arguments.size, arguments.block
    rng = np.random.default_rng(0)
    scales = rng.random((size, size // block)).astype(np.float32)
    node = helper.make_node(
        "GatherBlockQuantized", ["B", "rows", "scales"], ["Y"], domain="com.microsoft", bits=2, block_size=block,
        gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    data = rng.integers(0, 256, (size, size // 4), np.uint8)
    graph = helper.make_graph(
        [node],
        "table",
        [helper.make_tensor_value_info("rows", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [1, size])],
        [
            helper.make_tensor("B", TensorProto.UINT8, data.shape, data.tobytes(), raw=True),
            helper.make_tensor("scales", TensorProto.FLOAT, scales.shape, scales.tobytes(), raw=True),
        ],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    feed = {"rows": onnxruntime.OrtValue.ortvalue_from_numpy(np.array([size // 2], np.int64))}
    calls = {}
    for name, tried in ((STOCK, model), (OURS, ort_castlike.rewrite(model, weights="pack4"))):
        call = call_of(tried, feed, arguments.threads)
        if call is not None:
            calls[name] = call
    found = ratio_of(measured(calls, arguments.rounds))
    return None if found is None else float(f"{found[0]:.2g}")


def print_all(arguments: argparse.Namespace) -> None:
    """Every form, with and without leave to quantize activations to int8 (accuracy_level=4), at each number of rows."""
    print(f"{arguments.size} x {arguments.size}, block {arguments.block}, {machine()}")
    print(f"onnxruntime {version('onnxruntime')}, {arguments.threads} thread(s), {arguments.rounds} rounds; "
          "ms: median (fastest to slowest)")  # fmt: skip
    for level in (0, 4):
        for form in FORMS:
            for rows in ROWS:
                taken = contest(arguments, form, level, rows)
                print(f"\nzero points: {form}; accuracy_level {level}; {rows} row(s)")
                for name, times in taken.items():
                    print(f"    {name:34}{statistics.median(times):8.3f} ({min(times):.3f} to {max(times):.3f})")
                ratio = ratio_of(taken)
                line = "{:.1f} ({:.1f} to {:.1f})".format(*ratio) if ratio else "this release refuses bits=2"
                print(f"    stock / rewritten: {line}", flush=True)


def measure(rounds: int) -> list[Table]:
    """The layer with packed zero points and with zero points of 1.5, as ``make bench`` shows it."""
    table = Table(
        "2-bit MatMulNBits layers, 2048 x 2048 in blocks of 128",
        'One thread; `weights="pack4"`. Level 4, which most exporters set, lets the runtime quantize activations to 8 '
        "bits; with float zero points stock computes in float32 all the same. With packed ones it has a kernel of its "
        'own there, and `weights="auto"` leaves such layers as they are.',
        columns=["zero points", "accuracy_level", "rows", "contestant", "ms"],
    )
    arguments = argparse.Namespace(rounds=rounds, threads=1, size=2048, block=128)
    # The aim, whether more is better, and what the check asks for instead.
    aims = {
        ("packed", 0): (20.0, True, None),
        ("floats, 1.5", 0): (8.0, True, 3.0),
        ("floats, 1.5", 4): (8.0, True, None),
    }
    for form in ("packed", "floats, 1.5"):
        for level in (0, 4):
            for rows in ROWS:
                taken = contest(arguments, form, level, rows)
                cells = [form, str(level), str(rows)]
                table.rows += [[*cells, name, str(Spread.of(times))] for name, times in taken.items()]
                if STOCK in taken:
                    ratio = Spread.of([stock / ours for stock, ours in zip(taken[STOCK], taken[OURS], strict=True)])
                    label = f"{form}, level {level}, {rows} row{'s' * (rows > 1)}: {STOCK} / {OURS}"
                    asked = aims.get((form, level), ()) if rows == 1 else ()
                    headline = HEADLINES.get((form, level, rows), "")
                    table.figures.append(Figure(label, ratio, *asked, headline=headline))
    return [table]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("rounds", 15), ("threads", 1), ("size", 2048), ("block", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--table", action="store_true", help="print the row of the table of targets")
    arguments = parser.parse_args()
    (print_table if arguments.table else print_all)(arguments)


if __name__ == "__main__":
    main()
