"""How everything here is timed: the contestants take turns, and what counts is the ratio of two of them in a round.

Other work on the machine slows the contestants of a round alike, so ratios stand where times do not. At each turn a
contestant runs once without being timed, as what the others left in the caches should not count, and then in a few
batches, the fastest of which is taken: the others were interrupted.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["Call", "Figure", "Spread", "Table", "Times", "take_turns"]

Call = Callable[[], object]

TURN = 5e-3  # seconds that a turn takes at least
BATCHES = 4  # in each turn


@dataclasses.dataclass(frozen=True)
class Spread:
    """A median, and the middle half of what it is the median of."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some measurements."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    @property
    def short(self) -> str:
        """The median alone."""
        return f"{self.median:.2g}" if self.median < 10 else f"{self.median:.0f}"

    def __str__(self) -> str:
        return f"{_digits(self.median)} ({_digits(self.low)} to {_digits(self.high)})"


@dataclasses.dataclass
class Figure:
    """One ratio with its aim.

    Attributes:
        name: What is compared with what.
        ratio: The ratio.
        aim: What it should reach, None where nothing is asked.
        at_least: Whether more is better; else it should be at most the aim.
        guard: What the check asks for in the place of an aim that is not reached yet.
        headline: A sentence for the head of the page, with {} for the ratio; most figures have none.
    """

    name: str
    ratio: Spread
    aim: float | None = None
    at_least: bool = True
    guard: float | None = None
    headline: str = ""

    @property
    def reached(self) -> bool:
        """Whether the median reaches the aim."""
        if self.aim is None:
            return True
        return self.ratio.median >= self.aim if self.at_least else self.ratio.median <= self.aim

    @property
    def failed(self) -> bool:
        """Whether the guard or the aim is missed by more than the noise: the better end of the spread misses it too."""
        asked = self.aim if self.guard is None else self.guard
        if asked is None:
            return False
        return self.ratio.high < asked if self.at_least else self.ratio.low > asked

    @property
    def aim_text(self) -> str:
        """The aim in words."""
        return "" if self.aim is None else f"at {'least' if self.at_least else 'most'} {self.aim:g}"


@dataclasses.dataclass
class Table:
    """What a benchmark found.

    Attributes:
        title: A heading.
        text: What was measured and how, in a few sentences.
        figures: The ratios.
        columns: The heads of ``rows``.
        rows: Times behind the ratios, as text.
        curves: For a plot: a name for each series, and points (x, y).
        axes: What x and y are.
    """

    title: str
    text: str
    figures: list[Figure] = dataclasses.field(default_factory=list)
    columns: list[str] = dataclasses.field(default_factory=list)
    rows: list[list[str]] = dataclasses.field(default_factory=list)
    curves: dict[str, list[tuple[float, float]]] = dataclasses.field(default_factory=dict)
    axes: tuple[str, str] = ("", "")


class Times(dict[str, list[float]]):
    """Seconds of each contestant, round by round."""

    def ratio(self, slow: str, fast: str) -> Spread:
        """How many times as long ``slow`` took as ``fast``."""
        return Spread.of([a / b for a, b in zip(self[slow], self[fast], strict=True)])

    def spread(self, name: str, scale: float = 1.0) -> Spread:
        """The times of one contestant, scaled."""
        return Spread.of([scale * seconds for seconds in self[name]])


def take_turns(calls: Mapping[str, Call], rounds: int) -> Times:
    """Run each contestant in each round, and give the seconds of a call."""
    counts = {name: _calls_in_a_batch(call) for name, call in calls.items()}
    times = Times({name: [] for name in calls})
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            times[name].append(min(_timed(call, counts[name]) for _ in range(BATCHES)))
    return times


def _calls_in_a_batch(call: Call) -> int:
    """How many fill their share of a turn, once the caches are warm."""
    call()
    return max(1, round(TURN / BATCHES / _timed(call, 3)))


def _timed(call: Call, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def _digits(value: float) -> str:
    """Three digits that count, without an exponent."""
    decimals = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"
