"""What a rule works with: the original types, the constants, and the few ways to change a graph.

A rule gets a node and the :class:`Context`. The types of all values have become carriers by then; the
context remembers what they were.
"""

from __future__ import annotations

import collections
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._errors import ModelError, UnsupportedOperatorError
from ort_castlike._metadata import DOMAIN
from ort_castlike._opset._schemas import newest_opset, schema, signature, type_text
from ort_castlike._options import Options
from ort_castlike._report import Change
from ort_castlike._types import ElementType, element_type
from ort_castlike._weight_memory import WeightTally

__all__ = ["DOMAIN", "Context", "carrier_type", "describe", "described", "emulated_element"]


def describe(node: ir.Node, op_type: str | None = None) -> str:
    """A node as errors call it.

    Args:
        node: The node.
        op_type: The operator that it was, where it is another by now.
    """
    return described(node.name, op_type or node.op_type, [output.name for output in node.outputs])


def described(name: str | None, op_type: str, outputs: Sequence[str | None]) -> str:
    """What follows the word "node": a node's name and operator; without a name, what it gives, by which it is found."""
    if name:
        return f"{name!r} ({op_type})"
    return f"({op_type} that gives {outputs[0]!r})" if outputs else f"({op_type} that gives nothing)"


def tensor_dtype(type_: ir.TypeProtocol | None) -> ir.DataType | None:
    """The element type of a tensor, or of the tensors inside a sequence or an optional."""
    while isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        type_ = type_.elem_type
    return None if type_ is None else type_.dtype


def emulated_element(type_: ir.TypeProtocol | None) -> ElementType | None:
    """The emulated element type in a type, None where there is none."""
    dtype = tensor_dtype(type_)
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return None
    element = element_type(dtype)
    return element if element.is_emulated else None


def with_dtype(type_: ir.TypeProtocol, dtype: ir.DataType) -> ir.TypeProtocol:
    """The same type, nesting and denotation included, with another element type."""
    if isinstance(type_, (ir.SequenceType, ir.OptionalType)):
        return type(type_)(with_dtype(type_.elem_type, dtype), denotation=type_.denotation)
    return type(type_)(dtype, denotation=type_.denotation)  # type: ignore[call-arg]


def carrier_type(type_: ir.TypeProtocol) -> ir.TypeProtocol:
    """The type with its emulated element type replaced by the carrier."""
    element = emulated_element(type_)
    assert element is not None
    assert element.carrier is not None
    return with_dtype(type_, ir.DataType[element.carrier])


class Context:
    """The state of one rewrite of one model.

    Attributes:
        model: The model, changed in place.
        options: What was asked for.
        original: For each value of an emulated type, the type that it had.
        changes: What the rules did, for the report.
        notes: Other things that a user should know, for the report.
        weights: What memory the layers that got more bits take, for the report.
    """

    def __init__(self, model: ir.Model, options: Options) -> None:
        self.model = model
        self.options = options
        self.original: dict[ir.Value, ir.TypeProtocol] = {}
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.weights = WeightTally()
        self._packed_uses: set[tuple[ir.Node, int]] = set()
        self._stock_constants: dict[tuple[str, bytes, tuple[int, ...]], ir.Value] = {}
        self._derived: dict[tuple[ir.Value, str], ir.Value] = {}
        self._maybe_dead: dict[ir.Value, None] = {}  # each value once: to list the uses of one takes time
        self._names: set[str] | None = None
        self._name_counts: collections.Counter[str] = collections.Counter()

    # What things are

    def element(self, value: ir.Value | None, node: ir.Node) -> ElementType:
        """The original element type of a value that ``node`` takes or gives.

        Raises:
            ModelError: The value is missing, or nothing says what its type is.
        """
        if value is None:
            raise ModelError(f"node {describe(node)} lacks an input that {node.op_type} must have")
        dtype = tensor_dtype(self.original.get(value, value.type))
        if dtype is None or dtype == ir.DataType.UNDEFINED:
            raise ModelError(
                f"node {describe(node)}: the element type of {value.name!r} is not known; "
                "give it a value_info in the model"
            )
        return element_type(dtype)

    def is_emulated(self, value: ir.Value | None) -> bool:
        return value is not None and value in self.original

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor behind a value that never changes: an initializer that is no graph input, or a Constant."""
        if value is None or value.is_graph_input():
            return None
        if value.is_initializer():
            return value.const_value
        node = value.producer()
        if node is not None and node.op_type == "Constant" and node.domain == "":
            attribute = node.attributes.get("value")
            if attribute is not None and not attribute.is_ref():
                return attribute.as_tensor()
        return None

    def unsupported(self, node: ir.Node, value: ir.Value, why: str = "") -> UnsupportedOperatorError:
        """The error for a node that cannot be rewritten because of one of its values."""
        type_ = self.original.get(value, value.type)
        kind = "unknown" if type_ is None else type_text(type_)
        if not node.domain and schema(node.op_type, newest_opset()) is None:
            return UnsupportedOperatorError(
                f"node {describe(node)}: ONNX has no operator {node.op_type} up to opset {newest_opset()}, the newest "
                f"that the installed onnx knows, and {value.name!r} of type {kind} needs one; {_meant(node.op_type)}"
            )
        operator = f"{node.domain or 'ai.onnx'}::{node.op_type}"
        if not why and not _allows(node, value, kind):
            element = emulated_element(type_)
            others = "int8 or float" if element is not None and element.is_integer else "float"
            return UnsupportedOperatorError(
                f"node {describe(node)}: {operator} takes or gives {value.name!r} of type {kind}, which ONNX does not "
                f"allow; cast to {others} before the node, and back behind it if need be"
            )
        return UnsupportedOperatorError(
            f"node {describe(node)}: {operator} takes or gives {value.name!r} of type {kind}, "
            f"{why or 'and no rule says what it becomes'}; "
            f"cast the value to a type that the operator takes first, or ask for a rule for {node.op_type}"
        )

    # Ways to change the graph

    def become(
        self,
        node: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr] | Iterable[ir.Attr] = (),
        *,
        domain: str = "",
    ) -> None:
        """Turn a node into another; its name, its outputs and their names stay."""
        dropped = [value for value in node.inputs if value is not None and value not in inputs]
        node.domain = domain
        node.op_type = op_type
        node.overload = ""
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            node.replace_input_with(index, value)
        node.attributes.clear()
        listed = attributes.values() if isinstance(attributes, Mapping) else attributes
        for attribute in listed:
            node.attributes.add(attribute)
        self.let_go(dropped)

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr] = (),
        *,
        gives: str,
        shape: ir.Shape | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Put a new node in front of another and give its output, of the element type named ``gives``."""
        base = before.outputs[0].name or before.op_type
        output = ir.Value(
            name=self.fresh_name(f"{base}_{op_type}"),
            type=ir.TensorType(ir.DataType[gives]),
            shape=shape,
        )
        node = ir.Node(
            domain,
            op_type,
            inputs,
            attributes,
            outputs=[output],
            name=self.fresh_name(f"{before.name or base}_{op_type}"),
        )
        assert before.graph is not None
        before.graph.insert_before(before, node)
        return output

    def stock_constant(self, array: np.ndarray, name: str) -> ir.Value:
        """An initializer of the main graph that holds a small array of a stock type; equal ones are shared."""
        key = (array.dtype.str, array.tobytes(), array.shape)
        value = self._stock_constants.get(key)
        if value is None:
            tensor = ir.Tensor(array, name=self.fresh_name(f"{DOMAIN}_{name}"))
            value = self._stock_constants[key] = self._initializer(tensor)
        return value

    def emulated_constant(self, tensor: ir.TensorProtocol) -> ir.Value:
        """An initializer of the main graph for a tensor of an emulated type; encoded when all uses are known."""
        value = self._initializer(tensor)
        self.remember(value)
        return value

    def folded_constant(self, tensor: ir.TensorProtocol) -> ir.Value:
        """An initializer of the main graph for a tensor of a stock type."""
        return self._initializer(tensor)

    def derived_constant(
        self, value: ir.Value, kind: str, derive: Callable[[ir.TensorProtocol], ir.TensorProtocol]
    ) -> ir.Value:
        """An initializer made from a constant of a stock type; those who derive the same ``kind`` share it."""
        derived = self._derived.get((value, kind))
        if derived is None:
            source = self.constant(value)
            assert source is not None
            tensor = derive(source)
            tensor.name = self.fresh_name(f"{value.name}_{kind}")
            derived = self._derived[value, kind] = self._initializer(tensor)
        return derived

    def _initializer(self, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=tensor.name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            const_value=tensor,
        )
        self.model.graph.register_initializer(value)
        return value

    def replace(self, node: ir.Node, value: ir.Value) -> None:
        """Let all who use a node's only output use ``value`` instead; an output of a graph keeps its own name."""
        output = node.outputs[0]
        if output.is_graph_output():
            self.become(node, "Identity", [value])
            return
        output.replace_all_uses_with(value)
        self.let_go([output])

    def pack(self, node: ir.Node, *indices: int) -> None:
        """Let constant inputs of a node be packed 4-bit constants instead of carriers."""
        self._packed_uses.update((node, index) for index in indices)

    def changed(self, node: ir.Node, op_type: str, becomes: str) -> None:
        """Note a change for the report."""
        self.changes.append(Change(describe(node, op_type), op_type, becomes))

    def let_go(self, values: Iterable[ir.Value | None]) -> None:
        """Say that a rule took a use away from some values, so that those without any left are removed."""
        self._maybe_dead.update((value, None) for value in values if value is not None)

    def layer_packed(self, before: Iterable[ir.Value | None], after: Iterable[ir.Value | None]) -> None:
        """Note the constants of a layer before and after its weights got more bits, for the report."""
        self.weights.add(
            *(
                [
                    (value, tensor.nbytes)
                    for value in values
                    if value is not None and (tensor := self.constant(value)) is not None
                ]
                for values in (before, after)
            )
        )

    def carriers(self, values: Iterable[ir.Value]) -> list[ir.TypeProtocol]:
        """The types that values have by now, or that those have which took the place of constants laid out anew."""
        derived = {old: new for (old, _), new in self._derived.items() if new.uses()}
        types = []
        for value in values:
            last = value
            while last in derived and not (last.uses() or last.is_graph_output() or last.is_graph_input()):
                last = derived[last]
            assert last.type is not None
            types.append(last.type)
        return types

    def fresh_name(self, base: str) -> str:
        """A name that no value and no node of the model has."""
        if self._names is None:
            self._names = set(_all_names(self.model))
        name, count = base, self._name_counts[base]
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._name_counts[base] = count
        self._names.add(name)
        return name

    # What happens before the first and after the last rule

    def remember(self, value: ir.Value) -> None:
        """Keep the original type of a value of an emulated type and give it the carrier's."""
        assert value.type is not None
        self.original[value] = value.type
        value.type = carrier_type(value.type)

    def encode_constants(self) -> None:
        """Re-encode every constant of an emulated type for those who use it."""
        for value in list(self.original):
            tensor = self.constant(value)
            if tensor is None and value.is_initializer():
                tensor = value.const_value
            if tensor is None or emulated_element(ir.TensorType(tensor.dtype)) is None:
                continue
            packed = [use for use in value.uses() if (use.node, use.idx) in self._packed_uses]
            if not packed:
                _set_tensor(value, _constants.carrier_tensor(tensor))
            elif len(packed) == len(value.uses()) and not value.is_graph_output():
                _set_tensor(value, _constants.packed_tensor(tensor))
            else:
                twin = _constants.packed_tensor(tensor, name=self.fresh_name(f"{value.name}_packed"))
                packed_value = self._initializer(twin)
                for use in packed:
                    use.node.replace_input_with(use.idx, packed_value)
                _set_tensor(value, _constants.carrier_tensor(tensor))

    def remove_dead(self) -> None:
        """Remove what the rules left without a use: nodes, and initializers that are no graph inputs."""
        while self._maybe_dead:
            value, _ = self._maybe_dead.popitem()
            if value.uses() or value.is_graph_output() or value.is_graph_input():
                continue
            node = value.producer()
            if node is None:
                if value.is_initializer() and value.graph is not None and value.name is not None:
                    del value.graph.initializers[value.name]
                self.original.pop(value, None)
            elif node.graph is not None and not any(
                output.uses() or output.is_graph_output() for output in node.outputs
            ):
                self.let_go(_values_used(node))
                node.graph.remove(node, safe=True)
                for output in node.outputs:
                    self.original.pop(output, None)


def _allows(node: ir.Node, value: ir.Value, kind: str) -> bool:
    """Whether the newest ONNX lets a node take or give one of its values, of the type ``kind``, so far as it says."""
    opset = newest_opset()
    if node.domain or schema(node.op_type, opset) is None:
        return True
    formals = signature(node.op_type, opset)
    return all(
        kind in formals.formal(rows, index).types
        for values, rows in ((node.inputs, formals.inputs), (node.outputs, formals.outputs))
        for index, one in enumerate(values)
        if one is value
    )


def _meant(op_type: str) -> str:
    """What to do about an operator that is none."""
    operators = {entry.name for entry in onnx.defs.get_all_schemas() if not entry.domain}
    close = difflib.get_close_matches(op_type, sorted(operators), 1)
    return f"did you mean {close[0]}?" if close else "correct its name, or its domain if it is an operator of another"


def _set_tensor(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    value.type = ir.TensorType(tensor.dtype)
    if value.is_initializer():
        value.const_value = tensor
        return
    node = value.producer()
    assert node is not None
    node.attributes["value"] = ir.AttrTensor("value", tensor)
    value.const_value = None


def _values_used(node: ir.Node) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        graphs: Sequence[ir.Graph] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            graphs = (attribute.as_graph(),)
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        for graph in graphs:
            for inner in graph.all_nodes():
                yield from (value for value in inner.inputs if value is not None)


def _all_names(model: ir.Model) -> Iterator[str]:
    """The names of all values and nodes, in every graph."""
    graphs = [model.graph, *model.graph.subgraphs()]
    for graph in graphs:
        yield from (value.name for value in graph.inputs if value.name)
        yield from graph.initializers
        for node in graph:
            if node.name:
                yield node.name
            # An input that nothing in onnx_ir's view gives may be a sparse initializer.
            yield from (value.name for value in node.inputs if value is not None and value.name)
            yield from (value.name for value in node.outputs if value.name)
