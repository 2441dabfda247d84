"""Random graphs over the operators with rules, against an interpreter of a page: they must agree to the bit.

Values are float64 arrays with the name of their element type; every value of every type here is a float64.
"""

from __future__ import annotations

import dataclasses
import random

import graphs
import numpy as np
import onnx
import pytest
from graphs import DTYPES, assert_same, function, graph, model, node, tensor, untyped, value
from onnx import TensorProto

GRAPHS = 200
SMALL_INTEGERS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4}
WIDE_INTEGERS = {"INT8": 8, "UINT8": 8, "INT32": 32}
TYPES = ("FLOAT", "FLOAT16", "BOOL", "FLOAT4E2M1", *SMALL_INTEGERS, *WIDE_INTEGERS)
EMULATED = ("FLOAT4E2M1", *SMALL_INTEGERS)
NUMPY = {
    "FLOAT": np.float32,
    "FLOAT16": np.float16,
    "BOOL": np.bool_,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    **DTYPES,
}
FLOAT4_GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


# What the operators compute


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """A cast, by arithmetic of its own."""
    if dtype in ("FLOAT", "FLOAT16"):
        return values
    if dtype == "BOOL":
        return (values != 0).astype(np.float64)
    if dtype == "FLOAT4E2M1":
        distance = np.abs(np.abs(values)[..., None] - FLOAT4_GRID)
        # Of two that are as near, the one with the even mantissa: the even position in the grid.
        nearest = np.argmin(distance + 1e-6 * (np.arange(8) % 2), axis=-1)
        return np.copysign(FLOAT4_GRID[nearest], values)
    if dtype in SMALL_INTEGERS:
        return wrap(np.rint(values), SMALL_INTEGERS[dtype], dtype)
    return wrap(np.trunc(values), WIDE_INTEGERS[dtype], dtype)


def wrap(values: np.ndarray, bits: int, dtype: str) -> np.ndarray:
    codes = values.astype(np.int64) % (1 << bits)
    signed = np.where(codes >= 1 << (bits - 1), codes - (1 << bits), codes)
    return (codes if dtype.startswith("U") else signed).astype(np.float64)


def quantize(values: np.ndarray, dtype: str) -> np.ndarray:
    """With a scale of 0.5 and a zero point of 1, into the range of the type."""
    bits = SMALL_INTEGERS[dtype]
    low, high = (0, 2**bits - 1) if dtype.startswith("U") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return np.clip(np.rint(values / 0.5) + 1, low, high)


def is_defined(source: str, target: str) -> bool:
    """Whether ONNX defines the cast for every value: no float to an integer that may not hold it."""
    if target in WIDE_INTEGERS:
        return source not in ("FLOAT", "FLOAT16") and not (source == "FLOAT4E2M1" and target == "UINT8")
    return True


# Chains of elementwise steps


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a chain: its kind, and the element type that it gives."""

    kind: str
    dtype: str


def random_chain(rng: random.Random, dtype: str, length: int, last: str | None = None) -> list[Step]:
    """Steps from a value of ``dtype`` on; ``last`` is the type that the chain must end in."""
    steps = []
    for _ in range(length):
        if dtype == "FLOAT" and rng.random() < 0.4:
            steps.append(Step("quantize", rng.choice(sorted(SMALL_INTEGERS))))
        elif dtype in SMALL_INTEGERS and rng.random() < 0.4:
            steps.append(Step("dequantize", "FLOAT"))
        else:
            targets = [target for target in TYPES if is_defined(dtype, target)]
            target = rng.choice(targets if rng.random() < 0.4 else [t for t in targets if t in EMULATED])
            steps.append(Step(rng.choice(("Cast", "CastLike", "Identity")), target))
            if steps[-1].kind == "Identity":
                steps[-1] = Step("Identity", dtype)
        dtype = steps[-1].dtype
    if last is not None and dtype != last:
        steps.append(Step("Cast", last))
    return steps


def evaluate(steps: list[Step], values: np.ndarray, dtype: str) -> np.ndarray:
    for step in steps:
        if step.kind == "quantize":
            values = quantize(values, step.dtype)
        elif step.kind == "dequantize":
            values = (values - 1) * 0.5
        elif step.dtype != dtype:
            values = narrow(values, step.dtype)
        dtype = step.dtype
    return values


class Builder:
    """A random graph with the values that it must give."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.count = 0
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.functions: list[onnx.FunctionProto] = []
        self.feeds: dict[str, np.ndarray] = {}
        self.values: dict[str, tuple[str, np.ndarray]] = {}

    def name(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def constant(self, stem: str, values: object, dtype: str) -> str:
        name = f"{stem}_{dtype}"
        self.initializers.setdefault(name, tensor(name, values, NUMPY[dtype]))
        return name

    def add_input(self) -> None:
        name, dtype = self.name("input"), self.rng.choice(TYPES)
        shape = [self.rng.randint(1, 3) for _ in range(self.rng.randint(1, 3))]
        drawn = np.array([self.rng.randint(-14, 14) / 4 for _ in range(int(np.prod(shape)))]).reshape(shape)
        drawn = narrow(np.trunc(drawn) if dtype in WIDE_INTEGERS else drawn, dtype)
        self.feeds[name] = drawn.astype(np.int8 if dtype in SMALL_INTEGERS else np.float32).astype(NUMPY[dtype])
        self.inputs.append(value(name, dtype, shape))
        self.values[name] = (dtype, drawn)

    def emit(self, steps: list[Step], source: str, dtype: str, *, constants: bool = True) -> tuple[list, str]:
        """The nodes of a chain, and the name of what they give. In functions, constants are nodes."""
        nodes: list[onnx.NodeProto] = []

        def constant(stem: str, values: object, kind: str) -> str:
            if constants:
                return self.constant(stem, values, kind)
            name = self.name(stem)
            nodes.append(node("Constant", [], [name], value=tensor(name, values, NUMPY[kind])))
            return name

        for step in steps:
            result = self.name()
            if step.kind in ("quantize", "dequantize"):
                op_type = "QuantizeLinear" if step.kind == "quantize" else "DequantizeLinear"
                zero_type = step.dtype if step.kind == "quantize" else dtype
                operands = [source, constant("scale", 0.5, "FLOAT"), constant("one", 1, zero_type)]
                nodes.append(node(op_type, operands, [result]))
            elif step.kind == "CastLike":
                nodes.append(node("CastLike", [source, constant("like", [0, 1], step.dtype)], [result]))
            elif step.kind == "Cast":
                nodes.append(node("Cast", [source], [result], to=TensorProto.DataType.Value(step.dtype)))
            else:
                nodes.append(node("Identity", [source], [result]))
            source, dtype = result, step.dtype
        return nodes, source

    def pick(self) -> tuple[str, str, np.ndarray]:
        name = self.rng.choice(sorted(self.values))
        return (name, *self.values[name])

    def grow(self) -> None:
        """Add one piece that uses a value there is."""
        piece = self.rng.choice(
            (self.chain, self.chain, self.move, self.move, self.branch, self.loop, self.scan, self.call)
        )
        piece(*self.pick())

    def chain(self, source: str, dtype: str, values: np.ndarray) -> None:
        steps = random_chain(self.rng, dtype, 3)
        nodes, result = self.emit(steps, source, dtype)
        self.nodes += nodes
        self.values[result] = (steps[-1].dtype, evaluate(steps, values, dtype))

    def move(self, source: str, dtype: str, values: np.ndarray) -> None:
        result, rank = self.name(), values.ndim
        kind = self.rng.choice(("Transpose", "Reshape", "Unsqueeze", "Flatten", "Pad"))
        if kind == "Transpose":
            order = self.rng.sample(range(rank), rank)
            self.nodes.append(node(kind, [source], [result], perm=order))
            values = values.transpose(order)
        elif kind == "Flatten":
            self.nodes.append(node(kind, [source], [result], axis=1))
            values = values.reshape(values.shape[0], -1)
        elif kind == "Pad" and dtype != "BOOL":
            pads = self.constant(f"pads{rank}", [1] * rank + [0] * rank, "INT64")
            self.nodes.append(node(kind, [source, pads, self.constant("one", 1, dtype)], [result]))
            values = np.pad(values, [(1, 0)] * rank, constant_values=1)
        elif kind == "Unsqueeze":
            self.nodes.append(node(kind, [source, self.constant("first", [0], "INT64")], [result]))
            values = values[None]
        else:
            self.nodes.append(node("Reshape", [source, self.constant("flat", [-1], "INT64")], [result]))
            values = values.reshape(-1)
        self.values[result] = (dtype, values)

    def branch(self, source: str, dtype: str, values: np.ndarray) -> None:
        gives, chosen = self.rng.choice(EMULATED), self.rng.random() < 0.5
        condition, result = self.name("condition"), self.name()
        self.inputs.append(value(condition, "BOOL", []))
        self.feeds[condition] = np.array(chosen)
        bodies, outcomes = {}, {}
        for attribute in ("then_branch", "else_branch"):
            steps = random_chain(self.rng, dtype, self.rng.randint(0, 3), gives) or [Step("Identity", dtype)]
            nodes, last = self.emit(steps, source, dtype)
            bodies[attribute] = graph(nodes, attribute, [], [untyped(last)])
            outcomes[attribute] = evaluate(steps, values, dtype)
        self.nodes.append(node("If", [condition], [result], **bodies))
        self.values[result] = (gives, outcomes["then_branch" if chosen else "else_branch"])

    def loop(self, source: str, dtype: str, values: np.ndarray) -> None:
        steps = random_chain(self.rng, dtype, self.rng.randint(1, 3))
        if not is_defined(steps[-1].dtype, dtype):
            return
        steps = [*steps, Step("Cast", dtype)] if steps[-1].dtype != dtype else steps
        i, go, go_out, state = (self.name(stem) for stem in ("i", "go", "go", "state"))
        nodes, last = self.emit(steps, state, dtype)
        # A model without emulated types goes to the runtime as it is, which wants these types.
        is_touched = any(kind in EMULATED for kind in (dtype, *(step.dtype for step in steps)))
        formals = [untyped(i), untyped(go)] if is_touched else [value(i, "INT64", []), value(go, "BOOL", [])]
        body = graph(
            [*nodes, node("Identity", [go], [go_out])],
            "body",
            [*formals, untyped(state)],
            [untyped(go_out), untyped(last), untyped(state)],
        )
        result, scanned = self.name(), self.name()
        self.nodes.append(node("Loop", [self.constant("times", 2, "INT64"), "", source], [result, scanned], body=body))
        once = evaluate(steps, values, dtype)
        self.values[result] = (dtype, evaluate(steps, once, dtype))
        self.values[scanned] = (dtype, np.stack([values, once]))

    def scan(self, source: str, dtype: str, values: np.ndarray) -> None:
        steps = random_chain(self.rng, dtype, self.rng.randint(1, 3))
        element = self.name("element")
        nodes, last = self.emit(steps, element, dtype)
        body = graph(
            nodes, "body", [value(element, dtype, values.shape[1:])], [value(last, steps[-1].dtype, values.shape[1:])]
        )
        result = self.name()
        self.nodes.append(node("Scan", [source], [result], body=body, num_scan_inputs=1))
        self.values[result] = (steps[-1].dtype, evaluate(steps, values, dtype))

    def call(self, source: str, dtype: str, values: np.ndarray) -> None:
        steps = random_chain(self.rng, dtype, 2)
        target = self.rng.choice([t for t in TYPES if is_defined(steps[-1].dtype, t)])
        nodes, last = self.emit(steps, "x", dtype, constants=False)
        nodes.append(node("CastLike", [last, "like"], ["y"]))
        name, result = self.name("Function"), self.name()
        self.functions.append(function(name, ["x", "like"], ["y"], nodes))
        self.nodes.append(node(name, [source, self.constant("like", [0, 1], target)], [result], domain="local"))
        out = evaluate([*steps, Step("Cast", target)], values, dtype)
        self.values[result] = (target, out)

    def build(self) -> onnx.ModelProto:
        names = [name for name in self.values if name not in self.feeds]
        outputs = [value(name, self.values[name][0], list(self.values[name][1].shape)) for name in names]
        return model(self.nodes, self.inputs, outputs, list(self.initializers.values()), functions=self.functions)

    def expected(self) -> list[np.ndarray]:
        return [
            values.astype(np.int64 if dtype in (*SMALL_INTEGERS, *WIDE_INTEGERS) else np.float32)
            .astype(np.int8 if dtype in SMALL_INTEGERS else NUMPY[dtype])
            .astype(NUMPY[dtype])
            for name, (dtype, values) in self.values.items()
            if name not in self.feeds
        ]


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_random_graph_gives_what_the_interpreter_gives(seed):
    builder = Builder(seed)
    for _ in range(2):
        builder.add_input()
    for _ in range(builder.rng.randint(3, 8)):
        builder.grow()
    built = builder.build()
    onnx.checker.check_model(built)
    expected = builder.expected()
    for lowering in ("custom", "standard"):
        assert_same(graphs.run(built, builder.feeds, lowering=lowering), expected)
