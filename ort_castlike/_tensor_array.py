"""TensorProtos as numpy arrays."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

__all__ = ["array_of"]


def array_of(tensor: onnx.TensorProto) -> np.ndarray:
    """The values of a tensor."""
    if tensor.dims:
        return np.asarray(numpy_helper.to_array(tensor))
    # As a vector: onnx 1.20 and 1.21 fail on a scalar of 2 bits where protobuf is older than 7.
    vector = onnx.TensorProto()
    vector.CopyFrom(tensor)
    vector.dims.append(1)
    return np.asarray(numpy_helper.to_array(vector)).reshape(())
