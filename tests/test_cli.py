"""The command line: what it prints, what it exits with, and that every mistake is answered with what to do."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import model, node, tensor, value
from onnx import numpy_helper

import ort_castlike
from ort_castlike import cli
from ort_castlike._check._probe import Pair, probe_pairs
from ort_castlike._completion import SHELLS
from ort_castlike._targets import TARGETS, resolve_target

MODELS = Path(__file__).parent.parent / "models"
MIXED = str(MODELS / "mixed_int2" / "model.onnx")
MIXED_DATA = str(MODELS / "mixed_int2" / "test_data_set_0")
INT2_TO_FLOAT = str(MODELS / "castlike" / "test_cc_castlike_INT2_to_FLOAT" / "model.onnx")
COMMANDS = ("inspect", "rewrite", "run", "verify", "matrix")


@pytest.fixture
def command(capsys):
    """Run the command line in this process; its status, what it printed on stdout and on stderr."""

    def run(*arguments) -> tuple[int, str, str]:
        status = cli.main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    return probe_pairs()


@pytest.fixture
def probed(monkeypatch, pairs) -> None:
    """The types were tried out already."""
    monkeypatch.setattr("ort_castlike._check._probe.probe_pairs", lambda progress: pairs)


@pytest.fixture
def blocked(tmp_path) -> Path:
    """A model with an operator that has no rule."""
    source = model(
        [node("CastLike", ["x", "code"], ["narrow"]), node("Concat", ["narrow", "narrow"], ["y"], "join", axis=0)],
        [value("x", "FLOAT", [2])],
        [value("y", "INT2", [4])],
        [tensor("code", [0], "INT2")],
    )
    path = tmp_path / "blocked.onnx"
    onnx.save(source, path)
    return path


def test_module_and_function_do_the_same(command):
    words = [sys.executable, "-m", "ort_castlike", "inspect", MIXED, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == command("inspect", MIXED, "--json")


def test_help_is_there_for_every_command(command):
    status, text, _ = command("--help")
    assert status == cli.OK
    assert all(name in text for name in COMMANDS)
    for name in COMMANDS:
        status, text, _ = command(name, "--help")
        assert status == cli.OK
        assert f"ort-castlike {name}" in text
        assert max(map(len, text.splitlines())) <= 80


def test_version_names_what_it_runs_on(command):
    import onnxruntime

    status, text, _ = command("--version")
    assert status == cli.OK
    lines = dict(line.split() for line in text.splitlines())
    assert lines["ort-castlike"] == ort_castlike.__version__
    assert lines["onnxruntime"] == onnxruntime.__version__
    assert lines["onnx"] == onnx.__version__
    assert "onnxruntime-extensions" in lines


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "COMMAND"),
        (["inspct", "m"], "invalid choice"),
        (["inspect"], "MODEL"),
        (["inspect", "nowhere.onnx"], "'nowhere.onnx' is not there"),
        (["inspect", MODELS], "is a folder"),
        (["inspect", MIXED, "--target", "1.19"], "oldest supported release is 1.20"),
        (["inspect", MIXED, "--target", "newest"], "no onnxruntime release"),
        (["rewrite", MIXED], "OUT"),
        (["rewrite", MIXED, "-"], "standard input and output are not supported; name a file"),
        (["rewrite", MIXED, "/dev/stdout"], "standard input and output are not supported; name a file"),
        (["rewrite", "/dev/stdin", "out.onnx"], "standard input and output are not supported; name a file"),
        (["inspect", "-"], "standard input and output are not supported; name a file"),
        (["rewrite", MIXED, "out.onnx", "--lowering", "none"], "custom"),
        (["rewrite", MIXED, "out.onnx", "--weight", "auto"], "--weight"),
        (["run", MIXED, "--data", "nowhere"], "'nowhere' is no folder"),
        (["run", MIXED, "--input", "x"], "NAME=FILE"),
        (["run", MIXED, "--input", "x=nowhere.pb"], "'nowhere.pb' is not there"),
        (["run", MIXED, "--dim", "batch=many"], "'many' is no whole number"),
        (["verify"], "ORIGINAL"),
        (["verify", MIXED, "nowhere.onnx"], "'nowhere.onnx' is not there"),
        (["matrix", "extra"], "extra"),
    ],
    ids=lambda part: " ".join(map(os.path.basename, part)) if isinstance(part, list) else None,
)
def test_wrong_usage_is_answered_with_where_the_help_is(command, arguments, says):
    status, printed, told = command(*arguments)
    assert (status, printed) == (cli.USAGE, "")
    assert says in told
    assert "--help" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "arguments",
    [["--json"], ["inspect", "nowhere.onnx", "--json"], ["inspect", "--json", MIXED, "--alll"]],
    ids=["command", "file", "option"],
)
def test_wrong_usage_as_json_is_an_object(command, arguments):
    status, printed, told = command(*arguments)
    assert status == cli.USAGE
    error = json.loads(printed)["error"]
    assert error["kind"] == "UsageError"
    assert error["reasons"] == [error["message"]]
    assert error["message"] in told


def test_inspect_says_what_would_change(command):
    status, text, told = command("inspect", MIXED, "--target", "1.20")
    assert (status, told) == (cli.OK, "")
    assert "can be rewritten for onnxruntime 1.20" in text
    assert "25 to 21" in text
    assert "onnxruntime 1.20 to 1." in text
    assert "ort_castlike::CastLike from FLOAT to INT2" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_inspect_as_json_is_the_report(command):
    status, text, _ = command("inspect", MIXED, "--json")
    assert status == cli.OK
    assert json.loads(text) == json.loads(json.dumps(ort_castlike.inspect(MIXED).to_dict()))


def test_inspect_exits_with_3_where_something_blocks(command, blocked):
    status, text, _ = command("inspect", blocked)
    assert status == cli.CANNOT_REWRITE
    assert "cannot be rewritten" in text
    assert "'join' (Concat)" in text


def test_rewrite_writes_a_model_that_runs(command, tmp_path):
    out = tmp_path / "out.onnx"
    status, text, told = command("rewrite", MIXED, out, "--target", "1.20", "--lowering", "standard")
    assert (status, told) == (cli.OK, "")
    assert "written, for onnxruntime 1.20" in text
    written = onnx.load(out)
    assert [entry.version for entry in written.opset_import] == [21]
    assert command("verify", MIXED, out)[0] == cli.OK


def test_rewrite_without_a_target_says_what_the_file_is_for(command, tmp_path):
    status, text, _ = command("rewrite", MIXED, tmp_path / "out.onnx")
    assert status == cli.OK
    assert "written, for the installed release, onnxruntime 1." in text
    is_oldest = resolve_target(None) == TARGETS[0]
    assert ("--target 1.20 makes a file for older ones" in text) is not is_oldest


def test_rewrite_names_the_data_that_belongs_beside_the_file(command, tmp_path):
    onnx.save(
        onnx.load(MODELS / "digits" / "model.onnx"),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.bin",
        size_threshold=1024,
    )
    status, text, _ = command("rewrite", tmp_path / "m.onnx", tmp_path / "out.onnx")
    assert status == cli.OK
    _, printed, _ = command("rewrite", tmp_path / "m.onnx", tmp_path / "out.onnx", "--force", "--json")
    files = json.loads(printed)["files"]
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir() if path.name != "m.onnx"}
    assert {file["name"]: file["bytes"] for file in files} == sizes
    assert files[0]["name"] == "out.onnx"
    for name in sizes.keys() - {"out.onnx"}:
        assert re.search(rf"data, to be kept beside it +{re.escape(name)}, ", text)


def test_rewrite_overwrites_only_with_force(command, tmp_path):
    out = tmp_path / "out.onnx"
    out.write_bytes(b"mine")
    status, _, told = command("rewrite", MIXED, out)
    assert status == cli.USAGE
    assert "--force" in told
    assert out.read_bytes() == b"mine"
    assert command("rewrite", MIXED, out, "--force", "--rounding", "half_away")[0] == cli.OK
    [options] = [entry.value for entry in onnx.load(out).metadata_props if entry.key == "ort_castlike.options"]
    assert json.loads(options)["rounding"] == "half_away"


def test_rewrite_says_that_there_was_nothing_to_do(command, tmp_path):
    assert command("rewrite", MIXED, tmp_path / "once.onnx", "--target", "1.20")[0] == cli.OK
    status, text, _ = command("rewrite", tmp_path / "once.onnx", tmp_path / "twice.onnx", "--target", "1.20")
    assert status == cli.OK
    assert "nothing to rewrite" in text


def test_rewrite_as_json_says_where_and_what(command, tmp_path):
    status, text, _ = command("rewrite", MIXED, tmp_path / "out.onnx", "--json")
    report = json.loads(text)
    assert status == cli.OK
    assert report["out"] == str(tmp_path / "out.onnx")
    assert report["changed"] is True


def test_model_that_cannot_be_rewritten_exits_with_3_and_leaves_nothing(command, blocked, tmp_path):
    out = tmp_path / "out.onnx"
    status, printed, told = command("rewrite", blocked, out)
    assert (status, printed) == (cli.CANNOT_REWRITE, "")
    assert "'join' (Concat)" in told
    assert "Traceback" not in told
    assert not out.exists()


def test_debug_shows_the_traceback(command, blocked, tmp_path):
    _, _, told = command("rewrite", blocked, tmp_path / "out.onnx", "--debug")
    assert "Traceback" in told


def test_error_as_json_has_its_reasons(command, blocked, tmp_path):
    status, printed, told = command("rewrite", blocked, tmp_path / "out.onnx", "--json")
    error = json.loads(printed)["error"]
    assert status == cli.CANNOT_REWRITE
    assert error["kind"] == "UnsupportedOperatorError"
    assert "'join' (Concat)" in error["reasons"][0]
    assert "'join' (Concat)" in told


def test_file_that_is_no_model_exits_with_3(command, tmp_path):
    path = tmp_path / "text.onnx"
    path.write_text("no model", "utf-8")
    for name in ("inspect", "run", "verify"):
        status, _, told = command(name, path)
        assert status == cli.CANNOT_REWRITE, name
        assert "is the file complete?" in told


def test_folder_that_cannot_be_written_to_exits_with_4(command, tmp_path):
    status, _, told = command("rewrite", MIXED, tmp_path / "nowhere" / "out.onnx")
    assert status == cli.FAILED
    assert "nowhere" in told


def test_run_on_test_data_checks_the_outputs(command):
    status, text, told = command("run", MIXED, "--data", MIXED_DATA)
    assert (status, told) == (cli.OK, "")
    assert "3 of 3 outputs are as expected" in text
    assert "int2 [5, 7]" in text


def test_run_exits_with_1_where_an_output_differs(command, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(MIXED_DATA, data)
    expected = onnx.load_tensor(data / "output_2.pb")
    codes = numpy_helper.to_array(expected).copy()
    codes[1, 2] = 0 if codes[1, 2] else 1
    (data / "output_2.pb").write_bytes(numpy_helper.from_array(codes, "codes").SerializeToString())
    status, text, _ = command("run", MIXED, "--data", data)
    assert status == cli.DIFFERS
    assert "1 of 3 outputs are WRONG" in text
    assert "codes: 1 of 35 element differs, the first at [1, 2]" in text
    status, text, _ = command("run", MIXED, "--data", data, "--json")
    assert status == cli.DIFFERS
    result = json.loads(text)
    assert result["right"] is False
    assert [output["difference"] and output["difference"]["index"] for output in result["outputs"]] == [
        None, None, [1, 2],
    ]  # fmt: skip


def test_run_makes_up_inputs_that_are_the_same_for_a_seed(command):
    first, second, other = (command("run", MIXED, "--seed", seed, "--json") for seed in (3, 3, 4))
    assert first == second
    assert first[0] == cli.OK
    assert json.loads(first[1])["outputs"] != json.loads(other[1])["outputs"]


def test_run_takes_dimensions(command, tmp_path):
    source = model(
        [node("CastLike", ["x", "code"], ["y"])],
        [value("x", "FLOAT", ["batch", None, 3])],
        [value("y", "UINT2", ["batch", None, 3])],
        [tensor("code", [0], "UINT2")],
    )
    onnx.save(source, tmp_path / "m.onnx")
    _, text, _ = command("run", tmp_path / "m.onnx", "--dim", "batch=5", "--dim", "4", "--json")
    [output] = json.loads(text)["outputs"]
    assert (output["type"], output["shape"]) == ("UINT2", [5, 4, 3])


@pytest.mark.parametrize("name", ["run", "verify"])
def test_dimension_that_the_model_does_not_have_is_refused(command, tmp_path, name):
    source = model(
        [node("CastLike", ["x", "code"], ["y"])],
        [value("x", "FLOAT", ["batch", "width"])],
        [value("y", "UINT2", ["batch", "width"])],
        [tensor("code", [0], "UINT2")],
    )
    onnx.save(source, tmp_path / "m.onnx")
    status, printed, told = command(name, tmp_path / "m.onnx", "--dim", "zz=4")
    assert (status, printed) == (cli.USAGE, "")
    assert "no dimension 'zz'; theirs are batch, width" in told
    status, _, told = command(name, MIXED, "--dim", "zz=4")
    assert status == cli.USAGE
    assert "no dimension 'zz'; theirs are unnamed" in told


def test_archive_of_arrays_is_answered_with_what_to_give(command, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3, 4), np.float32))
    status, _, told = command("run", MIXED, "--input", f"x={tmp_path / 'x.npz'}")
    assert status == cli.FAILED
    assert "give a .npy or a .pb file" in told


@pytest.mark.parametrize("kind", ["npy", "pb", "carrier"])
def test_run_takes_sub_byte_values_from_files(command, tmp_path, kind):
    given = np.array([[-2, 1], [0, -1]], ml_dtypes.int2)
    shape = onnx.load(INT2_TO_FLOAT).graph.input[0].type.tensor_type.shape
    given = np.resize(given, [dim.dim_value for dim in shape.dim])
    name = onnx.load(INT2_TO_FLOAT).graph.input[0].name
    path = tmp_path / ("x.pb" if kind == "pb" else "x.npy")
    if kind == "pb":
        path.write_bytes(numpy_helper.from_array(given, name).SerializeToString())
    else:
        np.save(path, given.astype(np.int8) if kind == "carrier" else given)
    status, text, told = command("run", INT2_TO_FLOAT, "--input", f"{name}={path}", "--json")
    assert (status, told) == (cli.OK, "")
    assert json.loads(text)["outputs"][0]["values"] == given.astype(np.float64).ravel()[:8].tolist()


def test_outputs_are_written_as_test_data_that_runs_again(command, tmp_path):
    data = tmp_path / "data"
    assert command("run", MIXED, "--output-dir", data)[0] == cli.OK
    assert sorted(os.listdir(data)) == ["input_0.pb", "output_0.pb", "output_1.pb", "output_2.pb"]
    codes = onnx.load_tensor(data / "output_2.pb")
    assert (codes.name, codes.data_type) == ("codes", onnx.TensorProto.INT2)
    status, text, _ = command("run", MIXED, "--data", data)
    assert status == cli.OK
    assert "3 of 3 outputs are as expected" in text
    status, _, told = command("run", MIXED, "--output-dir", data)
    assert status == cli.FAILED
    assert "name another folder" in told


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.zeros((1, 1), np.float32), "takes tensor(float) of shape [2, 3, 4]"),
        (np.zeros((2, 3, 4), np.int32), "an array of int32"),
    ],
    ids=["shape", "type"],
)
def test_value_that_does_not_fit_exits_with_4(command, tmp_path, array, says):
    np.save(tmp_path / "x.npy", array)
    status, printed, told = command("run", MIXED, "--input", f"x={tmp_path / 'x.npy'}")
    assert (status, printed) == (cli.FAILED, "")
    assert says in told


def test_folder_around_the_test_data_is_answered_with_the_folder_inside(command):
    status, _, told = command("run", MIXED, "--data", Path(MIXED).parent)
    assert status == cli.FAILED
    assert "do you mean" in told
    assert "test_data_set_0" in told


def test_verify_is_0_where_all_is_right(command):
    status, text, told = command("verify", MIXED)
    assert (status, told) == (cli.OK, "")
    assert "right" in text
    assert "7 of 7 nodes" in text


def test_verify_is_1_and_names_the_node_of_a_planted_error(command, tmp_path):
    rewritten = ort_castlike.rewrite(MIXED)
    [constant] = [item for item in rewritten.graph.initializer if item.name == "pad_value"]
    constant.CopyFrom(numpy_helper.from_array(np.array(1, np.int8), "pad_value"))
    onnx.save(rewritten, tmp_path / "planted.onnx")
    status, text, _ = command("verify", MIXED, tmp_path / "planted.onnx")
    assert status == cli.DIFFERS
    assert "DIFFERS, first at node pad (Pad)" in text
    status, text, _ = command("verify", MIXED, tmp_path / "planted.onnx", "--json")
    assert status == cli.DIFFERS
    assert json.loads(text)["mismatches"][0]["node"] == "pad"


def test_verify_says_how_much_was_not_compared(command, tmp_path):
    source = model(
        [
            node("Gelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
            node("CastLike", ["g", "code"], ["y"], "cast"),
        ],
        [value("x", "FLOAT", [6])],
        [value("y", "INT2", [6])],
        [tensor("code", [0], "INT2")],
    )
    source.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    source.graph.value_info.append(value("g", "FLOAT", [6]))
    path = tmp_path / "m.onnx"
    onnx.save(source, path)
    status, text, _ = command("verify", path)
    assert status == cli.OK
    assert text.startswith(f"{path}: 1 of 2 nodes right, 1 not compared\n")
    status, text, _ = command("verify", path, "--strict", "--json")
    assert status == cli.DIFFERS
    result = json.loads(text)
    assert (result["right"], result["nodes"], result["compared"], result["not_compared"]) == (True, 2, 1, 1)
    assert command("verify", MIXED, "--strict")[0] == cli.OK


def test_verify_of_a_model_that_was_rewritten_exits_with_3(command, tmp_path):
    onnx.save(ort_castlike.rewrite(MIXED), tmp_path / "rewritten.onnx")
    status, printed, told = command("verify", tmp_path / "rewritten.onnx")
    assert (status, printed) == (cli.CANNOT_REWRITE, "")
    assert "the original was rewritten already: give the model that it was made from" in told


def test_verify_rewrites_for_a_target(command, tmp_path):
    status, text, _ = command("verify", MIXED, "--target", "1.20")
    assert status == cli.OK
    assert "7 of 7 nodes" in text
    onnx.save(ort_castlike.rewrite(MIXED), tmp_path / "rewritten.onnx")
    status, _, told = command("verify", MIXED, tmp_path / "rewritten.onnx", "--target", "1.20")
    assert status == cli.USAGE
    assert "leave one away" in told


def test_verify_runs_nothing_that_was_made_for_a_later_release(command, monkeypatch):
    monkeypatch.setattr("onnxruntime.__version__", "1.20.1")
    status, _, told = command("verify", MIXED, "--target", "1.24")
    assert status == cli.USAGE
    assert "made for onnxruntime 1.24 cannot be run here, where 1.20 is installed" in told


def test_verify_of_two_models_that_have_nothing_in_common_exits_with_3(command):
    status, _, told = command("verify", MIXED, INT2_TO_FLOAT)
    assert status == cli.CANNOT_REWRITE
    assert "a rewrite of the other" in told


def test_matrix_is_a_picture_of_all_pairs_and_all_are_right(command, probed):
    status, text, told = command("matrix")
    assert (status, told) == (cli.OK, "")
    assert "576 of 576" in text
    assert max(map(len, text.splitlines())) <= 80
    rows = [line for line in text.splitlines() if line[3:4].isupper() and line[:2].strip().isdecimal()]
    assert len(rows) == 24


def test_matrix_as_json_has_a_line_for_each_pair(command, probed):
    status, text, _ = command("matrix", "--json")
    pairs = json.loads(text)["pairs"]
    assert status == cli.OK
    assert len({(pair["source"], pair["target"]) for pair in pairs}) == len(pairs) == 576
    stock = {(pair["source"], pair["target"]): pair["stock"] for pair in pairs}
    assert stock["FLOAT", "INT8"] == "arrays"
    # Its Python has no arrays for 2 bits in any release.
    assert stock["FLOAT", "INT2"] in ("wrong", "no")
    assert stock["INT8", "INT2"] in ("graph", "no")
    assert stock["FLOAT", "FLOAT4E2M1"] == "no"


def test_matrix_exits_with_1_where_a_pair_is_wrong(command, monkeypatch, pairs):
    wrong = [dataclasses.replace(pairs[0], package="wrong"), *pairs[1:]]
    monkeypatch.setattr("ort_castlike._check._probe.probe_pairs", lambda progress: wrong)
    status, text, _ = command("matrix")
    assert status == cli.DIFFERS
    assert "575 of 576" in text


def test_picture_is_ascii_where_stdout_is(monkeypatch, probed):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stdout)
    assert cli.main(["matrix"]) == cli.OK
    assert b" 1 FLOAT          #" in stdout.buffer.getvalue()


def test_piped_text_is_plain_and_long_names_are_not_wrapped(command, tmp_path):
    name = "a_very_long_name_of_a_value_" * 6
    source = model(
        [node("CastLike", ["x", "code"], [name])],
        [value("x", "FLOAT", [2])],
        [value(name, "INT2", [2])],
        [tensor("code", [0], "INT2")],
    )
    onnx.save(source, tmp_path / "m.onnx")
    _, text, _ = command("inspect", tmp_path / "m.onnx")
    assert name in text
    assert "\x1b" not in text


def test_names_that_look_like_markup_are_printed_as_they_are(command, tmp_path):
    source = model(
        [node("CastLike", ["x", "code"], ["[bold]y[/bold]"], "[red]")],
        [value("x", "FLOAT", [2])],
        [value("[bold]y[/bold]", "INT2", [2])],
        [tensor("code", [0], "INT2")],
    )
    onnx.save(source, tmp_path / "m.onnx")
    _, text, _ = command("inspect", tmp_path / "m.onnx", "--all")
    assert "[bold]y[/bold]" in text
    assert "[red]" in text


def test_long_lists_end_unless_all_is_asked_for(command, tmp_path):
    names = [f"y{index:03}" for index in range(50)]
    source = model(
        [node("CastLike", ["x", "code"], [name]) for name in names],
        [value("x", "FLOAT", [2])],
        [value(name, "INT2", [2]) for name in names],
        [tensor("code", [0], "INT2")],
    )
    onnx.save(source, tmp_path / "m.onnx")
    _, text, _ = command("inspect", tmp_path / "m.onnx")
    assert "--all shows them" in text
    assert "y049" not in text
    _, text, _ = command("inspect", tmp_path / "m.onnx", "--all")
    assert "y049" in text


def test_reader_that_stops_reading_is_no_error():
    source = f"{sys.executable} -m ort_castlike --print-completion fish | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (cli.PIPE_CLOSED, "")


def test_interrupt_ends_with_130(command, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ort_castlike._rewrite.inspect", interrupted)
    assert command("inspect", MIXED)[0] == cli.INTERRUPTED


def test_defect_is_told_without_a_traceback(command, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("out of cheese")

    monkeypatch.setattr("ort_castlike._rewrite.inspect", broken)
    status, printed, told = command("inspect", MIXED)
    assert (status, printed) == (cli.FAILED, "")
    assert "RuntimeError: out of cheese" in told
    assert "--debug" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_script_knows_commands_and_choices(command, shell):
    status, script, _ = command("--print-completion", shell)
    assert status == cli.OK
    assert all(name in script for name in COMMANDS)
    assert "nearest_even toward_zero half_away" in script


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["ort-castlike", "ins"], ["inspect"]),
        (["ort-castlike", "--vers"], ["--version"]),
        (["ort-castlike", "rewrite", "--low"], ["--lowering"]),
        (["ort-castlike", "rewrite", "--rounding", "to"], ["toward_zero"]),
        (["ort-castlike", "rewrite", "mod"], ["model.onnx"]),
        (["ort-castlike", "verify", "--fo"], []),
    ],
    ids=" ".join,
)
def test_bash_completes(command, tmp_path, words, completed):
    _, script, _ = command("--print-completion", "bash")
    (tmp_path / "model.onnx").touch()
    listed = " ".join(f"'{word}'" for word in words)
    typed = f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; _ort_castlike"
    shown = "printf '%s\\n' \"${COMPREPLY[@]}\""
    shell = ["bash", "-c", f"{script}\n{typed}; {shown}"]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() == completed


def test_help_costs_no_import_of_a_runtime():
    source = "import sys\nfrom ort_castlike.cli import main\nmain(['--help'])\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert not {"onnxruntime", "onnx", "onnx_ir", "rich"} & set(done.stdout.splitlines()[-1].split())


def test_inspect_says_what_memory_the_weights_would_take(command, tmp_path):
    # 8 columns of 32 codes, 2 and then 4 bits each, and 8 scales of 4 bytes.
    constants = [tensor("w", np.zeros((8, 1, 8)), np.uint8), tensor("s", np.ones((8, 1)), np.float32)]
    settings = {"K": 32, "N": 8, "bits": 2, "block_size": 32}
    layer = node("MatMulNBits", ["x", "w", "s"], ["y"], name="layer", domain="com.microsoft", **settings)
    source = model([layer], [value("x", "FLOAT", [1, 32])], [value("y", "FLOAT", [1, 8])], constants, opset=21)
    source.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(source, tmp_path / "m.onnx")
    status, text, _ = command("inspect", tmp_path / "m.onnx", "--target", "1.20", "--weights", "pack4")
    assert status == cli.OK
    assert "1 layer goes from 2 to 4 bits: 96 B of weights become 160 B" in text
    status, text, _ = command("inspect", tmp_path / "m.onnx", "--target", "1.20", "--weights", "keep")
    assert status == cli.OK
    assert "1 layer goes" not in text
    assert "onnxruntime 1.20 refuses node 'layer' (MatMulNBits) with bits=2" in text


def test_verify_says_what_it_fed(command):
    status, text, _ = command("verify", MIXED, "--rounds", "2")
    assert status == cli.OK
    assert re.search(r"fed with +2 random and \d+ boundary inputs", text)


def test_an_input_given_in_its_carrier_is_shown_in_its_own_type(command, tmp_path):
    onnx.save(
        model([node("Identity", ["x"], ["y"])], [value("x", "UINT2", [2])], [value("y", "UINT2", [2])]),
        tmp_path / "m.onnx",
    )
    np.save(tmp_path / "x.npy", np.array([3, 1], np.uint8))
    status, text, _ = command("run", tmp_path / "m.onnx", "--input", f"x={tmp_path / 'x.npy'}")
    assert status == cli.OK
    assert [line.split() for line in text.splitlines() if line.split()[0] in ("in", "out")] == [
        [kind, name, "uint2", "[2]", "3", "1"] for kind, name in (("in", "x"), ("out", "y"))
    ]
