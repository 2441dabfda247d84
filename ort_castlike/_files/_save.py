"""A rewritten model into a file: large data streamed beside it, the whole of it appearing at once or not at all.

The data goes first, under a name made of a digest of what it holds, so that it can neither be taken for the data of
the model that is being replaced nor stand in its way. The model goes last, and until then the old one is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import mmap
import os
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO

import google.protobuf.message
import numpy as np
import onnx
import onnx_ir as ir

from ort_castlike._constants import check_payload, payload_blocks
from ort_castlike._errors import ModelError, SaveError
from ort_castlike._files import _protos
from ort_castlike._files._external import Pending, tensor_of
from ort_castlike._files._new_file import new_file
from ort_castlike._files._progress import Progress

__all__ = ["PROTOBUF_LIMIT", "save"]

PROTOBUF_LIMIT = 2**31 - 1  # bytes
_PAGE = 1 << 16  # the coarsest unit in which a system maps files
_ALIGNMENT = 64
_PAGED = 1 << 20  # bytes; tensors from this size on begin on a page, so that they can be mapped on their own
_DIGITS = 16  # of the digest in a data file's name


def save(
    proto: onnx.ModelProto,
    pending: Pending,
    destination: str | os.PathLike[str],
    *,
    base_dir: str,
    progress: Progress = lambda done, total: None,
    durable: bool = True,
) -> dict[str, int]:
    """Write a model to ``destination``, and the data that it does not hold to a file beside it.

    External data that lies in the destination's folder already is referred to where it is.

    Args:
        proto: The model. Its references to external data are changed.
        pending: The tensors behind its references to data that is not written yet.
        destination: Path of the model file.
        base_dir: The folder that the model's external data lies in.
        progress: Called with the bytes of data that are written and that there are to write.
        durable: Whether the files have to outlive the system: each is on the disk before it gets its name.

    Returns:
        The bytes of each file that the model consists of, by its path from the destination's folder: first the model
        file, then those of its external data.

    Raises:
        ModelError: External data is missing, too short, or outside ``base_dir``; or the model without it exceeds what
            a protobuf holds.
        SaveError: The files cannot be written. What was at ``destination`` is as it was.
    """
    external = [_External(reference, pending) for reference in _protos.external_tensors(proto)]
    for item in external:
        item.find(base_dir)
    place = _Place.of(destination, has_data=bool(external))
    try:
        stale = _own_data(place)
        _write(proto, [item for item in external if not item.lies_in(place.folder)], place, progress, durable)
    except OSError as error:
        if isinstance(error, SaveError):
            raise
        if not os.path.isdir(place.folder):
            raise SaveError(
                error.errno, f"{place.path!r} cannot be written: there is no folder {place.folder!r}; make it first"
            ) from error
        raise SaveError(
            error.errno, f"{place.path!r} cannot be written, what was there is unchanged: {error.strerror or error}"
        ) from error
    _remove_stale_data(stale, proto, place)
    names = dict.fromkeys([place.name, *_locations(proto)])
    return {name: os.path.getsize(os.path.join(place.folder, name)) for name in names}


class _External:
    """A reference to external data in the model, and the tensor behind it."""

    def __init__(self, reference: onnx.TensorProto, pending: Pending) -> None:
        self.reference = reference
        self.tensor = pending.tensor(reference)
        self._is_new = self.tensor is not None

    def find(self, base_dir: str) -> None:
        """Check that the data is there."""
        if self.tensor is None:
            self.tensor = tensor_of(self.reference, base_dir)
            check_payload(self.tensor)

    def lies_in(self, folder: str) -> bool:
        """Whether a model in ``folder`` can refer to the data by the same location."""
        if self._is_new:
            return False
        assert isinstance(self.tensor, ir.ExternalTensor)
        here = os.path.join(folder, self.tensor.location)
        return os.path.exists(here) and os.path.samefile(here, self.tensor.path)

    @property
    def key(self) -> object:
        """Equal for references to the same data."""
        if isinstance(self.tensor, ir.ExternalTensor):
            return os.path.realpath(self.tensor.path), self.tensor.offset or 0, self.nbytes
        return id(self.tensor)

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        assert self.tensor is not None
        return self.tensor.nbytes

    def blocks(self) -> Iterator[np.ndarray]:
        """The data."""
        assert self.tensor is not None
        return payload_blocks(self.tensor)

    def refer_to(self, location: str, offset: int) -> None:
        """Let the reference be to the data's new place."""
        del self.reference.external_data[:]
        for key, value in (("location", location), ("offset", str(offset)), ("length", str(self.nbytes))):
            self.reference.external_data.add(key=key, value=value)


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a model goes: the folder (links followed) and the name of its file there."""

    folder: str
    name: str

    @classmethod
    def of(cls, destination: str | os.PathLike[str], *, has_data: bool) -> _Place:
        """The place of ``destination``.

        A link stays a link and the file that it leads to is replaced; unless that lies in another folder and the
        model has external data, which belongs beside the path by which the model is opened.
        """
        path = os.path.abspath(destination)
        folder, name = os.path.split(path)
        folder = os.path.realpath(folder)
        target_folder, target_name = os.path.split(os.path.realpath(path))
        if target_folder == folder or not has_data:
            folder, name = target_folder, target_name
        try:
            mode = os.stat(os.path.join(folder, name)).st_mode
        except OSError:  # not there, or what is wrong shows when it is written
            mode = stat.S_IFREG
        if not stat.S_ISREG(mode):
            raise SaveError(f"{path!r} is no regular file; give the path of a model file")
        return cls(folder, name)

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)


def _write(proto: onnx.ModelProto, data: list[_External], place: _Place, progress: Progress, durable: bool) -> None:
    new_data = None
    if data:
        with new_file(place.folder, durable=durable) as file:
            digest, offsets = _write_data(file.stream, data, progress)
            location = f"{place.name}.{digest}.data"
            for item, offset in zip(data, offsets, strict=True):
                item.refer_to(location, offset)
            path = os.path.join(place.folder, location)
            new_data = None if os.path.lexists(path) else path
            file.publish(path)
    try:
        with new_file(place.folder, durable=durable) as file:
            file.stream.write(_serialized(proto))
            file.take_mode_of(place.path)
            file.publish(place.path)
    except BaseException:
        if new_data is not None:
            with contextlib.suppress(OSError):
                os.remove(new_data)
        raise


def _write_data(stream: BinaryIO, data: list[_External], progress: Progress) -> tuple[str, list[int]]:
    """Write what the references need, each piece once.

    Returns:
        A digest of all that was written, and the offset of each reference's data.
    """
    digest = hashlib.sha256()
    total = sum({item.key: item.nbytes for item in data}.values())
    written: dict[object, int] = {}
    position = 0
    for item in data:
        if item.key in written:
            continue
        unit = _PAGE if item.nbytes >= _PAGED else _ALIGNMENT
        padding = -position % unit
        written[item.key] = position + padding
        for block in itertools.chain([np.zeros(padding, np.uint8)], item.blocks()):
            stream.write(block.data)
            digest.update(block.data)
            position += block.size
            progress(position, total)
    return digest.hexdigest()[:_DIGITS], [written[item.key] for item in data]


def _serialized(proto: onnx.ModelProto) -> bytes:
    try:
        data: bytes = proto.SerializeToString()
    except (google.protobuf.message.EncodeError, ValueError) as error:
        raise ModelError(f"the rewritten model cannot be serialized: {error}") from error
    if len(data) > PROTOBUF_LIMIT:
        raise ModelError(
            f"the rewritten model takes {len(data)} bytes without its external data, and a model file holds "
            f"{PROTOBUF_LIMIT}; export it with external data"
        )
    return data


def _own_data(place: _Place) -> set[str]:
    """The data files that the model at a place refers to and that were written for it."""
    pattern = re.compile(re.escape(place.name) + rf"\.[0-9a-f]{{{_DIGITS}}}\.data")
    names = [name for name in os.listdir(place.folder) if pattern.fullmatch(name)]
    return {name for name in names if _mentions(place.path, name)}


def _remove_stale_data(stale: set[str], proto: onnx.ModelProto, place: _Place) -> None:
    """Remove data files of the model that was replaced, unless another model refers to them."""
    stale = stale.difference(_locations(proto))
    if not stale:
        return
    with contextlib.suppress(OSError):  # the model is written; what cannot be tidied up stays
        others = [os.path.join(place.folder, name) for name in os.listdir(place.folder) if name not in stale]
        for name in stale:
            if not any(_mentions(other, name) for other in others):
                os.remove(os.path.join(place.folder, name))


def _locations(proto: onnx.ModelProto) -> Iterator[str]:
    """The files of a model's external data, from its folder."""
    for reference in _protos.external_tensors(proto):
        yield from (os.path.normpath(entry.value) for entry in reference.external_data if entry.key == "location")


def _mentions(path: str, name: str) -> bool:
    """Whether a file, if it can be a model, holds a name."""
    if not os.path.isfile(path) or not 0 < os.path.getsize(path) <= PROTOBUF_LIMIT:
        return False
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0
