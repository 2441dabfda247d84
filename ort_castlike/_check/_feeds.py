"""Inputs to try a model with: random ones by type and shape, and ones made of the values where casts change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ort_castlike._errors import OptionError
from ort_castlike._types import ELEMENT_TYPES, ElementType

__all__ = ["InputSpec", "boundary_feed", "boundary_rounds", "input_specs", "random_feed"]

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_ROUNDS = 8
# Values on both sides of where a cast to a small type rounds, wraps or saturates.
_SIZES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 5.0, 6.0, 7.5, 8.0, 8.5, 15.5, 16.0, 28.0, 30.0)
_FLOATS = tuple(sign * size for size in _SIZES for sign in (1, -1))
_EXTREMES = (math.inf, -math.inf, math.nan, 2.0**31, -(2.0**31), 2.0**63, 2.0**-127, 2.0**-126 * 1.5, 1e38, -1e38)
_INTEGERS = (0, 1, -1, 2, -2, 3, -3, 4, 7, 8, -8, -9, 15, 16, 127, 128, -128, 255, 256)


@dataclasses.dataclass(frozen=True)
class InputSpec:
    """What an input takes.

    Attributes:
        name: Its name.
        element: The element type of its tensor.
        shape: Its shape, every dimension a number.
        is_wide: Whether it is only cast to other types, so that every value of its type is a sensible one.
        is_scale: Whether something is divided by it or multiplied with it as a scale, so that it must be positive.
    """

    name: str
    element: ElementType
    shape: tuple[int, ...]
    is_wide: bool = False
    is_scale: bool = False


def input_specs(
    inputs: Iterable[Any], given: Iterable[str], dims: Mapping[str, int], default_dim: int, model: onnx.ModelProto
) -> list[InputSpec]:
    """The specs of the inputs that have to be made up.

    Args:
        inputs: The inputs of a session: name, type and shape.
        given: The names of those that a user gave.
        dims: Sizes for the dimensions that have names.
        default_dim: The size of every other dimension that the model leaves open.
        model: The model, for what becomes of its inputs.

    Raises:
        OptionError: An input is no tensor, or no input has a dimension of such a name.
    """
    inputs, names = list(inputs), set(given)
    _check_dims(inputs, dims)
    specs = []
    for argument in inputs:
        if argument.name in names:
            continue
        element = ELEMENT_TYPES.get(argument.type.removeprefix("tensor(").removesuffix(")").upper())
        if element is None:
            raise OptionError(
                f"input {argument.name!r} is {argument.type}, for which no values are made up; "
                f"give it with --input {argument.name}=FILE"
            )
        shape = tuple(_size(dim, dims, default_dim) for dim in argument.shape)
        is_wide, is_scale = _is_only_cast(argument.name, model.graph), _is_scale(argument.name, model.graph)
        specs.append(InputSpec(argument.name, element, shape, is_wide, is_scale))
    return specs


def _check_dims(inputs: Iterable[Any], dims: Mapping[str, int]) -> None:
    tensors = [argument for argument in inputs if argument.type.startswith("tensor(")]
    known = {dim: None for argument in tensors for dim in argument.shape if isinstance(dim, str) and dim}
    for name in dims:
        if name not in known:
            raise OptionError(
                f"the model's inputs have no dimension {name!r}; theirs are {', '.join(known) or 'unnamed'}"
            )


def _size(dim: int | str | None, dims: Mapping[str, int], default_dim: int) -> int:
    if isinstance(dim, int) and dim >= 0:
        return dim
    return dims.get(dim, default_dim) if isinstance(dim, str) else default_dim


def _is_only_cast(name: str, graph: onnx.GraphProto) -> bool:
    uses = [(node, index) for node in graph.node for index, used in enumerate(node.input) if used == name]
    # A subgraph may use it in any way.
    if any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        return False
    return bool(uses) and all(node.domain == "" and node.op_type in ("Cast", "CastLike") for node, _ in uses)


def _is_scale(name: str, graph: onnx.GraphProto) -> bool:
    operators = ("DequantizeLinear", "QuantizeLinear")
    return any(list(node.input[1:2]) == [name] and node.op_type in operators for node in graph.node)


def random_feed(specs: Iterable[InputSpec], seed: int) -> dict[str, Array]:
    """Random values, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return {spec.name: _usable(spec, np.asarray(_random(spec, generator))) for spec in specs}


def _random(spec: InputSpec, generator: np.random.Generator) -> Array:
    element, shape = spec.element, spec.shape
    if element.is_integer and element.bits > 8:
        if not spec.is_wide:
            return generator.choice(_counts(spec), shape)
        low = -(1 << 15) if element.is_signed_integer else 0
        return generator.integers(low, 1 << 15, shape).astype(element.dtype)
    if element.is_float and element.bits > 8:
        # Half of them are quarters: among these are the ties that the roundings differ in.
        values = generator.normal(0, 4, shape)
        quarters = np.round(values * 4) / 4
        return np.where(generator.random(shape) < 0.5, quarters, values).astype(element.dtype)
    if element.name.startswith("COMPLEX"):
        return (generator.normal(0, 1, shape) + 1j * generator.normal(0, 1, shape)).astype(element.dtype)
    values = _small_values(spec)
    return values[generator.integers(0, len(values), shape)].reshape(shape)


def _usable(spec: InputSpec, array: Array) -> Array:
    """The values, for a scale made positive and normal."""
    if not spec.is_scale or not spec.element.is_float:
        return array
    sizes = np.abs(array.astype(np.float64))
    return np.where(sizes > 2.0**-8, sizes, 1.0).astype(spec.element.dtype)


def boundary_rounds(specs: Sequence[InputSpec]) -> int:
    """How many feeds it takes until every boundary value was in each input, within reason."""
    rounds = (-(-len(_boundaries(spec)) // max(math.prod(spec.shape), 1)) for spec in specs)
    return min(max(rounds, default=0), _MOST_ROUNDS)


def boundary_feed(specs: Iterable[InputSpec], index: int) -> dict[str, Array]:
    """The ``index``-th feed of boundary values; each goes on where the last one ended."""
    feed = {}
    for spec in specs:
        values, size = _boundaries(spec), math.prod(spec.shape)
        array = values[np.arange(index * size, (index + 1) * size) % len(values)].reshape(spec.shape)
        feed[spec.name] = _usable(spec, array)
    return feed


def _boundaries(spec: InputSpec) -> Array:
    element = spec.element
    if element.is_integer and element.bits > 8:
        low, high = element.integer_range
        if not spec.is_wide:
            return _counts(spec)
        numbers = [low, high, low + 1, high - 1, *(value for value in _INTEGERS if low <= value <= high)]
        return np.array(numbers, element.dtype)
    if element.is_float and element.bits > 8:
        with np.errstate(over="ignore", under="ignore"):
            return np.array(_FLOATS + (_EXTREMES if spec.is_wide else ())).astype(element.dtype)
    if element.name.startswith("COMPLEX"):
        return np.array(_FLOATS).astype(element.dtype)
    return _small_values(spec)


def _counts(spec: InputSpec) -> Array:
    """Integers that do as indices, which they are most often where they are not cast; one alone may be a count too."""
    return np.array([1] if math.prod(spec.shape) == 1 else [0, 1], spec.element.dtype)


def _small_values(spec: InputSpec) -> Array:
    """Every value of a type of at most 8 bits; of strings, some that are numbers."""
    element = spec.element
    if element.name == "STRING":
        return np.array(["0", "1", "-1", "2", "-2", "3"], dtype=object)
    if element.name == "BOOL":
        return np.array([False, True])
    values = np.arange(1 << element.bits, dtype=np.uint8).view(element.dtype)
    if element.is_integer or spec.is_wide:
        return values
    numbers = values.astype(np.float64)
    # The rest of FLOAT8E8M0 would carry every sum out of the range of a float.
    is_near = np.isfinite(numbers) & (np.abs(numbers) < 2.0**16) & ((numbers == 0) | (np.abs(numbers) > 2.0**-16))
    return np.asarray(values[is_near])
