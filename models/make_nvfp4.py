"""Make a feed-forward block with FLOAT4E2M1 weights, in NVFP4's form: ``python make_nvfp4.py [FOLDER]``.

The weights are random numbers of a fixed seed, with a few large ones as trained weights have them. They are quantized
here as NVFP4 says: blocks of 16 share a FLOAT8E4M3FN scale, all blocks share a float32 one. The expected outputs are
plain numpy in float64 on the dequantized weights; the activations are float16, as in the model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from example_files import write_example
from example_graphs import make_model, value
from onnx import ModelProto, NodeProto, helper

__all__ = ["make"]

WIDTH, HIDDEN = 64, 128
BLOCK_SIZE = 16
# The largest values of FLOAT4E2M1 and of FLOAT8E4M3FN.
LARGEST_CODE, LARGEST_SCALE = 6, 448


def make(folder: Path) -> None:
    """Write the model and its data to ``folder``."""
    random = np.random.default_rng(4)
    weights = {
        "up": _quantized(random, HIDDEN, WIDTH),
        "gate": _quantized(random, HIDDEN, WIDTH),
        "down": _quantized(random, WIDTH, HIDDEN),
    }
    x = random.normal(0, 1, (2, 5, WIDTH)).astype(np.float32)
    write_example(folder, _model(weights), {"x": x}, {"y": _expected(weights, x)})


def _quantized(random: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, the scale of each block and the scale of the whole, for [rows, columns] random weights."""
    weights = random.normal(0, columns**-0.5, (rows, columns))
    weights *= np.where(random.random((rows, columns)) < 0.02, 4, 1)
    blocks = weights.reshape(rows, -1, BLOCK_SIZE)
    largest = np.abs(blocks).max(axis=2)
    whole = np.array(largest.max() / (LARGEST_CODE * LARGEST_SCALE), np.float32)
    scales = (largest / (LARGEST_CODE * whole)).astype(ml_dtypes.float8_e4m3fn)
    codes = blocks / (scales.astype(np.float64) * whole)[:, :, None]
    return codes.reshape(rows, columns).astype(ml_dtypes.float4_e2m1fn), scales, whole


def _dequantized(codes: np.ndarray, scales: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """What the two DequantizeLinear and the Cast give: products in float32, rounded to float16 at the end."""
    block_scales = scales.astype(np.float32) * whole
    weights = codes.astype(np.float32) * np.repeat(block_scales, BLOCK_SIZE, axis=1)
    return weights.astype(np.float16).astype(np.float64)


def _expected(weights: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], x: np.ndarray) -> np.ndarray:
    matrices = {name: _dequantized(*parts) for name, parts in weights.items()}
    x = x.astype(np.float16).astype(np.float64)
    gate = x @ matrices["gate"].T
    hidden = gate / (1 + np.exp(-gate)) * (x @ matrices["up"].T)
    return (hidden @ matrices["down"].T).astype(np.float32)


def _linear(name: str, source: str, output: str) -> list[NodeProto]:
    """Two DequantizeLinear, an unnamed Cast, Transpose and MatMul; the names are those that the exporters give."""
    weight = f"mlp.{name}_proj.weight"
    return [
        helper.make_node(
            "DequantizeLinear",
            [f"{weight}_f8_scale", f"{weight}_f8_scale_f32_per_tensor"],
            [f"{weight}_f32_scale"],
            name=f"{weight}_DequantizeLinear",
        ),
        helper.make_node(
            "DequantizeLinear",
            [f"{weight}_f4", f"{weight}_f32_scale"],
            [f"{weight}_f32"],
            name=f"{weight}_DequantizeLinear_1",
            axis=-1,
            block_size=BLOCK_SIZE,
        ),
        helper.make_node("Cast", [f"{weight}_f32"], [f"{weight}_f16"], to=10),
        helper.make_node("Transpose", [f"{weight}_f16"], [f"{weight}_transposed"], perm=[1, 0]),
        helper.make_node("MatMul", [source, f"{weight}_transposed"], [output], name=f"/mlp/{name}_proj/MatMul"),
    ]


def _model(weights: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> ModelProto:
    nodes = [
        helper.make_node("Cast", ["x"], ["x_f16"], to=10),
        *_linear("gate", "x_f16", "gate"),
        *_linear("up", "x_f16", "up"),
        helper.make_node("Sigmoid", ["gate"], ["sigmoid"], name="/mlp/act_fn/Sigmoid"),
        helper.make_node("Mul", ["gate", "sigmoid"], ["silu"], name="/mlp/act_fn/Mul"),
        helper.make_node("Mul", ["silu", "up"], ["hidden"], name="/mlp/Mul"),
        *_linear("down", "hidden", "y_f16"),
        helper.make_node("Cast", ["y_f16"], ["y"], to=1),
    ]
    initializers, listed = {}, []
    for name, (codes, scales, whole) in weights.items():
        weight = f"mlp.{name}_proj.weight"
        initializers[f"{weight}_f4"] = codes
        initializers[f"{weight}_f8_scale"] = scales
        initializers[f"{weight}_f8_scale_f32_per_tensor"] = whole
        # The exporters list initializers as graph inputs too, with defaults.
        listed += [
            value(f"{weight}_f4", "FLOAT4E2M1", codes.shape),
            value(f"{weight}_f8_scale", "FLOAT8E4M3FN", scales.shape),
        ]
    return make_model(
        "nvfp4",
        nodes,
        [value("x", "FLOAT", ["batch", "sequence", WIDTH]), *listed],
        [value("y", "FLOAT", ["batch", "sequence", WIDTH])],
        initializers,
        opset=23,
    )


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "nvfp4")
