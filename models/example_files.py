"""Examples in the layout of ONNX's node tests: ``model.onnx``, and data in ``test_data_set_0``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["read_example", "write_example"]

Arrays = Mapping[str, np.ndarray]


def write_example(folder: Path, model: onnx.ModelProto, inputs: Arrays, outputs: Arrays) -> None:
    """Write a model and one set of data, the same bytes every time.

    Args:
        folder: Where to; made if it is not there.
        model: The model; checked, types and shapes included, before anything is written.
        inputs: Name to array for each graph input, in the graph's order.
        outputs: The expected outputs, in the graph's order.

    Raises:
        onnx.checker.ValidationError: The model is not valid.
    """
    onnx.checker.check_model(model, full_check=True)
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for index, (name, array) in enumerate(arrays.items()):
            tensor = numpy_helper.from_array(array, name)
            (data / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString(deterministic=True))


def read_example(folder: Path) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model of an example, its inputs and its expected outputs, each as name to array."""
    data = folder / "test_data_set_0"
    return onnx.load(folder / "model.onnx"), _read(data, "input"), _read(data, "output")


def _read(data: Path, kind: str) -> dict[str, np.ndarray]:
    count = len(list(data.glob(f"{kind}_*.pb")))
    tensors = [onnx.load_tensor(data / f"{kind}_{index}.pb") for index in range(count)]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
