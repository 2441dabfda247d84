"""What happens to one model: rewritten, loaded and run, with a verdict that tells a defect of ours from the rest."""

from __future__ import annotations

import contextlib
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnxruntime

import ort_castlike
from ort_castlike._types import ELEMENT_TYPES

__all__ = ["LEAK", "check", "rewrite_only", "stock"]

LEAK = "leak"
_RUN_SECONDS = 2.0
_MOST_ELEMENTS = 1 << 16


def rewrite_only(model: bytes) -> str:
    """The verdict on ``rewrite`` and ``inspect``: "ok", "refused", or a leak with where it came from."""
    verdict = "ok"
    for attempt in (
        lambda: ort_castlike.inspect(model),
        lambda: ort_castlike.rewrite(model, lowering="standard"),
        lambda: ort_castlike.rewrite(model),
    ):
        verdict = _attempt(attempt)
        if verdict.startswith(LEAK):
            break
    return verdict


def check(model: bytes, say: Callable[[str], None]) -> str:
    """The verdict on a rewrite and a run of what a session makes of a model.

    Args:
        model: A serialized model, possibly broken.
        say: Told each stage before it begins, so that whoever watches knows where a process ended.
    """
    say("rewrite")
    verdict = rewrite_only(model)
    if verdict.startswith(LEAK):
        return verdict
    say("load")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session: list[ort_castlike.InferenceSession] = []

    def load() -> None:
        session.append(ort_castlike.InferenceSession(model, options, providers=["CPUExecutionProvider"]))

    loaded = _attempt(load)
    if loaded != "ok":
        return f"{loaded} at load" if loaded.startswith("refused") else loaded
    say("run")
    run_options = onnxruntime.RunOptions()
    run_options.log_severity_level = 4
    with _stopped_after(_RUN_SECONDS, run_options):
        ran = _attempt(lambda: session[0].run(None, _feeds(session[0].get_inputs()), run_options))
    return f"{ran} at run" if ran.startswith("refused") else ran


def _attempt(step: Callable[[], object]) -> str:
    try:
        step()
    except ort_castlike.CastLikeError as error:
        return f"refused by {type(error).__name__}"
    except Exception as error:
        if _is_of_onnxruntime(error):
            return "refused by onnxruntime"
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "ort_castlike" in frame.filename]
        where = ours[-1] if ours else frames[-1]
        place = f"{where.name} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})"
        return f"{LEAK} {type(error).__name__} in {place}: {error}"
    return "ok"


def _is_of_onnxruntime(error: Exception) -> bool:
    if type(error).__module__.startswith("onnxruntime"):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, (RuntimeError, ValueError)) and "/onnxruntime/capi/" in frames[-1].filename


@contextlib.contextmanager
def _stopped_after(seconds: float, run_options: onnxruntime.RunOptions) -> Iterator[None]:
    """Let a run end that its model never would."""
    timer = threading.Timer(seconds, setattr, (run_options, "terminate", True))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _feeds(inputs: Sequence[Any]) -> dict[str, Any]:
    """Small random values for the inputs; sequences hold two tensors."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for argument in inputs:
        kind = argument.type
        element = ELEMENT_TYPES.get(kind.rstrip(")").rsplit("(", 1)[-1].upper())
        if element is None:
            continue
        shape = [size if isinstance(size, int) and 0 <= size < 1000 else 2 for size in argument.shape]
        if math.prod(shape) > _MOST_ELEMENTS:
            shape = [min(size, 2) for size in shape]
        if element.name == "STRING":
            value: Any = np.full(shape, "1.5", dtype=object)
        else:
            value = rng.integers(-3, 4, shape).astype(np.float32).astype(element.dtype)
        feeds[argument.name] = [value, value] if "seq(" in kind else value
    return feeds


def stock(model: bytes, say: Callable[[str], None]) -> str:
    """The verdict on what onnxruntime alone makes of a model, as :func:`check` gives it."""
    say("load")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        say("run")
        run_options = onnxruntime.RunOptions()
        run_options.log_severity_level = 4
        with _stopped_after(_RUN_SECONDS, run_options):
            session.run(None, _feeds(session.get_inputs()), run_options)
    except Exception:
        return "refused"
    return "ok"
