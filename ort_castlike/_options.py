"""The choices a rewrite takes, checked once."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from ort_castlike._errors import OptionError
from ort_castlike._targets import Target, newer_than_known, resolve_target

__all__ = ["LOWERINGS", "ROUNDINGS", "WEIGHTS", "Options", "resolve_options"]

LOWERINGS = ("custom", "standard")
WEIGHTS = ("auto", "pack4", "keep")
ROUNDINGS = ("nearest_even", "toward_zero", "half_away")

_CLEARLY_SLOWER = 1.25  # times as long; less is not worth twice the memory


@dataclasses.dataclass(frozen=True)
class Options:
    """What a rewrite was asked for.

    Attributes:
        target: The release whose opset and IR version the result must fit.
        lowering: "custom" narrows with the domain's CastLike, "standard" with stock operators alone.
        rounding: How a float becomes a 2- or 4-bit integer.
        weights: What becomes of com.microsoft's 2-bit layers: "pack4" makes them 4-bit ones, "keep" leaves them,
            "auto" packs where the target refuses them or is clearly slower on them.
        notes: What a report has to say of the options themselves.
    """

    target: Target
    lowering: str = "custom"
    rounding: str = "nearest_even"
    weights: str = "auto"
    notes: tuple[str, ...] = ()

    def packs(self, form: str, *, is_float16: bool = False, int8_block: int | None = None) -> bool:
        """Whether a 2-bit layer becomes a 4-bit one; the arguments are those of ``TwoBitSlowdown.of``."""
        if self.weights != "auto":
            return self.weights == "pack4"
        slowdown = self.target.two_bit_slowdown.of(form, is_float16=is_float16, int8_block=int8_block)
        return slowdown is None or slowdown > _CLEARLY_SLOWER


def resolve_options(*, target: str | None, lowering: str, rounding: str, weights: str = "auto") -> Options:
    """Check the keyword arguments of the public functions.

    Raises:
        OptionError: A value that is none of the choices.
        TargetError: The target is no supported release.
    """
    _one_of("lowering", lowering, LOWERINGS)
    _one_of("rounding", rounding, ROUNDINGS)
    _one_of("weights", weights, WEIGHTS)
    note = newer_than_known(target)
    return Options(resolve_target(target), lowering, rounding, weights, () if note is None else (note,))


_T = TypeVar("_T")


def _one_of(name: str, value: _T, choices: tuple[_T, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{name}={value!r} is not possible; choose one of {', '.join(map(repr, choices))}")
