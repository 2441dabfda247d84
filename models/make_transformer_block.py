"""Make a transformer block with ternary weights: ``python make_transformer_block.py [FOLDER]``.

The weights are -1, 0 and 1 in INT2 with one scale for each matrix; the activations that meet them go through INT4.
The graph is calls of model-local functions, whose constants are cast like the tensors that they meet, as torch's
exporter writes them. The weights are random numbers of a fixed seed. The expected outputs are plain numpy in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from example_files import write_example
from example_graphs import make_model, value
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, helper

__all__ = ["make"]

WIDTH, HEADS, HIDDEN = 64, 4, 128
HEAD = WIDTH // HEADS
EPSILON = 1e-5
LARGEST_CODE = 7
SHAPES = {
    "query": (WIDTH, WIDTH),
    "key": (WIDTH, WIDTH),
    "value": (WIDTH, WIDTH),
    "merge": (WIDTH, WIDTH),
    "up": (HIDDEN, WIDTH),
    "down": (WIDTH, HIDDEN),
}
SEED = 3
# How far from a tie a value must be when it is rounded, so that float32 and float64 round it alike.
MARGIN = 2e-5
TORCH_LIB, BITNET = "pkg.onnxscript.torch_lib", "bitnet"

Weights = dict[str, tuple[np.ndarray, np.ndarray]]


def make(folder: Path) -> None:
    """Write the model and its data to ``folder``."""
    random = np.random.default_rng(SEED)
    weights = {name: _ternary(random.normal(0, shape[1] ** -0.5, shape)) for name, shape in SHAPES.items()}
    norms = {name: random.uniform(0.5, 1.5, WIDTH).astype(np.float32) for name in ("norm_1", "norm_2")}
    x = random.normal(0, 1, (2, 7, WIDTH)).astype(np.float32)
    y, codes = _Reference(weights, norms).block(x.astype(np.float64))
    outputs = {"y": y.astype(np.float32), "codes": codes.astype(ml_dtypes.int4)}
    write_example(folder, _model(weights, norms), {"x": x}, outputs)


def _ternary(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as -1, 0 and 1, and the scale that belongs to it: the mean of the absolute values."""
    scale = np.abs(matrix).mean()
    return np.clip(np.rint(matrix / scale), -1, 1).astype(ml_dtypes.int2), np.array(scale, np.float32)


class _Reference:
    """The block in float64."""

    def __init__(self, weights: Weights, norms: dict[str, np.ndarray]) -> None:
        self._matrices = {name: codes.astype(np.float64) * scale for name, (codes, scale) in weights.items()}
        self._norms = {name: norm.astype(np.float64) for name, norm in norms.items()}

    def block(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        narrow, codes = self._narrowed(self._norm(x, "norm_1"))
        query, key, values = (self._heads(narrow @ self._matrices[name].T) for name in ("query", "key", "value"))
        scores = query @ key.swapaxes(2, 3) / np.sqrt(HEAD)
        scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=3, keepdims=True))
        mixed = shares / shares.sum(axis=3, keepdims=True) @ values
        mixed = mixed.transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + self._narrowed(mixed)[0] @ self._matrices["merge"].T
        hidden = np.maximum(self._narrowed(self._norm(x, "norm_2"))[0] @ self._matrices["up"].T, 0) ** 2
        return x + self._narrowed(hidden)[0] @ self._matrices["down"].T, codes

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPSILON) * self._norms[name]

    def _heads(self, x: np.ndarray) -> np.ndarray:
        return x.reshape(*x.shape[:2], HEADS, HEAD).transpose(0, 2, 1, 3)

    def _narrowed(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        largest = np.abs(x).max(axis=-1, keepdims=True)
        exact = x / largest * LARGEST_CODE
        codes = np.rint(exact)
        assert np.abs(np.abs(exact - codes) - 0.5).min() > MARGIN, "a value is too near to a tie: take another seed"
        return codes * largest / LARGEST_CODE, codes


def _function(
    domain: str, name: str, inputs: Sequence[str], nodes: Sequence[NodeProto], attributes: Sequence[str] = ()
) -> FunctionProto:
    """A function that gives ``result``."""
    return helper.make_function(domain, name, inputs, ["result"], nodes, [helper.make_opsetid("", 25)], attributes)


def _scalar(name: str, number: float) -> NodeProto:
    return helper.make_node("Constant", [], [name], value_float=number)


def _functions() -> list[FunctionProto]:
    alpha = helper.make_node("Constant", [], ["alpha"])
    alpha.attribute.add(name="value_float", type=AttributeProto.FLOAT, ref_attr_name="alpha")
    add = [
        alpha,
        helper.make_node("CastLike", ["alpha", "other"], ["alpha_like"]),
        helper.make_node("Mul", ["other", "alpha_like"], ["scaled"]),
        helper.make_node("Add", ["self", "scaled"], ["result"]),
    ]
    rms_norm = [
        _scalar("two", 2.0),
        helper.make_node("CastLike", ["two", "self"], ["two_like"]),
        helper.make_node("Pow", ["self", "two_like"], ["square"]),
        helper.make_node("Constant", [], ["last_axis"], value_ints=[-1]),
        helper.make_node("ReduceMean", ["square", "last_axis"], ["mean"], keepdims=1),
        _scalar("epsilon", EPSILON),
        helper.make_node("CastLike", ["epsilon", "self"], ["epsilon_like"]),
        helper.make_node("Add", ["mean", "epsilon_like"], ["shifted"]),
        helper.make_node("Sqrt", ["shifted"], ["root"]),
        helper.make_node("Div", ["self", "root"], ["normal"]),
        helper.make_node("Mul", ["normal", "weight"], ["result"]),
    ]
    heads = [
        helper.make_node("Constant", [], ["split_shape"], value_ints=[0, 0, HEADS, HEAD]),
        helper.make_node("Reshape", ["self", "split_shape"], ["split"]),
        helper.make_node("Transpose", ["split"], ["result"], perm=[0, 2, 1, 3]),
    ]
    attention = [
        helper.make_node("Shape", ["query"], ["head_size"], start=-1),
        helper.make_node("CastLike", ["head_size", "query"], ["head_size_like"]),
        helper.make_node("Sqrt", ["head_size_like"], ["divisor"]),
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "turned"], ["products"]),
        helper.make_node("Div", ["products", "divisor"], ["scores"]),
        helper.make_node("Shape", ["scores"], ["square_shape"], start=-2),
        helper.make_node("ConstantOfShape", ["square_shape"], ["ones"], value=helper.make_tensor("", 1, [1], [1.0])),
        helper.make_node("Trilu", ["ones"], ["past"], upper=0),
        helper.make_node("Cast", ["past"], ["is_past"], to=9),
        _scalar("nothing", float("-inf")),
        helper.make_node("CastLike", ["nothing", "scores"], ["nothing_like"]),
        helper.make_node("Where", ["is_past", "scores", "nothing_like"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "value"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["together"], perm=[0, 2, 1, 3]),
        helper.make_node("Constant", [], ["merged_shape"], value_ints=[0, 0, WIDTH]),
        helper.make_node("Reshape", ["together", "merged_shape"], ["result"]),
    ]
    step = [
        helper.make_node("Abs", ["self"], ["size"]),
        helper.make_node("Constant", [], ["last_axis"], value_ints=[-1]),
        helper.make_node("ReduceMax", ["size", "last_axis"], ["largest"], keepdims=1),
        _scalar("limit", float(LARGEST_CODE)),
        helper.make_node("CastLike", ["limit", "self"], ["limit_like"]),
        helper.make_node("Div", ["largest", "limit_like"], ["step"]),
    ]
    codes = [
        *step,
        helper.make_node("Div", ["self", "step"], ["scaled"]),
        helper.make_node("CastLike", ["scaled", "like"], ["result"]),
    ]
    linear = [
        *step,
        helper.make_node("CastLike", ["codes", "self"], ["whole"]),
        helper.make_node("Mul", ["whole", "step"], ["coarse"]),
        helper.make_node("CastLike", ["weight", "self"], ["wide"]),
        helper.make_node("Mul", ["wide", "scale"], ["matrix"]),
        helper.make_node("Transpose", ["matrix"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["coarse", "turned"], ["result"]),
    ]
    return [
        _function(TORCH_LIB, "aten_add", ["self", "other"], add, ["alpha"]),
        _function(TORCH_LIB, "aten_rms_norm", ["self", "weight"], rms_norm),
        _function(TORCH_LIB, "aten_split_heads", ["self"], heads),
        _function(TORCH_LIB, "aten_scaled_dot_product_attention", ["query", "key", "value"], attention),
        _function(BITNET, "codes", ["self", "like"], codes),
        _function(BITNET, "linear", ["self", "codes", "weight", "scale"], linear),
    ]


def _call(domain: str, name: str, inputs: Sequence[str], output: str, **attributes: float) -> NodeProto:
    return helper.make_node(name, inputs, [output], name=f"node_{output}", domain=domain, **attributes)


def _linear(name: str, source: str, codes: str, output: str) -> NodeProto:
    return _call(BITNET, "linear", [source, codes, f"{name}.weight", f"{name}.scale"], output)


def _model(weights: Weights, norms: dict[str, np.ndarray]) -> ModelProto:
    nodes = [
        _call(TORCH_LIB, "aten_rms_norm", ["x", "norm_1.weight"], "normal_1"),
        _call(BITNET, "codes", ["normal_1", "like_int4"], "codes"),
    ]
    for name in ("query", "key", "value"):
        nodes.append(_linear(name, "normal_1", "codes", f"{name}_flat"))
        nodes.append(_call(TORCH_LIB, "aten_split_heads", [f"{name}_flat"], name))
    nodes += [
        _call(TORCH_LIB, "aten_scaled_dot_product_attention", ["query", "key", "value"], "mixed"),
        _call(BITNET, "codes", ["mixed", "like_int4"], "mixed_codes"),
        _linear("merge", "mixed", "mixed_codes", "attended"),
        _call(TORCH_LIB, "aten_add", ["x", "attended"], "middle", alpha=1.0),
        _call(TORCH_LIB, "aten_rms_norm", ["middle", "norm_2.weight"], "normal_2"),
        _call(BITNET, "codes", ["normal_2", "like_int4"], "normal_codes"),
        _linear("up", "normal_2", "normal_codes", "wide"),
        helper.make_node("Relu", ["wide"], ["positive"], name="node_relu"),
        helper.make_node("Mul", ["positive", "positive"], ["hidden"], name="node_square"),
        _call(BITNET, "codes", ["hidden", "like_int4"], "hidden_codes"),
        _linear("down", "hidden", "hidden_codes", "changed"),
        _call(TORCH_LIB, "aten_add", ["middle", "changed"], "y", alpha=1.0),
    ]
    initializers = {"like_int4": np.zeros(1, ml_dtypes.int4)}
    for name, (codes, scale) in weights.items():
        initializers |= {f"{name}.weight": codes, f"{name}.scale": scale}
    initializers |= {f"{name}.weight": norm for name, norm in norms.items()}
    shape = ["batch", "sequence", WIDTH]
    return make_model(
        "transformer_block",
        nodes,
        [value("x", "FLOAT", shape)],
        [value("y", "FLOAT", shape), value("codes", "INT4", shape)],
        initializers,
        functions=_functions(),
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "transformer_block")
