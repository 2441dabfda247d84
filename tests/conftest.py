"""What every test module shares: how properties are tried, and which releases a run was on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.metadata import version

import onnx
import pytest
from hypothesis import settings

# The same verdict twice, and none that hangs on how busy the machine is.
settings.register_profile("ort_castlike", deadline=None, derandomize=True)
settings.load_profile("ort_castlike")


@pytest.fixture
def default_handler() -> Iterator[None]:
    """Ctrl-C as in a terminal: a shell's background jobs, and so the tests in them, ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is about operators and types that came to ONNX after the installed onnx."""
    newest = onnx.defs.onnx_opset_version()
    later = [item for item in items if any(mark.args[0] > newest for mark in item.iter_markers("opset"))]
    config.hook.pytest_deselected(items=later)
    items[:] = [item for item in items if item not in later]


def pytest_report_header() -> str:
    names = ("onnxruntime", "onnxruntime-extensions", "onnx", "onnx-ir", "numpy", "ml_dtypes")
    return ", ".join(f"{name} {version(name)}" for name in names)
