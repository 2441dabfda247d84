"""The choices a rewrite takes, checked once."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from ort_castlike._errors import OptionError
from ort_castlike._targets import Target, resolve_target

__all__ = ["LOWERINGS", "ROUNDINGS", "Options", "resolve_options"]

LOWERINGS = ("custom", "standard")
ROUNDINGS = ("nearest_even", "toward_zero", "half_away")


@dataclasses.dataclass(frozen=True)
class Options:
    """What a rewrite was asked for.

    Attributes:
        target: The release whose opset and IR version the result must fit.
        lowering: "custom" narrows with the domain's CastLike, "standard" with stock operators alone.
        rounding: How a float becomes a 2- or 4-bit integer.
    """

    target: Target
    lowering: str = "custom"
    rounding: str = "nearest_even"


def resolve_options(*, target: str | None, lowering: str, rounding: str) -> Options:
    """Check the keyword arguments of the public functions.

    Raises:
        OptionError: A value that is none of the choices.
        TargetError: The target is no supported release.
    """
    _one_of("lowering", lowering, LOWERINGS)
    _one_of("rounding", rounding, ROUNDINGS)
    return Options(resolve_target(target), lowering, rounding)


_T = TypeVar("_T")


def _one_of(name: str, value: _T, choices: tuple[_T, ...]) -> None:
    if value not in choices:
        raise OptionError(f"{name}={value!r} is not possible; choose one of {', '.join(map(repr, choices))}")
