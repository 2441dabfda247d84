"""The public names are a promise: these, with these arguments, and light to import."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import resources

import onnx.backend.base
import onnx_ir
import onnxruntime
import pytest

import ort_castlike

NAMES = {
    "CastLikeError",
    "InferenceSession",
    "LegalizePass",
    "backend",
    "inspect",
    "register",
    "rewrite",
    "rewrite_file",
}
REWRITE_OPTIONS = {"target": None, "lowering": "custom", "rounding": "nearest_even", "weights": "auto"}


def parameters(function, kind):
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is kind
    }


def modules_after(statements: str) -> set[str]:
    """The modules that a fresh interpreter holds after ``statements``."""
    source = f"{statements}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_public_names_are_exactly_these():
    assert set(ort_castlike.__all__) == NAMES | {"__version__"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_public_name_is_there_and_listed(name):
    assert getattr(ort_castlike, name) is not None
    assert name in dir(ort_castlike)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ort_castlike.no_such_name


@pytest.mark.parametrize(
    ("name", "positional", "keywords"),
    [
        ("register", ["session_options"], {}),
        ("rewrite", ["model"], REWRITE_OPTIONS),
        ("rewrite_file", ["source", "destination"], REWRITE_OPTIONS),
        ("inspect", ["model"], {"target": None, "weights": "auto"}),
    ],
    ids=["register", "rewrite", "rewrite_file", "inspect"],
)
def test_function_takes_these_arguments(name, positional, keywords):
    function = getattr(ort_castlike, name)
    assert list(parameters(function, inspect.Parameter.POSITIONAL_OR_KEYWORD)) == positional
    assert keywords.items() <= parameters(function, inspect.Parameter.KEYWORD_ONLY).items()


def test_session_takes_the_arguments_of_onnxruntime_and_two_more():
    ours = list(inspect.signature(ort_castlike.InferenceSession).parameters)
    stock = list(inspect.signature(onnxruntime.InferenceSession).parameters)
    assert len(ours[:3]) == len(stock[:3]) == 3
    assert ours[1:3] == stock[1:3] == ["sess_options", "providers"]
    keywords = parameters(ort_castlike.InferenceSession, inspect.Parameter.KEYWORD_ONLY)
    assert keywords["lowering"] == "custom"
    assert keywords["rounding"] == "nearest_even"
    assert keywords["weights"] == "auto"


def test_pass_and_backend_are_of_the_kinds_they_plug_into():
    assert issubclass(ort_castlike.LegalizePass, onnx_ir.passes.PassBase)
    assert issubclass(ort_castlike.CastLikeError, Exception)
    for method in ("prepare", "run_model", "run_node", "supports_device", "is_compatible"):
        assert callable(getattr(ort_castlike.backend, method))
    assert any(
        isinstance(value, type) and issubclass(value, onnx.backend.base.Backend)
        for value in vars(ort_castlike.backend).values()
    )


@pytest.mark.parametrize(
    "statements",
    [
        "import ort_castlike",
        "import onnxruntime, ort_castlike; ort_castlike.register(onnxruntime.SessionOptions())",
    ],
    ids=["import", "register"],
)
def test_onnx_ir_is_imported_only_when_rewriting(statements):
    loaded = modules_after(statements)
    assert "ort_castlike" in loaded
    assert not loaded & {"onnx_ir", "sympy"}


def test_package_says_that_it_is_typed():
    assert (resources.files(ort_castlike) / "py.typed").is_file()
