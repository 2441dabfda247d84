"""External data: that a location stays in the model's folder and names a regular file."""

from __future__ import annotations

import os
import stat

import onnx_ir as ir

from ort_castlike._errors import ModelError

__all__ = ["check_location"]


def check_location(tensor: ir.ExternalTensor, size: int = 0) -> None:
    """Refuse external data outside the model's folder, and what is no regular file that can hold it.

    Args:
        tensor: The tensor.
        size: Bytes of data that it needs where its length is not given.

    Raises:
        ModelError: The location leaves the folder (links are followed), does not exist, is no regular file, or
            the file ends before the tensor's data does.
    """
    culprit = f"tensor {tensor.name!r}: its external data {os.fspath(tensor.location)!r}"
    base = os.path.realpath(os.fspath(tensor.base_dir) or os.curdir)
    try:
        path = os.path.realpath(os.path.join(base, tensor.location))
        inside = not os.path.isabs(tensor.location) and os.path.commonpath([base, path]) == base
    except ValueError:  # a NUL character, or another drive
        inside = False
    if not inside:
        raise ModelError(f"{culprit} lies outside the model's folder; move it there and export the model again")
    try:
        status = os.stat(path)
    except OSError as error:
        raise ModelError(f"{culprit} cannot be found; it belongs beside the model file ({error})") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{culprit} is no regular file")
    offset, length = tensor.offset or 0, size if tensor.length is None else tensor.length
    if offset < 0 or length < 0 or status.st_size < offset + length:
        raise ModelError(
            f"{culprit} has {status.st_size} bytes and the tensor needs bytes {offset} to {offset + length}; "
            "the file is not complete"
        )
