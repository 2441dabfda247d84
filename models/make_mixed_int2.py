"""Make the example that mixes operators on INT2: ``python make_mixed_int2.py [FOLDER]``.

The expected outputs are plain numpy on int8: round to nearest even, keep the low two bits, move, pad.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from example_files import write_example
from onnx import ModelProto, TensorProto, helper, numpy_helper

__all__ = ["make"]

SHAPE = (2, 3, 4)
# One column before the first, one row after the last.
PADS = (0, 1, 1, 0)
PAD_VALUE = -2


def make(folder: Path) -> None:
    """Write the model and its data to ``folder``."""
    x = _input()
    codes = _expected_codes(x)
    write_example(
        folder,
        _model(),
        {"x": x},
        {
            "as_float": codes.astype(np.float32),
            "as_float16": codes.astype(np.float16),
            "codes": codes.astype(ml_dtypes.int2),
        },
    )


def _input() -> np.ndarray:
    # Quarters from -3 up: every tie between two integers, and values on both sides of INT2's range [-2, 1].
    return (np.arange(24, dtype=np.float32) * np.float32(0.25) - np.float32(3)).reshape(SHAPE)


def _expected_codes(x: np.ndarray) -> np.ndarray:
    low_bits = np.rint(x).astype(np.int8) & 3
    codes = np.where(low_bits >= 2, low_bits - 4, low_bits).astype(np.int8)
    moved = codes.reshape(6, 4).transpose(1, 0)
    return np.pad(moved, ((PADS[0], PADS[2]), (PADS[1], PADS[3])), constant_values=PAD_VALUE)


def _model() -> ModelProto:
    nodes = [
        helper.make_node("CastLike", ["x", "like_int2"], ["narrow"], name="cast_in"),
        helper.make_node("Reshape", ["narrow", "shape"], ["rows"], name="reshape"),
        helper.make_node("Transpose", ["rows"], ["columns"], name="transpose", perm=[1, 0]),
        helper.make_node("Pad", ["columns", "pads", "pad_value"], ["padded"], name="pad"),
        helper.make_node("CastLike", ["padded", "like_float"], ["as_float"], name="cast_to_float"),
        helper.make_node("CastLike", ["padded", "like_float16"], ["as_float16"], name="cast_to_float16"),
        helper.make_node("Identity", ["padded"], ["codes"], name="identity"),
    ]
    initializers = {
        "like_int2": np.zeros(1, ml_dtypes.int2),
        "shape": np.array([6, 4], np.int64),
        "pads": np.array(PADS, np.int64),
        "pad_value": np.array(PAD_VALUE, ml_dtypes.int2),
        "like_float": np.zeros(1, np.float32),
        "like_float16": np.zeros(1, np.float16),
    }
    graph = helper.make_graph(
        nodes,
        "mixed_int2",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [
            helper.make_tensor_value_info("as_float", TensorProto.FLOAT, (5, 7)),
            helper.make_tensor_value_info("as_float16", TensorProto.FLOAT16, (5, 7)),
            helper.make_tensor_value_info("codes", TensorProto.INT2, (5, 7)),
        ],
        [numpy_helper.from_array(array, name) for name, array in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "mixed_int2")
