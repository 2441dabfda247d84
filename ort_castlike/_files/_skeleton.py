"""A large model file read without the weights in it: a reference to where they lie in the file stands in their place.

What is made of such a model streams them, as it does external data.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections.abc import Iterator

import google.protobuf.message
import onnx

from ort_castlike._files import _protos

__all__ = ["Skeleton", "read_skeleton"]

_LEFT_OUT = 1 << 16  # bytes; smaller tensors are read
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto and TensorProto
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # types of fields


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """A model whose large initializers are references to the file that it was read from.

    Attributes:
        proto: The model. All of its external data is in the file.
        folder: The folder of the file, links followed.
        location: The name of the file there.
    """

    proto: onnx.ModelProto
    folder: str
    location: str


def read_skeleton(path: str | os.PathLike[str]) -> Skeleton | None:
    """The skeleton of the model at ``path``; None where it has external data already, or is not to be understood."""
    folder, location = os.path.split(os.path.realpath(path))
    try:
        with (
            open(os.path.join(folder, location), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            proto = onnx.ModelProto.FromString(b"".join(_model(data, location)))
        is_all_here = all(_location(tensor) == location for tensor in _protos.external_tensors(proto))
    except (OSError, ValueError, IndexError, google.protobuf.message.DecodeError):
        return None
    return Skeleton(proto, folder, location) if is_all_here else None


def _location(tensor: onnx.TensorProto) -> str | None:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), None)


def _model(data: mmap.mmap, location: str) -> Iterator[bytes]:
    """The bytes of the skeleton."""
    for number, begin, content, end in _fields(data, 0, len(data)):
        if number == _GRAPH:
            yield _field(_GRAPH, b"".join(_graph(data, content, end, location)))
        else:
            yield data[begin:end]


def _graph(data: mmap.mmap, start: int, stop: int, location: str) -> Iterator[bytes]:
    kept = start  # what is behind it goes over as it is, in one piece
    for number, begin, content, end in _fields(data, start, stop):
        if number != _INITIALIZER or end - content < _LEFT_OUT:
            continue
        yield data[kept:begin]
        yield _field(_INITIALIZER, _tensor(data, content, end, location))
        kept = end
    yield data[kept:stop]


def _tensor(data: mmap.mmap, start: int, stop: int, location: str) -> bytes:
    fields = list(_fields(data, start, stop))
    payloads = [(content, end) for number, _, content, end in fields if number == _RAW_DATA]
    if not payloads or payloads[-1][1] - payloads[-1][0] < _LEFT_OUT:
        return data[start:stop]
    tensor = onnx.TensorProto.FromString(b"".join(data[begin:end] for number, begin, _, end in fields
                                                  if number != _RAW_DATA))  # fmt: skip
    if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
        raise ValueError(f"tensor {tensor.name!r} has its data twice")
    content, end = payloads[-1]  # of a field that is given again, the last one counts
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(content)), ("length", str(end - content))):
        tensor.external_data.add(key=key, value=value)
    return tensor.SerializeToString()  # type: ignore[no-any-return]


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, where it begins, where its content does, and where it ends.

    Raises:
        ValueError: The message is broken.
        IndexError: It ends too early.
    """
    position = start
    while position < stop:
        begin = position
        tag, position = _varint(data, position)
        content, kind = position, tag & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _LENGTH:
            length, content = _varint(data, position)
            position = content + length
        elif kind in (_FIXED32, _FIXED64):
            position += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"field of type {kind}")
        if position > stop:
            raise ValueError("a field ends behind its message")
        yield tag >> 3 if kind == _LENGTH else 0, begin, content, position


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes."""
    size, length = len(content), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    return bytes([number << 3 | _LENGTH]) + bytes(length) + content
