"""Run 2-bit models on the installed onnxruntime: a digit classifier, and CastLike, beside what the stock runtime does.

Exits with 1 if an output is not the expected one.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import make_digits
import numpy as np
import onnxruntime
from example_files import read_example

import ort_castlike

MODELS = Path(__file__).parent
RUNTIME = f"onnxruntime {onnxruntime.__version__}"


def picture(image: np.ndarray) -> list[str]:
    """An image of 8 x 8 pixels from 0 to 16 as lines of text."""
    return ["".join(" .:-=+*#@"[int(pixel) // 2] * 2 for pixel in row) for row in image]


def exact_options() -> onnxruntime.SessionOptions:
    """Options under which activations stay in float32 where the runtime fuses them with 4-bit weights."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    return options


def stock_outputs(path: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray] | str:
    """What the stock runtime gives for the same file and the same arrays, or what it says instead."""
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"does not load it: {one_line(error)}"
    try:
        return session.run(None, dict(inputs))  # type: ignore[no-any-return]
    except Exception as error:
        return f"loads it and does not run it: {one_line(error)}"


def one_line(error: Exception) -> str:
    """An exception as its kind and text, without the place in the runtime's source that some texts hold."""
    text = " ".join(str(error).split())
    if "Unsupported model IR version" in text:
        text = text[text.index("Unsupported model IR version") :]
    return f"{type(error).__name__}: {text}"


def read_digits() -> bool:
    """The classifier: an image, what it is taken for, and how many of all are read right."""
    folder = MODELS / "digits"
    path = folder / "model.onnx"
    _, inputs, expected = read_example(folder)
    arrays = make_digits.trained()
    labels = arrays["labels"]

    def right(digits: np.ndarray) -> str:
        return f"{(digits == labels).mean():.1%} of {len(labels)} held-out images right"

    start = time.perf_counter()
    session = ort_castlike.InferenceSession(str(path), exact_options())
    loaded = time.perf_counter()
    logits, digits = session.run(None, inputs)
    done = time.perf_counter()

    print("A digit classifier with 2-bit weights (models/digits/model.onnx)")
    lines = picture(inputs["image"][0])
    largest = np.argsort(logits[0])[::-1][:3]
    beside = {
        2: f"is a {digits[0]}",
        4: "logits " + ", ".join(f"{digit}: {logits[0, digit]:.1f}" for digit in largest) + ", ...",
    }
    for number, line in enumerate(lines):
        print(f"    {line}   {beside.get(number, '')}".rstrip())
    print(f"  here          {right(digits)} (loaded in {loaded - start:.2f} s, run in {done - loaded:.3f} s)")
    exact = make_digits.float_logits(arrays, inputs["image"]).argmax(axis=1)
    print(f"  float32       {right(exact)}, by the same network with float32 weights")
    stock = stock_outputs(path, inputs)
    verdict = stock if isinstance(stock, str) else f"runs it, {right(stock[1])}"
    print(f"  stock         {RUNTIME} {verdict}")
    is_right = np.array_equal(digits, expected["digit"])
    print(f"  {'every digit as expected' if is_right else 'WRONG'}\n")
    return is_right


def cast() -> bool:
    """ONNX's own example of CastLike into INT2: what goes in and out, and what the model becomes."""
    folder = MODELS / "castlike" / "test_cc_castlike_FLOAT_to_INT2"
    path = folder / "model.onnx"
    model, inputs, expected = read_example(folder)
    print(f"ONNX's example of CastLike into INT2 ({path.relative_to(MODELS.parent)})")
    for name, array in inputs.items():
        show("in", name, array)
    [output] = ort_castlike.InferenceSession(str(path)).run(None, inputs)
    show("out", "output", output)
    stock = stock_outputs(path, inputs)
    print(f"  stock         {RUNTIME} {stock if isinstance(stock, str) else 'runs it'}")
    rewritten = ort_castlike.rewrite(model)
    operators = Counter(f"{node.domain or 'ai.onnx'}.{node.op_type}" for node in rewritten.graph.node)
    opset = next(entry.version for entry in rewritten.opset_import if entry.domain == "")
    print(f"  rewritten     opset {opset}: {', '.join(f'{count} {name}' for name, count in operators.items())}")
    wanted = expected["output"]
    is_right = output.dtype == wanted.dtype and output.tobytes() == wanted.tobytes()
    print(f"  {'right, to the bit' if is_right else 'WRONG'}")
    return is_right


def show(label: str, name: str, array: np.ndarray) -> None:
    """Print one array on a line: its name, type, shape and values."""
    values = " ".join(f"{number:g}" for number in array.astype(np.float32).ravel())
    print(f"  {label:13} {name}: {array.dtype.name}{list(array.shape)}  {values}")


def main() -> int:
    """Run both; the exit status."""
    # The stock runtime's refusals are printed below; its log would say them twice.
    onnxruntime.set_default_logger_severity(4)
    results = [read_digits(), cast()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
