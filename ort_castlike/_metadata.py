"""What a rewritten model says of itself in ``metadata_props``, written and read back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, MutableMapping

from ort_castlike._errors import ModelError
from ort_castlike._version import __version__

__all__ = ["DOMAIN", "RewriteRecord", "read_record", "write_record"]

DOMAIN = "ort_castlike"  # of the custom operators, which a model that holds them imports

_PREFIX = "ort_castlike."


@dataclasses.dataclass(frozen=True)
class RewriteRecord:
    """The record that a rewrite leaves in a model.

    Attributes:
        version: The package's version that rewrote the model.
        options: The options it was given, as text: target, lowering, rounding, weights.
        inputs: For each graph input whose type changed, its original type in onnxruntime's notation
            ("tensor(int2)", "seq(tensor(uint2))").
        outputs: The same for the graph outputs.
    """

    options: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    version: str = __version__


def write_record(record: RewriteRecord, metadata_props: MutableMapping[str, str]) -> None:
    """Put ``record`` into a model's metadata_props (keys ``ort_castlike.version``, ``.options``, ...)."""
    metadata_props[_PREFIX + "version"] = record.version
    for field in ("options", "inputs", "outputs"):
        metadata_props[_PREFIX + field] = json.dumps(dict(getattr(record, field)), sort_keys=True)


def read_record(metadata_props: Mapping[str, str]) -> RewriteRecord | None:
    """The record in a model's metadata_props, None where no rewrite left one.

    Raises:
        ModelError: There is a record and it cannot be read.
    """
    version = metadata_props.get(_PREFIX + "version")
    if version is None:
        return None
    fields = {}
    for field in ("options", "inputs", "outputs"):
        text = metadata_props.get(_PREFIX + field, "{}")
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
            raise ModelError(
                f"metadata_props[{_PREFIX + field!r}] is no JSON object of strings: {text[:80]!r}; "
                "rewrite the original model again"
            )
        fields[field] = value
    return RewriteRecord(version=version, **fields)
