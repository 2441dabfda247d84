"""Runs the benchmarks, writes docs/benchmarks.md and its plots, or checks the figures against their aims.

Usage: ``python benchmarks/run.py [--check] [--rounds N] [--only NAME ...] [--older PYTHON]``. Each benchmark runs in a
fresh process. ``--older`` is an interpreter that has an older onnxruntime, on which the weights are measured too. With
``--only``, the page keeps what the others found in the run before.
``--check`` writes nothing, and fails where a figure misses its aim by more than the noise: where the better quartile of
its rounds misses it too, in a second run as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from _report import machine, versions
from _timing import Figure, Spread, Table

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
FOUND = HERE.parent / "build" / "benchmarks.json"
NAMES = ("casts", "standard_lowering", "weights", "matmul_nbits", "rewriting", "sessions", "import_time")
ON_OLDER = ("weights",)
INTRODUCTION = """\
# Benchmarks

`make bench` measures all of this and writes this page. A figure is a ratio (or the unit that its name says): the
median of the rounds, and the middle half of them in brackets. The contestants of a table take turns, so that other
work on the machine slows them alike; the times beside the ratios depend on the machine, the ratios less so.
Where a figure has an aim, `make bench-check` measures again and fails where it misses that by more than the noise.
"a / b" is how many times as long a took as b.
"""


def measured(python: str, name: str, rounds: int) -> dict[str, object]:
    """What one benchmark found under one interpreter, and the versions there, as JSON."""
    command = [python, str(HERE / "run.py"), "--module", name, "--rounds", str(rounds)]
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    print(f"{name}: {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "load": load}


def section_of(found: dict[str, object]) -> tuple[str, list[Table]]:
    """The versions and the tables."""
    return found["versions"], [table_of(raw) for raw in found["tables"]]


def table_of(raw: dict[str, object]) -> Table:
    """A table that came as JSON."""
    table = Table(**raw)  # type: ignore[arg-type]
    table.figures = [Figure(**{**figure, "ratio": Spread(**figure["ratio"])}) for figure in table.figures]  # type: ignore
    return table


def print_module(name: str, rounds: int) -> None:
    """Measure in this process, and print JSON."""
    tables = importlib.import_module(name).measure(rounds)
    print(json.dumps({"versions": versions(), "tables": [dataclasses.asdict(table) for table in tables]}))


def markdown(sections: list[tuple[str, list[Table]]], plots: dict[str, str], load: float) -> str:
    """The page."""
    lines = [INTRODUCTION, f"Machine: {machine()}. Date: {time.strftime('%Y-%m-%d')}.", ""]
    lines += [f"Other work kept {load} processes waiting or running at most when a benchmark began.", ""]
    newest = [figure for shown, tables in sections if shown == sections[0][0] for t in tables for figure in t.figures]
    lines += ["## In short", ""]
    lines += [f"- {figure.headline.format(figure.ratio.short)}" for figure in newest if figure.headline] + [""]
    missed = [figure for _, tables in sections for table in tables for figure in table.figures if not figure.reached]
    lines += ["## Aims that are missed", ""]
    lines += [f"- {figure.name}: {figure.ratio}, aim {figure.aim_text}" for figure in missed] or ["None."]
    versions_shown = ""
    for shown, tables in sections:
        if shown != versions_shown:
            lines += ["", f"Measured with {shown}:"]
            versions_shown = shown
        for table in tables:
            lines += ["", f"## {table.title}", "", table.text, ""]
            if table.title in plots:
                lines += [f"![{table.title}]({plots[table.title]})", ""]
            if table.figures:
                lines += ["| figure | ratio | aim | reached |", "| --- | --- | --- | --- |"]
                for figure in table.figures:
                    reached = "" if figure.aim is None else ("yes" if figure.reached else "**no**")
                    lines.append(f"| {figure.name} | {figure.ratio} | {figure.aim_text} | {reached} |")
                lines.append("")
            if table.rows:
                lines += [row_text(table.columns), row_text(["---"] * len(table.columns))]
                lines += [row_text(row) for row in table.rows]
    return "\n".join(lines) + "\n"


def row_text(cells: list[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def plot(table: Table, folder: Path) -> str:
    """Draw the curves of a table; the file's name beside the page."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = table.title  # the same file for the same data
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name, points in table.curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel(table.axes[0])
    axes.set_ylabel(table.axes[1])
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    name = "benchmarks-" + "-".join(table.title.lower().split()) + ".svg"
    figure.savefig(folder / name, bbox_inches="tight", metadata={"Date": None})
    return name


def failures(work: dict[str, tuple[str, str]], rounds: int) -> list[Figure]:
    """The figures that fail twice."""
    failed: list[Figure] = []
    for python, name in work.values():
        suspects = {figure.name for figure in failing(python, name, rounds)}
        if suspects:
            failed += [figure for figure in failing(python, name, rounds) if figure.name in suspects]
    for figure in failed:
        asked = figure.aim_text if figure.guard is None else f"guarded at {figure.guard:g}"
        print(f"{figure.name}: {figure.ratio}, {asked}")
    print(f"{len(failed)} figures fail")
    return failed


def failing(python: str, name: str, rounds: int) -> list[Figure]:
    """The figures of one benchmark that fail."""
    _, tables = section_of(measured(python, name, rounds))
    return [figure for table in tables for figure in table.figures if figure.failed]


def main() -> int:
    """Measure, and write or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where an aim is missed, and write nothing")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, help="these benchmarks alone")
    parser.add_argument("--older", help="a Python that has an older onnxruntime")
    parser.add_argument("--module", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.module:
        print_module(arguments.module, arguments.rounds)
        return 0
    work = {name: (sys.executable, name) for name in arguments.only}
    if arguments.older:
        work |= {f"{name}, older": (arguments.older, name) for name in arguments.only if name in ON_OLDER}
    if arguments.check:
        return 1 if failures(work, arguments.rounds) else 0
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    for key, (python, name) in work.items():
        found[key] = measured(python, name, arguments.rounds)
        FOUND.parent.mkdir(exist_ok=True)
        FOUND.write_text(json.dumps(found))
    keys = [key for key in (*NAMES, *(f"{name}, older" for name in ON_OLDER)) if key in found]
    sections = [section_of(found[key]) for key in keys]
    plots = {table.title: plot(table, PAGE.parent) for _, tables in sections for table in tables if table.curves}
    load = max(found[key].get("load", 0.0) for key in keys)
    PAGE.write_text(markdown(sections, plots, load), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
