"""Coverage-guided fuzzing of the rewriter with atheris: mutants that reach new lines of the package are mutated on.

What onnxruntime does with a model is left to mutants.py, in processes that may end; here all is Python, in one process.

    python fuzz/guided.py -max_total_time=60 FOLDER_FOR_NEW_MODELS fuzz/corpus
"""

from __future__ import annotations

import logging
import random
import sys

import atheris

with atheris.instrument_imports(include=["ort_castlike"]):
    import ort_castlike
    import ort_castlike._rewrite

from check import LEAK, rewrite_only
from mutate import mutated


def fuzz_one(data: bytes) -> None:
    """Rewrite a model; anything but a result or a CastLikeError is a finding."""
    verdict = rewrite_only(data)
    if verdict.startswith(LEAK):
        raise RuntimeError(verdict)


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """A mutant of what parses as a model, and mangled bytes of what does not."""
    try:
        changed = mutated(data, random.Random(seed))
    except Exception:
        changed = atheris.Mutate(data, max_size)
    return changed[:max_size]


def main() -> None:
    """Fuzz until the time is over, or something is found."""
    logging.disable(logging.CRITICAL)
    assert ort_castlike.rewrite is not None
    atheris.Setup([*sys.argv, "-max_len=65536", "-timeout=10", "-rss_limit_mb=2048"], fuzz_one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
