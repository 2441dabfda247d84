"""What importing the package costs beside importing what it needs anyway, in fresh processes, taking turns.

Usage: ``python benchmarks/import_time.py [ROUNDS]``. The package imports what stands behind a name when the name is
first used.
"""

from __future__ import annotations

import subprocess
import sys

from _report import main
from _timing import Figure, Table, Times

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


def measure(rounds: int) -> list[Table]:
    """Each statement in turn."""
    for statement in STATEMENTS.values():
        seconds(statement)  # fills the file cache and writes bytecode
    times = Times({name: [] for name in STATEMENTS})
    for _ in range(rounds):
        for name, statement in STATEMENTS.items():
            times[name].append(seconds(statement))
    return [
        Table(
            "Importing",
            f"In fresh processes, beside `{STATEMENTS['stock']}`.",
            [Figure(f"`{STATEMENTS[name]}`", times.ratio(name, "stock"), 1.2, at_least=False) for name in times][1:],
            ["statement", "seconds"],
            [[f"`{STATEMENTS[name]}`", str(times.spread(name))] for name in times],
        )
    ]


if __name__ == "__main__":
    main(measure)
