"""What matrix products with INT2 weights cost: rewritten, as the runtime's own int2, and in float32.

Usage: ``python benchmarks/weights.py [ROUNDS]``. The weights are those of a quantizer: DequantizeLinear of a constant,
straight into a MatMul, by way of a Transpose, or into a Gemm. All sessions have one thread and the runtime's own
accuracy level, save where it is said.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from _report import main
from _sessions import bound, plain_options
from _timing import Call, Figure, Spread, Table, take_turns
from onnx import TensorProto, helper, numpy_helper

import ort_castlike

SIZE = 2048
OURS, NATIVE, FLOAT = "rewritten", "native int2", "float32"
ALONE, BARE = "rewritten before, in a file", "rewritten before, onnxruntime alone"
FORMS = ("MatMul", "Transpose, MatMul", "Gemm with transB", "MatMul, a scale per column")
LAYERS, WIDE = 4, 4096  # of the model whose memory is measured
MIB = 1 << 20


class Layer:
    """A matrix of INT2 weights in blocks along its depth, and models of its product with float rows."""

    def __init__(self, depth: int, columns: int, block: int, form: str = "MatMul", seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.form, self.depth, self.columns = form, depth, columns
        self.block = 0 if form == "MatMul, a scale per column" else block
        self.codes = rng.integers(-2, 2, (depth, columns)).astype(np.int8)
        blocks = -(-depth // block) if self.block else 1
        self.scales = (rng.random((blocks, columns)) * 0.1 + 0.01).astype(np.float32)

    def matrix(self) -> np.ndarray:
        """The weights as numbers."""
        spread = np.repeat(self.scales, self.block or self.depth, axis=0)[: self.depth]
        return self.codes * spread

    def parts(self, x: str, y: str, quantized: bool) -> tuple[list[onnx.NodeProto], list[TensorProto]]:
        """Nodes and constants of the product, with INT2 weights or with the same in float32."""
        turned = self.form in ("Transpose, MatMul", "Gemm with transB")
        weights = f"{y}_weights"
        if quantized:
            codes = self.codes.T if turned else self.codes
            scales = (self.scales.T if turned else self.scales) if self.block else self.scales[0]
            shifted = (codes.reshape(-1, 4) & 3).astype(np.uint8) << np.arange(0, 8, 2, dtype=np.uint8)
            packed = np.bitwise_or.reduce(shifted, axis=1)
            inputs = [f"{y}_codes", f"{y}_scales"]
            constants = [
                helper.make_tensor(inputs[0], TensorProto.INT2, codes.shape, packed.tobytes(), raw=True),
                numpy_helper.from_array(np.ascontiguousarray(scales), inputs[1]),
            ]
            axis = int(turned) if self.block else int(not turned)
            attributes = {"block_size": self.block} if self.block else {}
            nodes = [helper.make_node("DequantizeLinear", inputs, [weights], axis=axis, **attributes)]
        else:
            matrix = self.matrix().astype(np.float32)
            constants = [numpy_helper.from_array(np.ascontiguousarray(matrix.T if turned else matrix), weights)]
            nodes = []
        if self.form == "Transpose, MatMul":
            nodes.append(helper.make_node("Transpose", [weights], [f"{y}_turned"], perm=[1, 0]))
            weights = f"{y}_turned"
        if self.form == "Gemm with transB":
            nodes.append(helper.make_node("Gemm", [x, weights], [y], transB=1))
        else:
            nodes.append(helper.make_node("MatMul", [x, weights], [y]))
        return nodes, constants

    def model(self, *, quantized: bool = True) -> onnx.ModelProto:
        """The product alone."""
        return model_of(*self.parts("x", "y", quantized), self.depth, self.columns, quantized)

    def calls(self, rows: int) -> dict[str, Call]:
        """A call for each contestant that this release runs."""
        x = np.random.default_rng(1).standard_normal((rows, self.depth)).astype(np.float32)
        found = {}
        for name, model in (
            (OURS, ort_castlike.rewrite(self.model())),
            (NATIVE, self.model()),
            (FLOAT, self.model(quantized=False)),
        ):
            call = call_if_it_runs(model, x)
            if call is not None:
                found[name] = call
        return found


def model_of(
    nodes: list[onnx.NodeProto], constants: list[TensorProto], depth: int, columns: int, quantized: bool
) -> onnx.ModelProto:
    """A model from rows ``x`` to rows ``y``."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", depth])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])
    graph = helper.make_graph(nodes, "product", [x], [y], constants)
    opset, ir_version = (25, 13) if quantized else (21, 10)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def call_if_it_runs(model: onnx.ModelProto, x: np.ndarray) -> Call | None:
    """A call that runs a model; None where this release refuses it."""
    try:
        return bound(model.SerializeToString(), x, plain_options())
    except Exception:  # onnxruntime has an exception for each kind of refusal, and no root for them
        return None


HEADLINES = {
    ("MatMul", 32, 1, FLOAT): "INT2 weights in blocks of 32, one row: {} times as fast as float32 weights.",
    (
        "MatMul",
        32,
        1,
        NATIVE,
    ): "INT2 weights in blocks of 32, one row: {} times as fast as stock's own product of them.",
    (
        "MatMul",
        128,
        1,
        NATIVE,
    ): "INT2 weights in blocks of 128, one row: {} times as fast as stock's, which reads half the bytes.",
}


def products(rounds: int) -> Table:
    """Each form at batch 1 and 64."""
    table = Table(
        f"2-bit weights, {SIZE} x {SIZE}",
        "One thread. The rewrite packs INT2 constants in INT4 and lays them out so that the runtime fuses them into "
        "its 4-bit product, which quantizes activations to 8 bits unless the session option "
        "`session.qdq_matmulnbits_accuracy_level` says otherwise.",
        columns=["form", "block", "rows", "contestant", "ms"],
    )
    newest = onnxruntime.__version__.startswith("1.32")
    for form in FORMS:
        for block in (32, 128) if form == "MatMul" else (32,):
            for rows in (1, 64):
                layer = Layer(SIZE, SIZE, block, form)
                times = take_turns(layer.calls(rows), rounds)
                shown = str(layer.block or "none")
                table.rows += [[form, shown, str(rows), name, str(times.spread(name, 1e3))] for name in times]
                label = f"{form}, block {shown}, {rows} row{'s' * (rows > 1)}"
                if NATIVE in times:
                    aim = (1.0 if rows == 1 else 1.5) if newest and form == "MatMul" else None
                    # The runtime's 2-bit product is the better one for blocks of 64 and 128, where it is right.
                    guard = None if block == 32 else {1: 0.5, 64: 0.9}[rows]
                    ratio = times.ratio(NATIVE, OURS)
                    headline = HEADLINES.get((form, block, rows, NATIVE), "")
                    table.figures.append(
                        Figure(f"{label}: {NATIVE} / {OURS}", ratio, aim, guard=guard, headline=headline)
                    )
                aim = 2.0 if rows == 1 else None
                headline = HEADLINES.get((form, block, rows, FLOAT), "")
                table.figures.append(
                    Figure(f"{label}: {FLOAT} / {OURS}", times.ratio(FLOAT, OURS), aim, headline=headline)
                )
    return table


def fusion() -> Table:
    """What onnxruntime makes of the rewritten products."""
    table = Table(
        "2-bit weights, fused or not",
        "The operators that are left of a rewritten product once onnxruntime has optimized it. It fuses blocks "
        "of 16 and larger powers of two; a computed scale or another use of the weights keeps it from doing so.",
        columns=["form", "depth", "block", "what runs"],
    )
    cases = [(form, 256, 32) for form in FORMS]
    cases += [("MatMul", 256, 16), ("MatMul", 256, 512), ("MatMul", 96, 24), ("MatMul", 256, 8), ("MatMul", 8, 32)]
    for form, depth, block in cases:
        layer = Layer(depth, 64, block, form)
        operators = operators_of(ort_castlike.rewrite(layer.model()))
        table.rows.append([form, str(depth), str(layer.block or "none"), ", ".join(operators)])
    return table


def operators_of(model: onnx.ModelProto) -> list[str]:
    """The operators of an optimized model."""
    options = plain_options()
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node]


def errors() -> Table:
    """How far the products are from the written arithmetic."""
    table = Table(
        "2-bit weights, right or wrong",
        "The largest error of a product with weights of 256 x N in blocks of 32, as a part of the largest result, "
        "without quantized activations (accuracy level 0) and with (4).",
        columns=["N", "rewritten, level 0", "rewritten, level 4", "native int2, level 0", "native int2, level 4"],
    )
    for columns in (64, 65, 66, 67):
        layer = Layer(256, columns, 32)
        x = np.random.default_rng(1).standard_normal((3, 256)).astype(np.float32)
        expected = x.astype(np.float64) @ layer.matrix().astype(np.float64)
        cells = [str(columns)]
        for model in (ort_castlike.rewrite(layer.model()), layer.model()):
            cells += [error_text(model, level, x, expected) for level in ("0", "4")]
        table.rows.append(cells)
    return table


def error_text(model: onnx.ModelProto, level: str, x: np.ndarray, expected: np.ndarray) -> str:
    """The error of one model."""
    options = plain_options()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        (y,) = session.run(None, {"x": x})
    except Exception:  # as above
        return "does not run"
    return f"{np.abs(y - expected).max() / np.abs(expected).max():.1e}"


def memory() -> Table:
    """What a session of some layers holds."""
    table = Table(
        f"Memory of a session with {LAYERS} layers of {WIDE} x {WIDE}",
        "Growth of the process from before the model is loaded to after the first run, and at its highest, in fresh "
        "processes. INT2 weights are held in INT4, at half a byte each, with 8 MiB of scales; onnxruntime makes of "
        "both the packed form of its 4-bit product, 48 MiB. The first model was rewritten in the process.",
        columns=["contestant", "weights, MiB", "kept, MiB", "highest, MiB"],
    )
    if not Path("/proc/self/status").exists():
        return table
    kept = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: str(Path(folder) / f"{name}.onnx") for name in (OURS, ALONE, FLOAT)}
        for name in (OURS, FLOAT):
            onnx.save(stack(quantized=name == OURS), paths[name])
        ort_castlike.rewrite_file(paths[OURS], paths[ALONE])
        paths = {OURS: paths[OURS], ALONE: paths[ALONE], BARE: paths[ALONE], FLOAT: paths[FLOAT]}
        for name, path in paths.items():
            command = [sys.executable, __file__, "--memory", name, path]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            kept[name], highest = json.loads(done.stdout.splitlines()[-1])
            size = LAYERS * WIDE * WIDE * (8 if name == FLOAT else 1) // 2
            table.rows.append([name, f"{size // MIB}", f"{kept[name] // MIB}", f"{highest // MIB}"])
    for name, aim in ((ALONE, 1.1), (BARE, 0.75), (FLOAT, 0.4)):
        ratio = Spread.of([kept[OURS] / kept[name]])
        table.figures.append(Figure(f"memory kept: {OURS} / {name}", ratio, aim, at_least=False))
    data = LAYERS * WIDE * WIDE * 5 // 8  # half a byte a code, and a float for 32 of them
    headline = "A session keeps {} times the bytes of its packed weights and scales in memory."
    guard = None if onnxruntime.__version__.startswith("1.32") else 2.5  # an arena of half the size again stays there
    table.figures.append(Figure("memory kept: rewritten / its weights and scales", Spread.of([kept[OURS] / data]), 1.5,
                                at_least=False, guard=guard, headline=headline))  # fmt: skip
    return table


def stack(*, quantized: bool) -> onnx.ModelProto:
    """The model whose memory is measured."""
    nodes, constants = [], []
    for index in range(LAYERS):
        source, result = "x" if index == 0 else f"y{index - 1}", "y" if index == LAYERS - 1 else f"y{index}"
        parts = Layer(WIDE, WIDE, 32, seed=index).parts(source, result, quantized)
        nodes += parts[0]
        constants += parts[1]
    return model_of(nodes, constants, WIDE, WIDE, quantized)


def resident(field: str) -> int:
    """A number of bytes from /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def held(contestant: str, path: str) -> None:
    """Make a session from a file in this process, run it, and print what memory it took."""
    import onnx_ir  # noqa: F401  imports are not what is measured

    ort_castlike.InferenceSession(Layer(64, 64, 32).model(), plain_options())
    before = resident("VmRSS")
    maker = onnxruntime.InferenceSession if contestant == BARE else ort_castlike.InferenceSession
    session = maker(path, plain_options(), providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((1, WIDE), np.float32)})
    print(json.dumps([resident("VmRSS") - before, resident("VmHWM") - before]))


def measure(rounds: int) -> list[Table]:
    """All of the above."""
    return [products(rounds), fusion(), errors(), memory()]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        held(*sys.argv[2:])
    else:
        main(measure, rounds=9)
