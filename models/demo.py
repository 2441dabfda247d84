"""Run two INT2 models on the installed onnxruntime, beside what the stock runtime says to each.

Exits with 1 if an output is not the expected one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from example_files import read_example

import ort_castlike

MODELS = Path(__file__).parent
EXAMPLES = (
    ("ONNX's own example of CastLike into INT2", MODELS / "castlike" / "test_cc_castlike_FLOAT_to_INT2"),
    ("Several operators on INT2", MODELS / "mixed_int2"),
)


def show(label: str, name: str, array: np.ndarray) -> None:
    """Print one array on a line: its name, type, shape and values."""
    values = " ".join(f"{value:g}" for value in array.astype(np.float32).ravel()[:12])
    more = " ..." if array.size > 12 else ""
    print(f"  {label:9} {name}: {array.dtype.name}{list(array.shape)}  {values}{more}")


def stock_verdict(path: Path, inputs: Mapping[str, np.ndarray]) -> str:
    """What the stock runtime makes of the same file and the same arrays, in a line."""
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:
        return f"does not load it: {one_line(error)}"
    try:
        outputs = session.run(None, dict(inputs))
    except Exception as error:
        return f"loads it and does not run it: {one_line(error)}"
    return f"runs it and gives {', '.join(str(output.dtype) for output in outputs)}"


def one_line(error: Exception) -> str:
    """An exception as its kind and text, without the place in the runtime's source that some texts hold."""
    text = " ".join(str(error).split())
    if "Unsupported model IR version" in text:
        text = text[text.index("Unsupported model IR version") :]
    return f"{type(error).__name__}: {text}"


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session of onnxruntime itself, with the custom operators registered."""
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(title: str, folder: Path) -> bool:
    """Run one example and print what happens; whether every output was right."""
    path = folder / "model.onnx"
    model, inputs, expected = read_example(folder)
    print(f"{title} ({path.relative_to(MODELS.parent)})")
    for name, array in inputs.items():
        show("in", name, array)
    print(f"  stock onnxruntime {onnxruntime.__version__} {stock_verdict(path, inputs)}")

    session = ort_castlike.InferenceSession(str(path))
    right = True
    for (name, wanted), got in zip(expected.items(), session.run(None, inputs), strict=True):
        same = got.dtype == wanted.dtype and got.shape == wanted.shape and got.tobytes() == wanted.tobytes()
        show("out", name, got)
        if not same:
            show("EXPECTED", name, wanted)
        right = right and same

    rewritten = ort_castlike.rewrite(model)
    operators = Counter(f"{node.domain or 'ai.onnx'}.{node.op_type}" for node in rewritten.graph.node)
    opset = next(entry.version for entry in rewritten.opset_import if entry.domain == "")
    print(f"  rewritten opset {opset}: {', '.join(f'{count} {name}' for name, count in operators.items())}")
    carried = ", ".join(f"{output.name} {output.type}" for output in plain_session(rewritten).get_outputs())
    print(f"            a plain session gives {carried}")
    print(f"  {'right, to the bit' if right else 'WRONG'}\n")
    return right


def main() -> int:
    """Run the examples; the exit status."""
    # The stock runtime's refusals are printed below; its log would say them twice.
    onnxruntime.set_default_logger_severity(4)
    results = [run(title, folder) for title, folder in EXAMPLES]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
