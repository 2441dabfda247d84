"""docs/support-matrix.md says what the installed onnxruntime does, and this package with it."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

DOCS = pathlib.Path(__file__).parent.parent / "docs"


def test_the_page_agrees_with_the_installed_release():
    command = [sys.executable, str(DOCS / "make_support_matrix.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_cell_of_the_page_is_right_here():
    data = json.loads((DOCS / "support-matrix.json").read_text())
    assert set(data) >= {"1.20", "1.23", "1.24", "1.32"}
    here = {pair[1] for table in data.values() for rows in table.values() for pair in rows.values()}
    assert here == {"right"}
