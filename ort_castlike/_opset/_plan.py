"""Decides what becomes of one node, without touching the model it is in."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ort_castlike._opset._bumps import ADDITIONS
from ort_castlike._opset._census import Census, elements_of
from ort_castlike._opset._checks import fit
from ort_castlike._opset._expand import expand
from ort_castlike._opset._fragments import Names, splice
from ort_castlike._opset._gaps import must_be_replaced
from ort_castlike._opset._rules import ALWAYS, FORMS, RULES
from ort_castlike._opset._schemas import bumps, schema
from ort_castlike._opset._site import Edit, Expand, Fragment, Refusal, Site
from ort_castlike._walk import nodes_with_place

__all__ = ["apply", "plan"]

# An operator of onnxruntime's own in ONNX's domain, the same at every opset: exporters of language models write it.
_OF_ONNXRUNTIME = frozenset(("SimplifiedLayerNormalization",))


def plan(site: Site) -> Edit | Fragment | Refusal | None:
    """What to do with a node of the default domain; None where it means the same as it stands."""
    op_type = site.node.op_type
    high, low = schema(op_type, site.high), schema(op_type, site.low)
    if must_be_replaced(site):
        return _replaced(site, f"onnxruntime {site.target} has no kernel for {op_type}")
    if site.high <= site.low or (high is not None and low is not None and high.since_version == low.since_version):
        return _tidy(site)
    if op_type in _OF_ONNXRUNTIME:
        return None
    if high is None:
        return Refusal(f"opset {site.high} of ONNX has no operator {op_type}")
    if low is None:
        return _replaced(site, f"{op_type} came with opset {high.since_version}")
    verdict = _across_bumps(site)
    if isinstance(verdict, Fragment):
        return _settled(site, verdict, site.low)
    if isinstance(verdict, Edit):
        verdict = fit(site, verdict)
    if isinstance(verdict, Edit):
        return verdict if verdict.drop or verdict.add else None
    return _expanded(site, verdict if isinstance(verdict, Refusal) else None)


def apply(node: ir.Node, verdict: Edit | Fragment, names: Names) -> None:
    """Carry out what was planned for a node."""
    if isinstance(verdict, Fragment):
        splice(node, verdict, names)
        return
    for name in verdict.drop:
        node.attributes.pop(name, None)
    for attribute in verdict.add:
        node.attributes.add(attribute)


def _tidy(site: Site) -> Edit | None:
    rule = ALWAYS.get(site.node.op_type)
    verdict = rule(site) if rule is not None and site.node.attributes else None
    drop = _given(site, verdict.drop) if isinstance(verdict, Edit) else ()
    return Edit(drop) if drop else None


def _given(site: Site, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in site.node.attributes)


def _replaced(site: Site, why: str) -> Fragment | Refusal:
    """A lower form, else the operator's body, for an operator that is not there."""
    form = FORMS.get(site.node.op_type)
    if form is None:
        return _expanded(site, Refusal(why))
    verdict = form(site)
    if isinstance(verdict, Fragment):
        return _settled(site, verdict, site.low)
    reason = verdict.reason if isinstance(verdict, Refusal) else "it has no lower form"
    return Refusal(f"{why}; {reason}")


def _across_bumps(site: Site) -> Edit | Fragment | Expand | Refusal:
    """Ask the rule of every version between, newest first."""
    op_type = site.node.op_type
    drop: list[str] = []
    for since in bumps(op_type, site.low, site.high):
        rule = RULES.get((op_type, since))
        if rule is not None:
            verdict = rule(site)
            if not isinstance(verdict, Edit):
                return verdict
            drop.extend(_given(site, verdict.drop))
        elif (op_type, since) not in ADDITIONS:
            return Refusal(f"what {op_type} changed with opset {since} is not known to this version of ort_castlike")
    return Edit(tuple(drop))


def _expanded(site: Site, why: Refusal | None) -> Fragment | Refusal:
    """The body of the node's operator; where that fails, ``why`` it was needed and why it failed."""
    entry = schema(site.node.op_type, site.high)
    if why is not None and not (entry.has_function or entry.has_context_dependent_function):
        return why
    expanded = expand(site)
    result = expanded if isinstance(expanded, Refusal) else _settled(site, *expanded)
    if isinstance(result, Refusal):
        first = why.reason if why is not None else f"it uses what came with opset {entry.since_version}"
        return Refusal(f"{first}; {result.reason}")
    return result


def _settled(site: Site, fragment: Fragment, opset: int) -> Fragment | Refusal:
    """Lower the nodes of a fragment that is written for ``opset`` in their turn."""
    names = Names([fragment.graph])
    census = _widened(site.census, fragment)
    for node, _ in list(nodes_with_place(fragment.graph, "")):
        if opset < site.low:
            # A body of an older opset: its operators may only have gained types since.
            risen = bumps(node.op_type, opset, site.low)
            if any((node.op_type, since) not in ADDITIONS for since in risen):
                return Refusal(f"ONNX's body for it is of opset {opset} and its {node.op_type} has changed since")
            continue
        if opset == site.low and schema(node.op_type, opset) is not None:
            fitted = fit(Site(node, opset, opset, site.target, census), Edit())
            if isinstance(fitted, Refusal):
                return Refusal(f"in its lower form: {fitted.reason}")
        verdict = plan(Site(node, opset, site.low, site.target, census))
        if isinstance(verdict, Refusal):
            return Refusal(f"in its lower form: {verdict.reason}")
        if verdict is not None:
            apply(node, verdict, names)
    return fragment


def _widened(census: Callable[[], Census], fragment: Fragment) -> Callable[[], Census]:
    """The census with the types that a fragment brings along."""

    def widened() -> Census:
        found = census()
        return Census(found.elements | elements_of(fragment.graph), found.complete)

    return widened
