"""The table of element types: what ONNX calls them, how wide they are, and what carries the emulated ones.

An *emulated* type is one that some supported onnxruntime lacks. It travels through a rewritten graph in its
*carrier*, a stock type that holds each of its values exactly. Names and numbers are those of ONNX's
``TensorProto.DataType``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import ml_dtypes
import numpy as np

from ort_castlike._errors import ModelError

__all__ = ["CASTLIKE_TYPES", "ELEMENT_TYPES", "EMULATED_TYPES", "ElementType", "element_type"]


@dataclasses.dataclass(frozen=True)
class ElementType:
    """One ONNX element type.

    Attributes:
        name: Its name in ``TensorProto.DataType``, "INT2".
        code: Its number there.
        bits: Width of one element in a packed payload; 0 for strings.
        dtype: The numpy dtype of an unpacked array (ml_dtypes' where numpy has none).
        carrier: Name of the type that carries it, None for types that every runtime has.
        packed: Name of the packed type that carries a constant which feeds only DequantizeLinear.
    """

    name: str
    code: int
    bits: int
    dtype: np.dtype
    carrier: str | None = None
    packed: str | None = None

    @property
    def ort_name(self) -> str:
        """The name in onnxruntime's type strings: "int2" of "tensor(int2)"."""
        return self.name.lower()

    @property
    def crossing(self) -> str:
        """Name of the stock type in which its values, exactly, cross into and out of a Python operator.

        onnxruntime-extensions takes bool, the integers, float and double; a string crosses as the double
        that it spells.
        """
        if self.name == "STRING":
            return "DOUBLE"
        if self.is_integer:
            return self.carrier or self.name
        if self.is_float and self.bits < 32:
            return "FLOAT"
        return self.name

    @property
    def is_emulated(self) -> bool:
        return self.carrier is not None

    @property
    def is_integer(self) -> bool:
        return self.name.startswith(("INT", "UINT"))

    @property
    def is_float(self) -> bool:
        return "FLOAT" in self.name or self.name == "DOUBLE"

    @property
    def is_signed_integer(self) -> bool:
        return self.name.startswith("INT")

    @property
    def integer_range(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        if self.is_signed_integer:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1


def _stock(name: str, code: int, bits: int, dtype: object) -> ElementType:
    return ElementType(name, code, bits, np.dtype(dtype))  # type: ignore[call-overload]


def _emulated(name: str, code: int, bits: int, dtype: object, carrier: str, packed: str | None = None) -> ElementType:
    return ElementType(name, code, bits, np.dtype(dtype), carrier, packed)  # type: ignore[call-overload]


_TABLE = (
    _stock("FLOAT", 1, 32, np.float32),
    _stock("UINT8", 2, 8, np.uint8),
    _stock("INT8", 3, 8, np.int8),
    _stock("UINT16", 4, 16, np.uint16),
    _stock("INT16", 5, 16, np.int16),
    _stock("INT32", 6, 32, np.int32),
    _stock("INT64", 7, 64, np.int64),
    _stock("STRING", 8, 0, object),
    _stock("BOOL", 9, 8, np.bool_),
    _stock("FLOAT16", 10, 16, np.float16),
    _stock("DOUBLE", 11, 64, np.float64),
    _stock("UINT32", 12, 32, np.uint32),
    _stock("UINT64", 13, 64, np.uint64),
    _stock("COMPLEX64", 14, 64, np.complex64),
    _stock("COMPLEX128", 15, 128, np.complex128),
    _stock("BFLOAT16", 16, 16, ml_dtypes.bfloat16),
    _stock("FLOAT8E4M3FN", 17, 8, ml_dtypes.float8_e4m3fn),
    _stock("FLOAT8E4M3FNUZ", 18, 8, ml_dtypes.float8_e4m3fnuz),
    _stock("FLOAT8E5M2", 19, 8, ml_dtypes.float8_e5m2),
    _stock("FLOAT8E5M2FNUZ", 20, 8, ml_dtypes.float8_e5m2fnuz),
    _emulated("UINT4", 21, 4, ml_dtypes.uint4, "UINT8", "UINT4"),
    _emulated("INT4", 22, 4, ml_dtypes.int4, "INT8", "INT4"),
    _emulated("FLOAT4E2M1", 23, 4, ml_dtypes.float4_e2m1fn, "FLOAT16"),
    _emulated("FLOAT8E8M0", 24, 8, ml_dtypes.float8_e8m0fnu, "FLOAT"),
    _emulated("UINT2", 25, 2, ml_dtypes.uint2, "UINT8", "UINT4"),
    _emulated("INT2", 26, 2, ml_dtypes.int2, "INT8", "INT4"),
    _emulated("FLOAT6E2M3", 27, 6, ml_dtypes.float6_e2m3fn, "FLOAT16"),
    _emulated("FLOAT6E3M2", 28, 6, ml_dtypes.float6_e3m2fn, "FLOAT16"),
)

ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType({row.name: row for row in _TABLE})
EMULATED_TYPES: Mapping[str, ElementType] = MappingProxyType({row.name: row for row in _TABLE if row.is_emulated})
# The 24 types of CastLike-25's T1 and T2; the float6 types came to Cast with opset 28.
CASTLIKE_TYPES: tuple[str, ...] = tuple(row.name for row in _TABLE if not row.name.startswith(("COMPLEX", "FLOAT6")))

_BY_CODE = {row.code: row for row in _TABLE}


def element_type(key: int | str) -> ElementType:
    """The row of an ONNX element type, by its number, its name ("INT2") or onnxruntime's ("int2").

    Raises:
        ModelError: ``key`` names no element type of ONNX.
    """
    row = ELEMENT_TYPES.get(key.upper()) if isinstance(key, str) else _BY_CODE.get(int(key))
    if row is None:
        raise ModelError(f"{key!r} is no element type of ONNX that this version knows")
    return row
