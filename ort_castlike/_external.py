"""External data: that a location stays in the model's folder and names a regular file."""

from __future__ import annotations

import os
import stat

import onnx_ir as ir

from ort_castlike._errors import ModelError

__all__ = ["check_location"]


def check_location(tensor: ir.ExternalTensor) -> None:
    """Refuse external data outside the model's folder, and what is no regular file that can hold it.

    Raises:
        ModelError: The location leaves the folder (links are followed), does not exist, is no regular file, or
            the file ends before the tensor's data does.
    """
    culprit = f"tensor {tensor.name!r}: its external data {os.fspath(tensor.location)!r}"
    base = os.path.realpath(os.fspath(tensor.base_dir) or os.curdir)
    path = os.path.realpath(os.path.join(base, tensor.location))
    if os.path.isabs(tensor.location) or os.path.commonpath([base, path]) != base:
        raise ModelError(f"{culprit} lies outside the model's folder; move it there and export the model again")
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{culprit} cannot be found; it belongs beside the model file ({error})") from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{culprit} is no regular file")
    offset, length = tensor.offset or 0, tensor.length or 0
    if offset < 0 or length < 0 or status.st_size < offset + length:
        raise ModelError(
            f"{culprit} has {status.st_size} bytes and the tensor needs bytes {offset} to {offset + length}; "
            "the file is not complete"
        )
