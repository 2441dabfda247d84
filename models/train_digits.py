"""Train digit classifiers with 2-bit weights in plain numpy: quantization-aware, with a straight-through estimator.

Used by ``make_digits.py --train`` and ``make_qdq_conv.py --train``; scikit-learn's images of handwritten digits are
the one thing that needs another package (``pip install -e .[examples]``).

Each layer keeps float weights. The forward pass rounds them to INT2 times a scale, as DequantizeLinear will give them
back; the backward pass lets the gradient through the rounding as if it were not there. Scales are trained too.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

__all__ = ["Activation", "Digits", "Layer", "command", "load_digits", "patches", "train"]

HELD_OUT = 360
EPOCHS = 150
BATCH = 64
RATE = 0.004


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images of 8 x 8 pixels from 0 to 16, and which digit each shows; the last 360 are held out."""

    images: np.ndarray
    labels: np.ndarray
    held_out_images: np.ndarray
    held_out_labels: np.ndarray


def load_digits() -> Digits:
    """The bundled images in the order of the file, so that the held-out ones come last."""
    import sklearn.datasets

    data = sklearn.datasets.load_digits()
    images, labels = data.images.astype(np.uint8), data.target.astype(np.uint8)
    return Digits(images[:-HELD_OUT], labels[:-HELD_OUT], images[-HELD_OUT:], labels[-HELD_OUT:])


def patches(images: np.ndarray, stride: int) -> np.ndarray:
    """The 3 x 3 surroundings of every ``stride``-th pixel, zeros beyond the border.

    Args:
        images: [batch, channels, height, width].
        stride: 1 or more.

    Returns:
        [batch, rows, columns, channels * 9].
    """
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    batch, channels, rows, columns = windows.shape[:4]
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch, rows, columns, channels * 9)


def _scattered(gradient: np.ndarray, shape: tuple[int, ...], stride: int) -> np.ndarray:
    """The gradient of ``patches``: what each pixel has in all the surroundings that it is in."""
    batch, channels, height, width = shape
    rows, columns = gradient.shape[1:3]
    parts = gradient.reshape(batch, rows, columns, channels, 3, 3).transpose(0, 3, 4, 5, 1, 2)
    padded = np.zeros((batch, channels, height + 2, width + 2), gradient.dtype)
    for y in range(3):
        for x in range(3):
            padded[:, :, y : y + stride * rows : stride, x : x + stride * columns : stride] += parts[:, :, y, x]
    return padded[:, :, 1:-1, 1:-1]


class _Adam:
    """The optimizer's state of one array, which it changes in place."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._mean, self._square, self._step = np.zeros_like(array), np.zeros_like(array), 0

    def update(self, gradient: np.ndarray, rate: float) -> None:
        self._step += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient**2 - self._square)
        mean, square = self._mean / (1 - 0.9**self._step), self._square / (1 - 0.999**self._step)
        self.array -= rate * mean / (np.sqrt(square) + 1e-8)


class Activation:
    """Relu, and 2 bits above it where ``scale`` is given: whole multiples of it from 0 to 3."""

    def __init__(self, scale: float | None = None) -> None:
        self.scale = scale
        self._passes = np.zeros(0)

    def forward(self, values: np.ndarray) -> np.ndarray:
        """The activations, in the type of ``values``."""
        if self.scale is None:
            self._passes = values > 0
            return np.maximum(values, 0)
        self._passes = (values > 0) & (values < 3.5 * self.scale)
        return np.clip(np.rint(values / self.scale), 0, 3) * self.scale

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        """The gradient of the input."""
        return gradient * self._passes


class Layer:
    """One linear layer: a matrix and a bias, the matrix in INT2 where ``block_size`` is given.

    Args:
        rows: Inputs.
        columns: Outputs.
        block_size: How many rows of a column share a scale; None keeps the weights in float32.
        power_of_two: Whether scales are powers of two, and biases multiples of 2**-8: then no sum is ever rounded.
        stride: Makes it a convolution of 3 x 3 with this stride; ``rows`` is 9 times the channels.
    """

    def __init__(
        self,
        random: np.random.Generator,
        rows: int,
        columns: int,
        *,
        block_size: int | None = None,
        power_of_two: bool = False,
        stride: int | None = None,
    ) -> None:
        self._block_size, self._power_of_two, self._stride = block_size, power_of_two, stride
        weights = random.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)
        blocks = 1 if block_size is None else rows // block_size
        log_scales = np.log2(np.full((blocks, columns), 1.2 * np.sqrt(2 / rows), np.float32))
        self._weights, self._log_scales = _Adam(weights), _Adam(log_scales)
        self._bias = _Adam(np.zeros(columns, np.float32))
        self._inputs, self._shape = np.zeros(0), (0,)

    @property
    def scales(self) -> np.ndarray:
        """[blocks, columns]."""
        log_scales = np.rint(self._log_scales.array) if self._power_of_two else self._log_scales.array
        return np.exp2(log_scales).astype(np.float32)

    @property
    def bias(self) -> np.ndarray:
        """[columns]."""
        return np.rint(self._bias.array * 256) / np.float32(256) if self._power_of_two else self._bias.array

    @property
    def codes(self) -> np.ndarray:
        """The weights as whole numbers from -2 to 1, [rows, columns]."""
        return np.clip(np.rint(self._weights.array / self._spread(self.scales)), -2, 1)

    @property
    def weights(self) -> np.ndarray:
        """The weights that the layer computes with."""
        return self._weights.array if self._block_size is None else self.codes * self._spread(self.scales)

    def _spread(self, scales: np.ndarray) -> np.ndarray:
        return np.repeat(scales, len(self._weights.array) // len(scales), axis=0)

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """The outputs; channels come second in those of a convolution."""
        self._shape = inputs.shape
        if self._stride is not None:
            self._inputs = patches(inputs, self._stride)
            return (self._inputs @ self.weights + self.bias).transpose(0, 3, 1, 2)
        self._inputs = inputs.reshape(len(inputs), -1)
        return self._inputs @ self.weights + self.bias

    def backward(self, gradient: np.ndarray, rate: float) -> np.ndarray:
        """Train on the gradient of the outputs; the gradient of the inputs."""
        if self._stride is not None:
            gradient = gradient.transpose(0, 2, 3, 1)
        onward = gradient @ self.weights.T
        flat = gradient.reshape(-1, gradient.shape[-1])
        self._train(self._inputs.reshape(len(flat), -1).T @ flat, rate)
        self._bias.update(flat.sum(axis=0), rate)
        if self._stride is None:
            return onward.reshape(self._shape)
        return _scattered(onward, self._shape, self._stride)

    def _train(self, gradient: np.ndarray, rate: float) -> None:
        if self._block_size is None:
            self._weights.update(gradient, rate)
            return
        spread = self._spread(self.scales)
        exact = self._weights.array / spread
        inside = (exact > -2.5) & (exact < 1.5)
        # What the weight gains per unit of scale: its code, less what the rounding hides while it is inside.
        slope = np.where(inside, self.codes - exact, self.codes) * gradient
        slope = slope.reshape(len(self.scales), -1, gradient.shape[1]).sum(axis=1) * self.scales * np.log(2)
        self._weights.update(gradient * inside, rate)
        self._log_scales.update(slope, rate)


def train(stack: list[Layer | Activation], digits: Digits, random: np.random.Generator) -> None:
    """Train a stack of layers on the images, each shifted by up to a pixel, for cross entropy."""
    for epoch in range(EPOCHS):
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        for images, labels in _batches(digits, random):
            values = images
            for part in stack:
                values = part.forward(values)
            exponentials = np.exp(values - values.max(axis=1, keepdims=True))
            gradient = exponentials / exponentials.sum(axis=1, keepdims=True)
            gradient[np.arange(len(labels)), labels] -= 1
            gradient = (gradient / len(labels)).astype(np.float32)
            for part in reversed(stack):
                gradient = part.backward(gradient, rate) if isinstance(part, Layer) else part.backward(gradient)


def _batches(digits: Digits, random: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = random.permutation(len(digits.images))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        images = digits.images[chosen, None].astype(np.float32) / 16
        yield np.roll(images, tuple(random.integers(-1, 2, 2)), axis=(2, 3)), digits.labels[chosen]


def command(text: str, folder: Path, train: Callable[[], None], make: Callable[[Path], None]) -> None:
    """What a script that uses this does when it is run: train where that is asked for, and make the model.

    Args:
        text: The script's docstring.
        folder: Where the model goes by default.
        train: Trains, and keeps the weights.
        make: Makes the model from these weights in a folder.
    """
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=folder)
    parser.add_argument("--train", action="store_true", help="train it anew first")
    arguments = parser.parse_args()
    if arguments.train:
        train()
    make(arguments.folder)
