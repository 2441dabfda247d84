"""The pass over a whole model: plans every node, refuses once with all that blocks, then changes the model."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable

import onnx_ir as ir

from ort_castlike._errors import TargetError
from ort_castlike._opset._census import Census, take_census
from ort_castlike._opset._fragments import Names
from ort_castlike._opset._gaps import usable_opset
from ort_castlike._opset._ir_version import check_ir_version, lower_ir_version
from ort_castlike._opset._plan import apply, plan
from ort_castlike._opset._schemas import newest_opset
from ort_castlike._opset._site import Edit, Fragment, Refusal, Site
from ort_castlike._targets import TARGETS, Target
from ort_castlike._walk import nodes_with_place

__all__ = ["lower"]

_ALIAS = "ai.onnx"


@dataclasses.dataclass(frozen=True)
class _Scope:
    """The main graph or a function: what has its own opset imports."""

    name: str
    owner: ir.Graph | ir.Function
    nodes: tuple[tuple[ir.Node, str], ...]

    @property
    def opset(self) -> int:
        """The opset of the default domain; 0 where it is not imported."""
        imports = self.owner.opset_imports
        return imports.get("", imports.get(_ALIAS, 0))


@dataclasses.dataclass(frozen=True)
class _Block:
    """A node that cannot be lowered."""

    node: ir.Node
    place: str
    opset: int
    reason: str

    def __str__(self) -> str:
        output = self.node.outputs[0].name if self.node.outputs else ""
        called = f"{self.node.op_type} {self.node.name!r}" if self.node.name else self.node.op_type
        return f"{called} (output {output!r}, in {self.place}): {self.reason}"


def lower(model: ir.Model, target: Target) -> list[str]:
    """Lower a model's opset and IR version, in place, as far as a release needs.

    The opset of the default domain is lowered in the main graph and in model-local functions; other domains keep
    theirs. Every node is proven to mean the same at the lower opset, given a lower form that does, or refused. A model
    that fits already keeps its versions; only attributes that have no effect go.

    Args:
        model: The model, its types legalized and inferred. It is unchanged where an error is raised.
        target: The release that is to load it.

    Returns:
        What was changed, a line for each kind of change; empty where nothing was.

    Raises:
        TargetError: The model's opset is newer than the installed onnx knows, or some nodes or types have no form that
            the release takes. The message lists all of them, and names the lowest release that would take them.
    """
    scopes = _scopes(model)
    census = functools.cache(lambda: take_census(model))
    opset = usable_opset(target, _used(scopes))
    verdicts: list[tuple[ir.Node, Edit | Fragment]] = []
    blocks: list[_Block] = []
    for scope in scopes:
        low = min(scope.opset, opset)
        for node, place in scope.nodes:
            if node.domain != "":
                continue
            verdict = plan(Site(node, scope.opset, low, target, census))
            if isinstance(verdict, Refusal):
                blocks.append(_Block(node, place, scope.opset, verdict.reason))
            elif verdict is not None:
                verdicts.append((node, verdict))
    newer_types = check_ir_version(model, target)
    if blocks or newer_types:
        reasons = (*map(str, blocks), *map(_type_reason, newer_types.items()))
        error = TargetError(
            _message(scopes, target, opset, reasons, _lowest_release(scopes, target, blocks, newer_types, census))
        )
        error.reasons = reasons
        raise error
    return [
        *_restamp(scopes, opset),
        *lower_ir_version(model, target),
        *_apply_all(model, verdicts),
    ]


def _scopes(model: ir.Model) -> list[_Scope]:
    scopes = [_Scope("the model", model.graph, tuple(nodes_with_place(model.graph, "the main graph")))]
    for function in model.functions.values():
        name = f"function {function.domain}::{function.name}"
        scopes.append(_Scope(name, function, tuple(nodes_with_place(function.graph, name))))
    for scope in scopes:
        if scope.opset > newest_opset():
            raise TargetError(
                f"{scope.name} imports opset {scope.opset}, and the installed onnx knows none above "
                f"{newest_opset()}: install a newer onnx, or export the model at an older opset"
            )
    return scopes


def _used(scopes: Iterable[_Scope]) -> dict[int, set[str]]:
    used: dict[int, set[str]] = collections.defaultdict(set)
    for scope in scopes:
        used[scope.opset].update(node.op_type for node, _ in scope.nodes if node.domain == "")
    return used


def _restamp(scopes: Iterable[_Scope], opset: int) -> list[str]:
    lines = []
    for scope in scopes:
        if scope.opset > opset:
            lines.append(f"opset of {scope.name} lowered from {scope.opset} to {opset}")
            scope.owner.opset_imports.pop(_ALIAS, None)
            scope.owner.opset_imports[""] = opset
            for node, _ in scope.nodes:
                if node.domain == "" and node.version is not None:
                    node.version = opset
    return lines


def _apply_all(model: ir.Model, verdicts: list[tuple[ir.Node, Edit | Fragment]]) -> list[str]:
    counts: collections.Counter[str] = collections.Counter()
    names = None
    for node, verdict in verdicts:
        if isinstance(verdict, Fragment):
            names = names or Names([model.graph, *(function.graph for function in model.functions.values())])
            counts[f"{node.op_type}: {verdict.how}"] += 1
        else:
            counts.update(f"{node.op_type}: {name} dropped, it has no effect" for name in verdict.drop)
            counts.update(f"{node.op_type}: default of {item.name} written out" for item in verdict.add)
        apply(node, verdict, names or Names([]))
    return [f"{line} ({count} node{'s' if count > 1 else ''})" for line, count in counts.items()]


def _type_reason(row: tuple[str, int]) -> str:
    return f"{row[0]} needs IR version {row[1]}, and a tensor that no ONNX operator computes on has that type"


def _message(scopes: list[_Scope], target: Target, opset: int, reasons: Iterable[str], release: Target | None) -> str:
    highest = max(scope.opset for scope in scopes)
    return "\n".join(
        [
            f"the model cannot be lowered to what onnxruntime {target} runs (from opset {highest} to "
            f"{min(opset, highest)}, IR version {target.ir_version}):",
            *(f"  - {reason}" for reason in reasons),
            f"onnxruntime {release} is the lowest supported release that takes this; install it, or name it as target"
            if release is not None
            else "no supported release takes this: replace these nodes, or export the model with an older opset",
        ]
    )


def _lowest_release(
    scopes: list[_Scope],
    target: Target,
    blocks: list[_Block],
    newer_types: dict[str, int],
    census: Callable[[], Census],
) -> Target | None:
    used = _used(scopes)
    for candidate in TARGETS:
        if candidate.release <= target.release:
            continue
        opset = usable_opset(candidate, used)
        if any(version > candidate.ir_version for version in newer_types.values()):
            continue
        sites = (Site(block.node, block.opset, min(block.opset, opset), candidate, census) for block in blocks)
        if not any(isinstance(plan(site), Refusal) for site in sites):
            return candidate
    return None
