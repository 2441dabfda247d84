"""A large model as files for the time that a session is made from it, so that onnxruntime maps its data.

onnxruntime copies initializers that it is handed in memory. The data files of a model that it is given by path it
maps, and takes no memory of its own for them. The system gives the space back: when the files go, the mapping stays.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator

import onnx

from ort_castlike._errors import SaveError
from ort_castlike._files import _protos, _save
from ort_castlike._files._external import Pending, tensor_of
from ort_castlike._files._progress import progress_bar

__all__ = ["SessionFiles"]

_PREFIX = "ort_castlike-"


class SessionFiles:
    """A temporary folder with a model in it, which goes when this object does.

    Data that a rewrite did not change is linked to where it lies, and copied where it cannot be. The links are there
    only while :meth:`complete` is entered: other readers of the data take a file of two names for an attack.

    Args:
        proto: The model. Its references to external data are changed.
        pending: The tensors behind its references to data that is not written yet.
        base_dir: The folder that its external data lies in.

    Raises:
        ModelError: External data is missing, too short, or outside ``base_dir``.
        SaveError: There is no room for the files.
    """

    def __init__(self, proto: onnx.ModelProto, pending: Pending, base_dir: str) -> None:
        references = [item for item in _protos.external_tensors(proto) if pending.tensor(item) is None]
        locations = {os.path.normpath(tensor_of(item, base_dir).location) for item in references}
        self._sources = {location: os.path.realpath(os.path.join(base_dir, location)) for location in locations}
        try:
            self._folder = tempfile.mkdtemp(prefix=_PREFIX, dir=_parent(list(self._sources.values())))
        except OSError as error:
            raise SaveError(error.errno, f"no temporary folder can be made for the model's data: {error}") from error
        self.path = os.path.join(self._folder, "model.onnx")
        remove = weakref.finalize(self, _remove, self._folder, os.getpid())
        try:
            with self.complete(), progress_bar("preparing the model") as progress:
                _save.save(proto, pending, self.path, base_dir=base_dir, progress=progress, durable=False)
        except BaseException:
            remove()
            raise

    @contextlib.contextmanager
    def complete(self) -> Iterator[None]:
        """Have all files in the folder, as making a session needs them."""
        linked = []
        try:
            for location, source in self._sources.items():
                link = os.path.join(self._folder, location)
                with contextlib.suppress(OSError):  # what cannot be linked was copied, or will be
                    os.makedirs(os.path.dirname(link), exist_ok=True)
                    os.link(source, link)
                    linked.append(link)
            yield
        finally:
            for link in linked:
                with contextlib.suppress(OSError):  # Windows removes no file that is mapped: the folder's end does
                    os.remove(link)


def _remove(folder: str, owner: int) -> None:
    """Remove a folder, unless this process is one that was forked from its owner."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _parent(sources: list[str]) -> str:
    """The folder to make the temporary one in: one that the model's data can be linked into."""
    usual = tempfile.gettempdir()
    if not sources or _device(usual) == _device(sources[0]):
        return usual
    beside = os.path.dirname(sources[0])
    size = sum(os.path.getsize(source) for source in sources if os.path.exists(source))
    return beside if os.access(beside, os.W_OK) and shutil.disk_usage(beside).free > size else usual


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None
