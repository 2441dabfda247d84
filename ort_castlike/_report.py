"""What a rewrite did, or would do, in a form that people and programs can read."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Change", "EmulatedTensor", "ModelFile", "Report", "WeightMemory", "memory_line", "size_text"]


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


@dataclasses.dataclass(frozen=True)
class WeightMemory:
    """What memory the 2-bit layers of com.microsoft take that become 4-bit layers.

    Attributes:
        layers: How many they are.
        bytes_before: Bytes of their weights, scales and zero points; what layers share counts once.
        bytes_after: The same of the 4-bit layers.
    """

    layers: int
    bytes_before: int
    bytes_after: int


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A file that a written model consists of.

    Attributes:
        name: Its path from the folder of the model file.
        bytes: Its size.
    """

    name: str
    bytes: int


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
        weights: What memory 2-bit layers take that become 4-bit ones; None where there are none.
        runs_on_before: The supported releases that run the model as it is and are not known to err on it.
        runs_on_after: The supported releases that run the rewritten model: of ``rewrite_file`` the one that was
            written, of ``inspect`` one that is rewritten for the oldest of them.
        files: The files of the model that ``rewrite_file`` wrote, which belong together: the model file, and after it
            those of its external data. Empty where nothing was written.
    """

    target: str
    opset: tuple[int, int]
    ir_version: tuple[int, int]
    tensors: list[EmulatedTensor] = dataclasses.field(default_factory=list)
    changes: list[Change] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    blockers: list[str] = dataclasses.field(default_factory=list)
    changed: bool = False
    weights: WeightMemory | None = None
    runs_on_before: tuple[str, ...] = ()
    runs_on_after: tuple[str, ...] = ()
    files: list[ModelFile] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()
        }

    def __str__(self) -> str:
        lines = [self._verdict()]
        lines += [f"  blocked: {blocker}" for blocker in self.blockers]
        lines.append(f"  opset {_step(self.opset)}, IR version {_step(self.ir_version)}")
        lines.append(f"  as it is, it runs right on: {_releases(self.runs_on_before)}")
        if not self.blockers:
            oldest = f" for {self.runs_on_after[0]}" if self.runs_on_after else ""
            lines.append(f"  rewritten{oldest}, it runs on: {_releases(self.runs_on_after)}")
        lines += _section("tensors of emulated types", [_tensor_line(tensor) for tensor in self.tensors])
        lines += _section("nodes that change", [f"{change.node} becomes {change.becomes}" for change in self.changes])
        lines += _section("also", self.notes)
        if self.weights is not None:
            lines.append(f"  {memory_line(self.weights)}")
        lines += _section("files, which belong together", [f"{file.name}: {file.bytes} bytes" for file in self.files])
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.blockers:
            return f"cannot be rewritten for onnxruntime {self.target}"
        if self.changed:
            return f"{'' if self.files else 'to be '}rewritten for onnxruntime {self.target}"
        return f"nothing to rewrite for onnxruntime {self.target}"


def _step(versions: tuple[int, int]) -> str:
    before, after = versions
    return str(before) if before == after else f"{before} to {after}"


def _releases(releases: tuple[str, ...]) -> str:
    return "onnxruntime " + ", ".join(releases) if releases else "no supported release"


def _tensor_line(tensor: EmulatedTensor) -> str:
    return f"{tensor.role} {tensor.name!r}: {tensor.type} in {tensor.carrier}"


def memory_line(weights: WeightMemory) -> str:
    """What memory 2-bit layers take before and after, as a sentence."""
    before, after = size_text(weights.bytes_before), size_text(weights.bytes_after)
    layers = "1 layer goes" if weights.layers == 1 else f"{weights.layers} layers go"
    return f"{layers} from 2 to 4 bits: {before} of weights become {after}"


def size_text(size: float) -> str:
    """A number of bytes in the unit that suits it: "512 B", "4.0 KiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} GiB"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"  {title} ({len(lines)}):", *(f"    {line}" for line in lines)] if lines else []
