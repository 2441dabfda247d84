"""The errors that the package raises: one root, and one kind for each thing a user would mend."""

from __future__ import annotations

__all__ = [
    "CastLikeError",
    "FeedError",
    "ModelError",
    "OptionError",
    "RegistrationError",
    "TargetError",
    "UnsupportedOperatorError",
]


class CastLikeError(Exception):
    """Root of every error that ort_castlike raises."""


class ModelError(CastLikeError):
    """The model is broken: a payload, a type, a shape or a reference in it is wrong."""


class UnsupportedOperatorError(CastLikeError):
    """A node takes or gives an emulated element type and no rule says what it becomes."""


class TargetError(CastLikeError):
    """The target release has no way to run a node, an opset or an IR version of the model."""


class OptionError(CastLikeError, ValueError):
    """An option has a value that it does not take."""


class FeedError(CastLikeError, ValueError):
    """An array given to a session does not fit the input it was given for."""


class RegistrationError(CastLikeError):
    """The custom operators could not be put into a SessionOptions."""
