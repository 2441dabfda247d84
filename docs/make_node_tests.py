"""Makes docs/node-tests.md: how many of ONNX's own node tests pass in stock onnxruntime, and through this package.

Each case runs from Python as it stands, with numpy arrays in and out, on the CPU, and passes if ONNX's test runner
says so. The cases run in a process of their own, so that one which crashes is one that does not pass.

    python docs/make_node_tests.py  # run them on the installed onnxruntime, and write the page anew
"""

from __future__ import annotations

import collections
import json
import pathlib
import subprocess
import sys
import warnings
from typing import Any

import onnx
import onnxruntime
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.runner import Runner

HERE = pathlib.Path(__file__).parent
DATA, PAGE = HERE / "node-tests.json", HERE / "node-tests.md"
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from test_onnx_suite import array_of, is_of_the_field  # noqa: E402

from ort_castlike import backend  # noqa: E402


def all_cases() -> list[Any]:
    """Every node test that the installed ONNX brings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arithmetic of ONNX's cases overflows where it should
        return collect_testcases("")


def run_stock(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """The outputs of a plain session."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [meta.name for meta in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=False)))


def run_here(model: onnx.ModelProto, inputs: list[Any]) -> list[Any]:
    """The outputs of this package's backend."""
    return list(backend.prepare(model).run(inputs))


def passes(case: Any, run: Any) -> bool:
    """Whether a case passes."""
    try:
        for inputs, outputs in case.data_sets:
            got = run(case.model, [array_of(value) for value in inputs])
            Runner.assert_similar_outputs([array_of(value) for value in outputs], got, case.rtol, case.atol)
    except Exception:
        return False
    return True


def run_cases(skip: int) -> None:
    """Run the cases from the given one on, each in stock and then here, a line for each run."""
    onnxruntime.set_default_logger_severity(4)
    warnings.simplefilter("ignore")
    runs = [(case, run) for case in all_cases() for run in (run_stock, run_here)]
    for case, run in runs[skip:]:
        print(json.dumps(passes(case, run)), flush=True)


def measured() -> dict[str, Any]:
    """What the installed onnxruntime makes of all cases."""
    cases, outcomes = all_cases(), []
    while len(outcomes) < 2 * len(cases):
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--run", str(len(outcomes))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        outcomes += map(json.loads, done.stdout.splitlines())
        if done.returncode > 0:
            raise RuntimeError(done.stderr)
        if done.returncode < 0:
            outcomes.append(False)
    stock, here = ({case.name for case, good in zip(cases, outcomes[i::2], strict=True) if good} for i in (0, 1))
    field = {case.name for case in cases if is_of_the_field(case)}
    failing = collections.Counter(
        case.model.graph.node[0].op_type for case in cases if case.name not in here and "_expanded" not in case.name
    )
    return {
        "onnx": onnx.__version__,
        "all": [len(cases), len(stock), len(here)],
        "field": [len(field), len(stock & field), len(here & field)],
        "lost": sorted(stock - here),
        "failing": dict(sorted(failing.items())),
    }


def rendered(data: dict[str, Any]) -> str:
    """The page."""
    releases = sorted(data, key=lambda text: tuple(map(int, text.split("."))))
    lines = [
        "# ONNX's node tests",
        "",
        "How many of ONNX's own node tests pass on each onnxruntime: in a plain session, and through this package.",
        "`make_node_tests.py` makes this page from what it measures. The cases of the field are those that hold a",
        "cast, a CastLike or an emulated type; `tests/test_onnx_suite.py` holds them to it.",
        "",
        "| onnxruntime | onnx | all cases | pass in stock | pass here | of the field | pass in stock | pass here |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for text in releases:
        row = data[text]
        lines.append("| " + " | ".join(map(str, [text, row["onnx"], *row["all"], *row["field"]])) + " |")
    lost = sorted({name for row in data.values() for name in row["lost"]})
    lines += ["", f"Cases that pass in stock and fail here: {', '.join(lost) or 'none, on any of them'}."]
    newest = data[releases[-1]]["failing"]
    listed = ", ".join(f"{op_type} ({count})" for op_type, count in newest.items())
    lines += ["", f"What fails on {releases[-1]} here fails in stock too, for want of a kernel or in it: {listed}.", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Run the cases and write the page."""
    if arguments[:1] == ["--run"]:
        run_cases(int(arguments[1]))
        return
    row = measured()
    data = json.loads(DATA.read_text()) if DATA.is_file() else {}
    data[".".join(onnxruntime.__version__.split(".")[:2])] = row
    DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(rendered(data))


if __name__ == "__main__":
    main(sys.argv[1:])
