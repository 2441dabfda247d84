"""Mutated models and arbitrary feeds: a result, or an error of this package or of onnxruntime, and nothing else."""

from __future__ import annotations

import logging
import pathlib
import random
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import model, node, since, value
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

import ort_castlike

FUZZ = pathlib.Path(__file__).parent.parent / "fuzz"
sys.path.insert(0, str(FUZZ))

import check  # noqa: E402
import mutants  # noqa: E402
from mutate import mutated, splice  # noqa: E402

CORPUS = sorted(FUZZ.glob("corpus/*.onnx"))


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def opset_of(path):
    return next(entry.version for entry in onnx.load(path).opset_import if entry.domain == "")


@pytest.mark.parametrize(
    "path", [model for path in CORPUS for model in since(opset_of(path), path)], ids=lambda path: path.stem
)
def test_a_model_of_the_corpus_is_valid_and_runs(path):
    onnx.checker.check_model(onnx.load(path))
    stages: list[str] = []
    assert check.check(path.read_bytes(), stages.append) == "ok"
    assert stages == ["rewrite", "load", "run"]


@pytest.mark.parametrize("start", range(0, 300, 30))
def test_a_mutant_is_rewritten_or_refused(start):
    models = mutants.corpus()
    for seed in range(start, start + 30):
        verdict = check.rewrite_only(mutants.mutant(models, seed))
        assert verdict == "ok" or verdict.startswith("refused"), (seed, verdict)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(CORPUS), st.sampled_from(CORPUS))
def test_a_model_with_parts_of_another_is_rewritten_or_refused(seed, first, second):
    spliced = splice(first.read_bytes(), second.read_bytes(), random.Random(seed))
    verdict = check.rewrite_only(spliced)
    assert verdict == "ok" or verdict.startswith("refused")


def test_mutants_are_the_same_in_every_run():
    data = CORPUS[0].read_bytes()
    assert mutated(data, random.Random(7)) == mutated(data, random.Random(7))
    assert len({mutated(data, random.Random(seed)) for seed in range(50)}) > 40


def test_a_worker_tells_how_a_process_ended():
    worker = mutants.Worker()
    try:
        assert worker.verdict(CORPUS[1].read_bytes()) == "ok"
        assert worker.verdict(b"no model").startswith("refused")
        assert worker.verdict(CORPUS[2].read_bytes()) == "ok"
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("verdict", "ours"),
    [
        ("ok", False),
        ("refused by ModelError at load", False),
        ("leak KeyError in here (there.py:1): x", True),
        ("died at rewrite (SIGSEGV)", True),
        ("died at run (SIGABRT): not stock alone", True),
        ("died at load (SIGSEGV): stock alone, too", False),
        ("hang at run (SIGALRM): not stock alone", True),
    ],
)
def test_whose_fault_a_verdict_is(verdict, ours):
    assert mutants.is_ours(verdict) is ours


# Feeds ------------------------------------------------------------------------------------------------------

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?"),
    hnp.complex_number_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
THINGS = st.one_of(
    st.none(),
    st.text(),
    st.floats(),
    st.integers(),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(), st.none())),
    DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)),
)


@pytest.fixture(scope="module")
def session():
    source = model(
        [
            node("Cast", ["x"], ["q"], to=TensorProto.INT2),
            node("Cast", ["w"], ["y"], to=TensorProto.FLOAT),
            node("Identity", ["b"], ["c"]),
        ],
        [value("x", "FLOAT", ["n", 2]), value("w", "UINT4", [2]), value("b", "BFLOAT16", [1])],
        [value("q", "INT2", ["n", 2]), value("y", "FLOAT", [2]), value("c", "BFLOAT16", [1])],
    )
    return ort_castlike.InferenceSession(source, providers=["CPUExecutionProvider"])


@settings(max_examples=150)
@given(st.sampled_from("xwb"), THINGS)
def test_a_feed_of_any_kind_is_taken_or_refused(session, name, thing):
    import ml_dtypes

    feeds = {
        "x": np.zeros((1, 2), np.float32),
        "w": np.zeros(2, ml_dtypes.uint4),
        "b": np.zeros(1, ml_dtypes.bfloat16),
        name: thing,
    }
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4
    try:
        results = session.run(None, feeds, quiet)
    except Exception as error:
        refused = error
    else:
        assert [result.dtype.name for result in results] == ["int2", "float32", "bfloat16"]
        return
    assert isinstance(refused, ort_castlike.CastLikeError) or type(refused).__module__.startswith("onnxruntime")
    assert name in str(refused)
