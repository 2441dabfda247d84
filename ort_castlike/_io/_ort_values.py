"""OrtValues of what onnxruntime does not pass as numpy: bfloat16, float8, and strings and sequences."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from ort_castlike._io._arrays import Array
from ort_castlike._types import ELEMENT_TYPES, ElementType

__all__ = ["OPAQUE_TYPES", "cpu_view", "opaque_array", "opaque_value", "to_ort_value", "to_python"]

# The types that every runtime computes with and that its Python takes or gives in an OrtValue alone.
OPAQUE_TYPES: frozenset[str] = frozenset(("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"))

_OPAQUE_TENSORS = {f"tensor({name.lower()})": ELEMENT_TYPES[name] for name in OPAQUE_TYPES}


def opaque_value(array: Array, element: ElementType) -> OrtValue:
    """An OrtValue over the memory of an array of ``element.dtype``, which it keeps alive."""
    # It takes the data pointer and the shape, and no heed of the strides.
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.require(array, requirements=["C", "A"])
    return OrtValue.ortvalue_from_numpy_with_onnx_type(array, element.code)


def cpu_view(value: OrtValue, dtype: np.dtype[Any]) -> Array:
    """The memory of a tensor on the CPU as an array, which is good for as long as ``value`` lives."""
    shape = tuple(value.shape())
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    array: Array = np.frombuffer(memoryview(memory), dtype).reshape(shape)
    return array


def opaque_array(value: OrtValue, element: ElementType) -> Array:
    """A copy of a bfloat16 or float8 tensor on the CPU as an array of ``element.dtype``."""
    array = np.empty(value.shape(), element.dtype)
    if array.size:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def to_ort_value(value: Any, type_string: str) -> OrtValue:
    """The OrtValue of anything that ``InferenceSession.run`` of onnxruntime takes as a feed.

    Args:
        value: An array, a list, an OrtValue, a SparseTensor.
        type_string: onnxruntime's name of the input's type, "seq(tensor(int8))".

    Raises:
        TypeError: A value of this kind cannot be made into an OrtValue.
    """
    if isinstance(value, OrtValue):
        return value
    if isinstance(value, onnxruntime.SparseTensor):
        return OrtValue.ort_value_from_sparse_tensor(value)
    outer, _, name = type_string.rstrip(")").removeprefix("optional(").rpartition("(")
    if outer == "seq(tensor":
        return _sequence_value(list(value), name)
    if outer != "tensor":
        raise TypeError(f"a value of type {type_string} cannot be made into an OrtValue")
    element = ELEMENT_TYPES[name.upper()]
    if element.name == "STRING":
        return _string_value(np.asarray(value, dtype=object))
    array = value if isinstance(value, np.ndarray) else np.asarray(value, element.dtype)
    if element.name in OPAQUE_TYPES:
        return opaque_value(array, element)
    return OrtValue.ortvalue_from_numpy(np.require(array, requirements=["C", "A"]))


def to_python(value: OrtValue) -> Any:
    """What ``InferenceSession.run`` of onnxruntime would return for an output, and arrays of ml_dtypes' types."""
    if not value.has_value():
        return None
    type_string = value.data_type()
    element = _OPAQUE_TENSORS.get(type_string.lower())
    if element is not None and value.device_name() == "cpu":
        return opaque_array(value, element)
    if value.is_tensor():
        return value.numpy()
    if value.is_sparse_tensor():
        return value.as_sparse_tensor()
    # A feed may be an OrtValue where a result may be a list: an Identity turns one into the other.
    return _identity_session(type_string).run(None, {"value": value})[0]


def _string_value(array: Array) -> OrtValue:
    import onnx

    # There is no other way to a tensor of strings than a model that returns one.
    data = [value if isinstance(value, bytes) else str(value).encode() for value in array.flat]
    constant = onnx.TensorProto(name="constant", data_type=onnx.TensorProto.STRING, dims=array.shape, string_data=data)
    info = onnx.helper.make_tensor_value_info("value", onnx.TensorProto.STRING, array.shape)
    node = onnx.helper.make_node("Identity", ["constant"], ["value"])
    graph = onnx.helper.make_graph([node], "string_value", [], [info], [constant])
    return _helper_session(graph).run_with_ort_values(None, {})[0]


def _sequence_value(items: list[Any], element_name: str) -> OrtValue:
    values = [to_ort_value(item, f"tensor({element_name})") for item in items]
    feeds = {f"item_{index}": value for index, value in enumerate(values)}
    return _sequence_session(len(items), element_name).run_with_ort_values(None, feeds)[0]


@functools.lru_cache(maxsize=64)
def _sequence_session(length: int, element_name: str) -> onnxruntime.InferenceSession:
    import onnx

    code = ELEMENT_TYPES[element_name.upper()].code
    tensor_type = onnx.helper.make_tensor_type_proto(code, None)
    names = [f"item_{index}" for index in range(length)]
    node = (
        onnx.helper.make_node("SequenceConstruct", names, ["value"])
        if names
        else onnx.helper.make_node("SequenceEmpty", [], ["value"], dtype=code)
    )
    graph = onnx.helper.make_graph(
        [node],
        "sequence_value",
        [onnx.helper.make_value_info(name, tensor_type) for name in names],
        [onnx.helper.make_value_info("value", onnx.helper.make_sequence_type_proto(tensor_type))],
    )
    return _helper_session(graph)


@functools.lru_cache(maxsize=64)
def _identity_session(type_string: str) -> onnxruntime.InferenceSession:
    import onnx

    code = ELEMENT_TYPES[type_string.rstrip(")").rpartition("(")[2].upper()].code
    proto = onnx.helper.make_tensor_type_proto(code, None)
    wrappers = {"seq": onnx.helper.make_sequence_type_proto, "optional": onnx.helper.make_optional_type_proto}
    for wrapper in reversed(type_string.split("(")[:-2]):
        proto = wrappers[wrapper](proto)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["value"], ["copy"])],
        "identity",
        [onnx.helper.make_value_info("value", proto)],
        [onnx.helper.make_value_info("copy", proto)],
    )
    return _helper_session(graph)


def _helper_session(graph: Any) -> onnxruntime.InferenceSession:
    import onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
