"""How much memory weights take before and after they were given more bits."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ort_castlike._report import WeightMemory

__all__ = ["WeightTally"]


class WeightTally:
    """Counts each tensor once, however many layers share it."""

    def __init__(self) -> None:
        self._layers = 0
        self._before: dict[ir.Value, int] = {}
        self._after: dict[ir.Value, int] = {}

    def add(self, before: Iterable[tuple[ir.Value, int]], after: Iterable[tuple[ir.Value, int]]) -> None:
        """Count a layer: the constants that it had and those that it has, with their bytes."""
        self._layers += 1
        self._before.update(before)
        self._after.update(after)

    def memory(self) -> WeightMemory | None:
        """The sums; None where there was no layer."""
        if not self._layers:
            return None
        return WeightMemory(self._layers, sum(self._before.values()), sum(self._after.values()))
