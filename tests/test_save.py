"""rewrite_file: streamed, whole or not at all, and in place."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto

import ort_castlike
from ort_castlike import _rewrite, _session_model
from ort_castlike._errors import CastLikeError, ModelError, SaveError
from ort_castlike._files import _progress, _save

ROWS, COLUMNS = 64, 100
CODES = np.arange(ROWS * COLUMNS) % 4  # 0, 1, -2, -1
INTS = (CODES ^ 2) - 2
FLOATS = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) / 8


def weights_model(seed: int = 0) -> onnx.ModelProto:
    """y = x + INT2 weights * 0.5 + float weights; ``seed`` makes other weights."""
    ints = np.roll(INTS, seed).reshape(ROWS, COLUMNS)
    nodes = [
        node("DequantizeLinear", ["q", "s"], ["w"]),
        node("Add", ["w", "f"], ["wf"]),
        node("Add", ["x", "wf"], ["y"]),
    ]
    initializers = [tensor("q", ints, "INT2"), tensor("s", 0.5, np.float32), tensor("f", FLOATS + seed, np.float32)]
    return model(nodes, [value("x", "FLOAT", [1])], [value("y", "FLOAT", [ROWS, COLUMNS])], initializers)


def expected(seed: int = 0) -> np.ndarray:
    return np.roll(INTS, seed).reshape(ROWS, COLUMNS) * np.float32(0.5) + FLOATS + seed


def save_external(folder: Path, name: str = "model.onnx", seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    onnx.save(weights_model(seed), path, save_as_external_data=True, location=f"{name}.bin", size_threshold=256)
    return path


def assert_computes(path: Path, seed: int = 0) -> None:
    """Stock onnxruntime runs the file, and gives what it should."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    [y] = session.run(None, {"x": np.zeros(1, np.float32)})
    np.testing.assert_array_equal(y, expected(seed))
    onnx.checker.check_model(str(path))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def locations(path: Path) -> dict[str, str]:
    """Where each tensor of a file has its data, those that are inline left out."""
    proto = onnx.load(path, load_external_data=False)
    return {
        item.name: next(entry.value for entry in item.external_data if entry.key == "location")
        for item in proto.graph.initializer
        if item.data_location == TensorProto.EXTERNAL
    }


def test_model_without_external_data_stays_a_single_file(tmp_path):
    onnx.save(weights_model(), tmp_path / "model.onnx")
    report = ort_castlike.rewrite_file(tmp_path / "model.onnx", tmp_path / "new.onnx", target="1.20")
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "new.onnx"]
    assert report.changed
    assert report.to_dict()["files"] == [{"name": "new.onnx", "bytes": (tmp_path / "new.onnx").stat().st_size}]
    assert_computes(tmp_path / "new.onnx")
    assert onnx.load(tmp_path / "new.onnx") == ort_castlike.rewrite(tmp_path / "model.onnx", target="1.20")


def test_untouched_data_is_referred_to_in_the_same_folder(tmp_path):
    source = save_external(tmp_path)
    before = contents(tmp_path)
    report = ort_castlike.rewrite_file(source, tmp_path / "new.onnx")
    after = contents(tmp_path)
    [data] = after.keys() - before.keys() - {"new.onnx"}
    assert {name: after[name] for name in before} == before
    assert locations(tmp_path / "new.onnx") == {"q": data, "f": "model.onnx.bin"}
    assert report.files[0].name == "new.onnx"
    assert {file.name: file.bytes for file in report.files} == {
        name: len(after[name]) for name in ("new.onnx", data, "model.onnx.bin")
    }
    assert f"{data}: {ROWS * COLUMNS // 2} bytes" in str(report)
    assert data.startswith("new.onnx.")
    # 4 bits for each element of q, and nothing of f
    assert len(after[data]) == ROWS * COLUMNS // 2
    assert_computes(tmp_path / "new.onnx")


def test_data_stays_external_where_all_of_it_is_encoded_anew(tmp_path):
    proto = model(
        [node("DequantizeLinear", ["q", "s"], ["y"])],
        [],
        [value("y", "FLOAT", [ROWS, COLUMNS])],
        [tensor("q", INTS.reshape(ROWS, COLUMNS), "INT2"), tensor("s", 0.5, np.float32)],
    )
    source, destination = tmp_path / "model.onnx", tmp_path / "new.onnx"
    onnx.save(proto, source, save_as_external_data=True, location="model.bin", size_threshold=256)
    ort_castlike.rewrite_file(source, destination)
    assert set(locations(destination)) == {"q"}
    assert destination.stat().st_size < ROWS * COLUMNS // 2


@pytest.mark.parametrize("in_files", [False, True])
def test_small_external_data_goes_into_the_file(in_files, tmp_path, monkeypatch):
    # onnxruntime refuses a shape in external data.
    proto = model(
        [node("DequantizeLinear", ["q", "s"], ["w"]), node("Reshape", ["w", "shape"], ["y"])],
        [],
        [value("y", "FLOAT", [COLUMNS, ROWS])],
        [
            tensor("q", INTS.reshape(ROWS, COLUMNS), "INT2"),
            tensor("s", 0.5, np.float32),
            tensor("shape", [COLUMNS, ROWS], np.int64),
        ],
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="model.bin", size_threshold=0)
    if in_files:
        monkeypatch.setattr(_session_model, "IN_MEMORY", 0)
        session = ort_castlike.InferenceSession(path)
    else:
        ort_castlike.rewrite_file(path, path)
        assert set(locations(path)) == {"q"}
        session = onnxruntime.InferenceSession(path)
    [y] = session.run(None, {})
    np.testing.assert_array_equal(y, (INTS * np.float32(0.5)).reshape(COLUMNS, ROWS))


def test_untouched_data_is_copied_into_another_folder(tmp_path):
    source = save_external(tmp_path / "source")
    (tmp_path / "other").mkdir()
    ort_castlike.rewrite_file(source, tmp_path / "other" / "new.onnx")
    [data] = set(os.listdir(tmp_path / "other")) - {"new.onnx"}
    assert set(locations(tmp_path / "other" / "new.onnx").values()) == {data}
    for path in (tmp_path / "source").iterdir():
        path.unlink()
    assert_computes(tmp_path / "other" / "new.onnx")


def test_model_that_needs_nothing_is_copied_with_its_data(tmp_path):
    source = save_external(tmp_path / "source")
    ort_castlike.rewrite_file(source, tmp_path / "source" / "once.onnx", target="1.20")
    (tmp_path / "other").mkdir()
    report = ort_castlike.rewrite_file(
        tmp_path / "source" / "once.onnx", tmp_path / "other" / "twice.onnx", target="1.20"
    )
    assert not report.changed
    for path in (tmp_path / "source").iterdir():
        path.unlink()
    assert_computes(tmp_path / "other" / "twice.onnx")


def test_model_that_needs_nothing_is_left_alone_in_its_place(tmp_path):
    path = tmp_path / "model.onnx"
    ort_castlike.rewrite_file(save_external(tmp_path), path, target="1.20")
    before, status = contents(tmp_path), os.stat(path)
    assert not ort_castlike.rewrite_file(path, path, target="1.20").changed
    assert contents(tmp_path) == before
    assert os.stat(path).st_mtime_ns == status.st_mtime_ns


def test_file_is_rewritten_in_place(tmp_path):
    path = save_external(tmp_path)
    ort_castlike.rewrite_file(path, path)
    assert_computes(path)
    assert locations(path)["f"] == "model.onnx.bin"


@pytest.mark.parametrize(("source", "destination"), [("link", "model"), ("model", "link"), ("link", "link")])
def test_file_is_rewritten_in_place_through_a_link(source, destination, tmp_path):
    paths = {"model": save_external(tmp_path), "link": tmp_path / "link.onnx"}
    paths["link"].symlink_to("model.onnx")
    ort_castlike.rewrite_file(paths[source], paths[destination])
    assert paths["link"].is_symlink()
    for path in paths.values():
        assert_computes(path)


def test_folder_of_the_destination_may_be_a_link(tmp_path):
    source = save_external(tmp_path / "real")
    (tmp_path / "link").symlink_to("real")
    ort_castlike.rewrite_file(tmp_path / "link" / "model.onnx", source)
    assert locations(source)["f"] == "model.onnx.bin"
    assert_computes(source)


def test_link_into_another_folder_becomes_a_file_beside_its_data(tmp_path):
    source = save_external(tmp_path / "real")
    before = contents(tmp_path / "real")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link.onnx").symlink_to("../real/model.onnx")
    ort_castlike.rewrite_file(source, tmp_path / "other" / "link.onnx")
    assert contents(tmp_path / "real") == before
    assert_computes(tmp_path / "other" / "link.onnx")


def test_data_of_the_model_that_is_replaced_goes_when_it_is_replaced(tmp_path):
    new = tmp_path / "new.onnx"
    ort_castlike.rewrite_file(save_external(tmp_path, "a.onnx", seed=0), new)
    first = locations(new)["q"]
    ort_castlike.rewrite_file(save_external(tmp_path, "b.onnx", seed=1), new)
    second = locations(new)["q"]
    assert first != second
    assert not (tmp_path / first).exists()
    assert_computes(new, seed=1)


@pytest.mark.parametrize("name", ["twin.onnx", "twin"])
def test_data_that_another_model_refers_to_stays(name, tmp_path):
    new, twin = tmp_path / "new.onnx", tmp_path / name
    ort_castlike.rewrite_file(save_external(tmp_path, "a.onnx", seed=0), new, target="1.20")
    twin.write_bytes(new.read_bytes())
    (tmp_path / "not a model").write_bytes(b"")
    ort_castlike.rewrite_file(save_external(tmp_path, "b.onnx", seed=1), new)
    assert_computes(new, seed=1)
    assert_computes(twin, seed=0)


def test_data_that_another_process_has_just_written_stays(tmp_path):
    # It has the name that the data of this model could have, and its model is still to come.
    ort_castlike.rewrite_file(save_external(tmp_path, "a.onnx"), tmp_path / "new.onnx")
    (tmp_path / "new.onnx.0123456789abcdef.data").write_bytes(b"to come")
    ort_castlike.rewrite_file(save_external(tmp_path, "b.onnx", seed=1), tmp_path / "new.onnx")
    assert (tmp_path / "new.onnx.0123456789abcdef.data").read_bytes() == b"to come"


def test_files_of_others_stay(tmp_path):
    source = save_external(tmp_path)
    names = ["new.onnx.data", "new.onnx.0123456789abcdef.data.bak", "other.onnx.0123456789abcdef.data", "new.txt"]
    for name in names:
        (tmp_path / name).write_bytes(b"mine")
    ort_castlike.rewrite_file(source, tmp_path / "new.onnx")
    assert all((tmp_path / name).read_bytes() == b"mine" for name in names)


def test_the_same_input_gives_the_same_files(tmp_path):
    source = save_external(tmp_path / "source")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        ort_castlike.rewrite_file(source, tmp_path / name / "new.onnx")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_data_that_two_tensors_share_is_written_once(tmp_path):
    source = save_external(tmp_path / "source")
    proto = onnx.load(source, load_external_data=False)
    [weight] = [item for item in proto.graph.initializer if item.name == "f"]
    twin = proto.graph.initializer.add()
    twin.CopyFrom(weight)
    twin.name = "f_twin"
    proto.graph.node.append(node("Identity", ["f_twin"], ["z"]))
    proto.graph.output.append(value("z", "FLOAT", [ROWS, COLUMNS]))
    source.write_bytes(proto.SerializeToString())
    (tmp_path / "other").mkdir()
    ort_castlike.rewrite_file(source, tmp_path / "other" / "new.onnx")
    [data] = {*os.listdir(tmp_path / "other")} - {"new.onnx"}
    size = (tmp_path / "other" / data).stat().st_size
    assert size == FLOATS.nbytes + ROWS * COLUMNS // 2  # both are multiples of the alignment


def test_permissions_of_a_replaced_file_stay_and_new_ones_follow_the_umask(tmp_path):
    source = save_external(tmp_path)
    (tmp_path / "old.onnx").write_bytes(b"")
    os.chmod(tmp_path / "old.onnx", 0o604)
    before = os.umask(0o027)
    try:
        ort_castlike.rewrite_file(source, tmp_path / "old.onnx")
        ort_castlike.rewrite_file(source, tmp_path / "new.onnx")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "old.onnx").st_mode) == 0o604
    assert stat.S_IMODE(os.stat(tmp_path / "new.onnx").st_mode) == 0o640
    assert stat.S_IMODE(os.stat(tmp_path / locations(tmp_path / "new.onnx")["q"]).st_mode) == 0o640


class Full:
    """Stands for a disk that is full after some bytes."""

    def __init__(self, stream: io.BufferedWriter, room: int) -> None:
        self.stream, self.room = stream, room

    def write(self, data) -> None:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.stream.write(data)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


@pytest.mark.parametrize("named", [False, True], ids=["unnamed files", "named files"])
@pytest.mark.parametrize("room", [0, 1000, 20_000, 29_000, 29_500])
def test_full_disk_leaves_everything_as_it_was(room, named, tmp_path, monkeypatch):
    source = save_external(tmp_path / "source", seed=1)
    (tmp_path / "other").mkdir()
    destination = tmp_path / "other" / "new.onnx"
    ort_castlike.rewrite_file(save_external(tmp_path / "first"), destination, target="1.20")
    before = contents(tmp_path)
    if named:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    real = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda descriptor, mode: Full(real(descriptor, mode), room))
    if room >= 29_000:
        # The data fits, and the model does not.
        original = _save._serialized
        monkeypatch.setattr(_save, "_serialized", lambda proto: original(proto) + bytes(40_000))
    with pytest.raises(SaveError, match="what was there is unchanged") as caught:
        ort_castlike.rewrite_file(source, destination, target="1.20")
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, CastLikeError)
    assert contents(tmp_path) == before
    assert_computes(destination, seed=0)


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("call", [0, 1])
def test_failure_at_any_step_leaves_everything_as_it_was(function, call, tmp_path, monkeypatch):
    source = save_external(tmp_path, "a.onnx", seed=1)
    destination = tmp_path / "new.onnx"
    ort_castlike.rewrite_file(save_external(tmp_path, "b.onnx"), destination, target="1.20")
    before = contents(tmp_path)
    original, calls = getattr(os, function), []

    def fail(*args, **kwargs):
        calls.append(args)
        if len(calls) == call + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(*args, **kwargs)

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(SaveError):
        ort_castlike.rewrite_file(source, destination, target="1.20")
    assert contents(tmp_path) == before
    assert_computes(destination, seed=0)


def test_error_in_the_middle_of_the_data_leaves_everything_as_it_was(tmp_path, monkeypatch):
    source = save_external(tmp_path, "a.onnx", seed=1)
    destination = tmp_path / "new.onnx"
    ort_castlike.rewrite_file(save_external(tmp_path, "b.onnx"), destination)
    before = contents(tmp_path)

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    class Bar:
        def __enter__(self):
            return interrupted

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(_rewrite, "progress_bar", lambda title: Bar())
    with pytest.raises(KeyboardInterrupt):
        ort_castlike.rewrite_file(source, destination)
    assert contents(tmp_path) == before


def test_killed_process_leaves_everything_as_it_was(tmp_path):
    source = save_external(tmp_path, "a.onnx", seed=1)
    destination = tmp_path / "new.onnx"
    ort_castlike.rewrite_file(save_external(tmp_path, "b.onnx"), destination)
    before = contents(tmp_path)
    script = (
        "import sys, time, ort_castlike, contextlib\n"
        "from ort_castlike import _rewrite\n"
        "def stop(done, total):\n"
        "    print('writing', flush=True)\n"
        "    time.sleep(60)\n"
        "_rewrite.progress_bar = lambda title: contextlib.nullcontext(stop)\n"
        "ort_castlike.rewrite_file(sys.argv[1], sys.argv[2])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(ort_castlike.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(source), str(destination)], stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
    after = contents(tmp_path)
    left_behind = {name for name in after if name not in before}
    # A system without unnamed files keeps the temporary one.
    assert all(name.endswith(".tmp") for name in left_behind)
    if hasattr(os, "O_TMPFILE"):
        assert not left_behind
    assert {name: after[name] for name in before} == before


def test_destination_that_cannot_be_written_is_a_save_error(tmp_path):
    source = save_external(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for destination, message in (
        (tmp_path / "absent" / "new.onnx", "cannot be written: there is no folder '.*absent'; make it first"),
        (tmp_path / "folder", "no regular file"),
        (tmp_path / "fifo", "no regular file"),
        (tmp_path / "model.onnx" / "new.onnx", "cannot be written: there is no folder"),
    ):
        with pytest.raises(SaveError, match=message):
            ort_castlike.rewrite_file(source, destination)


def test_source_that_is_broken_touches_nothing(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model")
    before = contents(tmp_path)
    with pytest.raises(ModelError):
        ort_castlike.rewrite_file(tmp_path / "model.onnx", tmp_path / "new.onnx")
    assert contents(tmp_path) == before


def test_model_that_outgrows_a_protobuf_gets_external_data(tmp_path, monkeypatch):
    # As if the limit were 64 KiB beyond what is kept free for the graph.
    monkeypatch.setattr(_save, "PROTOBUF_LIMIT", _rewrite._STRUCTURE + (64 << 10))
    ints = np.tile(INTS, 30)  # 48 KB packed, 187 KB as INT8
    constant = tensor("c", ints, "INT2")
    nodes = [
        node("Constant", [], ["k"], value=constant),
        node("Reshape", ["q", "shape"], ["r"]),
        node("Reshape", ["k", "shape"], ["rk"]),
        node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
        node("Cast", ["rk"], ["z"], to=TensorProto.FLOAT),
    ]
    initializers = [tensor("q", ints, "INT2"), tensor("shape", [10, -1], np.int64)]
    outputs = [value("y", "FLOAT", [10, ints.size // 10]), value("z", "FLOAT", [10, ints.size // 10])]
    proto = model(nodes, [], outputs, initializers)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    ort_castlike.rewrite_file(tmp_path / "model.onnx", tmp_path / "new.onnx", target="1.20")
    assert (tmp_path / "new.onnx").stat().st_size < 4096
    assert len(os.listdir(tmp_path)) == 3
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    session = onnxruntime.InferenceSession(str(tmp_path / "new.onnx"), options, providers=["CPUExecutionProvider"])
    for result in session.run(None, {}):
        np.testing.assert_array_equal(result, ints.reshape(10, -1))


def growth_of_memory(tmp_path: Path, statement: str) -> int:
    """By how many bytes a fresh process grows at most: of its own memory, without pages of mapped files."""
    script = f"""
import sys, threading, onnx_ir, onnxruntime, ort_castlike
from ort_castlike import _rewrite, _session_model
def own():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
before, peak, stop = own(), [0], threading.Event()
def watch():
    while not stop.wait(0.002):
        peak[0] = max(peak[0], own())
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
{statement}
peak[0] = max(peak[0], own())
stop.set()
watcher.join()
print(peak[0] - before)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(ort_castlike.__file__).parents[1])}
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


MIB = 1 << 20


def big_model(folder: Path) -> None:
    """96 MiB of FLOAT, 32 MiB of INT2 to dequantize and 16 MiB to reshape, which become 64 MiB each."""
    pieces = [("f", "FLOAT", 96), ("d", "INT2", 32), ("r", "INT2", 16)]
    nodes = [
        node("Gather", ["f", "i"], ["f_y"]),
        node("DequantizeLinear", ["d", "s"], ["d_w"]),
        node("Shape", ["d_w"], ["d_y"]),
        node("Reshape", ["r", "shape"], ["r_w"]),
        node("Shape", ["r_w"], ["r_y"]),
    ]
    initializers, offset = [tensor("s", 0.5, np.float32), tensor("shape", [64, -1], np.int64)], 0
    for name, dtype, size in pieces:
        elements = size * MIB // 4 if dtype == "FLOAT" else size * MIB * 4
        weight = TensorProto(name=name, data_type=TensorProto.DataType.Value(dtype), dims=[4096, elements // 4096])
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (("location", "model.data"), ("offset", offset), ("length", size * MIB)):
            weight.external_data.add(key=key, value=str(text))
        initializers.append(weight)
        offset += size * MIB
    outputs = [value("f_y", "FLOAT", None), value("d_y", "INT64", [2]), value("r_y", "INT64", [2])]
    proto = model(nodes, [value("i", "INT64", [1])], outputs, initializers)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    with open(folder / "model.data", "wb") as file:
        for _ in range(offset // MIB):
            file.write(os.urandom(4096) * 256)


def test_weights_are_streamed_and_mapped_and_never_in_memory(tmp_path):
    big_model(tmp_path)
    (tmp_path / "other").mkdir()
    for statement in (
        "ort_castlike.rewrite_file(sys.argv[1] + '/model.onnx', sys.argv[1] + '/new.onnx')",
        "ort_castlike.rewrite_file(sys.argv[1] + '/model.onnx', sys.argv[1] + '/other/new.onnx')",
        "_session_model.IN_MEMORY = 0; session = ort_castlike.InferenceSession(sys.argv[1] + '/model.onnx', options)",
    ):
        assert growth_of_memory(tmp_path, statement) < 40 * MIB, statement


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_when_it_takes_its_time(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = Terminal()
    with _progress.progress_bar("writing model.onnx", stream) as progress:
        progress(0, 4 << 30)
        assert stream.getvalue() == ""
        now[0] = 2.5
        progress(1 << 30, 4 << 30)
        assert "writing model.onnx [#######.......................] 1.0 of 4.0 GiB" in stream.getvalue()
        written = len(stream.getvalue())
        progress(2 << 30, 4 << 30)
        assert len(stream.getvalue()) == written  # not more often than it can be read
    assert stream.getvalue().endswith("\r")


def test_progress_is_silent_where_nobody_watches(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    with _progress.progress_bar("writing", stream) as progress:
        now[0] = 100.0
        progress(1, 2)
    assert stream.getvalue() == ""
