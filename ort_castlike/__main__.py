"""``python -m ort_castlike``: the same as the command ``ort-castlike``."""

from __future__ import annotations

import sys

from ort_castlike.cli import main

if __name__ == "__main__":
    sys.exit(main())
