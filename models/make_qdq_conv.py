"""Make the convolution net with 2-bit weights and 2-bit activations: ``python make_qdq_conv.py [FOLDER]``.

``--train`` trains it anew first (a minute or two, needs scikit-learn) and writes ``qdq_conv/trained.npz``; without it
the trained weights and the held-out images are read from there. All scales are powers of two and all biases multiples
of 2**-8, so no sum is ever rounded: the expected outputs, plain numpy, hold to the bit in whatever order sums are made.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import train_digits
from example_files import write_example
from example_graphs import make_model, value
from onnx import ModelProto, NodeProto, helper

__all__ = ["make", "trained"]

FOLDER = Path(__file__).parent / "qdq_conv"
STRIDES = (1, 2)
# Rows, columns and the stride of each layer's matrix.
LAYERS = ((9, 16, 1), (144, 32, 2), (512, 10, None))
ACTIVATION_SCALES = (0.25, 0.5)
SEED = 1


def trained() -> dict[str, np.ndarray]:
    """What training gave.

    Returns:
        For layer i ``codes_i`` (int8, [inputs, outputs]), ``scales_i`` and ``bias_i``; ``images`` and ``labels``, held
        out; ``accuracies`` of the same network in float32 and of this one.
    """
    with np.load(FOLDER / "trained.npz") as arrays:
        return dict(arrays)


def make(folder: Path) -> None:
    """Write the model and its data to ``folder``."""
    arrays = trained()
    features, logits = _expected(arrays)
    outputs = {
        "features": features.astype(ml_dtypes.uint2),
        "logits": logits.astype(np.float32),
        "digit": logits.argmax(axis=1),
    }
    write_example(folder, _model(arrays), {"image": arrays["images"]}, outputs)


def _expected(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    values = arrays["images"][:, None] / 16
    for i, (stride, scale) in enumerate(zip(STRIDES, ACTIVATION_SCALES, strict=True)):
        sums = train_digits.patches(values, stride) @ _dequantized(arrays, i) + arrays[f"bias_{i}"]
        codes = np.clip(np.rint(np.maximum(sums, 0) / scale), 0, 3).transpose(0, 3, 1, 2)
        values = codes * scale
    return codes, values.reshape(len(values), -1) @ _dequantized(arrays, 2) + arrays["bias_2"]


def _dequantized(arrays: dict[str, np.ndarray], i: int) -> np.ndarray:
    return arrays[f"codes_{i}"].astype(np.float64) * arrays[f"scales_{i}"]


def _layer(i: int, source: str) -> list[NodeProto]:
    """Convolution, Relu, and the pair of QuantizeLinear and DequantizeLinear that makes it 2 bits wide."""
    codes = f"codes_{i}" if i < len(STRIDES) - 1 else "features"
    conv = helper.make_node(
        "Conv",
        [source, f"weights_{i}_float", f"bias_{i}"],
        [f"sum_{i}"],
        name=f"conv_{i}",
        pads=[1, 1, 1, 1],
        strides=[STRIDES[i], STRIDES[i]],
    )
    pair = [f"activation_scale_{i}", "zero"]
    return [
        _dequantize_weights(i, axis=0),
        conv,
        helper.make_node("Relu", [f"sum_{i}"], [f"positive_{i}"], name=f"relu_{i}"),
        helper.make_node("QuantizeLinear", [f"positive_{i}", *pair], [codes], name=f"quantize_{i}"),
        helper.make_node("DequantizeLinear", [codes, *pair], [f"values_{i}"], name=f"dequantize_{i}"),
    ]


def _dequantize_weights(i: int, *, axis: int) -> NodeProto:
    inputs = [f"weights_{i}", f"scales_{i}"]
    return helper.make_node("DequantizeLinear", inputs, [f"weights_{i}_float"], name=f"weights_{i}_dq", axis=axis)


def _model(arrays: dict[str, np.ndarray]) -> ModelProto:
    nodes = [
        helper.make_node("Unsqueeze", ["image", "channel_axis"], ["pixels"], name="channel"),
        helper.make_node("DequantizeLinear", ["pixels", "sixteenth", "zero_8"], ["values"], name="pixels_dq"),
        *_layer(0, "values"),
        *_layer(1, "values_0"),
        helper.make_node("Flatten", ["values_1"], ["row"], name="flatten"),
        _dequantize_weights(2, axis=1),
        helper.make_node("Gemm", ["row", "weights_2_float", "bias_2"], ["logits"], name="gemm"),
        helper.make_node("ArgMax", ["logits"], ["digit"], name="argmax", axis=1, keepdims=0),
    ]
    initializers = {
        "channel_axis": np.array([1], np.int64),
        "sixteenth": np.array(1 / 16, np.float32),
        "zero_8": np.array(0, np.uint8),
        "zero": np.array(0, ml_dtypes.uint2),
    }
    for i, (rows, columns, stride) in enumerate(LAYERS):
        codes = arrays[f"codes_{i}"]
        if stride is not None:
            codes = np.ascontiguousarray(codes.T).reshape(columns, rows // 9, 3, 3)
        initializers[f"weights_{i}"] = codes.astype(ml_dtypes.int2)
        initializers[f"scales_{i}"] = arrays[f"scales_{i}"].reshape(-1)
        initializers[f"bias_{i}"] = arrays[f"bias_{i}"]
    for i, scale in enumerate(ACTIVATION_SCALES):
        initializers[f"activation_scale_{i}"] = np.array(scale, np.float32)
    return make_model(
        "qdq_conv",
        nodes,
        [value("image", "UINT8", ["batch", 8, 8])],
        [
            value("features", "UINT2", ["batch", 32, 4, 4]),
            value("logits", "FLOAT", ["batch", 10]),
            value("digit", "INT64", ["batch"]),
        ],
        initializers,
    )


def _network(digits: train_digits.Digits, *, narrow: bool) -> tuple[list[train_digits.Layer], float]:
    """A trained network, and how many of the held-out images it gets right."""
    random = np.random.default_rng(SEED)
    layers = [
        train_digits.Layer(
            random, rows, columns, block_size=rows if narrow else None, power_of_two=narrow, stride=stride
        )
        for rows, columns, stride in LAYERS
    ]
    activations = [train_digits.Activation(scale if narrow else None) for scale in ACTIVATION_SCALES]
    stack = [layers[0], activations[0], layers[1], activations[1], layers[2]]
    train_digits.train(stack, digits, random)
    values = digits.held_out_images[:, None].astype(np.float32) / 16
    for part in stack:
        values = part.forward(values)
    return layers, float((values.argmax(axis=1) == digits.held_out_labels).mean())


def train() -> None:
    """Train the network in float32 and with 2 bits, and keep the latter."""
    digits = train_digits.load_digits()
    _, exact = _network(digits, narrow=False)
    layers, coarse = _network(digits, narrow=True)
    print(f"float32 {exact:.1%}, 2 bits {coarse:.1%} of held-out images right")
    if coarse < exact - 0.02:
        raise SystemExit("the network of 2 bits is more than 2 points worse; nothing is written")
    arrays = {"images": digits.held_out_images, "labels": digits.held_out_labels}
    arrays["accuracies"] = np.array([exact, coarse])
    for i, layer in enumerate(layers):
        arrays |= {f"codes_{i}": layer.codes.astype(np.int8), f"scales_{i}": layer.scales, f"bias_{i}": layer.bias}
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / "trained.npz", **arrays)


if __name__ == "__main__":
    train_digits.command(__doc__, FOLDER, train, make)
