"""All 576 pairs of CastLike's element types, and Cast with the float6 types: every value as ONNX's tables have it.

One model casts from one type to every other, in each way that the attributes allow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from arithmetic import EIGHT_BIT_FLOATS, bounds, cast, dtype_of, grid, is_integer, literals, same, values_of
from onnx import helper

import ort_castlike
from ort_castlike._types import CASTLIKE_TYPES, element_type

FLOAT6 = ("FLOAT6E2M3", "FLOAT6E3M2")
EMULATED = frozenset(name for name in (*CASTLIKE_TYPES, *FLOAT6) if element_type(name).is_emulated)


class Way(NamedTuple):
    """A target type and the attributes of a cast to it."""

    to: str
    attributes: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return "_".join([self.to, *(str(value) for _, value in self.attributes)])


def ways(to: str) -> Iterator[Way]:
    yield Way(to)
    if to in EIGHT_BIT_FLOATS:
        yield Way(to, (("saturate", 0),))
    if to == "FLOAT8E8M0":
        for round_mode in ("down", "nearest"):
            yield Way(to, (("round_mode", round_mode),))
        for round_mode in ("up", "down", "nearest"):
            yield Way(to, (("saturate", 0), ("round_mode", round_mode)))


@functools.cache
def feed(source: str, to: str) -> np.ndarray:
    """What is cast: a number that a stock integer type does not hold is left out, since ONNX leaves that open."""
    if source == "STRING":
        return np.array(literals(to), object)
    values = grid(source)
    if to == "STRING":
        return values[:: 1 + len(values) // 2000]
    if is_integer(to) and to not in EMULATED and source not in EMULATED and not is_integer(source) and source != "BOOL":
        whole = np.trunc(values_of(values, source))
        low, high = bounds(to)
        return values[(whole >= low) & (whole < float(high + 1))]
    return values


@functools.cache
def expected(source: str, way: Way) -> np.ndarray:
    options: dict[str, Any] = dict(way.attributes)
    saturate = bool(options.pop("saturate", 1))
    return cast(feed(source, way.to), source, way.to, saturate=saturate, **options)


def target(to: str) -> onnx.TensorProto:
    value = "" if to == "STRING" else 0
    return helper.make_tensor(f"like_{to}", element_type(to).code, [], [value])


def model_of(source: str, listed: list[Way], op_type: str, opset: int) -> onnx.ModelProto:
    nodes, inputs, outputs = [], [], []
    for way in listed:
        attributes = dict(way.attributes)
        operands = [f"x_{way.name}"]
        if op_type == "CastLike":
            operands.append(f"like_{way.to}")
        else:
            attributes["to"] = element_type(way.to).code
        nodes.append(helper.make_node(op_type, operands, [f"y_{way.name}"], f"cast_{way.name}", **attributes))
        inputs.append(helper.make_tensor_value_info(operands[0], element_type(source).code, [None]))
        outputs.append(helper.make_tensor_value_info(f"y_{way.name}", element_type(way.to).code, [None]))
    likes = [target(to) for to in dict.fromkeys(way.to for way in listed)] if op_type == "CastLike" else []
    graph = helper.make_graph(nodes, f"from_{source}", inputs, outputs, likes)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=14 if opset > 26 else 13)


def mistakes(source: str, listed: list[Way], lowering: str, op_type: str = "CastLike", opset: int = 25) -> list[str]:
    """A line for each way in which a cast gives anything else than it must."""
    model = model_of(source, listed, op_type, opset)
    session = ort_castlike.InferenceSession(model, providers=["CPUExecutionProvider"], lowering=lowering)
    feeds = {f"x_{way.name}": feed(source, way.to) for way in listed}
    results = session.run(None, feeds)
    return [line for way, got in zip(listed, results, strict=True) for line in differences(source, way, got)]


def differences(source: str, way: Way, got: np.ndarray) -> Iterator[str]:
    wanted = expected(source, way)
    if got.dtype != dtype_of(way.to) or got.shape != wanted.shape:
        yield f"{source} to {way}: {got.dtype} of shape {got.shape}"
        return
    wrong = np.flatnonzero(~same(got, wanted, way.to))
    if wrong.size:
        index = wrong[0]
        given = feed(source, way.to)[index : index + 1]
        yield (
            f"{source} to {way}: {wrong.size} of {got.size}, the first {values(given, source)}: "
            f"{values(got[index : index + 1], way.to)}, not {values(wanted[index : index + 1], way.to)}"
        )


def values(array: np.ndarray, name: str) -> list[Any]:
    return list(array) if name == "STRING" else values_of(array, name).tolist()


@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("source", CASTLIKE_TYPES)
def test_castlike_to_every_type_gives_each_value_as_the_tables_have_it(source, lowering):
    listed = [way for to in CASTLIKE_TYPES for way in ways(to)]
    assert not mistakes(source, listed, lowering)


def test_these_are_all_the_pairs():
    schema = onnx.defs.get_schema("CastLike", 25)
    for constraint in schema.type_constraints:
        listed = {text[len("tensor(") : -1].upper() for text in constraint.allowed_type_strs}
        assert listed == set(CASTLIKE_TYPES)
    assert len(CASTLIKE_TYPES) ** 2 == 576


@pytest.mark.opset(28)
@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("source", CASTLIKE_TYPES)
def test_cast_to_a_float6_type_rounds_to_the_nearest(source, lowering):
    assert not mistakes(source, [Way(to) for to in FLOAT6], lowering, "Cast", 28)


@pytest.mark.opset(28)
@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize("source", FLOAT6)
def test_cast_of_a_float6_type_is_exact(source, lowering):
    listed = [way for to in (*CASTLIKE_TYPES, *FLOAT6) for way in ways(to)]
    assert not mistakes(source, listed, lowering, "Cast", 28)
