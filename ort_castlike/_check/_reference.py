"""An evaluation of single nodes that shares nothing with the rewrite: ONNX's reference evaluator, put right.

onnx's evaluator (1.20 to 1.23) cuts off where a cast to a 2- or 4-bit type has to round, fails on 36 of the pairs of
element types, runs no Loop without a condition and stacks what a Loop gives along the wrong axis, has no Scan that goes
backward, no Pad that cuts, and nothing of com.microsoft. The operators here take the place of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_cast import cast_to

from ort_castlike._check._reference_casts import Array, cast_by_definition
from ort_castlike._types import ELEMENT_TYPES, ElementType, element_type

__all__ = ["Reference", "cast", "element_of", "free_names"]

_BY_DTYPE = {row.dtype: row for row in ELEMENT_TYPES.values()}


def element_of(array: Array) -> ElementType:
    """The element type that a numpy array holds."""
    return ELEMENT_TYPES["STRING"] if array.dtype.kind in "OUST" else _BY_DTYPE[array.dtype.newbyteorder("=")]


def cast(values: Array, target: ElementType, rounding: str, saturate: bool = True, round_mode: str = "up") -> Array:
    """The cast of an array to any element type."""
    source = element_of(values)
    if source == target:
        return np.asarray(values)
    if source.is_emulated or target.is_emulated or "STRING" in (source.name, target.name):
        return cast_by_definition(values, source, target, rounding=rounding, saturate=saturate, round_mode=round_mode)
    return np.asarray(cast_to(values, onnx.TensorProto.DataType.Value(target.name), saturate, round_mode))


class Reference:
    """The nodes of one model, each by itself.

    Args:
        model: The model, its data included.
        rounding: How a float becomes a 2- or 4-bit integer.
    """

    def __init__(self, model: onnx.ModelProto, rounding: str) -> None:
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._evaluator = _evaluator_class(rounding)
        self._functions = list(model.functions)
        self._nodes: dict[str, Any] = {}

    def run(self, node: onnx.NodeProto, values: Mapping[str, Any]) -> list[Any]:
        """What a node gives for the values of its inputs, and of the outer values that its subgraphs use.

        Raises:
            Exception: As onnx's evaluator does: it does not know the operator, or the values do not fit it.
        """
        names = free_names(node)
        evaluator = self._nodes.get(node.output[0])
        if evaluator is None:
            evaluator = self._nodes[node.output[0]] = self._evaluator(self._model_of(node, names, values))
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, {name: values[name] for name in names}))

    def _model_of(self, node: onnx.NodeProto, names: Sequence[str], values: Mapping[str, Any]) -> onnx.ModelProto:
        infos = [helper.make_value_info(name, _type_of(values[name])) for name in names]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = helper.make_graph([node], "node", infos, outputs)
        imports = [helper.make_opsetid(*entry) for entry in self._opsets.items()]
        model = helper.make_model(graph, opset_imports=imports, functions=self._functions)
        if not self._functions:
            return model
        # The evaluator loses the attributes that a function hands to the nodes inside it; the inliner those that a
        # function has defaults for.
        defaults = {(function.domain, function.name): function.attribute_proto for function in model.functions}
        for called in _all_nodes(model):
            known = {attribute.name for attribute in called.attribute}
            given = defaults.get((called.domain, called.op_type), ())
            called.attribute.extend(attribute for attribute in given if attribute.name not in known)
        return onnx.inliner.inline_local_functions(model)


def free_names(node: onnx.NodeProto) -> list[str]:
    """The values that a node takes: its inputs, and the outer values that its subgraphs use."""
    names = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") or attribute.graphs else ():
            names.update(dict.fromkeys(_outer_names(graph)))
    return list(names)


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of a model, in subgraphs and functions too."""
    pending = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += [*attribute.g.node, *(inner for graph in attribute.graphs for inner in graph.node)]


def _outer_names(graph: onnx.GraphProto) -> list[str]:
    known = {value.name for value in (*graph.input, *graph.initializer)}
    known |= {tensor.values.name for tensor in graph.sparse_initializer}
    outer: dict[str, None] = {}
    for node in graph.node:
        outer.update(dict.fromkeys(name for name in free_names(node) if name not in known))
        known.update(node.output)
    outer.update(dict.fromkeys(value.name for value in graph.output if value.name not in known))
    return list(outer)


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, np.ndarray):
        return helper.make_tensor_type_proto(element_of(value).code, None)
    if isinstance(value, list) and value:
        return helper.make_sequence_type_proto(_type_of(value[0]))
    return onnx.TypeProto()


@functools.cache
def _evaluator_class(rounding: str) -> type[Any]:
    operators: list[Any] = [_rounding_as(operator, rounding) for operator in (Cast, CastLike)]
    operators += [QuantizeLinear, DequantizeLinear, Pad, Loop, Scan, MatMulNBits]

    class Evaluator(ReferenceEvaluator):
        """The evaluator with the operators of this module, in subgraphs and functions too."""

        def __init__(self, proto: Any, **options: Any) -> None:
            super().__init__(proto, **{**options, "new_ops": operators})

    return Evaluator


def _rounding_as(operator: type[_Rounding], rounding: str) -> type[_Rounding]:
    return type(operator.__name__, (operator,), {"rounding": rounding})


class _Rounding(OpRun):
    rounding = "nearest_even"


class Cast(_Rounding):
    """ONNX's Cast."""

    def _run(
        self, x: Array, to: int = 0, saturate: int | None = 1, round_mode: str | None = "up", **_: Any
    ) -> tuple[Array]:
        return (cast(x, element_type(to), self.rounding, saturate != 0, round_mode or "up"),)


class CastLike(_Rounding):
    """ONNX's CastLike."""

    def _run(
        self, x: Array, like: Array, saturate: int | None = 1, round_mode: str | None = "up", **_: Any
    ) -> tuple[Array]:
        return (cast(x, element_of(like), self.rounding, saturate != 0, round_mode or "up"),)


class QuantizeLinear(OpRun):
    """ONNX's QuantizeLinear: saturate(round_half_even(x / scale) + zero_point)."""

    def _run(
        self,
        x: Array,
        scale: Array,
        zero_point: Array | None = None,
        axis: int | None = 1,
        block_size: int | None = 0,
        output_dtype: int | None = 0,
        precision: int | None = 0,
        saturate: int | None = 1,
        **_: Any,
    ) -> tuple[Array]:
        if zero_point is not None:
            target = element_of(zero_point)
        else:
            target = element_type(output_dtype or onnx.TensorProto.UINT8)
        exact = {"FLOAT8E8M0": "FLOAT", "INT32": "DOUBLE"}
        name = element_type(precision).name if precision else element_of(scale).name
        dtype = ELEMENT_TYPES[exact.get(name, name)].dtype
        divisor = _spread(scale.astype(dtype), x.shape, axis, block_size)
        quotient = (x.astype(dtype) / divisor).astype(dtype).astype(np.float64)
        offset = 0 if zero_point is None else _spread(zero_point.astype(np.float64), x.shape, axis, block_size)
        if not target.is_integer:
            moved = (quotient + offset).astype(np.float64 if dtype == np.float64 else np.float32)
            return (cast(moved, target, "nearest_even", saturate != 0),)
        low, high = target.integer_range
        whole = np.clip(np.nan_to_num(np.rint(quotient)) + offset, low, high)
        return (whole.astype(np.int64).astype(target.dtype),)


class DequantizeLinear(OpRun):
    """ONNX's DequantizeLinear: (x - zero_point) * scale."""

    def _run(
        self,
        x: Array,
        scale: Array,
        zero_point: Array | None = None,
        axis: int | None = 1,
        block_size: int | None = 0,
        output_dtype: int | None = 0,
        **_: Any,
    ) -> tuple[Array]:
        dtype = element_type(output_dtype).dtype if output_dtype else scale.dtype
        difference = x.astype(np.float64)
        if zero_point is not None:
            difference = difference - _spread(zero_point.astype(np.float64), x.shape, axis, block_size)
        factor = _spread(scale.astype(np.float32), x.shape, axis, block_size)
        return ((difference.astype(np.float32) * factor).astype(dtype),)


class Pad(OpRun):
    """ONNX's Pad; a negative pad cuts."""

    def _run(
        self,
        data: Array,
        pads: Any = (),
        constant_value: Array | None = None,
        axes: Array | None = None,
        mode: str = "constant",
        value: float = 0.0,
        **_: Any,
    ) -> tuple[Array]:
        chosen = range(data.ndim) if axes is None else [int(axis) % data.ndim for axis in axes]
        widths = np.zeros((data.ndim, 2), np.int64)
        widths[list(chosen)] = np.reshape(pads, (2, -1)).T
        cuts = np.maximum(-widths, 0)
        kept = tuple(slice(first, size - last) for (first, last), size in zip(cuts, data.shape, strict=True))
        filling = value if constant_value is None or not constant_value.size else constant_value.reshape(())
        options: dict[str, Any] = {"constant_values": filling} if mode == "constant" else {}
        padded: Array = np.pad(data[kept], np.maximum(widths, 0), mode, **options)  # type: ignore[call-overload]
        return (padded.astype(data.dtype),)


class Loop(OpRun):
    """ONNX's Loop."""

    def need_context(self) -> bool:
        """The body uses outer values."""
        return True

    def _run(
        self,
        count: Array | None,
        condition: Array | None,
        *states: Any,
        context: Mapping[str, Any] | None = None,
        body: Any = None,
        attributes: Any = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        given = list(states)
        stacks: list[list[Any]] = [[] for _ in body.output_names[1 + len(given) :]]
        goes_on, index = condition is None or bool(condition.item()), 0
        while goes_on and (count is None or index < count.item()):
            first = (np.array(index, np.int64), np.array(goes_on))
            feed = {**(context or {}), **dict(zip(body.input_names, (*first, *given), strict=True))}
            results = body.run(None, feed, attributes=attributes)
            goes_on, given = bool(results[0].item()), list(results[1 : 1 + len(given)])
            for stack, result in zip(stacks, results[1 + len(given) :], strict=True):
                stack.append(result)
            index += 1
        if stacks and not index:
            raise NotImplementedError("a Loop that never runs gives tensors of no known shape")
        return (*given, *(np.stack(stack) for stack in stacks))


class Scan(OpRun):
    """ONNX's Scan, since opset 9."""

    def need_context(self) -> bool:
        """The body uses outer values."""
        return True

    def _run(
        self,
        *inputs: Any,
        context: Mapping[str, Any] | None = None,
        body: Any = None,
        num_scan_inputs: int = 0,
        scan_input_axes: Sequence[int] | None = None,
        scan_input_directions: Sequence[int] | None = None,
        scan_output_axes: Sequence[int] | None = None,
        scan_output_directions: Sequence[int] | None = None,
        attributes: Any = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        split = len(inputs) - num_scan_inputs
        states, scanned = list(inputs[:split]), inputs[split:]
        axes, backward = scan_input_axes or [0] * len(scanned), scan_input_directions or [0] * len(scanned)
        length = scanned[0].shape[axes[0]]
        stacks: list[list[Any]] = [[] for _ in body.output_names[split:]]
        for index in range(length):
            places = [length - 1 - index if is_backward else index for is_backward in backward]
            slices = [np.asarray(array.take(*place)) for array, *place in zip(scanned, places, axes, strict=True)]
            feed = {**(context or {}), **dict(zip(body.input_names, (*states, *slices), strict=True))}
            results = body.run(None, feed, attributes=attributes)
            states = list(results[:split])
            for stack, result in zip(stacks, results[split:], strict=True):
                stack.append(result)
        if not length:
            raise NotImplementedError("a Scan over nothing gives tensors of no known shape")
        axes, backward = scan_output_axes or [0] * len(stacks), scan_output_directions or [0] * len(stacks)
        ordered = [stack[::-1] if is_backward else stack for stack, is_backward in zip(stacks, backward, strict=True)]
        return (*states, *(np.stack(stack, axis) for stack, axis in zip(ordered, axes, strict=True)))


class MatMulNBits(OpRun):
    """The MatMulNBits of com.microsoft: A @ ((q - zero_point) * scale) + bias, q of ``bits`` bits."""

    op_domain = "com.microsoft"

    def _run(
        self,
        a: Array,
        b: Array,
        scales: Array,
        zero_points: Array | None = None,
        g_idx: Array | None = None,
        bias: Array | None = None,
        K: int = 0,  # noqa: N803 - the attributes' own names
        N: int = 0,  # noqa: N803
        bits: int = 4,
        block_size: int = 0,
        **_: Any,
    ) -> tuple[Array]:
        blocks = -(-K // block_size)
        codes = _unpacked(b.reshape(N, -1), bits)[:, : blocks * block_size].reshape(N, blocks, block_size)
        if zero_points is None:
            offset = np.full((N, blocks), float(1 << (bits - 1)))
        elif zero_points.dtype == np.uint8:
            offset = _unpacked(zero_points.reshape(N, -1), bits)[:, :blocks].astype(np.float64)
        else:
            offset = zero_points.reshape(N, blocks).astype(np.float64)
        factors = scales.reshape(N, blocks).astype(np.float64)
        of_row = np.arange(blocks * block_size) // block_size
        if g_idx is not None:
            of_row[: g_idx.size] = g_idx.ravel()
        matrix = (codes.reshape(N, -1) - offset[:, of_row]) * factors[:, of_row]
        result = a.astype(np.float64) @ matrix[:, :K].T
        if bias is not None:
            result = result + bias.astype(np.float64)
        return (result.astype(a.dtype),)


def _spread(parameter: Array, shape: Sequence[int], axis: int | None, block_size: int | None) -> Array:
    """A scale or zero point in a form that broadcasts to the tensor that it belongs to."""
    if parameter.size == 1 and not (block_size and parameter.ndim == len(shape)):
        return parameter.reshape(())
    axis = (1 if axis is None else axis) % len(shape)
    if block_size:
        whole = np.repeat(parameter, block_size, axis)
        return whole.take(np.arange(shape[axis]), axis)
    return parameter.reshape([-1 if index == axis else 1 for index in range(len(shape))])


def _unpacked(packed: Array, bits: int) -> Array:
    """The codes in each byte of a row, the lowest bits first."""
    parts = [(packed >> np.uint8(shift)) & np.uint8((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(packed.shape[0], -1)
