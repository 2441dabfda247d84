"""External data: what references to it mean, that they stay in the model's folder, and data that is still to come."""

from __future__ import annotations

import os
import secrets
import stat

import onnx
import onnx_ir as ir

from ort_castlike._errors import ModelError, innermost

__all__ = ["Pending", "check_location", "tensor_of"]


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


def tensor_of(reference: onnx.TensorProto, base_dir: str) -> ir.ExternalTensor:
    """The tensor that a reference to external data stands for.

    Raises:
        ModelError: The reference cannot be understood.
    """
    try:
        tensor = ir.serde.deserialize_tensor(reference, base_dir)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"tensor {reference.name!r}: its external data cannot be found: {innermost(error)}") from error
    assert isinstance(tensor, ir.ExternalTensor)
    return tensor


class Pending:
    """Tensors that are left out of a model while it is serialized, with references in their place."""

    def __init__(self) -> None:
        self._tensors: dict[str, ir.TensorProtocol] = {}
        self._held: list[tuple[ir.Value, ir.TensorProtocol]] = []
        self._prefix = f"pending-{secrets.token_hex(8)}-"

    def hold(self, value: ir.Value) -> None:
        """Put a reference in place of an initializer's tensor."""
        tensor = value.const_value
        assert tensor is not None
        location = f"{self._prefix}{len(self._tensors)}"
        self._tensors[location] = tensor
        self._held.append((value, tensor))
        value.const_value = ir.ExternalTensor(
            location,
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=value.name or "",
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
        )

    def tensor(self, reference: onnx.TensorProto) -> ir.TensorProtocol | None:
        """The tensor that was left out for a reference; None where it is a reference to data that exists."""
        for entry in reference.external_data:
            if entry.key == "location" and entry.value in self._tensors:
                return self._tensors[entry.value]
        return None

    def put_back(self) -> None:
        """Put the tensors back into the model."""
        for value, tensor in self._held:
            value.const_value = tensor
