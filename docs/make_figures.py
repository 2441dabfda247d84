"""Draw the pictures of the pages: ``python docs/make_figures.py``; needs ``pip install -e .[docs]``.

What they show is read from the example models, none of it is drawn by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import onnx
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

import ort_castlike

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "models"))

import make_digits  # noqa: E402
from example_files import read_example  # noqa: E402

FIGURES = Path(__file__).parent / "figures"
INK, SOFT, EMULATED, CARRIER = "#22303c", "#8795a1", "#c8461b", "#1f6fb2"
RANGES = {2: (-2, 1), 4: (-8, 7), 8: (-128, 127)}
BLOCK_SIZES = (4, 8, 16, 32, 64)


def save(figure: plt.Figure, name: str) -> None:
    """Write a picture with no date in it."""
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / name, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


# The graph before and after


def type_names(model: onnx.ModelProto) -> dict[str, str]:
    """The element type of each value that is known."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    return {
        value.name: onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def levels(graph: onnx.GraphProto) -> dict[str, int]:
    """How many nodes are above each value; inputs and constants have none."""
    depth = {value.name: 0 for value in graph.input}
    for node in graph.node:
        above = [depth[name] for name in node.input if name in depth]
        depth.update(dict.fromkeys(node.output, 1 + max(above, default=0)))
    return depth


def draw_graph(axes: Axes, model: onnx.ModelProto, title: str) -> None:
    """A graph from top to bottom, each arrow with the element type that goes along it."""
    graph, types = model.graph, type_names(model)
    depth = levels(graph)
    rows: dict[int, list[tuple[str, str, list[str]]]] = {0: [(value.name, "", []) for value in graph.input]}
    for node in graph.node:
        sources = [name for name in node.input if name in depth]
        label = f"{node.domain}::\n{node.op_type}" if node.domain else node.op_type
        rows.setdefault(depth[node.output[0]], []).append((node.output[0], label, sources))
    last = 1 + max(rows)
    for value in graph.output:
        rows.setdefault(last, []).append((f"{value.name}!", value.name, [value.name]))
    places = {}
    for level, row in rows.items():
        for index, (name, _, _) in enumerate(row):
            places[name] = ((index - (len(row) - 1) / 2) * 1.8, -level)
    for level, row in rows.items():
        for name, label, sources in row:
            x, y = places[name]
            is_end = level in (0, last)
            for source in sources:
                draw_arrow(axes, places[source], (x, y), types.get(source, ""))
            is_ours = "::" in label
            box = FancyBboxPatch(
                (x - 0.78, y - 0.25),
                1.56,
                0.5,
                boxstyle="round,pad=0.02",
                facecolor="#fdf1e7" if is_ours else "white",
                edgecolor="none" if is_end else EMULATED if is_ours else INK,
            )
            axes.add_patch(box)
            text = label or name
            axes.text(x, y, text, ha="center", va="center", fontsize=6.5, color=INK, style="italic" if is_end else None)
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    axes.set_title(f"{title}\nopset {opset}, IR version {model.ir_version}", fontsize=9, color=INK)
    axes.set_xlim(-2.7, 2.7)
    axes.set_ylim(-13.4, 0.4)
    axes.axis("off")


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], name: str) -> None:
    """An arrow in the colour of its type."""
    color = {"int2": EMULATED, "int8": CARRIER}.get(name, SOFT)
    begin, tip = (start[0], start[1] - 0.28), (end[0], end[1] + 0.28)
    axes.annotate("", tip, begin, arrowprops={"arrowstyle": "->", "color": color, "lw": 1.6 if color != SOFT else 1})
    # Beside an upright arrow, on a slanted one.
    is_upright = abs(tip[0] - begin[0]) < 0.2
    x = (begin[0] + tip[0]) / 2 + (0.1 if is_upright else 0)
    backing = None if is_upright else {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    side = "left" if is_upright else "center"
    axes.text(x, (begin[1] + tip[1]) / 2, name, color=color, fontsize=6.5, va="center", ha=side, bbox=backing)


def draw_rewrite() -> None:
    """The example of several operators on INT2, as it is and as it is rewritten for 1.20."""
    model, _, _ = read_example(ROOT / "models" / "mixed_int2")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 7))
    draw_graph(left, model, "the model")
    draw_graph(middle, ort_castlike.rewrite(model, target="1.20"), 'target="1.20"')
    standard = ort_castlike.rewrite(model, target="1.20", lowering="standard")
    draw_graph(right, standard, 'target="1.20", lowering="standard"')
    save(figure, "rewrite.png")


# The error of 2-bit weights


def rounded(matrix: np.ndarray, bits: int, block_size: int) -> np.ndarray:
    """Weights rounded as in the walk-through: each block's largest weight goes to the lowest code."""
    low, high = RANGES[bits]
    blocks = matrix.reshape(-1, block_size, matrix.shape[1])
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scales = largest / low
    return (np.clip(np.rint(blocks / scales), low, high) * scales).reshape(matrix.shape)


def relative_error(matrices: list[np.ndarray], bits: int, block_size: int) -> float:
    """Root mean square of the error over that of the weights."""
    errors = [((rounded(matrix, bits, block_size) - matrix) ** 2).sum() for matrix in matrices]
    return float(np.sqrt(sum(errors) / sum((matrix**2).sum() for matrix in matrices)))


def accuracies(arrays: dict[str, np.ndarray]) -> Iterator[tuple[str, float]]:
    """Share of the held-out digits read right: float32, rounded afterwards to 8, 4 and 2 bits, trained with 2."""
    matrices = [arrays[f"float_weights_{i}"] for i in range(3)]
    biases = [arrays[f"float_bias_{i}"] for i in range(3)]
    for label, bits in (("float32", None), ("8 bits", 8), ("4 bits", 4), ("2 bits", 2)):
        weights = [matrix if bits is None else rounded(matrix, bits, make_digits.BLOCK_SIZE) for matrix in matrices]
        parts = {f"float_weights_{i}": matrix for i, matrix in enumerate(weights)}
        parts |= {f"float_bias_{i}": bias for i, bias in enumerate(biases)}
        yield label, make_digits.accuracy(make_digits.float_logits(parts, arrays["images"]), arrays["labels"])
    _, _, expected = read_example(ROOT / "models" / "digits")
    yield "2 bits,\ntrained so", float((expected["digit"] == arrays["labels"]).mean())


def draw_weight_error() -> None:
    """What rounding does to the digit classifier's weights, and to what it reads."""
    arrays = make_digits.trained()
    matrices = [arrays[f"float_weights_{i}"] for i in range(3)]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2))
    block = matrices[0][:32, 5]
    coarse = rounded(matrices[0], 2, 32)[:32, 5]
    order = np.argsort(block)
    left.vlines(np.arange(32), block[order], coarse[order], color=SOFT, lw=1)
    left.plot(np.arange(32), block[order], "o", color=INK, ms=3, label="float32")
    left.plot(np.arange(32), coarse[order], "_", color=EMULATED, ms=7, mew=2, label="INT2 times scale")
    left.set_title("one block of 32 weights, in order", fontsize=9)
    left.legend(fontsize=8, frameon=False)
    for bits, color in ((2, EMULATED), (4, CARRIER), (8, INK)):
        errors = [100 * relative_error(matrices, bits, size) for size in BLOCK_SIZES]
        middle.plot(BLOCK_SIZES, errors, "o-", color=color, ms=4)
        middle.text(BLOCK_SIZES[-1] * 1.1, errors[-1], f"{bits} bits", color=color, fontsize=8, va="center")
    middle.set_xscale("log", base=2)
    middle.set_yscale("log")
    middle.set_xticks(BLOCK_SIZES, BLOCK_SIZES)
    middle.set_xlim(3.5, 130)
    middle.set_yticks([0.3, 1, 3, 10, 30], ["0.3 %", "1 %", "3 %", "10 %", "30 %"])
    middle.minorticks_off()
    middle.set_xlabel("weights for each scale", fontsize=8)
    middle.set_title("error of the weights (root mean square)", fontsize=9)
    labels, shares = zip(*accuracies(arrays), strict=True)
    bars = right.bar(labels, [100 * share for share in shares], color=[INK, INK, CARRIER, EMULATED, EMULATED])
    right.bar_label(bars, [f"{share:.1%}" for share in shares], fontsize=8, padding=2)
    right.set_ylim(0, 105)
    right.set_title("held-out digits read right, %", fontsize=9)
    for axes in (left, middle, right):
        axes.tick_params(labelsize=8, color=SOFT)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save(figure, "weight_error.png")


# Pascal's triangle


def draw_pascal() -> None:
    """What the model of control flow gives, a colour for each of the four values."""
    _, _, outputs = read_example(ROOT / "models" / "control_flow")
    figure, axes = plt.subplots(figsize=(3, 3))
    colors = matplotlib.colors.ListedColormap([CARRIER, "#f2b79f", "#f4f6f8", EMULATED])
    axes.imshow(outputs["picture"].astype(np.int8), cmap=colors, vmin=-2, vmax=1, interpolation="nearest")
    axes.axis("off")
    save(figure, "pascal.png")


# A digit


def draw_digit() -> None:
    """The first held-out image, and the logits that the model of 2-bit weights gives."""
    _, inputs, outputs = read_example(ROOT / "models" / "digits")
    logits = outputs["logits"][0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(4.6, 1.7), width_ratios=(1, 2))
    left.imshow(inputs["image"][0], cmap="Greys", vmin=0, vmax=16, interpolation="nearest")
    left.axis("off")
    right.bar(range(10), logits, color=[EMULATED if digit == logits.argmax() else SOFT for digit in range(10)])
    right.axhline(0, color=INK, lw=0.6)
    right.set_xticks(range(10), range(10))
    right.set_title("logits, from INT2 weights", fontsize=8, color=INK)
    right.tick_params(labelsize=7, color=SOFT)
    right.spines[["top", "right", "bottom"]].set_visible(False)
    figure.tight_layout()
    save(figure, "digit.png")


if __name__ == "__main__":
    matplotlib.use("Agg")
    draw_digit()
    draw_rewrite()
    draw_weight_error()
    draw_pascal()
