"""What the benchmarks make of times: ratios with their spread, and whether an aim is missed beyond the noise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def timing(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _timing

    yield _timing
    sys.modules.pop("_timing", None)


def test_a_ratio_is_taken_round_by_round(timing):
    times = timing.Times({"slow": [2.0, 40.0, 6.0], "fast": [1.0, 10.0, 2.0]})
    ratio = times.ratio("slow", "fast")
    assert (ratio.median, ratio.low, ratio.high) == (3.0, 2.5, 3.5)
    assert str(ratio) == "3.00 (2.50 to 3.50)"


@pytest.mark.parametrize(
    ("aim", "at_least", "guard", "reached", "failed"),
    [
        (None, True, None, True, False),
        (3.0, True, None, True, False),
        (3.2, True, None, False, False),
        (3.6, True, None, False, True),
        (3.6, True, 3.0, False, False),
        (3.6, True, 3.55, False, True),
        (3.0, False, None, True, False),
        (2.8, False, None, False, False),
        (2.4, False, None, False, True),
        (2.4, False, 3.0, False, False),
    ],
)
def test_an_aim_fails_where_the_better_quartile_misses_it_or_its_guard(timing, aim, at_least, guard, reached, failed):
    figure = timing.Figure("", timing.Spread(3.0, 2.5, 3.5), aim, at_least, guard)
    assert (figure.reached, figure.failed) == (reached, failed)


def test_everyone_has_a_turn_in_each_round(timing, monkeypatch):
    monkeypatch.setattr(timing, "TURN", 1e-9)
    order = []
    times = timing.take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3}
    turns = "".join(order)[-2 * 3 * (timing.BATCHES + 1) :]
    assert [turns.count("a"), turns.count("b")] == [3 * (timing.BATCHES + 1)] * 2
