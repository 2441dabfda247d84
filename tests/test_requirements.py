"""What pyproject.toml asks for and what the tests are run with are the same."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_oldest_releases_that_are_tested_are_the_oldest_that_are_allowed():
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL).group(1).splitlines()
    allowed = [re.match(r' *"([\w-]+)>=([\d.]+)', line).groups() for line in dependencies]
    listed = (ROOT / "tests" / "oldest.txt").read_text().splitlines()
    tested = [tuple(line.split("==")) for line in listed if not line.startswith("#")]
    assert {name: release(version) for name, version in allowed} == {name: release(version) for name, version in tested}


def release(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.sub(r"(\.0)+$", "", version).split(".")))
