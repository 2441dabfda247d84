"""Make the digit classifier with 2-bit weights: ``python make_digits.py [FOLDER]``.

``--train`` trains it anew first (a minute or two, needs scikit-learn) and writes ``digits/trained.npz``; without it the
trained weights and the held-out images are read from there, so that the model has the same bytes everywhere. The
expected outputs are plain numpy in float64.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import ml_dtypes
import numpy as np
import train_digits
from example_files import write_example
from example_graphs import make_model, value
from onnx import ModelProto, helper

__all__ = ["BLOCK_SIZE", "accuracy", "float_logits", "make", "trained"]

FOLDER = Path(__file__).parent / "digits"
SIZES = (64, 128, 64, 10)
BLOCK_SIZE = 32
SEEDS = (1, 2, 3)


def trained() -> dict[str, np.ndarray]:
    """What training gave.

    Returns:
        For layer i ``codes_i`` (int8), ``scales_i`` and ``bias_i``; ``float_weights_i`` and ``float_bias_i`` of the
        same network in float32; ``images`` and ``labels``, held out; ``accuracies`` in float32 and INT2 by seed.
    """
    with np.load(FOLDER / "trained.npz") as arrays:
        return dict(arrays)


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The share of images that are classified right."""
    return float((logits.argmax(axis=1) == labels).mean())


def float_logits(arrays: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    """What the same network with float32 weights gives."""
    layers = [(arrays[f"float_weights_{i}"], arrays[f"float_bias_{i}"]) for i in range(3)]
    return _forward(images, layers)


def make(folder: Path) -> None:
    """Write the model and its data to ``folder``."""
    arrays = trained()
    layers = [(_dequantized(arrays, i), arrays[f"bias_{i}"]) for i in range(3)]
    logits = _forward(arrays["images"], layers)
    outputs = {"logits": logits.astype(np.float32), "digit": logits.argmax(axis=1)}
    write_example(folder, _model(arrays), {"image": arrays["images"]}, outputs)


def _dequantized(arrays: dict[str, np.ndarray], i: int) -> np.ndarray:
    scales = np.repeat(arrays[f"scales_{i}"], BLOCK_SIZE, axis=0)
    return arrays[f"codes_{i}"].astype(np.float64) * scales


def _forward(images: np.ndarray, layers: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    values = images.reshape(len(images), -1) / 16
    for i, (weights, bias) in enumerate(layers):
        values = values @ weights.astype(np.float64) + bias
        values = np.maximum(values, 0) if i < len(layers) - 1 else values
    return values


def _model(arrays: dict[str, np.ndarray]) -> ModelProto:
    nodes = [
        helper.make_node("CastLike", ["image", "sixteenth"], ["as_float"], name="to_float"),
        helper.make_node("Mul", ["as_float", "sixteenth"], ["scaled"], name="scale"),
        helper.make_node("Flatten", ["scaled"], ["hidden_0"], name="flatten"),
    ]
    initializers = {"sixteenth": np.array(1 / 16, np.float32)}
    for i in range(3):
        initializers[f"weights_{i}"] = arrays[f"codes_{i}"].astype(ml_dtypes.int2)
        initializers[f"scales_{i}"] = arrays[f"scales_{i}"]
        initializers[f"bias_{i}"] = arrays[f"bias_{i}"]
        result = f"sum_{i}" if i < 2 else "logits"
        nodes += [
            helper.make_node(
                "DequantizeLinear",
                [f"weights_{i}", f"scales_{i}"],
                [f"dequantized_{i}"],
                name=f"dequantize_{i}",
                axis=0,
                block_size=BLOCK_SIZE,
            ),
            helper.make_node("MatMul", [f"hidden_{i}", f"dequantized_{i}"], [f"product_{i}"], name=f"matmul_{i}"),
            helper.make_node("Add", [f"product_{i}", f"bias_{i}"], [result], name=f"add_{i}"),
        ]
        if i < 2:
            nodes.append(helper.make_node("Relu", [result], [f"hidden_{i + 1}"], name=f"relu_{i}"))
    nodes.append(helper.make_node("ArgMax", ["logits"], ["digit"], name="argmax", axis=1, keepdims=0))
    return make_model(
        "digits",
        nodes,
        [value("image", "UINT8", ["batch", 8, 8])],
        [value("logits", "FLOAT", ["batch", 10]), value("digit", "INT64", ["batch"])],
        initializers,
    )


def _network(seed: int, block_size: int | None, digits: train_digits.Digits) -> list[train_digits.Layer]:
    random = np.random.default_rng(seed)
    layers = [
        train_digits.Layer(random, rows, columns, block_size=block_size) for rows, columns in itertools.pairwise(SIZES)
    ]
    first, second, third = layers
    train_digits.train([first, train_digits.Activation(), second, train_digits.Activation(), third], digits, random)
    return layers


def train() -> None:
    """Train three networks with 2-bit weights and three with float32 ones, and keep the pair in the middle."""
    digits = train_digits.load_digits()
    images, labels = digits.held_out_images, digits.held_out_labels
    pairs, accuracies = [], []
    for seed in SEEDS:
        pair = (_network(seed, None, digits), _network(seed, BLOCK_SIZE, digits))
        pairs.append(pair)
        accuracies.append(
            [accuracy(_forward(images, [(layer.weights, layer.bias) for layer in layers]), labels) for layers in pair]
        )
        print(f"seed {seed}: float32 {accuracies[-1][0]:.1%}, INT2 {accuracies[-1][1]:.1%} of held-out images right")
    middle = sorted(range(len(SEEDS)), key=lambda index: accuracies[index][1])[len(SEEDS) // 2]
    if accuracies[middle][1] < accuracies[middle][0] - 0.02:
        raise SystemExit("the network with 2-bit weights is more than 2 points worse; nothing is written")
    arrays = {"images": images, "labels": labels, "accuracies": np.array(accuracies)}
    for i, (exact, coarse) in enumerate(zip(*pairs[middle], strict=True)):
        arrays |= {f"float_weights_{i}": exact.weights, f"float_bias_{i}": exact.bias}
        arrays |= {f"codes_{i}": coarse.codes.astype(np.int8), f"scales_{i}": coarse.scales, f"bias_{i}": coarse.bias}
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / "trained.npz", **arrays)


if __name__ == "__main__":
    train_digits.command(__doc__, FOLDER, train, make)
