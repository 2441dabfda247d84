"""Which pairs of element types a CastLike runs for, on the installed onnxruntime alone and with this package.

It is tried out: a model of one node for each pair on onnxruntime, and one of 24 nodes for each source type with the
package. The results are compared with ``_reference``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from ort_castlike._check._compare import find_difference
from ort_castlike._check._reference import cast
from ort_castlike._session import InferenceSession
from ort_castlike._targets import resolve_target
from ort_castlike._types import CASTLIKE_TYPES, ELEMENT_TYPES, ElementType

__all__ = ["Pair", "probe_package", "probe_pairs", "probe_stock", "quiet_options"]

# Numbers whose casts ONNX leaves open in no type; the halves are where the roundings differ.
_NUMBERS = (0, 1, 2, 4, 0.5, 1.5, 2.5, 3.5)


@dataclasses.dataclass(frozen=True)
class Pair:
    """What became of one pair.

    Attributes:
        source: Element type of the input.
        target: Element type of the output.
        stock: What onnxruntime alone does: "arrays" where it takes and gives numpy arrays, "graph" where it computes
            the cast inside a model, but does not take and give arrays of the types, "wrong" where the result differs
            from ONNX, "no" where it refuses.
        package: "right", "wrong" (it differs from ONNX) or "no".
    """

    source: str
    target: str
    stock: str
    package: str


def quiet_options() -> onnxruntime.SessionOptions:
    """Options of a session to check results with.

    It logs nothing, since what goes wrong comes as an exception, and it does not round activations to 8 bits where it
    fuses them with 4-bit weights.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    return options


def probe_pairs(progress: Callable[[int, int], None] | None = None) -> list[Pair]:
    """All pairs of CastLike's 24 types, row by row.

    Args:
        progress: Told after each row: how many types are done, and how many there are.
    """
    pairs = []
    for done, source in enumerate(CASTLIKE_TYPES, 1):
        package = probe_package(source)
        pairs += [Pair(source, target, probe_stock(source, target), package[target]) for target in CASTLIKE_TYPES]
        if progress is not None:
            progress(done, len(CASTLIKE_TYPES))
    return pairs


def probe_stock(source: str, target: str) -> str:
    """What onnxruntime alone does with one pair (see :class:`Pair`)."""
    values = _values(ELEMENT_TYPES[source])
    row = ELEMENT_TYPES[target]
    found = "arrays"
    try:
        session = _stock_session(_stock_model(values, source, target, is_fed=True))
        [result] = session.run(None, {"x": values})
    except Exception:
        # Whatever onnxruntime raises, it is no yes.
        result = None
    # The float 8 types come as uint8.
    if result is None or result.dtype != row.dtype:
        found, result = "graph", _computed(values, source, target)
    if result is None:
        return "no"
    return found if find_difference(cast(values, row, "nearest_even"), result) is None else "wrong"


def _computed(values: Any, source: str, target: str) -> Any:
    """The cast of a constant, None where onnxruntime refuses."""
    try:
        session = _stock_session(_stock_model(values, source, target, is_fed=False))
        [result] = session.run_with_ort_values(None, {})
    except Exception:
        return None
    return _array_of(result, ELEMENT_TYPES[target])


def _array_of(value: onnxruntime.OrtValue, element: ElementType) -> Any:
    """What an OrtValue holds, read from its memory where onnxruntime makes no array of it."""
    if element.dtype.isbuiltin == 1:
        return value.numpy()
    count = math.prod(value.shape())
    data = ctypes.string_at(value.data_ptr(), -(-count * element.bits // 8))
    if element.bits >= 8:
        return np.frombuffer(data, element.dtype).reshape(value.shape())
    memory = np.frombuffer(data, np.uint8)
    # Several elements to a byte, the first in the lowest bits.
    parts = [memory >> np.uint8(shift) for shift in range(0, 8, element.bits)]
    codes = np.stack(parts, axis=-1).reshape(-1)[:count] & np.uint8((1 << element.bits) - 1)
    return codes.view(element.dtype).reshape(value.shape())


def _stock_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), quiet_options(), ["CPUExecutionProvider"])


def _stock_model(values: Any, source: str, target: str, *, is_fed: bool) -> onnx.ModelProto:
    """One CastLike at the newest opset that the runtime loads; ``x`` is an input, or a constant."""
    rows = ELEMENT_TYPES[source], ELEMENT_TYPES[target]
    installed = resolve_target(None)
    constants = [_like("like", rows[1])]
    if not is_fed:
        constants.append(numpy_helper.from_array(values, "x"))
    graph = helper.make_graph(
        [helper.make_node("CastLike", ["x", "like"], ["y"])],
        "pair",
        [helper.make_tensor_value_info("x", rows[0].code, values.shape)] if is_fed else [],
        [helper.make_tensor_value_info("y", rows[1].code, values.shape)],
        constants,
    )
    imports = [helper.make_opsetid("", min(installed.opset, 25))]
    return helper.make_model(graph, opset_imports=imports, ir_version=installed.ir_version)


def probe_package(source: str) -> dict[str, str]:
    """What this package does with every pair of one source type: "right", "wrong" or "no"."""
    try:
        return _probe_package(source, CASTLIKE_TYPES)
    except Exception:
        # One of them fails, and has to be found.
        return {target: _probe_one(source, target) for target in CASTLIKE_TYPES}


def _probe_one(source: str, target: str) -> str:
    try:
        return _probe_package(source, (target,))[target]
    except Exception:
        return "no"


def _probe_package(source: str, targets: tuple[str, ...]) -> dict[str, str]:
    values = _values(ELEMENT_TYPES[source])
    session = InferenceSession(_package_model(values, source, targets), quiet_options(), ["CPUExecutionProvider"])
    results = session.run(list(targets), {"x": values})
    found = {}
    for target, result in zip(targets, results, strict=True):
        expected = cast(values, ELEMENT_TYPES[target], "nearest_even")
        is_right = find_difference(expected, result) is None and (target == "STRING" or expected.dtype == result.dtype)
        found[target] = "right" if is_right else "wrong"
    return found


def _package_model(values: Any, source: str, targets: tuple[str, ...]) -> onnx.ModelProto:
    nodes, constants, outputs = [], [], []
    for target in targets:
        row = ELEMENT_TYPES[target]
        constants.append(_like(f"like_{target}", row))
        nodes.append(helper.make_node("CastLike", ["x", f"like_{target}"], [target]))
        outputs.append(helper.make_tensor_value_info(target, row.code, values.shape))
    inputs = [helper.make_tensor_value_info("x", ELEMENT_TYPES[source].code, values.shape)]
    graph = helper.make_graph(nodes, "row", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


def _like(name: str, element: ElementType) -> onnx.TensorProto:
    """The second input of a CastLike: one element of the type to cast to."""
    if element.name == "STRING":
        return onnx.TensorProto(name=name, data_type=element.code, dims=[1], string_data=[b""])
    return numpy_helper.from_array(np.zeros(1, element.dtype), name)


def _values(element: ElementType) -> Any:
    if element.name == "STRING":
        # What a text that is no whole number gives as an integer, ONNX does not say.
        return np.array([str(int(number)) for number in _NUMBERS], dtype=object)
    numbers = np.array(_NUMBERS, np.float64)
    if element.is_integer:
        numbers = np.minimum(numbers, element.integer_range[1])
    # FLOAT8E8M0 has no zero.
    return np.maximum(numbers, 0.5 if element.name == "FLOAT8E8M0" else 0).astype(element.dtype)
