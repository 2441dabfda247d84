"""The errors that the package raises: one root, and one kind for each thing a user would mend."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CastLikeError",
    "FeedError",
    "ModelError",
    "OptionError",
    "RegistrationError",
    "SaveError",
    "TargetError",
    "UnsupportedOperatorError",
    "innermost",
    "joined",
]


class CastLikeError(Exception):
    """Root of every error that ort_castlike raises.

    Attributes:
        reasons: Each thing that is wrong, where one error stands for several.
    """

    reasons: tuple[str, ...] = ()


def innermost(error: BaseException) -> BaseException:
    """The error that others were raised from, or while it was handled: onnx_ir wraps one in the next."""
    while error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__):
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error


def joined(errors: Sequence[CastLikeError]) -> CastLikeError:
    """One error, of the kind of the first, that stands for several."""
    first = errors[0]
    if len(errors) == 1:
        error = first
    else:
        lines = [f"  - {error}" for error in errors]
        error = type(first)("\n".join([f"{len(errors)} things keep the model from being rewritten:", *lines]))
    error.reasons = tuple(reason for error in errors for reason in error.reasons or (str(error),))
    return error


class ModelError(CastLikeError):
    """The model is broken: a payload, a type, a shape or a reference in it is wrong."""


class UnsupportedOperatorError(CastLikeError):
    """A node takes or gives an emulated element type, and ONNX forbids it or no rule says what it becomes."""


class TargetError(CastLikeError):
    """The target release has no way to run a node, an opset or an IR version of the model."""


class OptionError(CastLikeError, ValueError):
    """An option has a value that it does not take."""


class FeedError(CastLikeError, ValueError):
    """What a run is given does not fit: an array its input, or a name the model."""


class RegistrationError(CastLikeError):
    """The custom operators could not be put into a SessionOptions."""


class SaveError(CastLikeError, OSError):
    """A rewritten model could not be written; what was at its place is unchanged."""
