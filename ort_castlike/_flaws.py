"""What some supported onnxruntime gets wrong with stock types alone: one table, read by the scan and the rules.

Every entry was found by running each pair of stock types on 1.20 to 1.24, 1.27 and 1.32, against ONNX's tables of
Cast and formula of QuantizeLinear; ``docs/stock-casts.md`` tells what each release gives.
"""

from __future__ import annotations

import dataclasses

__all__ = ["FLAWS", "Flaw", "flaws_of", "truncates_float16"]

_FLOAT8 = frozenset({"FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"})
_WIDE_INTEGERS = frozenset({"INT32", "INT64", "UINT32", "UINT64"})
_ROUNDS_FLOAT16 = (1, 32)


@dataclasses.dataclass(frozen=True)
class Flaw:
    """Pairs of stock types that are wrong for one reason.

    Attributes:
        sources: The types cast from.
        targets: The types cast to.
        only_unsaturated: Whether this is so with ``saturate=0`` alone.
        first: The first release that is wrong; the newest still is.
        reason: What it does.
    """

    sources: frozenset[str]
    targets: frozenset[str]
    only_unsaturated: bool
    first: tuple[int, int]
    reason: str


_HOLD_480 = frozenset({"FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "STRING", "UINT16"}) | _WIDE_INTEGERS

FLAWS: tuple[Flaw, ...] = (
    Flaw(
        sources=frozenset({"DOUBLE"}),
        targets=_FLOAT8 | {"FLOAT16", "BFLOAT16"},
        only_unsaturated=False,
        first=(1, 20),
        reason="rounds to FLOAT first and from there once more, so that a value next to a tie goes the wrong way",
    ),
    Flaw(
        sources=_WIDE_INTEGERS,
        targets=frozenset({"BFLOAT16"}),
        only_unsaturated=False,
        first=(1, 20),
        reason="rounds to FLOAT first and from there once more, so that a value next to a tie goes the wrong way",
    ),
    Flaw(
        sources=_HOLD_480 | {"INT16"},
        targets=frozenset({"FLOAT8E4M3FN"}),
        only_unsaturated=True,
        first=(1, 20),
        reason="gives 448 for what rounds to 480, where ONNX's table has NaN",
    ),
    Flaw(
        sources=_HOLD_480,
        targets=frozenset({"FLOAT8E5M2"}),
        only_unsaturated=True,
        first=(1, 20),
        reason="gives NaN from 61440 on up to 65536, where ONNX's table has Inf",
    ),
    Flaw(
        sources=frozenset({"FLOAT8E4M3FN", "FLOAT8E5M2"}),
        targets=frozenset({"BOOL"}),
        only_unsaturated=False,
        first=(1, 21),
        reason="gives True for -0, which is False",
    ),
)


def flaws_of(source: str, target: str, saturate: bool) -> list[Flaw]:
    """What is wrong with the stock cast from one element type to another; empty where it is right."""
    return [
        flaw
        for flaw in FLAWS
        if source in flaw.sources and target in flaw.targets and not (flaw.only_unsaturated and saturate)
    ]


def truncates_float16(release: tuple[int, int]) -> bool:
    """Whether QuantizeLinear of a FLOAT16 without blocks drops the digits behind the point, where ONNX rounds."""
    return release < _ROUNDS_FLOAT16
