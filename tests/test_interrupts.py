"""Ctrl-C while the runtime runs: it ends in KeyboardInterrupt, and never in an abort."""

from __future__ import annotations

import functools
import signal
import threading

import processes
import pytest

from ort_castlike._interrupts import deferred_interrupts

# A model whose Loop calls the domain's CastLike over and over, for much longer than a test may take.
LOOP = """
import os, signal, sys, threading, time
import numpy as np, onnxruntime
from onnx import TensorProto, helper
import ort_castlike
from ort_castlike import _custom_ops
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from test_custom_ops import cast_node, empty, serialized, value_info

scalar = lambda name, kind: helper.make_tensor_value_info(name, kind, [])
body = helper.make_graph(
    [
        helper.make_node("Identity", ["more"], ["again"]),
        cast_node("FLOAT", "INT2", "value", "t", "narrow"),
        helper.make_node("Identity", ["value"], ["next"]),
    ],
    "body",
    [scalar("i", TensorProto.INT64), scalar("more", TensorProto.BOOL), value_info("value", "FLOAT")],
    [scalar("again", TensorProto.BOOL), value_info("next", "FLOAT")],
)
yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
graph = helper.make_graph(
    [helper.make_node("Loop", ["count", "yes", "x"], ["y"], body=body)],
    "g",
    [scalar("count", TensorProto.INT64), value_info("x", "FLOAT")],
    [value_info("y", "FLOAT")],
    [yes, empty("t", "INT8")],
)
options = onnxruntime.SessionOptions()
ort_castlike.register(options)
session = onnxruntime.InferenceSession(serialized(graph), options, providers=["CPUExecutionProvider"])
run_options = onnxruntime.RunOptions()

def stop():
    run_options.terminate = True

def run(count):
    return session.run(None, {"count": np.array(count), "x": np.ones(8, np.float32)}, run_options)

def interrupt_soon(times=1):
    def send():
        for _ in range(times):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send, daemon=True).start()
"""

python = functools.partial(processes.python, setup=LOOP)


pytestmark = pytest.mark.usefixtures("default_handler")


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_during_a_run_is_raised_after_it(times):
    result = python(f"""
        interrupt_soon({times})
        try:
            with _custom_ops.deferred_interrupts():
                start = time.monotonic()
                while time.monotonic() < start + 0.5:
                    run(2_000)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        print(_custom_ops.take_error(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split() == ["interrupted", "None", "True"]


def test_a_notified_run_ends_long_before_its_time():
    result = python("""
        interrupt_soon()
        try:
            with _custom_ops.deferred_interrupts(stop):
                run(1_000_000_000)
        except KeyboardInterrupt as error:
            print("interrupted during", type(error.__context__).__name__)
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.startswith("interrupted during")


def test_an_interrupt_that_nobody_catches_ends_the_process_as_python_does():
    result = python("""
        interrupt_soon()
        with _custom_ops.deferred_interrupts(stop):
            run(1_000_000_000)
    """)
    assert result.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in result.stderr


def test_an_interrupt_inside_is_raised_at_the_end():
    steps = []

    def block() -> None:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            steps.append("inside")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert steps == ["inside"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_blocks_may_be_nested():
    steps = []

    def blocks() -> None:
        with deferred_interrupts():
            with deferred_interrupts():
                signal.raise_signal(signal.SIGINT)
                steps.append("inner")
            steps.append("outer")

    with pytest.raises(KeyboardInterrupt):
        blocks()
    assert steps == ["inner", "outer"]


def test_a_handler_of_the_user_runs_at_the_end():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_inside_passes_and_the_handler_is_put_back():
    with pytest.raises(ValueError, match="inside"), deferred_interrupts():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_notice_is_given_once_for_each_interrupt():
    notices = []

    def block() -> None:
        with deferred_interrupts(lambda: notices.append(1)):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert notices == [1, 1]


def test_other_threads_are_left_alone():
    handlers = []

    def work() -> None:
        with deferred_interrupts():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
