"""Initializers that a rewritten model leaves out, as OrtValues over their own memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import OrtValue

from ort_castlike._ort_values import OPAQUE_TYPES, opaque_value
from ort_castlike._types import element_type

if TYPE_CHECKING:
    import onnx_ir as ir

    from ort_castlike._arrays import Array

__all__ = ["ort_values"]


def ort_values(tensors: Mapping[str, ir.TensorProtocol]) -> dict[str, OrtValue]:
    """An OrtValue for each tensor, as SessionOptions.add_external_initializers takes them.

    onnxruntime borrows their memory, so they have to live as long as the session does. Untouched external data is
    mapped and not read.
    """
    return {name: _ort_value(tensor) for name, tensor in tensors.items()}


def _ort_value(tensor: ir.TensorProtocol) -> OrtValue:
    element = element_type(int(tensor.dtype))
    if element.bits < 8:
        return _packed_value(_packed_bytes(tensor), tuple(tensor.shape.numpy()), element.code)
    array = np.require(tensor.numpy(), requirements=["C", "A"])
    if element.name in OPAQUE_TYPES:
        return opaque_value(array, element)
    return OrtValue.ortvalue_from_numpy(array)


def _packed_bytes(tensor: ir.TensorProtocol) -> Array:
    import onnx_ir as ir

    if isinstance(tensor, ir.ExternalTensor):
        # Its own reader would unpack the whole of it.
        return np.memmap(tensor.path, np.uint8, "r", offset=tensor.offset or 0, shape=(tensor.nbytes,))
    return np.frombuffer(tensor.tobytes(), np.uint8)


def _packed_value(packed: Array, shape: tuple[int, ...], code: int) -> OrtValue:
    """A tensor of a packed type over ``packed``.

    onnxruntime takes the shape of the array, counted in elements, and the pointer to its data. So the array that
    it is shown has that shape and lies in the packed bytes: no stride leads out of them.
    """
    if not packed.size:
        return OrtValue.ortvalue_from_numpy_with_onnx_type(np.empty(shape, np.uint8), code)
    shown: np.ndarray[Any, np.dtype[np.uint8]] = np.lib.stride_tricks.as_strided(
        packed, shape, (0,) * len(shape), writeable=False
    )
    value = OrtValue.ortvalue_from_numpy_with_onnx_type(shown, code)
    if value.data_ptr() == packed.ctypes.data:
        return value
    # A release that copies what it is shown gets an array that is as large as it looks.
    whole = np.empty(shape, np.uint8)
    whole.reshape(-1)[: packed.size] = packed
    return OrtValue.ortvalue_from_numpy_with_onnx_type(whole, code)
