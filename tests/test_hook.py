"""Ctrl-C in sessions of onnxruntime's own: it ends in KeyboardInterrupt after the run, and never in an abort."""

from __future__ import annotations

import _thread
import signal
import time

import pytest
from test_interrupts import python

from ort_castlike._hook import guarded

pytestmark = pytest.mark.usefixtures("default_handler")

# Interrupts at random moments, one or two at a time, each of which must come up once the run has ended.
STORM = """
import random
rng = random.Random(0)
caught = 0
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    def send():
        time.sleep(rng.random() * 0.02)
        for _ in range(rng.randint(1, 2)):
            os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=send)
    try:
        thread.start()
        run(2_000)
        while thread.is_alive():
            pass
        time.sleep(5)
        print("lost")
    except KeyboardInterrupt:
        caught += 1
    while thread.is_alive():
        try:
            thread.join()
        except KeyboardInterrupt:
            pass
    try:
        time.sleep(0.05)
    except KeyboardInterrupt:
        pass
print("caught", caught, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


def called_with_an_interrupt_waiting(function, *arguments):
    """Call from C, right after SIGINT came and before Python could look for it."""
    interrupts = map(_thread.interrupt_main, [signal.SIGINT])
    return next(zip(interrupts, map(function, *([argument] for argument in arguments)), strict=True))[1]


def assert_interrupted_soon():
    with pytest.raises(KeyboardInterrupt):
        time.sleep(30)


def test_a_plain_function_is_interrupted_before_its_first_line():
    def plain(value):
        try:
            return value
        except KeyboardInterrupt:
            return "caught"

    with pytest.raises(KeyboardInterrupt):
        called_with_an_interrupt_waiting(plain, 1)


def test_an_interrupt_that_waits_at_the_entry_is_handled_after_the_call():
    hook = guarded(lambda k_id, feed, attributes: (k_id, feed, attributes))
    assert called_with_an_interrupt_waiting(hook, 1, "feed", "attributes") == (1, "feed", "attributes")
    assert_interrupted_soon()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_during_the_call_is_handled_after_it():
    def body(k_id, feed, attributes):
        signal.raise_signal(signal.SIGINT)
        return k_id

    assert guarded(body)(7, (), {}) == 7
    assert_interrupted_soon()


def test_a_handler_of_the_user_runs_once():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        hook = guarded(lambda k_id, feed, attributes: k_id)
        assert called_with_an_interrupt_waiting(hook, 3, (), {}) == 3
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_what_an_operator_raises_is_raised_as_before():
    def body(k_id, feed, attributes):
        raise ZeroDivisionError("in the body")

    with pytest.raises(ZeroDivisionError, match="in the body"):
        guarded(body)(1, (), {})


def test_a_storm_of_interrupts_never_ends_a_plain_session():
    result = python(STORM, "3")
    assert result.returncode == 0, result.stderr[-2000:]
    words = result.stdout.split()
    assert words[0] == "caught", result.stdout
    assert int(words[1]) >= 3
    assert words[2] == "True"


def test_an_interrupt_in_an_operator_of_another_library_ends_no_process_either():
    result = python("""
        from onnxruntime_extensions import PyCustomOpDef, onnx_op

        @onnx_op(op_type="others::Slow", inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
        def slow(x):
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
            return x * 2

        graph = helper.make_graph([helper.make_node("Slow", ["x"], ["y"], domain="others")], "g",
                                  [value_info("x", "FLOAT")], [value_info("y", "FLOAT")])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("others", 1)]
        options = onnxruntime.SessionOptions()
        ort_castlike.register(options)
        model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
        other = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        interrupt_soon()
        try:
            result = other.run(None, {"x": np.ones(2, np.float32)})
            time.sleep(10)
        except KeyboardInterrupt:
            print("interrupted", result)
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.startswith("interrupted [array([2., 2.]")
