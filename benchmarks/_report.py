"""Prints tables, and tells the machine and the versions that they were measured on."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from _timing import Table

__all__ = ["machine", "main", "show", "versions"]


def machine() -> str:
    """The CPU's name and the number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    kinds = [kind for kind in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if kind in flags]
    return f"{name} ({', '.join(kinds)}), {os.cpu_count()} cores, {platform.system()}"


def versions() -> str:
    """What is installed."""
    packages = ("onnxruntime", "onnxruntime-extensions", "onnx", "numpy", "ml_dtypes")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)])


def show(tables: Sequence[Table]) -> None:
    """Print tables as text."""
    print(machine())
    print(versions())
    for table in tables:
        print(f"\n{table.title}\n{table.text}")
        for row in table.rows:
            print("    " + "  ".join(f"{cell:36}" for cell in row).rstrip())
        for figure in table.figures:
            verdict = "" if figure.aim is None else f"  {figure.aim_text}: {'yes' if figure.reached else 'NO'}"
            print(f"    {figure.name:60} {figure.ratio}{verdict}")


def main(measure: Callable[[int], Sequence[Table]], rounds: int = 15) -> None:
    """What a benchmark does as a script: it measures in as many rounds as the command line says, and prints tables."""
    show(measure(int(sys.argv[1]) if len(sys.argv) > 1 else rounds))
