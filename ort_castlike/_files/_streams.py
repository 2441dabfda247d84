"""Payloads a block at a time: tensors that are made while they are written, never whole in memory.

A block always ends between two elements, for every element type and also after it went through another encoding:
its size is a multiple of 3 (elements of 6 bits straddle bytes) and of a large power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ort_castlike._errors import ModelError

__all__ = ["BLOCK", "StreamedTensor", "file_blocks"]

BLOCK = 3 << 18  # bytes

Blocks = Callable[[], Iterator[np.ndarray]]


class StreamedTensor(ir.LazyTensor):
    """A tensor whose packed payload is a sequence of uint8 arrays that are made when they are asked for.

    Args:
        blocks: Gives the payload; called anew at each access.
        dtype: Element type.
        shape: Shape.
        name: Name.
        like: The tensor whose doc string and metadata it takes over.
    """

    def __init__(
        self,
        blocks: Blocks,
        dtype: ir.DataType,
        shape: Sequence[int],
        *,
        name: str | None,
        like: ir.TensorProtocol | None = None,
    ) -> None:
        super().__init__(
            self._whole,
            dtype,
            ir.Shape(shape),
            name=name,
            doc_string=None if like is None else like.doc_string,
            metadata_props=(dict(like.metadata_props) if like is not None else None) or None,
        )
        self._blocks = blocks

    def blocks(self) -> Iterator[np.ndarray]:
        """The payload, packed, a block after the other."""
        return self._blocks()

    def tofile(self, file: Any) -> None:
        """Write the payload."""
        for block in self._blocks():
            file.write(block.data)

    def _whole(self) -> ir.TensorProtocol:
        size = -(-math.prod(self.shape.numpy()) * self.dtype.bitwidth // 8)
        data = np.empty(size, np.uint8)
        start = 0
        for block in self._blocks():
            data[start : start + block.size] = block
            start += block.size
        shape = self.shape.numpy()
        if self.dtype.bitwidth < 8:
            return ir.PackedTensor(data, self.dtype, shape=shape, name=self.name)
        return ir.Tensor(data.view(self.dtype.numpy()).reshape(shape), dtype=self.dtype, name=self.name)


def file_blocks(path: str, offset: int, length: int) -> Iterator[np.ndarray]:
    """``length`` bytes of a file from ``offset`` on.

    They are read and not mapped: pages of a mapped file would stay in the process's resident memory.

    Raises:
        ModelError: The file cannot be read or ends before.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            while length:
                block = np.empty(min(BLOCK, length), np.uint8)
                _read_into(file, block)
                length -= block.size
                yield block
    except OSError as error:
        raise ModelError(f"external data {path!r} cannot be read: {error}") from error


def _read_into(file: Any, block: np.ndarray) -> None:
    view = block.data
    while view:
        count = file.readinto(view)
        if not count:
            raise OSError(f"{len(view)} bytes are missing at its end")
        view = view[count:]
