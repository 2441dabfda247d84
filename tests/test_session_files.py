"""Sessions of large models: their data is in files while the session is made, and nowhere afterwards."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto, helper

import ort_castlike
from ort_castlike import _session_model
from ort_castlike._errors import ModelError, SaveError
from ort_castlike._files import _save, _session_files

INTS = np.tile([0, 1, -2, -1], 1000)
FLOATS = np.arange(4000, dtype=np.float32)
EXPECTED = INTS * np.float32(0.5) + FLOATS


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder for temporary files; models count as large from the first byte on."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(_session_model, "IN_MEMORY", 0)
    return folder


def weights_model() -> onnx.ModelProto:
    """y = INT2 weights * 0.5 + float weights, in a branch of their own where ``x`` is true."""
    branch = helper.make_graph(
        [node("DequantizeLinear", ["inner", "s"], ["inner_y"])],
        "branch",
        [],
        [value("inner_y", "FLOAT", [4000])],
        [tensor("inner", INTS, "INT2")],
    )
    otherwise = helper.make_graph([node("Neg", ["f"], ["n"])], "otherwise", [], [value("n", "FLOAT", [4000])])
    nodes = [
        node("If", ["x"], ["d"], then_branch=branch, else_branch=otherwise),
        node("Add", ["d", "f"], ["sum"]),
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("Mul", ["w", "zero"], ["nothing"]),
        node("Add", ["sum", "nothing"], ["y"]),
    ]
    initializers = [
        tensor("q", INTS, "INT2"),
        tensor("s", 0.5, np.float32),
        tensor("zero", 0, np.float32),
        tensor("f", FLOATS, np.float32),
    ]
    return model(nodes, [value("x", "BOOL", [])], [value("y", "FLOAT", [4000])], initializers)


def save(folder: Path, *, external: bool) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    if external:
        onnx.save(weights_model(), path, save_as_external_data=True, location="model.bin", size_threshold=64)
    else:
        onnx.save(weights_model(), path)
    return path


def assert_computes(session: ort_castlike.InferenceSession) -> None:
    np.testing.assert_array_equal(session.run(None, {"x": np.array(True)})[0], EXPECTED)
    np.testing.assert_array_equal(session.run(None, {"x": np.array(False)})[0], np.zeros(4000, np.float32))


def make(source) -> ort_castlike.InferenceSession:
    return ort_castlike.InferenceSession(source, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("external", [False, True])
def test_large_model_computes_and_its_files_go_with_the_session(external, temporary, tmp_path):
    session = make(save(tmp_path / "models", external=external))
    [folder] = temporary.iterdir()
    assert_computes(session)
    del session
    gc.collect()
    assert not list(temporary.iterdir())
    assert not folder.exists()


def test_untouched_data_is_linked_only_while_the_session_is_made(temporary, tmp_path, monkeypatch):
    path = save(tmp_path / "models", external=True)
    data = path.with_name("model.bin")
    counts = []
    original = _session_files.SessionFiles.complete

    def observed(self):
        manager = original(self)

        class Observed:
            def __enter__(self):
                manager.__enter__()
                counts.append(os.stat(data).st_nlink)

            def __exit__(self, *details):
                return manager.__exit__(*details)

        return Observed()

    monkeypatch.setattr(_session_files.SessionFiles, "complete", observed)
    session = make(path)
    # Once when the files are written, once when onnxruntime reads them.
    assert counts == [2, 2]
    assert os.stat(data).st_nlink == 1
    [folder] = temporary.iterdir()
    assert not (folder / "model.bin").exists()
    # Other readers take data of several names for an attack.
    onnx.load(path)
    session.set_providers(["CPUExecutionProvider"])
    assert counts == [2, 2, 2]
    assert os.stat(data).st_nlink == 1
    assert_computes(session)


def test_data_that_cannot_be_linked_is_copied(temporary, tmp_path, monkeypatch):
    def refuse(source, target, **options):
        if not str(source).startswith("/proc/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return link(source, target, **options)

    link = os.link
    monkeypatch.setattr(os, "link", refuse)
    path = save(tmp_path / "models", external=True)
    session = make(path)
    for file in path.parent.iterdir():
        file.unlink()
    session.set_providers(["CPUExecutionProvider"])
    assert_computes(session)


def test_temporary_folder_lies_beside_data_of_another_device(temporary, tmp_path, monkeypatch):
    path = save(tmp_path / "models", external=True)
    monkeypatch.setattr(_session_files, "_device", lambda name: 1 if str(temporary) in str(name) else 2)
    session = make(path)
    assert not list(temporary.iterdir())
    assert [item.is_dir() for item in path.parent.iterdir()].count(True) == 1
    assert_computes(session)
    del session
    gc.collect()
    assert sorted(os.listdir(path.parent)) == ["model.bin", "model.onnx"]


def test_every_kind_of_source_makes_a_session(temporary, tmp_path, monkeypatch):
    path = save(tmp_path / "models", external=True)
    monkeypatch.chdir(path.parent)
    proto = onnx.load("model.onnx", load_external_data=False)
    for source in (str(path), path.read_bytes(), proto, ir.load(path), weights_model()):
        assert_computes(make(source))
    gc.collect()
    assert not list(temporary.iterdir())


def test_source_is_not_changed(temporary, tmp_path):
    path = save(tmp_path / "models", external=True)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    source = ir.load(path)
    serialized = ir.serde.serialize_model(source).SerializeToString()
    make(path)
    make(source)
    assert ir.serde.serialize_model(source).SerializeToString() == serialized
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_without_room_for_files_the_model_is_handed_over_in_memory(temporary, tmp_path, monkeypatch):
    def full(*args: object, **options: object) -> None:
        raise SaveError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(_save, "save", full)
    for external in (False, True):
        assert_computes(make(save(tmp_path / f"models{external}", external=external)))
    gc.collect()
    assert not list(temporary.iterdir())
    monkeypatch.setattr(_save, "PROTOBUF_LIMIT", 1000)
    with pytest.raises(SaveError):
        make(tmp_path / "modelsTrue" / "model.onnx")


def test_model_that_onnxruntime_refuses_leaves_no_files(temporary, tmp_path):
    proto = weights_model()
    proto.graph.node.append(node("NoSuch", ["y"], ["z"], domain="org.example"))
    proto.opset_import.append(helper.make_opsetid("org.example", 1))
    with pytest.raises(Exception, match="NoSuch"):
        make(proto)
    gc.collect()
    assert not list(temporary.iterdir())


def test_missing_data_is_a_model_error_and_leaves_no_files(temporary, tmp_path):
    path = save(tmp_path / "models", external=True)
    path.with_name("model.bin").unlink()
    with pytest.raises(ModelError, match="cannot be found"):
        make(path)
    gc.collect()
    assert not list(temporary.iterdir())


def test_files_go_when_the_interpreter_ends(temporary, tmp_path):
    path = save(tmp_path / "models", external=True)
    script = (
        "import sys, ort_castlike\n"
        "from ort_castlike import _session_model\n"
        "_session_model.IN_MEMORY = 0\n"
        "session = ort_castlike.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])\n"
    )
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(Path(ort_castlike.__file__).parents[1]),
    }
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=environment)
    assert not list(temporary.glob("ort_castlike-*"))


def test_small_model_needs_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(_session_files, "SessionFiles", None)
    for external in (False, True):
        assert_computes(make(save(tmp_path / f"models{external}", external=external)))


def test_constant_nodes_keep_their_data(temporary, tmp_path):
    nodes = [
        node("Constant", [], ["q"], value=tensor("q", INTS, "INT2")),
        node("Reshape", ["q", "shape"], ["r"]),
        node("Cast", ["r"], ["y"], to=TensorProto.INT32),
    ]
    proto = model(nodes, [], [value("y", "INT32", [40, 100])], [tensor("shape", [40, 100], np.int64)])
    np.testing.assert_array_equal(make(proto).run(None, {})[0], INTS.reshape(40, 100))
