"""Runs a model once: on given values, on ONNX's test data, or on random inputs; and compares what is expected."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ort_castlike._check._compare import Difference, Tolerance, find_difference, largest
from ort_castlike._check._feeds import input_specs, random_feed
from ort_castlike._check._probe import quiet_options
from ort_castlike._check._reference import element_of
from ort_castlike._check._tensor_files import read_data_set, read_inputs, typed
from ort_castlike._files._read import read_proto
from ort_castlike._session import InferenceSession

__all__ = ["Trial", "try_model"]


@dataclasses.dataclass(frozen=True)
class Trial:
    """One run.

    Attributes:
        label: Where the inputs are from.
        inputs: The inputs by name.
        outputs: The outputs by name.
        differences: For each output that is expected, how it differs; None where it does not.
    """

    label: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]
    differences: dict[str, Difference | None]

    @property
    def is_right(self) -> bool:
        return not any(self.differences.values())


def try_model(
    path: str,
    *,
    data: str | None = None,
    files: Mapping[str, str] | None = None,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    default_dim: int = 2,
    tolerance: Tolerance = Tolerance(1e-3, 1e-7),  # noqa: B008 - frozen
    options: Mapping[str, Any] | None = None,
) -> Trial:
    """Run a model in :class:`ort_castlike.InferenceSession`.

    Args:
        path: The model.
        data: A folder of ONNX's test data, with inputs and expected outputs.
        files: Files with values for inputs, by name.
        seed: The seed of the inputs that are neither in ``data`` nor in ``files``.
        dims: Sizes of dimensions that have names, for those.
        default_dim: The size of every other open dimension.
        tolerance: For floats of 16 bits and more, relative to the largest value of the output; everything else has to
            be exact.
        options: Options of the rewrite.

    Raises:
        CastLikeError: The model cannot be rewritten, or a value is not there or does not fit.
    """
    session = InferenceSession(path, quiet_options(), **(options or {}))
    inputs, outputs = session.get_inputs(), session.get_outputs()
    feed, expected = read_data_set(data, inputs, outputs) if data is not None else ({}, {})
    feed.update(read_inputs(files or {}, inputs))
    specs = input_specs(inputs, feed, dims or {}, default_dim, read_proto(path))
    made_up = random_feed(specs, seed)
    results = session.run(None, {**feed, **made_up})
    given = {argument.name: value for argument, value in zip(outputs, results, strict=True)}
    fed = feed | made_up
    return Trial(
        _label(data, feed, made_up, seed),
        {argument.name: typed(fed[argument.name], argument.type) for argument in inputs if argument.name in fed},
        given,
        {name: _difference(value, given[name], tolerance) for name, value in expected.items()},
    )


def _label(data: str | None, feed: Mapping[str, Any], made_up: Mapping[str, Any], seed: int) -> str:
    parts = [os.path.basename(os.path.normpath(data))] if data is not None else []
    parts += ["the given inputs"] if feed and data is None else []
    parts += [f"random inputs of seed {seed}"] if made_up else []
    return " and ".join(parts) or "no inputs"


def _difference(expected: Any, given: Any, tolerance: Tolerance) -> Difference | None:
    arrays = isinstance(expected, np.ndarray) and isinstance(given, np.ndarray)
    if arrays and element_of(expected) != element_of(given):
        return Difference(element_of(expected).name, element_of(given).name)
    is_exact = arrays and (element_of(expected).bits < 16 or not element_of(expected).is_float)
    if is_exact or not arrays or not element_of(expected).is_float:
        return find_difference(expected, given, None if is_exact else tolerance)
    return find_difference(expected, given, Tolerance(0, tolerance.absolute + tolerance.relative * largest(expected)))
