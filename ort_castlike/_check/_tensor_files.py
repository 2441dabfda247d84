"""Values in files: TensorProto (.pb) as in ONNX's test data, and numpy's .npy."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import google.protobuf.message
import numpy as np
import onnx
from onnx import numpy_helper

from ort_castlike._errors import FeedError, SaveError
from ort_castlike._tensor_array import array_of
from ort_castlike._types import ELEMENT_TYPES

__all__ = ["read_data_set", "read_inputs", "read_value", "typed", "write_data_set"]

_NUMBERED = re.compile(r"(input|output)_(\d+)\.pb")


def read_value(path: str, type_string: str) -> Any:
    """The value in a file.

    Args:
        path: A ``.pb`` with a TensorProto (or SequenceProto, OptionalProto, as the type says), or a ``.npy``.
        type_string: What it is for, in onnxruntime's notation. ``numpy.save`` drops the names of ml_dtypes' types and
            keeps the bytes; this says what they are.

    Raises:
        FeedError: The file cannot be read as such a value.
    """
    if path.endswith(".npz"):
        raise FeedError(f"{path!r} holds several arrays; give a .npy or a .pb file")
    try:
        if path.endswith(".npy"):
            return _with_dtype(np.load(path, allow_pickle=False), type_string)
        with open(path, "rb") as file:
            return _parsed(file.read(), type_string)
    except (OSError, ValueError, TypeError, EOFError, google.protobuf.message.DecodeError) as error:
        raise FeedError(f"{path!r} holds no {type_string} that can be read: {error}") from error


def _with_dtype(array: Any, type_string: str) -> Any:
    element = ELEMENT_TYPES.get(type_string.removeprefix("tensor(").removesuffix(")").upper())
    if element is not None and array.dtype.kind == "V" and array.dtype.itemsize == element.dtype.itemsize:
        return array.view(element.dtype)
    return array


def typed(value: Any, type_string: str) -> Any:
    """What a session took for an input: an array in a carrier's dtype as one of the input's own type."""
    element = ELEMENT_TYPES.get(type_string.removeprefix("tensor(").removesuffix(")").upper())
    if element is None or not element.is_emulated or not isinstance(value, np.ndarray):
        return value
    return value if value.dtype == element.dtype else value.astype(element.dtype)


def _parsed(data: bytes, type_string: str) -> Any:
    if type_string.startswith("seq("):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if type_string.startswith("optional("):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return array_of(onnx.TensorProto.FromString(data))


def read_data_set(folder: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs and the expected outputs in a folder of ONNX's test data: ``input_0.pb``, ``output_0.pb`` and on.

    Args:
        folder: The folder.
        inputs: The inputs of the session (name and type), in order.
        outputs: The outputs of the session.

    Returns:
        Names to values, each; there may be fewer outputs than the model has, or none.

    Raises:
        FeedError: There is no input in the folder, more than the model has, or one that cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise FeedError(f"{folder!r} is no folder with test data: {error.strerror}") from error
    sets: dict[str, dict[str, Any]] = {"input": {}, "output": {}}
    arguments = {"input": inputs, "output": outputs}
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            continue
        kind, index = match[1], int(match[2])
        if index >= len(arguments[kind]):
            raise FeedError(f"{folder!r} holds {name}, and the model has {len(arguments[kind])} {kind}s")
        argument = arguments[kind][index]
        sets[kind][argument.name] = read_value(os.path.join(folder, name), argument.type)
    if not sets["input"] and inputs:
        hint = next((name for name in names if name.startswith("test_data_set_")), None)
        advice = f"; do you mean {os.path.join(folder, hint)}?" if hint else ""
        raise FeedError(f"{folder!r} holds no input_0.pb{advice}")
    return sets["input"], sets["output"]


def read_inputs(files: Mapping[str, str], inputs: Sequence[Any]) -> dict[str, Any]:
    """The values in files, by the names of inputs.

    Raises:
        FeedError: The model has no such input, or the file cannot be read.
    """
    types = {argument.name: argument.type for argument in inputs}
    for name in files:
        if name not in types:
            raise FeedError(f"the model has no input {name!r}; its inputs are {', '.join(types) or 'none'}")
    return {name: read_value(path, types[name]) for name, path in files.items()}


def write_data_set(folder: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Write values as ONNX's test data, from which ``read_data_set`` reads them again.

    Raises:
        SaveError: The folder cannot be written, or holds test data already.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        taken = next((name for name in sorted(os.listdir(folder)) if _NUMBERED.fullmatch(name)), None)
        if taken is not None:
            raise SaveError(f"{folder!r} holds {taken} already; name another folder")
        for kind, values in (("input", inputs), ("output", outputs)):
            for index, (name, value) in enumerate(values.items()):
                with open(os.path.join(folder, f"{kind}_{index}.pb"), "xb") as file:
                    file.write(_proto(name, value).SerializeToString())
    except OSError as error:
        if isinstance(error, SaveError):
            raise
        raise SaveError(f"{folder!r} cannot be written: {error.strerror}") from error


def _proto(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return numpy_helper.from_list(value, name)
    if value is None:
        return onnx.OptionalProto(name=name)
    return numpy_helper.from_array(np.asarray(value), name)
