"""Worlds in which something is missing: a package, a device, a right, room on the disk. Each ends in words or works."""

from __future__ import annotations

import errno
import os

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto
from processes import python

import ort_castlike
from ort_castlike._errors import SaveError, TargetError
from ort_castlike._files import _save

INT2 = TensorProto.INT2


def narrowing() -> onnx.ModelProto:
    return model([node("Cast", ["x"], ["y"], to=INT2)], [value("x", "FLOAT", ["n"])], [value("y", "INT2", ["n"])])


def heavy(folder: os.PathLike[str]) -> os.PathLike[str]:
    """A model with 1 MiB of 2-bit weights in external data; its path."""
    weights = tensor("w", np.arange(1 << 22) % 4 - 2, "INT2")
    weights.name = "w"
    source = model(
        [node("Cast", ["w"], ["y"], to=TensorProto.INT8), node("Identity", ["w"], ["z"])],
        [],
        [value("y", "INT8", [1 << 22]), value("z", "INT2", [1 << 22])],
        [weights],
    )
    path = folder / "heavy.onnx"
    onnx.save(source, path, save_as_external_data=True, location="heavy.data", size_threshold=0)
    return path


# Packages and devices ---------------------------------------------------------------------------------------


def test_without_onnxruntime_extensions_standard_works_and_custom_says_how_to_get_them():
    result = python("""
        sys.modules["onnxruntime_extensions"] = None
        import numpy as np, ort_castlike, test_degraded
        feeds = {"x": np.array([3, 1], np.float32)}
        session = ort_castlike.InferenceSession(test_degraded.narrowing(), lowering="standard")
        print(session.run(None, feeds)[0].astype(int).tolist())
        print(len(ort_castlike.rewrite(test_degraded.narrowing()).graph.node))
        try:
            ort_castlike.InferenceSession(test_degraded.narrowing())
        except ort_castlike.CastLikeError as error:
            print(error)
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    lines = result.stdout.splitlines()
    assert lines[:2] == ["[-1, 1]", "2"]
    assert "pip install onnxruntime-extensions" in lines[2]
    assert "lowering='standard'" in lines[2]


@pytest.mark.parametrize("release", ["1.19.2", "1.9.0", "0.5"])
def test_an_onnxruntime_that_is_too_old_is_told_what_is_supported(release, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", release)
    for attempt in (ort_castlike.rewrite, ort_castlike.inspect, ort_castlike.InferenceSession):
        with pytest.raises(TargetError, match=rf"{release} is not supported.*1\.20: install onnxruntime>=1\.20"):
            attempt(narrowing())


def test_a_device_that_is_absent_leaves_the_work_to_the_processor():
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    if wanted[0] in onnxruntime.get_available_providers():
        wanted[0] = "NoSuchExecutionProvider"
    with pytest.warns(UserWarning, match="provider"):
        session = ort_castlike.InferenceSession(narrowing(), options, providers=wanted)
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.run(None, {"x": np.array([3], np.float32)})[0].astype(int).tolist() == [-1]


# Folders and disks ------------------------------------------------------------------------------------------


def refuse(number: int):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_a_file_that_cannot_be_written_leaves_what_was_there(number, step, tmp_path, monkeypatch):
    source, destination = heavy(tmp_path), tmp_path / "out.onnx"
    destination.write_bytes(b"what was there")
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(_save.os, step, refuse(number))
    with pytest.raises(SaveError, match="unchanged") as raised:
        ort_castlike.rewrite_file(source, destination)
    monkeypatch.undo()
    assert raised.value.errno == number
    assert destination.read_bytes() == b"what was there"
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("limit", [1 << 10, 1 << 16, 1 << 20])
def test_a_full_disk_leaves_what_was_there(limit, tmp_path):
    source, destination = heavy(tmp_path), tmp_path / "out.onnx"
    destination.write_bytes(b"what was there")
    before = sorted(os.listdir(tmp_path))
    result = python(
        """
        import resource
        import ort_castlike
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
        try:
            ort_castlike.rewrite_file(sys.argv[2], sys.argv[3])
        except ort_castlike.CastLikeError as error:
            print(type(error).__name__, error)
        """,
        str(limit),
        str(source),
        str(destination),
    )
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.startswith("SaveError")
    assert destination.read_bytes() == b"what was there"
    assert sorted(os.listdir(tmp_path)) == before


def test_a_model_in_a_folder_that_cannot_be_written_runs(tmp_path, monkeypatch):
    path = heavy(tmp_path)
    before = sorted(os.listdir(tmp_path))
    os.chmod(tmp_path, 0o555)
    try:
        session = ort_castlike.InferenceSession(path, providers=["CPUExecutionProvider"])
        wide, narrow = session.run(None, {})
    finally:
        os.chmod(tmp_path, 0o755)
    expected = np.arange(1 << 22) % 4 - 2
    assert np.array_equal(wide, expected)
    assert np.array_equal(narrow.astype(np.int8), expected)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_destination_in_no_folder_is_refused(tmp_path):
    with pytest.raises(SaveError, match=r"there is no folder .*nowhere.*make it first"):
        ort_castlike.rewrite_file(heavy(tmp_path), tmp_path / "nowhere" / "out.onnx")


def test_a_system_short_of_memory_gets_an_error():
    result = python("""
        import resource
        import numpy as np, ort_castlike, test_degraded
        session = ort_castlike.InferenceSession(test_degraded.narrowing(), providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.ones(8, np.float32)})
        def fail(*arguments, **options):
            raise MemoryError("for a test")
        from ort_castlike import _custom_ops
        _custom_ops.convert = fail
        try:
            session.run(None, {"x": np.ones(8, np.float32)})
        except MemoryError as error:
            print("MemoryError", error)
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout == "MemoryError for a test\n"
