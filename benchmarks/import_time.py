"""What importing the package costs beside importing what it needs anyway, in fresh processes, taking turns.

Usage: ``python benchmarks/import_time.py [ROUNDS]``. The aim is a ratio of at most 1.2, also where the operators
are registered: the package imports what stands behind a name when the name is first used.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

STATEMENTS = {
    "stock": "import onnxruntime, onnxruntime_extensions",
    "package": "import ort_castlike",
    "names": "from ort_castlike import InferenceSession, register",
    "registered": "import onnxruntime, ort_castlike; ort_castlike.register(onnxruntime.SessionOptions())",
}


def seconds(statement: str) -> float:
    """The time ``statement`` takes in a fresh interpreter, without the interpreter's own start."""
    source = f"import time\nbegin = time.perf_counter()\n{statement}\nprint(time.perf_counter() - begin)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(rounds: int) -> None:
    """Measure and print."""
    taken: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for statement in STATEMENTS.values():
        seconds(statement)  # fills the file cache and writes bytecode
    for _ in range(rounds):
        for name, statement in STATEMENTS.items():
            taken[name].append(seconds(statement))
    stock = statistics.median(taken["stock"])
    for name, times in taken.items():
        median = statistics.median(times)
        print(f"{STATEMENTS[name]}")
        print(f"    median {median:.3f} s ({min(times):.3f} to {max(times):.3f}), {median / stock:.2f} times stock")
    print(f"{rounds} rounds, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
