"""Scripts in processes of their own, which may be starved, interrupted or ended by what they try."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

__all__ = ["python"]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PATH = f"import sys\nsys.path[:0] = [{ROOT!r}, {os.path.join(ROOT, 'tests')!r}]\n"


def python(script: str, *arguments: str, setup: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``setup`` and then a script, which may import the package and the modules of the tests."""
    code = PATH + setup + textwrap.dedent(script)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
