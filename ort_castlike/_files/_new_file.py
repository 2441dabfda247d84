"""Files that have their name once they are whole, and that leave nothing behind otherwise."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator

__all__ = ["NewFile", "new_file"]

_COUNTER = itertools.count()


@contextlib.contextmanager
def new_file(folder: str, *, durable: bool = True) -> Iterator[NewFile]:
    """A file to be written into ``folder``, which is dropped at the end unless it was published.

    Args:
        folder: The folder.
        durable: Whether the file has to outlive the system: it is on the disk before it gets its name.

    Raises:
        OSError: The folder takes no new files.
    """
    file = NewFile(folder, durable)
    try:
        yield file
    finally:
        file.close()


class NewFile:
    """A file that :func:`new_file` gives.

    Where the system can, it has no name at all until it is published, so that not even a killed process leaves it
    behind. Elsewhere it has a temporary one.

    Attributes:
        stream: Where to write.
    """

    def __init__(self, folder: str, durable: bool) -> None:
        self._temporary = os.path.join(folder, f".ort_castlike.{os.getpid()}.{next(_COUNTER)}.tmp")
        self._durable = durable
        self._is_named = not _takes_unnamed_files(folder, self._temporary)
        if self._is_named:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
            descriptor = os.open(self._temporary, flags, 0o666)
        else:
            descriptor = _open_unnamed(folder)
        self.stream = os.fdopen(descriptor, "wb")

    def close(self) -> None:
        """Drop the file, unless it was published."""
        with contextlib.suppress(OSError):  # what the disk has no room for was reported by the write
            self.stream.close()
        if self._is_named:
            os.remove(self._temporary)

    def take_mode_of(self, path: str) -> None:
        """Take over the permissions of a file that this one is going to replace, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(os.stat(path).st_mode)
            if hasattr(os, "fchmod"):
                os.fchmod(self.stream.fileno(), mode)

    def publish(self, path: str) -> None:
        """Give the file its name, in place of what had it."""
        self.stream.flush()
        if self._durable:
            os.fsync(self.stream.fileno())
        if not self._is_named:
            _name(self.stream.fileno(), self._temporary)
            self._is_named = True
        self.stream.close()
        os.replace(self._temporary, path)
        self._is_named = False


def _takes_unnamed_files(folder: str, name: str) -> bool:
    """Whether a file without a name can be made in ``folder`` and be called ``name`` later."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        descriptor = _open_unnamed(folder)
        try:
            _name(descriptor, name)
            os.remove(name)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _open_unnamed(folder: str) -> int:
    return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)


def _name(descriptor: int, path: str) -> None:
    # With a folder given, Python lets the system follow the link that /proc shows.
    os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor)
