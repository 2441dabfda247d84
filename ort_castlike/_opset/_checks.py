"""Proves that a node fits the schema of a lower version: its attributes, its arity and its types."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ort_castlike._opset._census import type_of
from ort_castlike._opset._schemas import Formal, Signature, signature
from ort_castlike._opset._site import Edit, Refusal, Site

__all__ = ["fit"]


def fit(site: Site, edit: Edit) -> Edit | Refusal:
    """Check a node, with the edit of its rule applied, against its operator's schema at the lower opset.

    Returns:
        The edit, with the attributes added to it that the lower version does without or must be told.
    """
    op_type = site.node.op_type
    low, high = signature(op_type, site.low), signature(op_type, site.high)
    problem = (
        _arity_problem(site.node, low)
        or _type_problem(site, site.node.inputs, low.inputs, high.inputs, "input")
        or _type_problem(site, site.node.outputs, low.outputs, high.outputs, "output")
    )
    if problem is not None:
        return Refusal(f"{problem} at opset {site.low}")
    return _fit_attributes(site, edit, low, high)


def _fit_attributes(site: Site, edit: Edit, low: Signature, high: Signature) -> Edit | Refusal:
    drop, add = list(edit.drop), list(edit.add)
    for name, attribute in site.node.attributes.items():
        if name in edit.drop:
            continue
        if name not in low.attributes:
            if name not in high.attributes or attribute.is_ref() or not _is_default(attribute, high.attributes[name]):
                shown = "" if attribute.is_ref() else f"={attribute.value!r}"
                return Refusal(f"{site.node.op_type} has no attribute {name}{shown} at opset {site.low}")
            drop.append(name)
        elif name in high.attributes and low.attributes[name].type != high.attributes[name].type:
            return Refusal(f"the attribute {name} of {site.node.op_type} has another type at opset {site.low}")
    for name, entry in low.attributes.items():
        if name in site.node.attributes or any(attribute.name == name for attribute in add):
            continue
        if entry.required:
            return Refusal(f"{site.node.op_type} needs the attribute {name} at opset {site.low}")
        default = high.attributes[name].default_value if name in high.attributes else None
        if default is not None and default.name and default != entry.default_value:
            add.append(ir.serde.deserialize_attribute(default))
    return Edit(tuple(drop), tuple(add))


def _is_default(attribute: ir.Attr, entry: Any) -> bool:
    default = entry.default_value
    return bool(default.name) and ir.serde.deserialize_attribute(default).value == attribute.value


def _arity_problem(node: ir.Node, low: Signature) -> str | None:
    for kind, values, formals, most in (
        ("input", node.inputs, low.inputs, low.max_input),
        ("output", node.outputs, low.outputs, low.max_output),
    ):
        given = [value is not None and value.name != "" for value in values]
        count = max((index + 1 for index, there in enumerate(given) if there), default=0)
        if count > most:
            return f"{node.op_type} takes {most} {kind}s and has {count}"
        for index, formal in enumerate(formals):
            if kind == "input" and formal.required and not (index < count and given[index]):
                return f"{node.op_type} needs its input {formal.name}"
    return None


def _type_problem(
    site: Site,
    values: Any,
    low: tuple[Formal, ...],
    high: tuple[Formal, ...],
    kind: str,
) -> str | None:
    for index, value in enumerate(values):
        if value is None or value.name == "":
            continue
        allowed = Signature.formal(low, index)
        text = type_of(value)
        if text is not None:
            if text not in allowed.types:
                return f"{site.node.op_type} takes no {text} as {kind} {allowed.name} ({value.name!r})"
            continue
        added = Signature.formal(high, index).types - allowed.types
        beyond = site.census().possible(added) if added else added
        if beyond:
            return (
                f"{kind} {allowed.name} ({value.name!r}) has no static type and could be {min(beyond)}, "
                f"which {site.node.op_type} does not take"
            )
    return None
