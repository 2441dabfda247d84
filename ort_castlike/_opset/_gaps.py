"""Operator versions that a release loads the opset of, and has no kernel for, or none for some nodes.

Measured by running ONNX's node tests on the releases, operator by operator, at every opset that each of them loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from ort_castlike._opset._schemas import schema
from ort_castlike._opset._site import Site
from ort_castlike._targets import Target

__all__ = ["must_be_replaced", "usable_opset"]


def _has_window(site: Site) -> bool:
    return "left_window_size" in site.node.attributes or "right_window_size" in site.node.attributes


def _takes_bool(site: Site) -> bool:
    return site.element(0) == "bool"


def _output_differs_from_scale(site: Site) -> bool:
    code = site.integer("output_dtype", 0)
    return code is not None and code != 0 and ir.DataType(code).name.lower() != site.element(1)


def _division_differs_from_input(site: Site) -> bool:
    code = site.integer("precision", 0)
    division = ir.DataType(code).name.lower() if code else site.element(1)
    return site.element(0) != site.element(1) or division != site.element(0)


@dataclasses.dataclass(frozen=True)
class _Gap:
    """Versions of an operator that no release from ``first`` to ``last`` runs.

    Attributes:
        since: The versions.
        first: The first release that loads its opset.
        last: The last release that was found without it.
        alone: Whether a node is replaced by its lower form or function body, at the opset that the model has. Else the
            whole model is lowered to the opset before.
        when: Which nodes it concerns, all where None.
    """

    since: tuple[int, ...]
    first: tuple[int, int]
    last: tuple[int, int]
    alone: bool = False
    when: Callable[[Site], bool] | None = None

    def concerns(self, since: int, target: Target) -> bool:
        return since in self.since and self.first <= target.release <= self.last


_GAPS: Mapping[str, tuple[_Gap, ...]] = {
    "Attention": (_Gap((25,), (1, 24), (1, 31), alone=True, when=_has_window),),
    "BitCast": (_Gap((26,), (1, 25), (1, 32), alone=True, when=_takes_bool),),
    "DequantizeLinear": (
        _Gap((23, 24, 25), (1, 23), (1, 30), alone=True, when=_output_differs_from_scale),
        _Gap((28,), (1, 32), (1, 32)),
    ),
    "LpNormalization": (_Gap((22,), (1, 21), (1, 24)),),
    "Optional": (_Gap((28,), (1, 32), (1, 32)),),
    "OptionalGetElement": (_Gap((28,), (1, 32), (1, 32)),),
    "OptionalHasElement": (_Gap((28,), (1, 32), (1, 32)),),
    "QuantizeLinear": (
        _Gap((23,), (1, 23), (1, 23)),
        # Mixed types fail to run, and ``precision`` is ignored.
        _Gap((24, 25), (1, 24), (1, 31), alone=True, when=_division_differs_from_input),
        _Gap((28,), (1, 32), (1, 32)),
    ),
    "RoiAlign": (_Gap((22,), (1, 21), (1, 32)),),
    "SwiGLU": (_Gap((28,), (1, 32), (1, 32), alone=True),),
    "Swish": (_Gap((24,), (1, 24), (1, 32), alone=True),),
    "TensorScatter": (_Gap((24,), (1, 24), (1, 24), alone=True),),
}


def must_be_replaced(site: Site) -> bool:
    """Whether the target cannot run the node at the opset it goes to, and only the node has to change for that."""
    entry = schema(site.node.op_type, min(site.high, site.low))
    return entry is not None and any(
        gap.alone and gap.concerns(entry.since_version, site.target) and (gap.when is None or gap.when(site))
        for gap in _GAPS.get(site.node.op_type, ())
    )


def usable_opset(target: Target, used: Mapping[int, Iterable[str]]) -> int:
    """The highest opset at which ``target`` has a kernel for every operator of a model.

    Args:
        target: The release.
        used: The default domain's operators in the model, by the opset they are imported at.
    """
    opset = target.opset
    present = [(source, op_type) for source, names in used.items() for op_type in names if op_type in _GAPS]
    lowered = True
    while lowered:
        lowered = False
        for source, op_type in present:
            entry = schema(op_type, min(source, opset))
            if entry is None:
                continue
            if any(not gap.alone and gap.concerns(entry.since_version, target) for gap in _GAPS[op_type]):
                opset = entry.since_version - 1
                lowered = True
    return opset
