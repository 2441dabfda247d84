"""Which element types can occur in a model: what is left to assume of a value whose type is not known.

Nodes of a function, and what follows a node of a foreign domain, have no static type. An operator passes on the
types of its inputs, so a type that no input, no constant and no attribute of the model names cannot be that of any
value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from ort_castlike._opset._schemas import element_of, type_text

__all__ = ["Census", "elements_of", "take_census", "tensor_elements", "type_of"]

# What the default domain's operators yield without being asked.
_SPONTANEOUS = frozenset({"bool", "float", "int32", "int64", "string", "uint8"})
_TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision", "stash_type"}
)


# Domains whose operators yield types of their inputs, types that an attribute names, or those above.
_CLOSED_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "ort_castlike"})
# Types that legalization leaves on no value: a runtime without them cannot yield them either.
_LEGALIZED = frozenset({"float4e2m1", "float6e2m3", "float6e3m2", "float8e8m0", "int2", "uint2"})
_CODES = frozenset(int(code) for code in ir.DataType)


@dataclasses.dataclass(frozen=True)
class Census:
    """The element types of a model ("float16").

    Attributes:
        elements: The types that occur.
        complete: False where an operator of an unknown domain yields a value of unknown type.
    """

    elements: frozenset[str]
    complete: bool

    def possible(self, types: Iterable[str]) -> frozenset[str]:
        """Those of ``types`` (ONNX's notation) that a value of unknown type can have."""
        return frozenset(text for text in types if self.could_be(element_of(text)))

    def could_be(self, element: str) -> bool:
        """Whether a value of unknown type can be of this element type."""
        return element in self.elements or (not self.complete and element not in _LEGALIZED)


def type_of(value: ir.Value) -> str | None:
    """A value's type in ONNX's notation, None where neither it nor the node that makes it says."""
    if value.type is not None:
        return type_text(value.type)
    if value.const_value is not None:
        return f"tensor({value.const_value.dtype.name.lower()})"
    producer = value.producer()
    if producer is None or producer.domain != "":
        return None
    if producer.op_type == "Cast":
        to = producer.attributes.get("to")
        if to is None or to.is_ref() or to.as_int() not in _CODES:
            return None
        return f"tensor({ir.DataType(to.as_int()).name.lower()})"
    if producer.op_type == "Constant":
        tensor = producer.attributes.get("value")
        return None if tensor is None or tensor.is_ref() else f"tensor({tensor.as_tensor().dtype.name.lower()})"
    return None


def take_census(model: ir.Model) -> Census:
    """Count the element types of a whole model, its functions included."""
    calls = frozenset(key[:2] for key in model.functions)
    roots = _roots(model)
    elements = _SPONTANEOUS.union(*(elements_of(root) for root in roots))
    for function in model.functions.values():
        elements = elements.union(_named_types(function.attributes, every_integer=True))
    complete = all(value.type is not None for value in model.graph.inputs)
    for root in roots:
        for graph in (root, *root.subgraphs()):
            for node in graph:
                if node.domain not in _CLOSED_DOMAINS and (node.domain, node.op_type) not in calls:
                    complete = complete and all(value.type is not None or not value.name for value in node.outputs)
    return Census(elements, complete)


def elements_of(root: ir.Graph, *, possible: bool = True) -> frozenset[str]:
    """The element types that a graph and those inside it name, on values and in attributes.

    Of other domains, and of functions, any integer attribute may name a type; these count where ``possible`` says so.
    """
    elements: set[str] = set()
    for graph in (root, *root.subgraphs()):
        values = [*graph.inputs, *graph.initializers.values()]
        for node in graph:
            values.extend(node.outputs)
            if node.attributes:
                elements.update(_named_types(node.attributes, every_integer=possible and node.domain != ""))
        elements.update(element_of(text) for text in map(type_of, values) if text is not None)
    return frozenset(elements)


def tensor_elements(model: ir.Model) -> frozenset[str]:
    """The element types of a model's values and tensors."""
    return frozenset[str]().union(*(elements_of(root, possible=False) for root in _roots(model)))


def _roots(model: ir.Model) -> list[ir.Graph]:
    return [model.graph, *(function.graph for function in model.functions.values())]


def _named_types(attributes: Mapping[str, ir.Attr], *, every_integer: bool) -> Iterator[str]:
    for name, attribute in attributes.items():
        if attribute.is_ref() or attribute.value is None:
            continue
        if attribute.type == ir.AttributeType.INT and (every_integer or name in _TYPE_ATTRIBUTES):
            code = attribute.as_int()
            if code in _CODES:
                yield ir.DataType(code).name.lower()
        elif attribute.type == ir.AttributeType.TENSOR:
            yield attribute.as_tensor().dtype.name.lower()
