"""What a rewrite did, or would do, in a form that people and programs can read."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Change", "EmulatedTensor", "Report"]


@dataclasses.dataclass(frozen=True)
class EmulatedTensor:
    """A tensor of an emulated type in the original model.

    Attributes:
        name: Its name in the graph.
        type: Its type in onnxruntime's notation, "tensor(int2)".
        role: "input", "output", "initializer", "constant" or "value".
        carrier: The type that it has in the rewritten model.
    """

    name: str
    type: str
    role: str
    carrier: str


@dataclasses.dataclass(frozen=True)
class Change:
    """A node that becomes something else.

    Attributes:
        node: Its name, or a description where it has none.
        op_type: The operator that it was.
        becomes: What stands in its place, in a few words.
    """

    node: str
    op_type: str
    becomes: str


@dataclasses.dataclass
class Report:
    """The outcome of ``rewrite_file`` or ``inspect``.

    Attributes:
        target: The release that the result is for, "1.20".
        opset: The ai.onnx version before and after.
        ir_version: The IR version before and after.
        tensors: Every tensor of an emulated type.
        changes: Every node that changes.
        notes: Other things that were done: opset lowering, inlined functions.
        blockers: Why the model cannot be rewritten; empty where it can.
        changed: Whether the rewritten model differs from the original.
    """

    target: str
    opset: tuple[int, int]
    ir_version: tuple[int, int]
    tensors: list[EmulatedTensor] = dataclasses.field(default_factory=list)
    changes: list[Change] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    blockers: list[str] = dataclasses.field(default_factory=list)
    changed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return dataclasses.asdict(self)
