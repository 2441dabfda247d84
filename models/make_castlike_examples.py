"""Make the ten 2-bit examples of ONNX's CastLike-25 page: ``python make_castlike_examples.py [FOLDER]``.

Inputs and expected outputs are the page's own numbers, written out below; nothing is computed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from example_files import write_example
from onnx import TensorProto, helper

__all__ = ["EXAMPLES", "make"]

DTYPES = {
    "FLOAT": np.float32,
    "FLOAT16": np.float16,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT2": ml_dtypes.int2,
    "UINT2": ml_dtypes.uint2,
}

# Type of `input`, its seven values, type of `target_type`, the seven values of `output`.
EXAMPLES = (
    ("FLOAT16", (-3, -2, -1, 0, 1, 2, 3), "INT2", (1, -2, -1, 0, 1, -2, -1)),
    ("FLOAT16", (-3, -2, -1, 0, 1, 2, 3), "UINT2", (1, 2, 3, 0, 1, 2, 3)),
    ("FLOAT", (-3, -2, -1, 0, 1, 2, 3), "INT2", (1, -2, -1, 0, 1, -2, -1)),
    ("FLOAT", (-3, -2, -1, 0, 1, 2, 3), "UINT2", (1, 2, 3, 0, 1, 2, 3)),
    ("INT2", (1, -2, -1, 0, 1, -2, -1), "FLOAT", (1, -2, -1, 0, 1, -2, -1)),
    ("INT2", (1, -2, -1, 0, 1, -2, -1), "FLOAT16", (1, -2, -1, 0, 1, -2, -1)),
    ("INT2", (1, -2, -1, 0, 1, -2, -1), "INT8", (1, -2, -1, 0, 1, -2, -1)),
    ("UINT2", (1, 2, 3, 0, 1, 2, 3), "FLOAT", (1, 2, 3, 0, 1, 2, 3)),
    ("UINT2", (1, 2, 3, 0, 1, 2, 3), "FLOAT16", (1, 2, 3, 0, 1, 2, 3)),
    ("UINT2", (1, 2, 3, 0, 1, 2, 3), "UINT8", (1, 2, 3, 0, 1, 2, 3)),
)


def make(folder: Path) -> None:
    """Write the ten examples below ``folder``, each in a folder named as on the page."""
    for source, values, target, expected in EXAMPLES:
        name = f"test_cc_castlike_{source}_to_{target}"
        source_code, target_code = TensorProto.DataType.Value(source), TensorProto.DataType.Value(target)
        graph = helper.make_graph(
            [helper.make_node("CastLike", ["input", "target_type"], ["output"])],
            name,
            [
                helper.make_tensor_value_info("input", source_code, (7, 1)),
                helper.make_tensor_value_info("target_type", target_code, (1,)),
            ],
            [helper.make_tensor_value_info("output", target_code, (7, 1))],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
        write_example(
            folder / name,
            model,
            {
                "input": np.array(values, DTYPES[source]).reshape(7, 1),
                "target_type": np.zeros(1, DTYPES[target]),
            },
            {"output": np.array(expected, DTYPES[target]).reshape(7, 1)},
        )


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "castlike")
