"""The body of a function copied to where it is called, with names that nothing else has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ort_castlike._context import describe
from ort_castlike._errors import ModelError, UnsupportedOperatorError

__all__ = ["inline_call"]

_FreshName = Callable[[str], str]
_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def inline_call(call: ir.Node, function: ir.Function, fresh_name: _FreshName) -> None:
    """Put a copy of ``function``'s body in the place of ``call``.

    The outputs of the call keep their names, their types and their users.

    Raises:
        ModelError: The call gives more inputs or takes more outputs than the function has, or the body uses a value
            that nothing in it gives.
        UnsupportedOperatorError: The call hands over a graph as an attribute.
    """
    copier = _Copier(call, function, fresh_name)
    graph = call.graph
    assert graph is not None
    graph.insert_before(call, [copier.node(node) for node in function])
    handed_over: set[ir.Value] = set()
    for formal, output in zip(function.outputs, call.outputs, strict=False):
        if not output.name:
            continue
        value = copier.value(formal, "its outputs")
        if value is None or value in copier.inputs or value in handed_over:
            value = _identity(call, value, output, fresh_name)
        handed_over.add(value)
        value.name = output.name
        value.type = output.type or value.type
        value.shape = output.shape or value.shape
        output.replace_all_uses_with(value, replace_graph_outputs=True)
    graph.remove(call, safe=True)


def _identity(call: ir.Node, value: ir.Value | None, output: ir.Value, fresh_name: _FreshName) -> ir.Value:
    """A value of its own for an output that is an input of the call, or another output too."""
    if value is None:
        raise ModelError(
            f"node {describe(call)}: its output {output.name!r} is an input of the function that the call leaves out; "
            "export the model again"
        )
    copy = ir.Value(name=output.name, type=value.type, shape=value.shape)
    assert call.graph is not None
    call.graph.insert_before(
        call, ir.Node("", "Identity", [value], outputs=[copy], name=fresh_name(f"{output.name}_Identity"))
    )
    return copy


class _Copier:
    """Copies of a body's nodes and graphs for one call."""

    def __init__(self, call: ir.Node, function: ir.Function, fresh_name: _FreshName) -> None:
        self._call = call
        self._fresh_name = fresh_name
        self._attributes: Mapping[str, ir.Attr] = {
            **{name: attribute for name, attribute in function.attributes.items() if attribute.value is not None},
            **call.attributes,
        }
        for name, attribute in self._attributes.items():
            if attribute.type in _GRAPHS:
                raise UnsupportedOperatorError(
                    f"node {describe(call)} hands the graph {name!r} to a function that touches an emulated type; "
                    "export the model with that function inlined"
                )
        for what, given, taken in (
            ("inputs", call.inputs, function.inputs),
            ("outputs", call.outputs, function.outputs),
        ):
            if len(given) > len(taken):
                raise ModelError(
                    f"node {describe(call)} has {len(given)} {what} and the function it calls has {len(taken)}; "
                    "export the model again"
                )
        self.inputs = frozenset(value for value in call.inputs if value is not None)
        self._values: dict[ir.Value, ir.Value | None] = dict.fromkeys(function.inputs)
        self._values.update(zip(function.inputs, call.inputs, strict=False))

    def value(self, value: ir.Value, user: str) -> ir.Value | None:
        """What a value of the body is in the copy; None for an input that the call leaves out."""
        if value not in self._values:
            raise ModelError(
                f"the function that node {describe(self._call)} calls uses {value.name!r} in {user}, and nothing in "
                "it gives that value; export the model again"
            )
        return self._values[value]

    def node(self, node: ir.Node) -> ir.Node:
        """A copy of a node, the graphs inside it included."""
        inputs = [None if value is None else self.value(value, f"node {describe(node)}") for value in node.inputs]
        attributes = [
            copy
            for name, attribute in node.attributes.items()
            if (copy := self._attribute(name, attribute)) is not None
        ]
        return ir.Node(
            node.domain,
            node.op_type,
            inputs,
            attributes,
            overload=node.overload,
            outputs=[self._new_value(output) for output in node.outputs],
            name=self._fresh_name(node.name or f"{self._call.name or self._call.op_type}_{node.op_type}"),
            doc_string=node.doc_string,
            metadata_props={**self._call.metadata_props, **node.metadata_props},
        )

    def _new_value(self, value: ir.Value) -> ir.Value:
        copy = ir.Value(
            name=self._fresh_name(value.name) if value.name else "",
            type=value.type,
            shape=value.shape.copy() if value.shape is not None else None,
            doc_string=value.doc_string,
            metadata_props=dict(value.metadata_props) or None,
        )
        self._values[value] = copy
        return copy

    def _attribute(self, name: str, attribute: ir.Attr) -> ir.Attr | None:
        """A copy with references resolved; None for a reference to an attribute that the call leaves out."""
        if attribute.is_ref():
            given = self._attributes.get(attribute.ref_attr_name or "")
            return None if given is None else ir.Attr(name, given.type, given.value, doc_string=given.doc_string)
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(name, self._graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(name, [self._graph(graph) for graph in attribute.as_graphs()])
        return attribute

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._new_value(value) for value in graph.inputs]
        initializers = [self._initializer(value) for value in graph.initializers.values() if value not in graph.inputs]
        nodes = [self.node(node) for node in graph]
        outputs = [self.value(value, f"the outputs of graph {graph.name!r}") for value in graph.outputs]
        return ir.Graph(
            inputs,
            [value for value in outputs if value is not None],
            nodes=nodes,
            initializers=initializers,
            doc_string=graph.doc_string,
            name=graph.name,
            metadata_props=dict(graph.metadata_props) or None,
        )

    def _initializer(self, value: ir.Value) -> ir.Value:
        copy = self._new_value(value)
        tensor = value.const_value
        assert tensor is not None
        # A tensor carries its name, so the copy gets one of its own that reads the same data.
        copy.const_value = ir.LazyTensor(
            lambda: tensor, tensor.dtype, ir.Shape(tensor.shape.numpy()), name=copy.name, doc_string=tensor.doc_string
        )
        return copy
