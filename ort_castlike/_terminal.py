"""What the command line prints for people: in colour and to the width of a terminal, or plain where it is piped."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ort_castlike._check._reference import element_of
from ort_castlike._context import DOMAIN
from ort_castlike._report import memory_line, size_text
from ort_castlike._targets import TARGETS
from ort_castlike._types import CASTLIKE_TYPES

if TYPE_CHECKING:
    from ort_castlike._check._probe import Pair
    from ort_castlike._check._trial import Trial
    from ort_castlike._check._verify import Verification
    from ort_castlike._report import Report

__all__ = ["Terminal", "progress", "trial_as_json"]

_UNBOUNDED = 1 << 14  # columns: what is piped is read by programs, and not wrapped
_ROWS = 20
_VALUES = 8
_GLYPHS = {"arrays": "\u2588", "graph": "\u2592", "wrong": "x", "right": "+", "no": "\u00b7", "broken": "!"}
_ASCII = {"arrays": "#", "graph": "o", "wrong": "x", "right": "+", "no": ".", "broken": "!"}
_LEGEND = {
    "arrays": "onnxruntime alone runs it, numpy arrays in and out",
    "graph": "onnxruntime alone runs it inside a model, and not to or from arrays",
    "wrong": "onnxruntime alone runs it, and differs from ONNX",
    "right": "this package alone runs it",
    "broken": "this package differs from ONNX",
    "no": "neither runs it",
}
_STYLES = {"arrays": "green", "graph": "yellow", "wrong": "red", "right": "cyan", "no": "dim", "broken": "bold red"}


class Terminal:
    """Prints results to stdout.

    Args:
        shows_all: Print every row of long tables.
    """

    def __init__(self, *, shows_all: bool = False) -> None:
        is_terminal = sys.stdout.isatty()
        width = None if is_terminal else _UNBOUNDED
        self._console = Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)
        self._rows = sys.maxsize if shows_all else _ROWS

    def report(self, path: str, report: Report) -> None:
        """What ``inspect`` found."""
        verdict, style = f"nothing to rewrite for onnxruntime {report.target}", "green"
        if report.blockers:
            verdict, style = f"cannot be rewritten for onnxruntime {report.target}", "bold red"
        elif report.changed:
            verdict, style = f"can be rewritten for onnxruntime {report.target}", "bold green"
        self._line((f"{path}: ", "bold"), (verdict, style))
        facts = [("opset", _step(report.opset)), ("IR version", _step(report.ir_version))]
        facts.append(("right as it is on", _releases(report.runs_on_before)))
        if not report.blockers:
            releases = _releases(report.runs_on_after)
            if report.runs_on_after and report.runs_on_after[0] != report.target:
                releases += f" (--target {report.runs_on_after[0]})"
            facts.append(("rewritten, runs on", releases))
        if report.weights is not None:
            facts.append(("weights", memory_line(report.weights)))
        self._facts(facts)
        self._list("what blocks", report.blockers, "red")
        tensors = [(row.name, row.type, row.role, row.carrier) for row in report.tensors]
        self._table("tensors of emulated types", ("name", "type", "role", "becomes"), tensors)
        self._changes(report, "nodes that change")
        self._list("also", report.notes)

    def rewritten(self, path: str, report: Report, size: int, *, is_for_installed: bool) -> None:
        """What ``rewrite`` did; without a target it is for the installed release."""
        what = f"for onnxruntime {report.target}"
        if not report.changed:
            what = "a copy, since there is nothing to rewrite"
        elif is_for_installed:
            oldest = str(TARGETS[0])
            what = f"for the installed release, onnxruntime {report.target}"
            if oldest not in report.runs_on_after:
                what += f"; --target {oldest} makes a file for older ones"
        self._line((f"{path}: ", "bold"), (f"written, {what}", "bold green"))
        facts = [("opset", _step(report.opset)), ("IR version", _step(report.ir_version))]
        facts += [("runs on", _releases(report.runs_on_after)), ("size", size_text(size))]
        facts += [("data, to be kept beside it", f"{file.name}, {size_text(file.bytes)}") for file in report.files[1:]]
        facts.append(("tensors re-typed", str(sum(row.type != row.carrier for row in report.tensors))))
        if report.weights is not None:
            facts.append(("weights", memory_line(report.weights)))
        if any(f"{DOMAIN}::" in change.becomes for change in report.changes):
            facts.append(("needs", f"{DOMAIN}.register(session_options), or {DOMAIN}.InferenceSession"))
        self._facts(facts)
        self._changes(report, "nodes changed")
        self._list("also", report.notes)

    def trial(self, path: str, trial: Trial) -> None:
        """What ``run`` gave."""
        verdict, style = "ran", "bold green"
        if trial.differences:
            wrong = sum(difference is not None for difference in trial.differences.values())
            verdict = f"ran, {len(trial.differences)} of {len(trial.outputs)} outputs are as expected"
            if wrong:
                verdict, style = f"ran, {wrong} of {len(trial.outputs)} outputs are WRONG", "bold red"
        self._line((f"{path}: ", "bold"), (verdict, style), (f" ({trial.label})", "dim"))
        rows = [("in", name, *_described(value)) for name, value in trial.inputs.items()]
        rows += [("out", name, *_described(value)) for name, value in trial.outputs.items()]
        self._table("", ("", "name", "type", "first values"), rows, limited=False)
        wrong_ones = [f"{name}: {difference}" for name, difference in trial.differences.items() if difference]
        self._list("what differs", wrong_ones, "red")

    def verification(self, path: str, result: Verification) -> None:
        """What ``verify`` found."""
        if result.mismatches:
            first = result.mismatches[0]
            where = f"node {first.node} ({first.op_type})" if first.node else f"output {first.value}"
            self._line((f"{path}: ", "bold"), (f"DIFFERS, first at {where}", "bold red"))
        elif not result.compared or result.not_compared or result.failed:
            verdict = "nothing could be compared"
            if result.compared:
                verdict = "right where it ran" if result.failed else "right"
            if result.compared and result.not_compared:
                verdict = f"{result.compared} of {result.nodes} nodes {verdict}, {result.not_compared} not compared"
            self._line((f"{path}: ", "bold"), (verdict, "bold yellow"))
        else:
            self._line((f"{path}: ", "bold"), ("right", "bold green"))
        facts = [("compared", f"{result.compared} of {result.nodes} nodes"), ("fed with", _feeds(result.feeds))]
        self._facts(facts)
        for mismatch in result.mismatches[: self._rows]:
            where = f"{mismatch.node} ({mismatch.op_type}), value {mismatch.value!r}"
            if not mismatch.node:
                where = f"output {mismatch.value!r}: the optimizer makes it differ from the model node by node"
            self._line((f"  {where}", "red"))
            self._line((f"    {mismatch.difference}", ""))
            self._line((f"    {mismatch.inputs}", "dim"))
        self._more(len(result.mismatches) - self._rows)
        self._list("did not run", [f"{label}: {why}" for label, why in result.failed.items()], "red")
        self._list("not in the rewritten model under their names", result.gone)
        self._list("not evaluated", [f"{node}: {why}" for node, why in result.unknown.items()])

    def matrix(self, pairs: Sequence[Pair], runtime: str) -> None:
        """Which pairs of types run, as a picture."""
        glyphs = _GLYPHS if _can_print("".join(_GLYPHS.values())) else _ASCII
        kinds = {(pair.source, pair.target): _kind(pair) for pair in pairs}
        count = len(CASTLIKE_TYPES)
        self._line((f"CastLike on onnxruntime {runtime}", "bold"), (", from (rows) to (columns)", ""))
        for power in (10, 1):
            digits = [str(index // power % 10) if index >= power else " " for index in range(1, count + 1)]
            self._line((" " * 18 + " ".join(digits), "dim"))
        for number, source in enumerate(CASTLIKE_TYPES, 1):
            cells = [kinds[source, target] for target in CASTLIKE_TYPES]
            parts = [part for cell in cells for part in ((glyphs[cell], _STYLES[cell]), (" ", ""))]
            self._line((f"{number:2} {source:15}", ""), *parts)
        self._line()
        counts = Counter(kinds.values())
        for kind, text in _LEGEND.items():
            if counts[kind]:
                self._line((f"  {glyphs[kind]} ", _STYLES[kind]), (f"{counts[kind]:4}  {text}", ""))
        right = sum(pair.package == "right" for pair in pairs)
        self._line((f"  this package runs {right} of {len(pairs)} right, arrays in and out", "bold"))

    def _changes(self, report: Report, title: str) -> None:
        if self._rows != _ROWS:
            rows = [(change.node, change.op_type, change.becomes) for change in report.changes]
            self._table(title, ("node", "was", "becomes"), rows)
            return
        kinds = Counter((change.op_type, change.becomes) for change in report.changes)
        rows = [(str(number), *kind) for kind, number in kinds.most_common()]
        self._table(f"{title} ({len(report.changes)})", ("", "was", "becomes"), rows, counted=False)

    def _facts(self, facts: Sequence[tuple[str, str]]) -> None:
        width = max(len(name) for name, _ in facts)
        table = Table.grid(padding=(0, 2))
        table.add_column(width=width, style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in facts:
            table.add_row(Text(name), Text(text))
        self._print(Padding(table, (0, 0, 0, 2), expand=False))

    def _table(
        self,
        title: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        limited: bool = True,
        counted: bool = True,
    ) -> None:
        if not rows:
            return
        if title:
            self._line((f"{title} ({len(rows)})" if counted else title, "bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
        for index, column in enumerate(columns):
            table.add_column(Text(column), overflow="fold", ratio=None, no_wrap=index == 0 and not column)
        shown = rows[: self._rows] if limited else rows
        for row in shown:
            table.add_row(*(Text(cell) for cell in row))
        self._print(Padding(table, (0, 0, 0, 2), expand=False))
        self._more(len(rows) - len(shown))

    def _list(self, title: str, lines: Sequence[str], style: str = "") -> None:
        if not lines:
            return
        self._line((f"{title} ({len(lines)})", "bold"))
        for line in lines[: self._rows]:
            self._print(Padding(Text(line, style), (0, 0, 0, 2), expand=False))
        self._more(len(lines) - self._rows)

    def _more(self, number: int) -> None:
        if number > 0:
            self._line((f"  and {number} more: --all shows them", "dim"))

    def _line(self, *parts: tuple[str, str]) -> None:
        self._print(Text.assemble(*parts))

    def _print(self, thing: Any) -> None:
        """Print without the blanks that tables are filled with."""
        with self._console.capture() as capture:
            self._console.print(thing)
        for line in capture.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr while something takes its time; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    if not console.is_terminal:  # where rich before 14.3 writes a line, and be the bar disabled
        yield lambda done, total: None
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield update


def trial_as_json(trial: Trial) -> dict[str, Any]:
    """What ``run`` gave, as plain data: of each value its type, its shape and its first elements."""

    def entry(name: str, value: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name, "values": _first_values(value)}
        if isinstance(value, np.ndarray):
            found |= {"type": element_of(value).name, "shape": list(value.shape)}
        if name in trial.differences:
            difference = trial.differences[name]
            found["difference"] = None if difference is None else dataclasses.asdict(difference)
        return found

    return {
        "right": trial.is_right if trial.differences else None,
        "data": trial.label,
        "inputs": [entry(name, value) for name, value in trial.inputs.items()],
        "outputs": [entry(name, value) for name, value in trial.outputs.items()],
    }


def _first_values(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [_first_values(item) for item in value[:_VALUES]]
    if not isinstance(value, np.ndarray):
        return []
    return [_plain(element, value) for element in itertools.islice(value.flat, _VALUES)]


def _plain(element: Any, array: np.ndarray) -> Any:
    row = element_of(array)
    if row.name == "STRING":
        return str(element)
    if row.name == "BOOL":
        return bool(element)
    if row.is_integer:
        return int(element)
    if not row.is_float:
        return str(element)
    number = float(element)
    return number if math.isfinite(number) else str(number)


def _described(value: Any) -> tuple[str, str]:
    if isinstance(value, list):
        return f"list of {len(value)}", ", ".join(" ".join(_described(item)) for item in value[:_VALUES])
    if not isinstance(value, np.ndarray):
        return type(value).__name__, ""
    shape = "[" + ", ".join(map(str, value.shape)) + "]"
    more = [" ..."] if value.size > _VALUES else []
    values = " ".join(_short(element, value) for element in itertools.islice(value.flat, _VALUES))
    return f"{element_of(value).ort_name} {shape}", values + "".join(more)


def _short(element: Any, array: np.ndarray) -> str:
    plain = _plain(element, array)
    return f"{plain:g}" if isinstance(plain, float) else str(plain)


def _kind(pair: Pair) -> str:
    if pair.package == "wrong":
        return "broken"
    return pair.package if pair.stock == "no" else pair.stock


def _step(versions: tuple[int, int]) -> str:
    before, after = versions
    return str(before) if before == after else f"{before} to {after}"


def _releases(releases: Sequence[str]) -> str:
    """Releases with ranges: "onnxruntime 1.20 to 1.23, 1.32"."""
    order = [str(target) for target in TARGETS]
    places = sorted(order.index(release) for release in releases)
    parts = []
    for _, run in itertools.groupby(enumerate(places), lambda pair: pair[1] - pair[0]):
        numbers = [order[place] for _, place in run]
        parts.append(numbers[0] if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}")
    return "onnxruntime " + ", ".join(parts) if parts else "no supported release"


def _feeds(labels: Sequence[str]) -> str:
    """Where inputs are from: "the given inputs, 2 random and 8 boundary inputs"."""
    kinds = Counter(label.split(" inputs")[0] for label in labels)
    made_up = [f"{number} {kind}" for kind, number in kinds.items() if kind in ("random", "boundary")]
    given = [kind for kind in kinds if kind not in ("random", "boundary")]
    return ", ".join([*given, *([" and ".join(made_up) + " inputs"] if made_up else [])])


def _can_print(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return os.environ.get("TERM") != "dumb"
