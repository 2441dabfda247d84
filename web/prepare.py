"""Rewrite the example models with stock operators alone, and write them with their data for JavaScript.

Usage: ``python web/prepare.py FOLDER``. Each case is a model file and, in cases.json, its inputs and expected outputs:
type, shape and little-endian bytes in base64.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import ort_castlike

MODELS = Path(__file__).resolve().parent.parent / "models"
sys.path.insert(0, str(MODELS))

from example_files import read_example  # noqa: E402

# ml_dtypes' arrays by the carrier that a rewritten model takes.
CARRIERS = {"int2": np.int8, "uint2": np.uint8, "int4": np.int8, "uint4": np.uint8}
AWKWARD = [
    *(half / 2 for half in range(-20, 21)),
    *(sign * value for sign in (1, -1) for value in (0.49999997, 1.4999999, 1.5000001, 8388607.5, 16777214, 33554434)),
    *(3.4028234663852886e38, -1e30, 1e-45, -0.0, math.nan, math.inf, -math.inf, 2147483648, -2147483904, 4294967296),
]


def encoded(array: np.ndarray) -> dict[str, object]:
    """An array as JSON, in the carrier where it is of an emulated type."""
    carried = np.ascontiguousarray(array.astype(CARRIERS.get(array.dtype.name, array.dtype)))
    data = base64.b64encode(carried.tobytes()).decode()
    return {"type": carried.dtype.name, "dims": list(array.shape), "data": data}


def written(folder: Path, name: str, model: onnx.ModelProto, arrays: tuple[dict, dict], **options: str) -> dict:
    """Write one rewritten model, and give its case."""
    rewritten = ort_castlike.rewrite(model, target="1.20", lowering="standard", **options)
    onnx.checker.check_model(rewritten, full_check=True)
    (folder / f"{name}.onnx").write_bytes(rewritten.SerializeToString())
    inputs, outputs = ({key: encoded(array) for key, array in side.items()} for side in arrays)
    return {"name": name, "inputs": inputs, "outputs": outputs}


def awkward(rounding: str) -> tuple[onnx.ModelProto, tuple[dict, dict]]:
    """Floats that do not fit an integer, ties and what is no number, cast to INT2 and UINT4."""
    x = np.array(AWKWARD, np.float32)
    outputs = {}
    for name, bits, low in (("INT2", 2, -2), ("UINT4", 4, 0)):
        whole = [rounded(value, rounding) for value in x.tolist()]
        expected = [(value - low) % (1 << bits) + low for value in whole]
        outputs[name] = np.array(expected, np.int8 if low else np.uint8)
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], [name], to=getattr(TensorProto, name)) for name in outputs],
        "awkward",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info(name, getattr(TensorProto, name), ["n"]) for name in outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    return model, ({"x": x}, outputs)


def rounded(value: float, rounding: str) -> int:
    """A number at an integer, in rational arithmetic; what is no finite number at 0."""
    if not math.isfinite(value):
        return 0
    if rounding == "nearest_even":
        return round(Fraction(value))
    if rounding == "toward_zero":
        return math.trunc(value)
    return int(math.copysign(math.floor(abs(Fraction(value)) + Fraction(1, 2)), value))


def main() -> None:
    """Write every case."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    cases = []
    larger = (MODELS / name for name in ("mixed_int2", "control_flow", "qdq_conv"))
    for example in (*sorted((MODELS / "castlike").glob("test_*")), *larger):
        model, inputs, outputs = read_example(example)
        cases.append(written(folder, example.name, model, (inputs, outputs)))
    for rounding in ("nearest_even", "toward_zero", "half_away"):
        model, arrays = awkward(rounding)
        cases.append(written(folder, f"awkward_{rounding}", model, arrays, rounding=rounding))
    (folder / "cases.json").write_text(json.dumps(cases))
    print(f"{len(cases)} models rewritten for JavaScript")


if __name__ == "__main__":
    main()
