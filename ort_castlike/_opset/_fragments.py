"""Builds the nodes that take a node's place, and splices them into the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ort_castlike._opset._site import Fragment, Site

__all__ = ["FragmentBuilder", "Names", "splice"]


class Names:
    """The names of values and nodes that are taken, in every scope."""

    def __init__(self, graphs: Iterable[ir.Graph]) -> None:
        """Read the names of ``graphs`` and of all graphs inside them."""
        self._taken: set[str] = set()
        for root in graphs:
            for graph in (root, *root.subgraphs()):
                self._taken.update(value.name or "" for value in graph.inputs)
                self._taken.update(graph.initializers)
                for node in graph:
                    self._taken.add(node.name or "")
                    self._taken.update(value.name or "" for value in node.outputs)

    def fresh(self, wanted: str) -> str:
        """A name that nothing else has, ``wanted`` where it is free."""
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


class FragmentBuilder:
    """Records the nodes of a lower form. Its inputs stand in for the node's, so the model is not touched."""

    def __init__(self, site: Site) -> None:
        """Begin the lower form of ``site``'s node."""
        self._site = site
        self._nodes: list[ir.Node] = []
        self._stand_ins: dict[int, ir.Value] = {}

    def input(self, index: int) -> ir.Value:
        """The stand-in for an input of the node."""
        if index not in self._stand_ins:
            actual = self._site.node.inputs[index]
            assert actual is not None
            self._stand_ins[index] = ir.Value(name=f"input_{index}", type=actual.type, shape=actual.shape)
        return self._stand_ins[index]

    def inputs(self) -> list[ir.Value | None]:
        """Stand-ins for all inputs of the node, None where one is left out."""
        return [None if value is None else self.input(index) for index, value in enumerate(self._site.node.inputs)]

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        element: str | None = None,
        **attributes: object,
    ) -> ir.Value:
        """Add a node with one output, of the element type ``element`` where that is known."""
        (output,) = self.ops(op_type, inputs, outputs=1, **attributes)
        if element is not None:
            output.type = ir.TensorType(ir.DataType[element.upper()])
        return output

    def ops(
        self, op_type: str, inputs: Sequence[ir.Value | None], *, outputs: int, **attributes: object
    ) -> Sequence[ir.Value]:
        """Add a node with several outputs."""
        given = [
            value if isinstance(value, ir.Attr) else ir.convenience.convert_attribute(name, value)  # type: ignore[arg-type]
            for name, value in attributes.items()
        ]
        values = [ir.Value(name=f"{op_type.lower()}_{len(self._nodes)}_{slot}") for slot in range(outputs)]
        self._nodes.append(ir.Node("", op_type, inputs, given, outputs=values))
        return values

    def constant(self, value: object, element: str = "int64") -> ir.Value:
        """Add a constant."""
        dtype = ir.DataType[element.upper()]
        array = np.array(value, dtype=dtype.numpy())
        return self.op("Constant", element=element, value=ir.tensor(array, dtype=dtype))

    def cast(self, value: ir.Value, element: str) -> ir.Value:
        """Add a Cast."""
        return self.op("Cast", value, element=element, to=int(ir.DataType[element.upper()]))

    def finish(self, *outputs: ir.Value, how: str) -> Fragment:
        """The fragment that gives ``outputs`` for the node's first outputs."""
        node = self._site.node
        slots = tuple(slot for slot in range(len(outputs)) if node.outputs[slot].name)
        given = [outputs[slot] for slot in slots]
        for slot, output in zip(slots, given, strict=True):
            output.type = output.type if output.type is not None else node.outputs[slot].type
        graph = ir.Graph(list(self._stand_ins.values()), given, nodes=self._nodes, name="fragment")
        return Fragment(graph, tuple(self._stand_ins), slots, how)

    def rebuilt(
        self,
        inputs: Sequence[ir.Value | None],
        *,
        drop: Iterable[str] = (),
        how: str,
    ) -> Fragment:
        """The fragment that is the node itself with other inputs, without the attributes in ``drop``."""
        node = self._site.node
        dropped = set(drop)
        kept: Mapping[str, ir.Attr] = {
            name: attribute for name, attribute in node.attributes.items() if name not in dropped
        }
        return self.finish(self.ops(node.op_type, inputs, outputs=1, **kept)[0], how=how)


def splice(node: ir.Node, fragment: Fragment, names: Names) -> None:
    """Put a fragment in the place of a node. The node's outputs keep their names, all others are made unique."""
    graph = node.graph
    assert graph is not None
    prefix = node.name or node.outputs[0].name or node.op_type
    inner = fragment.graph
    inner_outputs = list(inner.outputs)
    for root in (inner, *inner.subgraphs()):
        values = [*root.initializers.values(), *(root.inputs if root is not inner else ())]
        for value in values:
            value.name = names.fresh(f"{prefix}/{value.name}")
        for child in root:
            child.name = names.fresh(f"{prefix}/{child.name or child.op_type}")
            for value in child.outputs:
                if value.name:
                    value.name = names.fresh(f"{prefix}/{value.name}")
    stand_ins = list(inner.inputs)
    nodes = list(inner)
    inner.outputs.clear()
    inner.inputs.clear()
    inner.remove(nodes)
    for stand_in, index in zip(stand_ins, fragment.actual, strict=True):
        # Read now, not when the fragment was made: the node before may have been replaced since.
        actual = node.inputs[index]
        assert actual is not None
        stand_in.replace_all_uses_with(actual)
    for new, slot in zip(inner_outputs, fragment.slots, strict=True):
        old = node.outputs[slot]
        new.type = old.type if old.type is not None else new.type
        new.shape = old.shape if old.shape is not None else new.shape
        new.metadata_props.update(old.metadata_props)
        name = old.name
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
        new.name = name
    for child in nodes:
        child.metadata_props.update(node.metadata_props)
    graph.insert_before(node, nodes)
    graph.remove(node, safe=True)
