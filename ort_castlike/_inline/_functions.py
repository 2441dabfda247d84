"""Model-local functions that touch an emulated type: their calls are inlined, all others stay as they are.

A function has no types of its own: what one call computes on INT2 another computes on FLOAT. So it is decided call
by call, once types are known, and again for the calls that inlining brought into sight.
"""

from __future__ import annotations

import collections
import graphlib
from collections.abc import Callable, Mapping

import onnx_ir as ir

from ort_castlike._context import emulated_element
from ort_castlike._errors import ModelError
from ort_castlike._inference import infer_types
from ort_castlike._inline._inlining import inline_call
from ort_castlike._inline._lifting import lift
from ort_castlike._scopes import bring_in_outer_values
from ort_castlike._types import EMULATED_TYPES

__all__ = ["infer_and_inline"]

_MAX_NODES = 1_000_000
_MAX_DEPTH = 100  # onnx's inference and the runtimes descend into calls with a stack frame each
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})

_CODES = frozenset(element.code for element in EMULATED_TYPES.values())
_TWO_BITS = 2  # the number of no emulated type

_Key = tuple[str, str, str]
_IsWanted = Callable[[ir.Node, int], bool]


def infer_and_inline(
    model: ir.Model, fresh_name: Callable[[str], str], is_wanted: _IsWanted = lambda node, bits: False
) -> tuple[list[ir.Value], list[str]]:
    """Give every value a type, and inline every call that takes, gives or holds an emulated type.

    Args:
        model: The model, changed in place.
        fresh_name: Gives a name that nothing else in the model has.
        is_wanted: Says of a node and its attribute ``bits`` (2 or anything else; what a call gives for a reference)
            whether the functions that hold it are to be inlined too.

    Returns:
        The values whose types are inferred and not written in the model, and a line for each function inlined.

    Raises:
        ModelError: The functions call each other in a cycle, expand to too many nodes, or are called with what
            they do not take; or ONNX's inference refuses the model.
        UnsupportedOperatorError: A function to inline takes a graph as an attribute.
    """
    if not model.functions:
        return infer_types(model), []
    _check_calls(model)
    untyped = infer_types(model)
    inliner = _Inliner(model, fresh_name, is_wanted)
    while inliner.inline_touched():
        untyped += infer_types(model)
    return untyped, inliner.finish()


def _check_calls(model: ir.Model) -> None:
    """Refuse cycles and explosions before anything expands them."""
    functions = model.functions
    calls = {
        key: collections.Counter(
            identifier for node in function.all_nodes() if (identifier := node.op_identifier()) in functions
        )
        for key, function in functions.items()
    }
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(map(_text, error.args[1]))
        raise ModelError(f"the functions of the model call each other in a cycle: {cycle}; export it again") from error
    sizes: dict[_Key, int] = {}
    depths: dict[_Key, int] = {}
    for key in order:
        own = sum(1 for _ in functions[key].all_nodes())
        sizes[key] = own + sum(sizes[called] * count for called, count in calls[key].items())
        depths[key] = 1 + max((depths[called] for called in calls[key]), default=0)
        if depths[key] > _MAX_DEPTH:
            raise ModelError(
                f"calls of functions nest more than {_MAX_DEPTH} deep below {_text(key)}; export the model with its "
                "functions inlined"
            )
    total = sum(sizes.get(node.op_identifier(), 0) for node in model.graph.all_nodes())
    if total > _MAX_NODES:
        largest = max(sizes, key=lambda key: sizes[key])
        raise ModelError(
            f"the functions of the model expand to {_count(total)} nodes ({_text(largest)} alone to "
            f"{_count(sizes[largest])}), and at most {_MAX_NODES:,} are taken; export a model whose functions do not "
            "multiply"
        )


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "more than 10**15"


def _text(key: _Key) -> str:
    domain, name, overload = key
    return f"{domain}::{name}" + (f":{overload}" if overload else "")


class _Holding:
    """Whether a function's body holds a wanted node, or an emulated type whatever the types of its inputs."""

    def __init__(self, functions: Mapping[_Key, ir.Function], is_wanted: _IsWanted) -> None:
        self._functions = functions
        self._is_wanted = is_wanted
        self._known: dict[tuple[_Key, frozenset[tuple[str, int]]], bool] = {}

    def call(self, node: ir.Node, enclosing: Mapping[str, int] | None = None) -> bool:
        """The answer for a call; ``enclosing`` are the numbers that the caller's attributes stand for."""
        key = node.op_identifier()
        function = self._functions[key]
        attributes = {**function.attributes, **node.attributes}
        numbers = {name: number for name, item in attributes.items() if (number := _number(item, enclosing or {}))}
        given = frozenset(numbers.items())
        if (key, given) not in self._known:
            self._known[key, given] = any(self._node(inner, numbers) for inner in function.all_nodes()) or any(
                emulated_element(value.type) is not None
                for graph in (function.graph, *function.subgraphs())
                for value in (*graph.inputs, *graph.initializers.values())
            )
        return self._known[key, given]

    def _node(self, node: ir.Node, enclosing: Mapping[str, int]) -> bool:
        bits = node.attributes.get("bits")
        if bits is not None and self._is_wanted(node, _number(bits, enclosing)):
            return True
        if any(emulated_element(output.type) is not None for output in node.outputs):
            return True
        if node.op_identifier() in self._functions:
            return self.call(node, enclosing)
        return any(
            _number(attribute, enclosing) in _CODES
            for name, attribute in node.attributes.items()
            if attribute.type != ir.AttributeType.INT or name in _TYPE_ATTRIBUTES
        )


def _number(attribute: ir.Attr, enclosing: Mapping[str, int]) -> int:
    """The emulated element type that an attribute is the number of, or has in a tensor or a type; 2 bits; or 0."""
    number = 0
    if attribute.is_ref():
        number = enclosing.get(attribute.ref_attr_name or "", 0)
    elif attribute.value is None:
        number = 0
    elif attribute.type == ir.AttributeType.INT:
        number = attribute.as_int()
    elif attribute.type == ir.AttributeType.TENSOR:
        number = attribute.as_tensor().dtype
    elif attribute.type == ir.AttributeType.TYPE_PROTO:
        element = emulated_element(attribute.value.type)
        number = 0 if element is None else element.code
    return int(number) if number in _CODES or number == _TWO_BITS else 0


class _Inliner:
    """Replaces calls by copies of the bodies."""

    def __init__(self, model: ir.Model, fresh_name: Callable[[str], str], is_wanted: _IsWanted) -> None:
        self._model = model
        self._fresh_name = fresh_name
        self._holding = _Holding(model.functions, is_wanted)
        self._ready: set[_Key] = set()
        self._counts: collections.Counter[_Key] = collections.Counter()

    def inline_touched(self) -> bool:
        """Inline the calls in sight that touch an emulated type; whether there were any."""
        functions = self._model.functions
        calls = [
            node
            for node in self._model.graph.all_nodes()
            if node.op_identifier() in functions and (_touches(node) or self._holding.call(node))
        ]
        for node in calls:
            self._inline(node)
        return bool(calls)

    def finish(self) -> list[str]:
        """Drop the inlined functions that nothing calls any more, and say what was inlined."""
        functions = self._model.functions
        while True:
            graphs = (self._model.graph, *(function.graph for function in functions.values()))
            called = {node.op_identifier() for graph in graphs for node in graph.all_nodes()}
            unused = [key for key in self._counts if key in functions and key not in called]
            if not unused:
                break
            for key in unused:
                del functions[key]
        return [
            f"inlined function {_text(key)} ({count} call{'s' if count > 1 else ''})"
            for key, count in self._counts.items()
        ]

    def _inline(self, call: ir.Node) -> None:
        key = call.op_identifier()
        function = self._model.functions[key]
        if key not in self._ready:
            bring_in_outer_values(function.graph, self._fresh_name)
            lift(function, self._model)
            self._ready.add(key)
        inline_call(call, function, self._fresh_name)
        self._counts[key] += 1


def _touches(node: ir.Node) -> bool:
    return any(
        value is not None and emulated_element(value.type) is not None for value in (*node.inputs, *node.outputs)
    )
