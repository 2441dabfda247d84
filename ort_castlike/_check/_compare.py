"""Whether a value is the one expected, and if not, where it differs first."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ort_castlike._check._reference import element_of

__all__ = ["Difference", "Tolerance", "find_difference", "largest"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """How a value differs from the one expected.

    Attributes:
        expected: The first element that differs, or what else does (a type, a shape), as it should be.
        given: The same as it is.
        index: Where the element is, None where the difference is none of an element.
        count: How many elements differ.
        size: How many there are.
    """

    expected: str
    given: str
    index: tuple[int, ...] | None = None
    count: int = 0
    size: int = 0

    def __str__(self) -> str:
        if self.index is None:
            return f"{self.expected} is expected, {self.given} is given"
        where = f"the first at {list(self.index)}: " if self.index else ""
        noun = "element differs" if self.count == 1 else "elements differ"
        return f"{self.count} of {self.size} {noun}, {where}{self.expected} is expected, {self.given} is given"


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far a float may be off: ``absolute + relative * abs(expected)``."""

    relative: float
    absolute: float


def find_difference(expected: Any, given: Any, tolerance: Tolerance | None = None) -> Difference | None:
    """The difference of a tensor, or of a list of tensors; None where there is none.

    Args:
        expected: What it should be.
        given: What it is; the values are compared, their dtypes need not agree.
        tolerance: For floats; None compares them exactly, the sign of zero included. NaN equals NaN in any case.
    """
    if isinstance(expected, list) or isinstance(given, list):
        return _lists(expected, given, tolerance)
    if expected is None or given is None:
        return None if expected is given else Difference(_shown(expected), _shown(given))
    expected, given = np.asarray(expected), np.asarray(given)
    if expected.shape != given.shape:
        return Difference(f"shape {list(expected.shape)}", f"shape {list(given.shape)}")
    wrong = _differing(expected, given, tolerance)
    count = int(np.count_nonzero(wrong))
    if not count:
        return None
    index = tuple(int(part) for part in np.argwhere(wrong)[0])
    return Difference(_shown(expected[index]), _shown(given[index]), index, count, expected.size)


def largest(array: np.ndarray) -> float:
    """The size of the largest finite value; 0 where there is none."""
    sizes = np.abs(array.astype(np.float64))
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))


def _lists(expected: Any, given: Any, tolerance: Tolerance | None) -> Difference | None:
    if not isinstance(expected, list) or not isinstance(given, list) or len(expected) != len(given):
        return Difference(_shown(expected), _shown(given))
    found = (find_difference(*pair, tolerance) for pair in zip(expected, given, strict=True))
    return next((difference for difference in found if difference is not None), None)


def _differing(expected: np.ndarray, given: np.ndarray, tolerance: Tolerance | None) -> np.ndarray:
    types = element_of(expected), element_of(given)
    if "STRING" in (types[0].name, types[1].name):
        pairs = zip(expected.flat, given.flat, strict=True)
        return np.array([not _same_text(*pair) for pair in pairs], bool).reshape(expected.shape)
    if all(row.is_integer or row.name == "BOOL" for row in types):
        return np.asarray(_plain(expected) != _plain(given))
    wide = np.complex128 if any(row.name.startswith("COMPLEX") for row in types) else np.float64
    a, b = expected.astype(wide), given.astype(wide)
    both_nan = np.isnan(a) & np.isnan(b)
    with np.errstate(invalid="ignore", over="ignore"):
        if tolerance is None:
            same = (a == b) & (np.signbit(a.real) == np.signbit(b.real))
        else:
            same = (a == b) | (np.abs(a - b) <= tolerance.absolute + tolerance.relative * np.abs(a))
            same &= np.isfinite(a) | (a == b)
    return np.asarray(~(same | both_nan))


def _plain(array: np.ndarray) -> np.ndarray:
    """Integers in a type that numpy compares itself."""
    return array if array.dtype == np.uint64 else array.astype(np.int64)


def _same_text(expected: Any, given: Any) -> bool:
    """Whether two strings are the same, or spell the same number, to the digits that a float32 has."""
    if str(expected) == str(given):
        return True
    try:
        numbers = float(expected), float(given)
    except ValueError:
        return False
    return math.isclose(*numbers, rel_tol=1e-7) or all(math.isnan(number) for number in numbers)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "nothing" if value is None else str(value)
