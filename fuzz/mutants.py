"""Thousands of mutated models through rewrite, load and run, in processes with limits on time and memory.

Ends with 1 where one of them was ours to prevent: an exception that is no CastLikeError, an abort, a crash or a hang
of a model that the package changed, or in the rewrite itself.

    python fuzz/mutants.py --count 10000 --seed 0 --keep /tmp/found
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import itertools
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import threading
import time

from mutate import mutated

HERE = pathlib.Path(__file__).parent
CORPUS = HERE / "corpus"


class Worker:
    """A process that checks models, started anew when one has ended it."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def verdict(self, model: bytes) -> str:
        """What the process says of a model; "died" with the stage and the signal where it said nothing."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        stage = "start"
        try:
            process.stdin.write(struct.pack("<Q", len(model)) + model)
            process.stdin.flush()
            while line := process.stdout.readline().decode():
                kind, _, rest = line.strip().partition(" ")
                if kind == "verdict":
                    return rest
                stage = rest
        except BrokenPipeError:
            pass
        code = self._end()
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        return f"{'hang' if name == 'SIGALRM' else 'died'} at {stage} ({name})"

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._end()

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        return code

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [sys.executable, str(HERE / "worker.py"), *self._arguments]
            # The package of this checkout, also where none is installed.
            path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=HERE.parent,
                env={**os.environ, "PYTHONPATH": path},
            )
            assert self._process.stdout is not None
            if self._process.stdout.readline() != b"ready\n":
                raise RuntimeError("a worker did not start; run fuzz/worker.py by hand to see why")
        return self._process


def corpus() -> list[bytes]:
    """The models that mutations begin from."""
    return [path.read_bytes() for path in sorted(CORPUS.glob("*.onnx"))]


def mutant(models: list[bytes], seed: int) -> bytes:
    """The mutant of a seed: the same in every run."""
    rng = random.Random(seed)
    return mutated(rng.choice(models), rng, models)


def judged(model: bytes, worker: Worker, stock: Worker) -> str:
    """The verdict on a model, with who is to blame where a process died."""
    verdict = worker.verdict(model)
    if "SIGKILL" in verdict:  # sent by something else, a system short of memory for one
        verdict = worker.verdict(model)
    if not verdict.startswith(("died", "hang")) or " at rewrite" in verdict:
        return verdict
    alone = stock.verdict(model)
    blame = "stock alone, too" if alone.startswith(("died", "hang")) else "not stock alone"
    return f"{verdict}: {blame}"


def is_ours(verdict: str) -> bool:
    """Whether a verdict is a defect of the package."""
    return verdict.startswith("leak") or (verdict.startswith(("died", "hang")) and "stock alone, too" not in verdict)


def main() -> int:
    """Run the mutants, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000, help="most mutants")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="most time")
    parser.add_argument("--seed", type=int, default=0, help="the first mutant")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the models of bad verdicts")
    arguments = parser.parse_args()
    models, seeds = corpus(), itertools.count(arguments.seed)
    counts: collections.Counter[str] = collections.Counter()
    ours: dict[str, int] = {}
    lock, start = threading.Lock(), time.monotonic()

    def work() -> None:
        worker, stock = Worker(), Worker("--stock")
        try:
            while True:
                with lock:
                    seed = next(seeds)
                if seed >= arguments.seed + arguments.count or time.monotonic() - start > arguments.seconds:
                    return
                model = mutant(models, seed)
                verdict = judged(model, worker, stock)
                with lock:
                    counts[verdict.split(":")[0] if is_ours(verdict) else verdict] += 1
                    if is_ours(verdict) and verdict.split(")")[0] not in ours:
                        ours[verdict.split(")")[0]] = seed
                        print(f"seed {seed}: {verdict}", flush=True)
                if arguments.keep is not None and verdict.startswith(("leak", "died", "hang")):
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    digest = hashlib.sha256(verdict.encode()).hexdigest()[:8]
                    (arguments.keep / f"{seed}-{digest}.onnx").write_bytes(model)
        finally:
            worker.close()
            stock.close()

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for job in [pool.submit(work) for _ in range(arguments.jobs)]:
            job.result()
    print(f"{sum(counts.values())} models in {time.monotonic() - start:.0f} s")
    for verdict, count in counts.most_common():
        print(f"{count:7} {verdict}")
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
