"""The inputs and outputs of a session: what they are said to be, and how values pass through them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from ort_castlike._errors import FeedError
from ort_castlike._io._arrays import Array, carrier_dtype, first_foreign, from_carrier, to_carrier
from ort_castlike._io._ort_values import OPAQUE_TYPES, cpu_view, opaque_value
from ort_castlike._types import ELEMENT_TYPES, ElementType

__all__ = ["InvalidFeedError", "NodeArg", "Port", "make_ports"]

_TENSOR = re.compile(r"(?P<outer>(?:seq\(|optional\()*)tensor\((?P<element>\w+)\)+")


class InvalidFeedError(FeedError, InvalidArgument):  # type: ignore[misc]
    """The FeedError of a session, which an ``except`` clause written for onnxruntime catches too."""


@dataclasses.dataclass(frozen=True)
class NodeArg:
    """What onnxruntime's NodeArg tells of an input or output, with the type that it had before a rewrite."""

    name: str
    type: str
    shape: Sequence[int | str | None]


class Port:
    """One input or output of a session.

    Attributes:
        arg: What the session says of it: onnxruntime's own NodeArg, or ours where a rewrite changed the type.
        carrier_type: Its type in the running model, as onnxruntime spells it.
        element: The element type of its tensors, None for maps, sparse tensors and types that are not known.
        is_emulated: Its tensors travel in a carrier.
        is_opaque: It is a tensor of a type that goes through onnxruntime's Python in an OrtValue alone.
    """

    def __init__(self, meta: Any, original_type: str | None) -> None:
        self.arg: Any = NodeArg(meta.name, original_type, meta.shape) if original_type else meta
        self.name: str = meta.name
        self.carrier_type: str = meta.type
        match = _TENSOR.fullmatch(self.arg.type)
        self.element: ElementType | None = ELEMENT_TYPES.get(match["element"].upper()) if match else None
        self._outer: str = match["outer"] if match else ""
        self.is_emulated = original_type is not None and self.element is not None and self.element.is_emulated
        self.is_opaque = self.element is not None and self.element.name in OPAQUE_TYPES
        self.is_required = not self.carrier_type.startswith("optional")

    @property
    def plain_dtype(self) -> np.dtype[Any] | None:
        """The dtype of the arrays that pass through as they are; None where every value needs a look."""
        if self.element is None or self._outer or self.is_emulated or self.is_opaque:
            return None
        return None if self.element.is_emulated else self.element.dtype

    def feed(self, value: Any) -> Any:
        """What onnxruntime takes in the place of ``value``.

        Raises:
            FeedError: The value does not fit the input; the message names the input and says why.
        """
        if self.element is None or (value is None and not self.is_required):
            return value
        if isinstance(value, OrtValue):
            return self._checked_ort_value(value)
        if "seq(" in self._outer:
            if not isinstance(value, (list, tuple)):
                raise self._misfit(value, hint="give a list of tensors")
            return [self._feed_tensor(item, shape=()) for item in value]
        return self._feed_tensor(value, shape=self.arg.shape)

    def fetch(self, value: Any) -> Any:
        """The user's form of a value that onnxruntime returned: arrays of the original element type."""
        if isinstance(value, list):
            return [self.fetch(item) for item in value]
        if not self.is_emulated or not isinstance(value, np.ndarray):
            return value
        assert self.element is not None
        return from_carrier(value, self.element)

    def _feed_tensor(self, value: Any, *, shape: Sequence[int | str | None]) -> Any:
        assert self.element is not None
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if isinstance(value, list):
            array = self._plain_array(value)
            if not (self.is_emulated or self.is_opaque):
                if array.dtype.kind in "SU" and self.element.name != "STRING":
                    raise self._misfit(array)
                return value
            value = self._narrow_array(array)
        if not isinstance(value, np.ndarray):
            raise self._misfit(value, hint=f"give a numpy array of {self._dtype_text}")
        if len(shape) and not _fits(value.shape, shape):
            raise self._misfit(value)
        if self.is_emulated:
            return self._feed_emulated(value)
        if self.is_opaque:
            if value.dtype != self.element.dtype:
                raise self._misfit(value, hint=self._conversion(value))
            return opaque_value(value, self.element)
        return self._feed_native(value)

    def _feed_emulated(self, array: Array) -> Array:
        assert self.element is not None
        if array.dtype == self.element.dtype:
            return to_carrier(array, self.element)
        carrier = carrier_dtype(self.element)
        if array.dtype.newbyteorder("=") != carrier:
            hint = f"give {self._dtype_text}, or {carrier} with no other values than it has"
            raise self._misfit(array, hint=hint)
        array = np.require(array, carrier, "C")
        self._refuse_foreign(array)
        return array

    def _feed_native(self, array: Array) -> Array:
        assert self.element is not None
        if self.element.name == "STRING":
            if array.dtype.kind not in "OUST":
                raise self._misfit(array)
            # onnxruntime reads past the end of bytes, and does not know numpy's variable strings.
            if array.dtype.kind == "S":
                array = np.char.decode(array, "utf-8")
            return array if array.dtype.kind in "OU" else array.astype(object)
        if array.dtype.newbyteorder("=") != self.element.dtype:
            raise self._misfit(array, hint=self._conversion(array))
        # onnxruntime takes bytes of the other order for what they are not.
        return array if array.dtype.isnative else array.astype(self.element.dtype)

    @property
    def _dtype_text(self) -> str:
        """The dtype that an array should have, as one writes it."""
        assert self.element is not None
        if self.element.name == "STRING":
            return "str"
        kind = self.element.dtype.type
        return f"{kind.__module__}.{kind.__name__}"

    def _conversion(self, array: Array) -> str:
        """How an array comes to the element type, where both hold numbers."""
        assert self.element is not None
        if array.dtype.kind not in "biufV" or array.dtype.names is not None:
            return f"give {self._dtype_text}"
        convert = f"array.astype({self._dtype_text})"
        if np.can_cast(array.dtype, self.element.dtype, "safe"):
            return f"give {convert}, which holds the same values"
        return f"give {convert}, which changes the values that {self._dtype_text} does not hold"

    def _plain_array(self, value: list[Any]) -> Array:
        """What numpy makes of a list."""
        try:
            return np.asarray(value)
        except ValueError as error:
            raise self._misfit(value, hint="its rows differ in length") from error

    def _narrow_array(self, array: Array) -> Array:
        """An array of the element's dtype, or of the carrier's, that holds the numbers of another exactly."""
        assert self.element is not None
        if array.dtype == self.element.dtype or not array.size:
            return array.astype(self.element.dtype)
        try:
            wide = array.astype(np.float64 if self.element.is_float else np.int64, casting="safe")
        except (TypeError, ValueError, OverflowError) as error:
            raise self._misfit(array) from error
        if self.is_opaque:
            return wide.astype(self.element.dtype)
        carrier = carrier_dtype(self.element)
        with np.errstate(over="ignore"):
            narrow = wide.astype(carrier)
        changed = (narrow != wide) & ~(wide != wide)
        if changed.any():
            raise self._foreign(wide[changed].flat[0])
        return narrow

    def _checked_ort_value(self, value: OrtValue) -> OrtValue:
        # Asking an OrtValue without a value for its type ends the process.
        if not value.has_value():
            if self.is_required:
                raise self._misfit(value)
            return value
        expected = self.carrier_type
        if expected.startswith("optional("):
            expected = expected[len("optional(") : -1]
        if value.data_type().lower() != expected.lower():
            raise self._misfit(value, hint=f"an OrtValue carries it as {expected}" if self.is_emulated else "")
        if self.is_emulated and not self._outer and value.device_name() == "cpu":
            assert self.element is not None
            self._refuse_foreign(cpu_view(value, carrier_dtype(self.element)))
        return value

    def _refuse_foreign(self, array: Array) -> None:
        assert self.element is not None
        foreign = first_foreign(array, self.element)
        if foreign is not None:
            raise self._foreign(foreign)

    def _foreign(self, value: Any) -> FeedError:
        assert self.element is not None
        if self.element.is_integer:
            low, high = self.element.integer_range
            values = f"its values are {low} to {high}; clip it first with array.clip({low}, {high})"
        else:
            values = f"round it first with array.astype(ml_dtypes.{self.element.dtype.name})"
        return InvalidFeedError(f"input {self.name!r} is {self.arg.type}: {value.item()} is no value of it; {values}")

    def _misfit(self, value: Any, *, hint: str = "") -> FeedError:
        expected = self.arg.type + (f" of shape {list(self.arg.shape)}" if len(self.arg.shape) else "")
        message = f"input {self.name!r} takes {expected}; it was given {_describe(value)}"
        return InvalidFeedError(f"{message}; {hint}" if hint else message)


def make_ports(metas: Sequence[Any], original_types: Mapping[str, str]) -> dict[str, Port]:
    """The ports of a session's inputs or outputs by name, in order.

    Args:
        metas: onnxruntime's NodeArgs.
        original_types: The types that a rewrite changed, as they were.
    """
    return {meta.name: Port(meta, original_types.get(meta.name)) for meta in metas}


def _fits(shape: tuple[int, ...], expected: Sequence[int | str | None]) -> bool:
    return len(shape) == len(expected) and all(
        not isinstance(wanted, int) or wanted < 0 or wanted == size
        for size, wanted in zip(shape, expected, strict=True)
    )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {list(value.shape)}"
    if isinstance(value, OrtValue):
        return f"an OrtValue of {value.data_type()}" if value.has_value() else "an OrtValue without a value"
    if isinstance(value, onnxruntime.SparseTensor):
        return f"a sparse tensor of {value.data_type()}"
    return "None" if value is None else f"a {type(value).__name__}"
