"""Hours of use in minutes: threads that rewrite, make sessions, run them right and wrong, and get interrupted.

Every number is checked against arithmetic, and memory must not grow. Ends with 1 where one was wrong or it grew.

    python tools/soak.py --minutes 10
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import resource
import signal
import sys
import threading
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ort_castlike

THREADS = 8
_GROWTH = 64  # MiB


def model(kinds: tuple[str, ...]) -> onnx.ModelProto:
    """Casts of x into each type and back."""
    nodes, outputs = [], []
    for kind in kinds:
        code = TensorProto.DataType.Value(kind)
        nodes += [
            helper.make_node("Cast", ["x"], [kind], to=code),
            helper.make_node("Cast", [kind], [f"{kind}_back"], to=TensorProto.FLOAT),
        ]
        outputs += [
            helper.make_tensor_value_info(kind, code, ["n"]),
            helper.make_tensor_value_info(f"{kind}_back", TensorProto.FLOAT, ["n"]),
        ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph(nodes, "soak", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def expected(kind: str, numbers: np.ndarray) -> np.ndarray:
    """Whole numbers cast to a small integer type: the low bits of their two's complement."""
    bits = int(kind[-1])
    codes = numbers & ((1 << bits) - 1)
    return codes if kind.startswith("U") else np.where(codes >> (bits - 1), codes - (1 << bits), codes)


class Soak:
    """The work of all threads, and what they counted."""

    kinds = ("INT2", "UINT2", "INT4", "UINT4")

    def __init__(self) -> None:
        self.model = model(self.kinds)
        self.sessions = [
            ort_castlike.InferenceSession(self.model, self._options(parallel), providers=["CPUExecutionProvider"])
            for parallel in (False, True)
        ]
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.stop = threading.Event()
        self._lock = threading.Lock()

    @staticmethod
    def _options(parallel: bool) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 2
        if parallel:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        return options

    def count(self, what: str) -> None:
        """Note that something was done."""
        with self._lock:
            self.counts[what] += 1

    def run(self, session: onnxruntime.InferenceSession, rng: random.Random) -> None:
        """One run, checked."""
        numbers = np.random.default_rng(rng.getrandbits(32)).integers(-500, 500, rng.choice((0, 1, 7, 1000, 70_000)))
        results = session.run(None, {"x": numbers.astype(np.float32)})
        for kind, narrow, back in zip(self.kinds, results[::2], results[1::2], strict=True):
            values = expected(kind, numbers)
            if not (np.array_equal(narrow.astype(np.int64), values) and np.array_equal(back, values)):
                self.wrong.append(f"{kind} of {numbers.size} elements")
        self.count("runs")

    def work(self, seed: int) -> None:
        """What one thread does until the end."""
        rng = random.Random(seed)
        while not self.stop.is_set():
            chance = rng.random()
            if chance < 0.85:
                self.run(rng.choice(self.sessions), rng)
            elif chance < 0.92:
                lowering = rng.choice(("custom", "standard"))
                session = ort_castlike.InferenceSession(
                    self.model, self._options(False), providers=["CPUExecutionProvider"], lowering=lowering
                )
                self.run(session, rng)
                self.count("sessions")
            elif chance < 0.96:
                done = threading.Event()
                rng.choice(self.sessions).run_async(
                    None, {"x": np.ones(9, np.float32)}, lambda *arguments, done=done: done.set(), None
                )
                if not done.wait(60):
                    self.wrong.append("an asynchronous run that did not end")
                self.count("asynchronous runs")
            else:
                with contextlib.suppress(ort_castlike.CastLikeError):
                    rng.choice(self.sessions).run(None, {"x": np.ones((2, 2), np.int8)})
                    self.wrong.append("a wrong feed that was taken")
                self.count("wrong feeds")


def resident() -> int:
    """MiB that the process holds."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() >> 20


def watch(soak: Soak, seconds: float) -> tuple[int, int]:
    """Interrupt the main thread's own runs until the time is over; memory after the start and at the end."""
    end = time.monotonic() + seconds
    warm = time.monotonic() + min(20.0, seconds / 4)
    rng = random.Random(-1)
    before = 0
    while time.monotonic() < end:
        timer = threading.Timer(rng.random() * 0.2, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            while True:
                soak.run(soak.sessions[0], rng)
        except KeyboardInterrupt:
            soak.count("interrupts")
        if not before and time.monotonic() > warm:
            before = resident()
    return before, resident()


def main() -> int:
    """Soak, and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    soak = Soak()
    threads = [threading.Thread(target=soak.work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    before, after = watch(soak, minutes * 60)
    soak.stop.set()
    for thread in threads:
        thread.join()
    counted = ", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items()))
    print(f"onnxruntime {onnxruntime.__version__}: {counted}")
    print(f"resident memory {before} MiB after the start, {after} MiB at the end; {len(soak.wrong)} wrong")
    for line in soak.wrong[:20]:
        print(" ", line)
    return 1 if soak.wrong or after - before > _GROWTH else 0


if __name__ == "__main__":
    sys.exit(main())
