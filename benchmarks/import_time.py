"""What importing the package costs beside importing what it needs anyway, in fresh processes, taking turns.

Usage: ``python benchmarks/import_time.py [ROUNDS]``. The aim is a ratio of at most 1.2.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

STATEMENTS = {
    "onnxruntime, onnxruntime_extensions": "import onnxruntime, onnxruntime_extensions",
    "ort_castlike": "import ort_castlike",
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
    for name, times in taken.items():
        low, *_, high = sorted(times)
        print(f"{name:36} median {statistics.median(times):.3f} s  ({low:.3f} to {high:.3f})")
    base, ours = (statistics.median(times) for times in taken.values())
    print(f"ratio {ours / base:.2f} over {rounds} rounds, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
