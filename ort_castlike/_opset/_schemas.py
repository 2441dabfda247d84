"""ONNX's operator schemas, looked up once for each pair of operator and version."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import onnx
import onnx_ir as ir

__all__ = ["Formal", "Signature", "bumps", "element_of", "newest_opset", "schema", "signature", "type_text"]

_ELEMENT = re.compile(r"tensor\((\w+)\)")


def newest_opset() -> int:
    """The newest version of the default domain that the installed onnx knows."""
    return int(onnx.defs.onnx_opset_version())


@functools.cache
def schema(op_type: str, opset: int) -> Any:
    """The schema of a default-domain operator at an opset, None where the opset has no such operator."""
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


@functools.cache
def bumps(op_type: str, low: int, high: int) -> tuple[int, ...]:
    """The versions of an operator in ``(low, high]``, newest first."""
    found = []
    entry = schema(op_type, high)
    while entry is not None and entry.since_version > low:
        found.append(entry.since_version)
        entry = schema(op_type, entry.since_version - 1)
    return tuple(found)


@dataclasses.dataclass(frozen=True)
class Formal:
    """A formal input or output: its name, the types it takes, and whether a node must give it."""

    name: str
    types: frozenset[str]
    required: bool


@dataclasses.dataclass(frozen=True)
class Signature:
    """What the checks read of a schema."""

    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    max_input: int
    max_output: int
    attributes: dict[str, Any]

    @staticmethod
    def formal(formals: tuple[Formal, ...], index: int) -> Formal:
        """The formal of an actual argument; the last one of a variadic list stands for the rest."""
        return formals[min(index, len(formals) - 1)]


@functools.cache
def signature(op_type: str, opset: int) -> Signature:
    """The signature of an operator that is there at ``opset``."""
    entry = schema(op_type, opset)
    constraints = {row.type_param_str: frozenset(row.allowed_type_strs) for row in entry.type_constraints}

    def formals(rows: Any) -> tuple[Formal, ...]:
        return tuple(
            Formal(
                row.name,
                constraints.get(row.type_str, frozenset([row.type_str])),
                row.option == onnx.defs.OpSchema.FormalParameterOption.Single,
            )
            for row in rows
        )

    return Signature(
        formals(entry.inputs),
        formals(entry.outputs),
        entry.max_input,
        entry.max_output,
        dict(entry.attributes),
    )


def type_text(kind: ir.TypeProtocol) -> str:
    """A type in the notation of ONNX and onnxruntime: "tensor(int2)", "seq(tensor(float16))"."""
    if isinstance(kind, ir.SequenceType):
        return f"seq({type_text(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({type_text(kind.elem_type)})"
    sparse = "sparse_" if isinstance(kind, ir.SparseTensorType) else ""
    return f"{sparse}tensor({kind.dtype.name.lower()})"


@functools.cache
def element_of(text: str) -> str:
    """The element type in a type's notation: "float16" of "seq(tensor(float16))"."""
    match = _ELEMENT.search(text)
    return match[1] if match else text
