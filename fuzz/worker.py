"""Checks models one after the other in a process of its own, which a bad one may end.

Models come on stdin, each as its length and its bytes; what is said of them goes to stdout, a line a stage.
With "--stock" a model is loaded and run by onnxruntime alone, as it is.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys

import onnxruntime
from check import check, stock

import ort_castlike

SECONDS = 10
_MEMORY = 1 << 30  # bytes beyond what the process takes when it is ready


def main() -> None:
    """Read models until stdin ends."""
    # What onnxruntime prints must not get between the lines.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    ort_castlike.register(onnxruntime.SessionOptions())
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + _MEMORY, size + _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    judge = stock if "--stock" in sys.argv else check
    out.write("ready\n")
    while header := sys.stdin.buffer.read(8):
        model = sys.stdin.buffer.read(struct.unpack("<Q", header)[0])
        signal.alarm(SECONDS)
        verdict = judge(model, lambda stage: print("stage", stage, file=out, flush=True))
        signal.alarm(0)
        print("verdict", verdict.replace("\n", " ")[:500].encode("ascii", "replace").decode(), file=out, flush=True)


if __name__ == "__main__":
    main()
