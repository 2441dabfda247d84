"""Threads, processes, reloads and interpreters: the numbers stay right, and a process ends as it should."""

from __future__ import annotations

import functools
import multiprocessing
import threading

import numpy as np
import onnx
import onnxruntime
import processes
import pytest
from graphs import model, node, tensor, value
from onnx import TensorProto

import ort_castlike

CPU = ["CPUExecutionProvider"]
THREADS = 16

python = functools.partial(processes.python, setup="import test_concurrency as here\n")


def parallel_casts() -> onnx.ModelProto:
    """Casts that do not wait for each other, and one way back."""
    kinds = ("INT2", "UINT2", "INT4", "UINT4")
    nodes = [node("Cast", ["x"], [kind.lower()], to=TensorProto.DataType.Value(kind)) for kind in kinds]
    nodes.append(node("Cast", ["int2"], ["back"], to=TensorProto.FLOAT))
    outputs = [value(kind.lower(), kind, ["n"]) for kind in kinds] + [value("back", "FLOAT", ["n"])]
    return model(nodes, [value("x", "FLOAT", ["n"])], outputs)


def expected(numbers: np.ndarray) -> list[list[int]]:
    signed = [(numbers + half & 2 * half - 1) - half for half in (2, 8)]
    return [array.tolist() for array in (signed[0], numbers & 3, signed[1], numbers & 15, signed[0])]


def check(session: onnxruntime.InferenceSession, seed: int, times: int = 5) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(times):
        numbers = rng.integers(-99, 99, int(rng.integers(0, 3000)))
        results = session.run(None, {"x": numbers.astype(np.float32)})
        assert [result.astype(np.int64).tolist() for result in results] == expected(numbers)


def in_threads(work, count: int = THREADS) -> None:
    """Run ``work(number)`` in threads of their own, and raise what the first of them raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def options(mode: str) -> onnxruntime.SessionOptions:
    chosen = onnxruntime.SessionOptions()
    chosen.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    chosen.inter_op_num_threads = 4 if mode == "ORT_PARALLEL" else 1
    return chosen


@pytest.mark.parametrize("mode", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
def test_one_session_from_sixteen_threads(mode):
    session = ort_castlike.InferenceSession(parallel_casts(), options(mode), providers=CPU)
    in_threads(lambda seed: check(session, seed))


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_sessions_are_made_while_others_run(lowering):
    proto = parallel_casts()
    running = ort_castlike.InferenceSession(proto, providers=CPU, lowering=lowering)

    def work(seed: int) -> None:
        if seed % 2:
            check(running, seed)
        else:
            check(ort_castlike.InferenceSession(proto, providers=CPU, lowering=lowering), seed, times=2)

    in_threads(work)


def test_one_model_is_rewritten_from_many_threads():
    proto = parallel_casts()
    before = proto.SerializeToString(deterministic=True)
    results: list[bytes] = []
    in_threads(lambda _: results.append(ort_castlike.rewrite(proto).SerializeToString(deterministic=True)))
    assert len(set(results)) == 1
    assert proto.SerializeToString(deterministic=True) == before


def test_many_asynchronous_runs_at_once():
    session = ort_castlike.InferenceSession(parallel_casts(), providers=CPU)
    count = 40
    done, results = threading.Semaphore(0), {}

    def finished(outputs: list, number: int, error: str) -> None:
        results[number] = error or [output.astype(np.int64).tolist() for output in outputs]
        done.release()

    for number in range(count):
        session.run_async(None, {"x": np.arange(number, dtype=np.float32)}, finished, number)
    for _ in range(count):
        assert done.acquire(timeout=60)
    assert results == {number: expected(np.arange(number)) for number in range(count)}


def test_errors_reach_the_run_that_they_came_from():
    source = model(
        [node("Cast", ["x"], ["q"], to=TensorProto.INT2), node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)],
        [value("x", "STRING", [1])],
        [value("y", "FLOAT", [1])],
    )
    session = ort_castlike.InferenceSession(source, providers=CPU)

    def work(seed: int) -> None:
        quiet = onnxruntime.RunOptions()
        quiet.log_severity_level = 4
        for _ in range(5):
            if seed % 2:
                [result] = session.run(None, {"x": np.array(["1"], dtype=object)}, quiet)
                assert result.tolist() == [1]
            else:
                with pytest.raises(ort_castlike.CastLikeError):
                    session.run(None, {"x": np.array(["one"], dtype=object)}, quiet)

    in_threads(work)


def test_a_forked_child_runs_and_makes_sessions():
    result = python("""
        import os, threading
        import ort_castlike
        def new():
            return ort_castlike.InferenceSession(
                here.parallel_casts(), here.options("ORT_SEQUENTIAL"), providers=here.CPU)
        session = new()
        here.check(session, 0)
        # The lock is held when the process is forked, by a thread that the child does not have.
        from ort_castlike import _custom_ops
        held, give_back = threading.Event(), threading.Event()
        def hold():
            with _custom_ops._lock:
                held.set()
                give_back.wait(60)
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            here.check(session, 1)
            here.check(new(), 2)
            os._exit(7)
        give_back.set()
        thread.join()
        here.check(session, 3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.split() == ["7"]


def in_child(seed: int) -> int:
    check(ort_castlike.InferenceSession(parallel_casts(), providers=CPU), seed)
    return seed


def test_processes_that_are_spawned_make_sessions_of_their_own():
    ort_castlike.InferenceSession(parallel_casts(), providers=CPU)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map_async(in_child, [5, 6]).get(timeout=120) == [5, 6]


def test_all_modules_of_the_package_may_be_loaded_again():
    result = python("""
        import sys
        import ort_castlike
        old = ort_castlike.InferenceSession(here.parallel_casts(), providers=here.CPU)
        here.check(old, 0)
        for name in [name for name in sys.modules if name.split(".")[0] == "ort_castlike"]:
            del sys.modules[name]
        import ort_castlike as again
        assert again.InferenceSession is not type(old)
        new = again.InferenceSession(here.parallel_casts(), providers=here.CPU)
        for session in (old, new):
            here.check(session, 1)
        options = here.options("ORT_SEQUENTIAL")
        ort_castlike.register(options)
        again.register(options)
        print("alive")
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout == "alive\n"


def test_a_sub_interpreter_is_refused_in_words():
    result = python("""
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        import sys
        script = '''
        import sys
        sys.path[:] = {path!r}
        import ort_castlike
        for name in ("register", "InferenceSession", "rewrite"):
            try:
                getattr(ort_castlike, name)
            except ort_castlike.CastLikeError as error:
                print("refused:", error, file=sys.stderr, flush=True)
        '''
        import textwrap
        number = interpreters.create()
        interpreters.run_string(number, textwrap.dedent(script).format(path=sys.path))
        print("alive")
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stderr.count("refused:") == 3
    assert "main interpreter" in result.stderr
    assert result.stdout == "alive\n"


def test_memory_is_stable_over_runs_and_sessions():
    result = python("""
        import gc, os, resource
        import numpy as np, ort_castlike
        def resident():
            gc.collect()
            with open("/proc/self/statm") as statm:
                return int(statm.read().split()[1]) * resource.getpagesize()
        proto = here.parallel_casts()
        x = np.ones(1 << 18, np.float32)
        def work():
            session = ort_castlike.InferenceSession(proto, providers=here.CPU)
            for _ in range(5):
                session.run(None, {"x": x})
        for _ in range(10):
            work()
        before = resident()
        for _ in range(40):
            work()
        print((resident() - before) >> 20)
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout) < 24  # MiB


def test_weights_and_casts_side_by_side_in_many_sessions():
    weights = tensor("w", np.arange(64).reshape(8, 8) % 4 - 2, "INT2")
    source = model(
        [node("DequantizeLinear", ["w", "s"], ["d"]), node("MatMul", ["x", "d"], ["y"])],
        [value("x", "FLOAT", ["n", 8])],
        [value("y", "FLOAT", ["n", 8])],
        [weights, tensor("s", 0.5, "float32")],
    )
    dense = (np.arange(64).reshape(8, 8) % 4 - 2) * 0.5

    def work(seed: int) -> None:
        if seed % 2:
            check(ort_castlike.InferenceSession(parallel_casts(), providers=CPU), seed, times=2)
            return
        session = ort_castlike.InferenceSession(source, providers=CPU)
        x = np.random.default_rng(seed).integers(-4, 4, (3, 8)).astype(np.float32)
        # The runtime multiplies such weights with 8-bit activations.
        assert np.allclose(session.run(None, {"x": x})[0], x @ dense, atol=0.1)

    in_threads(work, 8)
