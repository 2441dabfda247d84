"""One node to be lowered, and what may be decided about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from ort_castlike._opset._census import Census, type_of
from ort_castlike._opset._schemas import element_of
from ort_castlike._targets import Target

__all__ = ["EXPAND", "Edit", "Expand", "Fragment", "Refusal", "Rule", "Site", "Verdict"]


@dataclasses.dataclass(frozen=True)
class Edit:
    """The node stays. ``drop`` and ``add`` are the attributes that go and that are written out."""

    drop: tuple[str, ...] = ()
    add: tuple[ir.Attr, ...] = ()


@dataclasses.dataclass(frozen=True)
class Fragment:
    """Nodes that take the place of the node, in a graph of their own until they are spliced in.

    Attributes:
        graph: The nodes; its inputs stand in for the node's inputs, its outputs for the node's outputs.
        actual: The index of the node's input that each input of ``graph`` stands in for.
        slots: The node's output that each output of ``graph`` stands in for.
        how: What was done, for the report.
    """

    graph: ir.Graph
    actual: tuple[int, ...]
    slots: tuple[int, ...]
    how: str


@dataclasses.dataclass(frozen=True)
class Expand:
    """The node is to be replaced by the body that ONNX gives its operator."""


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why the node cannot be lowered."""

    reason: str


EXPAND = Expand()
Verdict = Edit | Fragment | Expand | Refusal


@dataclasses.dataclass(frozen=True)
class Site:
    """A node of the default domain, and where it is to go.

    Attributes:
        node: The node. Rules read it and never change it.
        high: The opset it is written for.
        low: The opset it is lowered to.
        target: The release that is to run it.
        census: Gives the element types of the model.
    """

    node: ir.Node
    high: int
    low: int
    target: Target
    census: Callable[[], Census]

    def input(self, index: int) -> ir.Value | None:
        """An input, None where it is left out."""
        return self.node.inputs[index] if index < len(self.node.inputs) else None

    def element(self, index: int) -> str | None:
        """The element type of an input, None where it is left out or of unknown type."""
        value = self.input(index)
        text = None if value is None else type_of(value)
        return None if text is None else element_of(text)

    def could_be(self, element: str) -> bool:
        """Whether a value of unknown type can be of this element type."""
        return self.census().could_be(element)

    def integer(self, name: str, default: int) -> int | None:
        """An INT attribute, ``default`` where it is left out, None where the caller of a function gives it."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        return None if attribute.is_ref() else attribute.as_int()

    def text(self, name: str, default: str) -> str | None:
        """A STRING attribute, as ``integer``."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            return default
        return None if attribute.is_ref() else attribute.as_string()


Rule = Callable[[Site], Verdict]
