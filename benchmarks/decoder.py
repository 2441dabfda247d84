"""A language model of 2-bit layers as exporters write them: made, rewritten, and run before and after.

Usage: ``python benchmarks/decoder.py [--folder DIR] [--layers N] [--hidden N] [--tokens N] [--zero-points FORM]
[--level N]``. The decoder has random weights in MatMulNBits layers of 2 bits with external data, and around them what
exporters put there: GroupQueryAttention with rotary embeddings, SkipSimplifiedLayerNormalization,
SimplifiedLayerNormalization, a GatherBlockQuantized table that shares its codes with the last layer where the layers
have no float zero points. It generates tokens one at a time, the model as it is and the rewritten one taking turns,
and compares what they give.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ort_castlike

DATA = "model.onnx.data"


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; the defaults make about 600 MB."""

    layers: int = 16
    hidden: int = 3072
    intermediate: int = 8192
    heads: int = 24
    shared_heads: int = 8
    vocabulary: int = 32000
    block: int = 64
    longest: int = 256
    zero_points: str = "none"
    accuracy_level: int = 4

    @property
    def head_size(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads


class Maker:
    """Builds the graph; data goes to a file as it is made."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape = shape
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(0)
        self._data = (folder / DATA).open("wb")

    def make(self) -> onnx.ModelProto:
        """The model of the whole decoder."""
        shape = self.shape
        with self._data:
            self._rotary()
            # A table has no float zero points, so it cannot be the last layer's weights where that has.
            is_shared = shape.zero_points in ("none", "packed")
            codes, scales, zeros = self._weights("embedding", shape.vocabulary, shape.hidden, is_table=True)
            self.held("embedding.shape", np.array([shape.vocabulary, shape.hidden // 4], np.int64))
            self.node("Reshape", [codes, "embedding.shape"], ["embedding.codes"])
            self.node(
                "GatherBlockQuantized", ["embedding.codes", "input_ids", scales, *zeros], ["hidden.0"],
                domain="com.microsoft", bits=2, block_size=shape.block, gather_axis=0, quantize_axis=1,
            )  # fmt: skip
            self._lengths()
            normed, residual = "normed.0", "hidden.0"
            self.held("norm.0", np.ones(shape.hidden, np.float32))
            self.node("SimplifiedLayerNormalization", [residual, "norm.0"], [normed], axis=-1, epsilon=1e-6)
            for index in range(shape.layers):
                normed, residual = self._block(index, normed, residual)
            if is_shared:
                self._product("logits", normed, codes, scales, zeros, shape.vocabulary, shape.hidden)
            else:
                self.layer("logits", normed, shape.vocabulary, shape.hidden)
        return self._model()

    def _block(self, index: int, normed: str, residual: str) -> tuple[str, str]:
        shape, name = self.shape, f"layer.{index}"
        shared = shape.shared_heads * shape.head_size
        for part, size in (("q", shape.hidden), ("k", shared), ("v", shared)):
            self.layer(f"{name}.{part}", normed, size, shape.hidden)
        self.node(
            "GroupQueryAttention",
            [f"{name}.q", f"{name}.k", f"{name}.v", f"past.{index}.key", f"past.{index}.value", "seqlens_k", "total",
             "cos", "sin"],
            [f"{name}.attention", f"present.{index}.key", f"present.{index}.value"],
            domain="com.microsoft", num_heads=shape.heads, kv_num_heads=shape.shared_heads, do_rotary=1,
        )  # fmt: skip
        self.layer(f"{name}.o", f"{name}.attention", shape.hidden, shape.hidden)
        normed, residual = self._skip(f"{name}.post", residual, f"{name}.o")
        for part in ("gate", "up"):
            self.layer(f"{name}.{part}", normed, shape.intermediate, shape.hidden)
        self.node("Sigmoid", [f"{name}.gate"], [f"{name}.sigmoid"])
        self.node("Mul", [f"{name}.gate", f"{name}.sigmoid"], [f"{name}.silu"])
        self.node("Mul", [f"{name}.silu", f"{name}.up"], [f"{name}.inner"])
        self.layer(f"{name}.down", f"{name}.inner", shape.hidden, shape.intermediate)
        return self._skip(f"{name}.next", residual, f"{name}.down")

    def _skip(self, name: str, residual: str, added: str) -> tuple[str, str]:
        self.held(f"{name}.norm", np.ones(self.shape.hidden, np.float32))
        self.node(
            "SkipSimplifiedLayerNormalization", [residual, added, f"{name}.norm"],
            [f"{name}.normed", "", "", f"{name}.residual"], domain="com.microsoft", epsilon=1e-6,
        )  # fmt: skip
        return f"{name}.normed", f"{name}.residual"

    def layer(self, name: str, source: str, size: int, depth: int) -> None:
        """A 2-bit product."""
        self._product(name, source, *self._weights(name, size, depth), size, depth)

    def _product(
        self, name: str, source: str, codes: str, scales: str, zeros: list[str], size: int, depth: int
    ) -> None:
        self.node(
            "MatMulNBits", [source, codes, scales, *zeros], [name], domain="com.microsoft", K=depth, N=size, bits=2,
            block_size=self.shape.block, accuracy_level=self.shape.accuracy_level,
        )  # fmt: skip

    def _weights(self, name: str, size: int, depth: int, *, is_table: bool = False) -> tuple[str, str, list[str]]:
        blocks = depth // self.shape.block
        codes = self._rng.integers(0, 256, (size, blocks, self.shape.block // 4), np.uint8)
        self.external(f"{name}.weight", codes)
        spread = 1 / np.sqrt(depth)  # keeps what a product gives as large as what it takes
        scales = (spread * (0.8 + 0.4 * self._rng.random((size, blocks)))).astype(np.float32)
        self.external(f"{name}.scales", scales)
        has_floats = self.shape.zero_points not in ("none", "packed")
        if self.shape.zero_points == "none" or (is_table and has_floats):
            return f"{name}.weight", f"{name}.scales", []
        if self.shape.zero_points == "packed":
            zeros = self._rng.integers(0, 256, (size, -(-blocks // 4)), np.uint8)
        else:
            zeros = np.full((size, blocks), float(self.shape.zero_points), np.float32)
        self.external(f"{name}.zeros", zeros)
        return f"{name}.weight", f"{name}.scales", [f"{name}.zeros"]

    def _rotary(self) -> None:
        shape = self.shape
        rates = 10000.0 ** (-np.arange(0, shape.head_size, 2) / shape.head_size)
        angles = np.arange(shape.longest)[:, None] * rates
        self.held("cos", np.cos(angles).astype(np.float32))
        self.held("sin", np.sin(angles).astype(np.float32))

    def _lengths(self) -> None:
        """The lengths that GroupQueryAttention takes, from the attention mask, as exporters compute them."""
        self.held("axis", np.array([1], np.int64))
        self.held("one", np.array([1], np.int64))
        self.held("second", np.array(1, np.int64))
        self.node("ReduceSum", ["attention_mask", "axis"], ["ones"])
        self.node("Sub", ["ones", "one"], ["last"])
        self.node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], ["mask.shape"])
        self.node("Gather", ["mask.shape", "second"], ["mask.length"], axis=0)
        self.node("Cast", ["mask.length"], ["total"], to=TensorProto.INT32)

    def node(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: object) -> None:
        """A node."""
        self.nodes.append(helper.make_node(op_type, inputs, outputs, f"/{outputs[0]}", **attributes))

    def held(self, name: str, array: np.ndarray) -> None:
        """An initializer in the model file."""
        self.initializers.append(onnx.numpy_helper.from_array(array, name))

    def external(self, name: str, array: np.ndarray) -> None:
        """An initializer in the data file."""
        data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, data_type=data_type, dims=array.shape, data_location=TensorProto.EXTERNAL)
        place = (("location", DATA), ("offset", self._data.tell()), ("length", array.nbytes))
        for key, value in place:
            tensor.external_data.add(key=key, value=str(value))
        self._data.write(array.tobytes())
        self._data.write(bytes(-self._data.tell() % 64))
        self.initializers.append(tensor)

    def _model(self) -> onnx.ModelProto:
        shape = self.shape
        info, real = helper.make_tensor_value_info, TensorProto.FLOAT
        cache = ["batch", shape.shared_heads, None, shape.head_size]
        names = [f"{index}.{part}" for index in range(shape.layers) for part in ("key", "value")]
        inputs = [info(name, TensorProto.INT64, ["batch", None]) for name in ("input_ids", "attention_mask")]
        graph = helper.make_graph(
            self.nodes,
            "decoder",
            [*inputs, *(info(f"past.{name}", real, cache) for name in names)],
            [info("logits", real, ["batch", None, shape.vocabulary]),
             *(info(f"present.{name}", real, cache) for name in names)],
            self.initializers,
        )  # fmt: skip
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name="decoder.py")


def make(shape: Shape, folder: Path) -> Path:
    """Write the decoder into a folder and give the path of the model."""
    path = folder / "model.onnx"
    onnx.save(Maker(shape, folder).make(), path)
    return path


class Generator:
    """Greedy generation by a session, token after token."""

    def __init__(self, session: onnxruntime.InferenceSession, shape: Shape) -> None:
        self._session = session
        empty = np.zeros((1, shape.shared_heads, 0, shape.head_size), np.float32)
        self._cache = {f"past.{index}.{part}": empty for index in range(shape.layers) for part in ("key", "value")}
        self._length = 0

    def step(self, ids: list[int]) -> np.ndarray:
        """The logits behind the last of some more tokens."""
        self._length += len(ids)
        feed = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self._length), np.int64),
            **self._cache,
        }
        logits, *present = self._session.run(None, feed)
        self._cache = dict(zip(self._cache, present, strict=True))
        return logits[0, -1]


def session_of(path: Path, shape: Shape, threads: int) -> onnxruntime.InferenceSession | str:
    """A session; where this release refuses the model, what it says."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        Generator(session, shape).step([1, 2])  # some releases refuse only now
    except Exception as error:  # onnxruntime has an exception for each kind of refusal, and no root for them
        return str(error)
    return session


def compared(sessions: dict[str, onnxruntime.InferenceSession], shape: Shape, tokens: int) -> None:
    """Let the sessions take turns at generating the same tokens; print their speed and how they differ."""
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, shape.vocabulary, 16)]
    generators = {name: Generator(session, shape) for name, session in sessions.items()}
    taken: dict[str, list[float]] = {name: [] for name in sessions}
    ids, worst, agreed = prompt, 0.0, 0
    for _ in range(tokens + 1):
        given = {}
        for name, generator in generators.items():
            begin = time.perf_counter()
            given[name] = generator.step(ids)
            taken[name].append(time.perf_counter() - begin)
        reference, *others = given.values()
        for other in others:
            worst = max(worst, float(np.abs(other - reference).max() / np.abs(reference).max()))
            agreed += int(other.argmax() == reference.argmax())
        ids = [int(reference.argmax())]
    for name, seconds in taken.items():
        first, *rest = seconds
        rates = sorted(1 / second for second in rest)
        print(f"  {name}: {statistics.median(rates):.2f} tokens/s ({rates[0]:.2f} to {rates[-1]:.2f}), "
              f"prompt of {len(prompt)} in {first:.3f} s")  # fmt: skip
    if len(sessions) > 1:
        print(f"  largest difference of logits {worst:.1e} of the largest logit; {agreed} of {tokens + 1} tokens agree")


@contextlib.contextmanager
def folder_of(given: str | None) -> Iterator[Path]:
    """The folder to work in; a temporary one goes in the end."""
    if given is not None:
        os.makedirs(given, exist_ok=True)
        yield Path(given)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main() -> None:
    """Make, rewrite, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", help="where the models are made and stay; a temporary one otherwise")
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--block", type=int, default=Shape.block)
    parser.add_argument("--zero-points", default=Shape.zero_points, help="none, packed, or a number for float ones")
    parser.add_argument("--level", type=int, default=Shape.accuracy_level, help="accuracy_level of the layers")
    parser.add_argument("--weights", default="auto")
    given = parser.parse_args()
    shape = Shape(
        layers=given.layers, hidden=given.hidden, heads=given.hidden // 128, intermediate=given.hidden * 8 // 3,
        shared_heads=given.hidden // 384, block=given.block, zero_points=given.zero_points, accuracy_level=given.level,
    )  # fmt: skip
    print(f"onnxruntime {onnxruntime.__version__}, Python {platform.python_version()}")
    with folder_of(given.folder) as folder:
        path = make(shape, folder)
        print(f"{shape}: {(folder / DATA).stat().st_size / 1e6:.0f} MB of data")
        rewritten = folder / "rewritten.onnx"
        begin = time.perf_counter()
        report = ort_castlike.rewrite_file(path, rewritten, weights=given.weights)
        print(
            f"rewritten in {time.perf_counter() - begin:.1f} s: {len(report.changes)} nodes changed, {report.weights}"
        )
        sessions = {}
        for name, model in (("as it is", path), ("rewritten", rewritten)):
            session = session_of(model, shape, given.threads)
            if isinstance(session, str):
                print(f"  {name}: refused: {session[:160]}")
            else:
                sessions[name] = session
        compared(sessions, shape, given.tokens)


if __name__ == "__main__":
    main()
