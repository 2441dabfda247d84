"""What every test module shares: how properties are tried, and which releases a run was on."""

from __future__ import annotations

from importlib.metadata import version

from hypothesis import settings

# The same verdict twice, and none that hangs on how busy the machine is.
settings.register_profile("ort_castlike", deadline=None, derandomize=True)
settings.load_profile("ort_castlike")


def pytest_report_header() -> str:
    names = ("onnxruntime", "onnxruntime-extensions", "onnx", "onnx-ir", "numpy", "ml_dtypes")
    return ", ".join(f"{name} {version(name)}" for name in names)
