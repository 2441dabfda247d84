"""Payloads of emulated types: out of the bytes of a model, into carriers, and into packed 4-bit types.

Every function works on one tensor at a time and gives a lazy one, so that a large payload is read, converted
and written a block at a time, never kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from ort_castlike._errors import ModelError
from ort_castlike._files._external import check_location
from ort_castlike._files._streams import BLOCK, StreamedTensor, file_blocks
from ort_castlike._types import ElementType, element_type

__all__ = [
    "carrier_tensor",
    "check_payload",
    "emulated_tensor",
    "looked_up",
    "mapped_tensor",
    "packed_tensor",
    "payload",
    "payload_blocks",
    "value_blocks",
    "values",
]

_BLOCK = 1 << 16  # bytes of payload looked up at a time: numpy widens them to indices, which should stay in cache


def packed_size(shape: ir.ShapeProtocol, element: ElementType) -> int:
    """Bytes of a payload of this shape: elements are packed tightly, the last byte is padded."""
    return -(-math.prod(shape.numpy()) * element.bits // 8)


def payload(tensor: ir.TensorProtocol) -> np.ndarray:
    """The packed bytes of a tensor, as a read-only uint8 array of one axis; mapped where the data is external.

    Raises:
        ModelError: The payload is longer or shorter than the shape and the type say, or cannot be read.
    """
    element = element_type(tensor.dtype)
    if isinstance(tensor, ir.ExternalTensor):
        data = _mapped(tensor, element)
    else:
        try:
            data = np.frombuffer(tensor.tobytes(), np.uint8)
        except (AssertionError, ValueError, OverflowError, TypeError) as error:
            raise ModelError(f"tensor {tensor.name!r} ({element.name}): its data cannot be read: {error}") from error
    expected = packed_size(tensor.shape, element)
    if data.size != expected:
        raise ModelError(
            f"tensor {tensor.name!r} ({element.name}, shape {_shape_text(tensor)}) holds {data.size} bytes of data "
            f"and should hold {expected}; export the model again"
        )
    return data


def check_payload(tensor: ir.TensorProtocol) -> None:
    """Raise the errors of :func:`payload` now, without reading more than is needed to find them."""
    if isinstance(tensor, ir.ExternalTensor):
        _checked_size(tensor, element_type(tensor.dtype))
    elif not isinstance(tensor, (ir.LazyTensor, ir.Tensor)):
        payload(tensor)


def values(tensor: ir.TensorProtocol) -> np.ndarray:
    """The elements of a tensor of any type that crosses (see ``ElementType.crossing``), in that dtype."""
    element = element_type(tensor.dtype)
    if element.name == "STRING":
        return tensor.numpy()
    if not element.is_emulated:
        return payload(tensor).view(element.dtype).reshape(tensor.shape.numpy())
    crossing = element_type(element.crossing).dtype
    return _decode(tensor, element).astype(crossing, copy=False)


def payload_blocks(tensor: ir.TensorProtocol) -> Iterator[np.ndarray]:
    """The bytes of :func:`payload`, a block at a time; external data is read and not mapped.

    Raises:
        ModelError: As for :func:`payload`.
    """
    if isinstance(tensor, StreamedTensor):
        yield from tensor.blocks()
    elif isinstance(tensor, ir.ExternalTensor):
        yield from file_blocks(tensor.path, tensor.offset or 0, _checked_size(tensor, element_type(tensor.dtype)))
    else:
        data = payload(tensor)
        for start in range(0, data.size, BLOCK):
            yield data[start : start + BLOCK]


def value_blocks(tensor: ir.TensorProtocol) -> Iterator[np.ndarray]:
    """The elements of :func:`values` in arrays of one axis, a block at a time."""
    element = element_type(tensor.dtype)
    if element.is_emulated:
        crossing = element_type(element.crossing).dtype
        for block in _carrier_blocks(tensor, element):
            yield block.astype(crossing, copy=False)
    elif element.name == "STRING":
        yield values(tensor).reshape(-1)
    else:
        for block in payload_blocks(tensor):
            yield block.view(element.dtype)


def carrier_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The same values in the carrier of the tensor's emulated type."""
    element = element_type(tensor.dtype)
    assert element.carrier is not None
    carrier = element_type(element.carrier)

    def encode() -> Iterator[np.ndarray]:
        for block in _carrier_blocks(tensor, element):
            yield block.view(np.uint8)

    return _streamed(encode, carrier, tensor)


def packed_tensor(tensor: ir.TensorProtocol, *, name: str | None = None) -> ir.TensorProtocol:
    """The same values in the packed 4-bit type that stands for the tensor's (INT2 in INT4, UINT2 in UINT4)."""
    element = element_type(tensor.dtype)
    assert element.packed is not None
    if element.packed == element.name and name is None:
        return tensor
    packed = element_type(element.packed)

    def encode() -> Iterator[np.ndarray]:
        left = packed_size(tensor.shape, packed)
        for block in payload_blocks(tensor):
            data = looked_up(block, _pair_table(element.name)).view(np.uint8) if element.bits == 2 else block
            yield data[:left]
            left -= data.size

    return _streamed(encode, packed, tensor, name)


def mapped_tensor(
    tensor: ir.TensorProtocol, element: ElementType, name: str, convert: Callable[[np.ndarray], np.ndarray]
) -> ir.TensorProtocol:
    """A tensor of another type that ``convert`` gives, element by element.

    Args:
        tensor: The source, of a type that crosses.
        element: The type of the result.
        name: The name of the result.
        convert: From an array of the source's values to one of the result's crossing dtype, or of its own dtype
            where that is a stock type.
    """

    def encode() -> Iterator[np.ndarray]:
        for block in value_blocks(tensor):
            converted = convert(block)
            if element.is_emulated:
                yield np.frombuffer(emulated_tensor(converted, element, name).tobytes(), np.uint8)
            else:
                yield converted.view(np.uint8)

    return StreamedTensor(encode, ir.DataType(element.code), tensor.shape.numpy(), name=name)


def _streamed(
    encode: Callable[[], Iterator[np.ndarray]], element: ElementType, source: ir.TensorProtocol, name: str | None = None
) -> StreamedTensor:
    shape = source.shape.numpy()
    return StreamedTensor(encode, ir.DataType(element.code), shape, name=name or source.name, like=source)


def _shape_text(tensor: ir.TensorProtocol) -> str:
    return str(list(tensor.shape.numpy()))


def _checked_size(tensor: ir.ExternalTensor, element: ElementType) -> int:
    """The size of an external tensor's payload, once its file is known to hold that."""
    expected = packed_size(tensor.shape, element)
    check_location(tensor, expected)
    length = expected if tensor.length is None else tensor.length
    if length != expected:
        raise ModelError(
            f"tensor {tensor.name!r} ({element.name}, shape {_shape_text(tensor)}) has {length} bytes of external "
            f"data and should have {expected}; export the model again"
        )
    return expected


def _mapped(tensor: ir.ExternalTensor, element: ElementType) -> np.ndarray:
    """Map the bytes of an external tensor."""
    expected = _checked_size(tensor, element)
    if expected == 0:
        return np.empty(0, np.uint8)
    try:
        return np.memmap(tensor.path, np.uint8, "r", offset=tensor.offset or 0, shape=(expected,))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"tensor {tensor.name!r}: {expected} bytes at offset {tensor.offset or 0} of its external data "
            f"{str(tensor.location)!r} cannot be read: {error}"
        ) from error


def _decode(tensor: ir.TensorProtocol, element: ElementType) -> np.ndarray:
    """The elements in the carrier's dtype, by one table lookup for each byte of the payload."""
    shape = tensor.shape.numpy()
    if element.bits == 6:  # elements straddle bytes
        payload(tensor)
        return _code_table(element.name)[tensor.numpy().view(np.uint8)].reshape(shape)
    table = _byte_table(element.name)
    elements = looked_up(payload(tensor), _as_scalars(table)).view(table.dtype)
    return elements[: math.prod(shape)].reshape(shape)


def _carrier_blocks(tensor: ir.TensorProtocol, element: ElementType) -> Iterator[np.ndarray]:
    """The elements of :func:`_decode` in arrays of one axis, a block at a time."""
    if element.bits == 6:
        yield _decode(tensor, element).reshape(-1)
        return
    table = _byte_table(element.name)
    left = math.prod(tensor.shape.numpy())
    for block in payload_blocks(tensor):
        elements = looked_up(block, _as_scalars(table)).view(table.dtype)[:left]
        left -= elements.size
        yield elements


def looked_up(data: np.ndarray, table: np.ndarray) -> np.ndarray:
    """table[data], a block at a time and straight into the result."""
    result = np.empty(data.size, table.dtype)
    for start in range(0, data.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        np.take(table, data[block], out=result[block], mode="clip")
    return result


def _as_scalars(table: np.ndarray) -> np.ndarray:
    """Each row of a (256, n) table as one unsigned integer of the same bytes: numpy looks these up fastest."""
    return table.view(f"u{table.dtype.itemsize * table.shape[1]}").reshape(256)


@functools.cache
def _code_table(name: str) -> np.ndarray:
    """The carrier's value for each code of an emulated type."""
    element = element_type(name)
    assert element.carrier is not None
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    if element.is_signed_integer:
        sign = 1 << (element.bits - 1)
        return ((codes ^ sign).astype(np.int16) - sign).astype(np.int8)
    if element.is_integer:
        return codes
    return codes.view(element.dtype).astype(np.float32).astype(element_type(element.carrier).dtype)


@functools.cache
def _byte_table(name: str) -> np.ndarray:
    """The carrier's values for each byte of packed codes: (256, elements in a byte)."""
    bits = element_type(name).bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (np.arange(256, dtype=np.uint16)[:, None] >> shifts) & ((1 << bits) - 1)
    return np.ascontiguousarray(_code_table(name)[codes])


@functools.cache
def _pair_table(name: str) -> np.ndarray:
    """The two bytes of 4-bit codes for each byte of 2-bit codes, as one little-endian number."""
    nibbles = _byte_table(name).astype(np.int64) & 0xF
    pairs: np.ndarray = (nibbles << np.array([0, 4, 8, 12])).sum(axis=1).astype("<u2")
    return pairs


def emulated_tensor(array: np.ndarray, element: ElementType, name: str) -> ir.TensorProtocol:
    """A tensor of an emulated type from an array of its crossing dtype."""
    if element.is_integer:
        codes = array.view(np.uint8) & np.uint8((1 << element.bits) - 1)
        return ir.Tensor(codes.view(element.dtype), dtype=ir.DataType(element.code), name=name)
    return ir.Tensor(array.astype(element.dtype), dtype=ir.DataType(element.code), name=name)
