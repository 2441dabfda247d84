"""Payloads of emulated types: every code, every way to store it, every wrong length."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from ort_castlike import _constants
from ort_castlike._errors import ModelError
from ort_castlike._files._streams import BLOCK

BITS = {"INT2": 2, "UINT2": 2, "INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "FLOAT8E8M0": 8}
CARRIERS = {
    "INT2": np.int8,
    "UINT2": np.uint8,
    "INT4": np.int8,
    "UINT4": np.uint8,
    "FLOAT4E2M1": np.float16,
    "FLOAT8E8M0": np.float32,
}
MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]  # of FLOAT4E2M1, by the three low bits

each_type = pytest.mark.parametrize("name", BITS)
each_packed_type = pytest.mark.parametrize("name", [name for name in BITS if BITS[name] < 8])


def meaning(name: str, code: int) -> float:
    """What a code stands for, by the standard's words."""
    bits = BITS[name]
    if name == "FLOAT8E8M0":
        return math.nan if code == 255 else math.ldexp(1, code - 127)
    if name == "FLOAT4E2M1":
        return math.copysign(MAGNITUDES[code & 7], -1 if code & 8 else 1)
    return code - (1 << bits) if name.startswith("INT") and code >> (bits - 1) else code


def packed(name: str, codes: list[int], padding: int = 0) -> bytes:
    """Codes in bytes, the first in the lowest bits; what is left of the last byte is ones where ``padding`` says so."""
    bits = BITS[name]
    total = sum(code << (index * bits) for index, code in enumerate(codes))
    size = -(-len(codes) * bits // 8)
    unused = size * 8 - len(codes) * bits
    if padding:
        total |= ((1 << unused) - 1) << (len(codes) * bits)
    return total.to_bytes(size, "little")


def proto(name: str, count: int, **fields) -> TensorProto:
    return TensorProto(name="t", data_type=TensorProto.DataType.Value(name), dims=[count], **fields)


def raw(name: str, payload: bytes, count: int) -> ir.TensorProtocol:
    return ir.serde.deserialize_tensor(proto(name, count, raw_data=payload))


def in_int32(name: str, payload: bytes, count: int) -> ir.TensorProtocol:
    return ir.serde.deserialize_tensor(proto(name, count, int32_data=list(payload)))


def sign_extended(name: str, payload: bytes, count: int) -> ir.TensorProtocol:
    data = [byte - 256 if byte > 127 else byte for byte in payload]
    return ir.serde.deserialize_tensor(proto(name, count, int32_data=data))


def external(
    folder: Path, name: str, payload: bytes, count: int, before: bytes = b"xyz", **entries
) -> ir.TensorProtocol:
    """The payload at an odd offset of a file, with more after it."""
    (folder / "data.bin").write_bytes(before + payload + b"more")
    reference = proto(name, count, data_location=TensorProto.EXTERNAL)
    given = {"location": "data.bin", "offset": len(before), "length": len(payload), **entries}
    for key, entry in given.items():
        if entry is not None:
            reference.external_data.add(key=key, value=str(entry))
    return ir.serde.deserialize_tensor(reference, folder)


def stored(how: str, folder: Path, name: str, payload: bytes, count: int) -> ir.TensorProtocol:
    if how == "external":
        return external(folder, name, payload, count)
    return {"raw_data": raw, "int32_data": in_int32, "sign-extended int32_data": sign_extended}[how](
        name, payload, count
    )


def bit_patterns(array: np.ndarray) -> list[int]:
    return array.reshape(-1).view(f"u{array.dtype.itemsize}").tolist()


def expected_patterns(name: str, codes: list[int]) -> list[int]:
    values = np.array([meaning(name, code) for code in codes], CARRIERS[name])
    return bit_patterns(values)


@pytest.mark.parametrize("how", ["raw_data", "int32_data", "sign-extended int32_data", "external"])
@each_type
def test_every_byte_of_codes_is_read(name, how, tmp_path):
    payload = bytes(range(256))
    count = 256 * 8 // BITS[name]
    mask = (1 << BITS[name]) - 1
    codes = [byte >> shift & mask for byte in payload for shift in range(0, 8, BITS[name])]
    got = _constants.carrier_tensor(stored(how, tmp_path, name, payload, count)).numpy()
    assert (got.dtype, got.shape) == (CARRIERS[name], (count,))
    if name == "FLOAT8E8M0":
        assert np.isnan(got[255])
        assert got[:255].tolist() == [math.ldexp(1, code - 127) for code in codes[:255]]
    else:
        assert bit_patterns(got) == expected_patterns(name, codes)


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize("how", ["raw_data", "int32_data", "sign-extended int32_data", "external"])
@each_type
def test_padding_of_the_last_byte_is_ignored(name, how, count, tmp_path):
    codes = [(index * 5 + 3) % (1 << BITS[name]) for index in range(count)]
    tensor = stored(how, tmp_path, name, packed(name, codes, padding=1), count)
    carrier = _constants.carrier_tensor(tensor)
    assert bit_patterns(carrier.numpy()) == expected_patterns(name, codes)
    assert carrier.nbytes == len(carrier.tobytes()) == count * np.dtype(CARRIERS[name]).itemsize


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize("name", ["INT2", "UINT2", "INT4", "UINT4"])
def test_packed_constant_holds_the_same_values_in_four_bits(name, count):
    codes = [(index * 5 + 3) % (1 << BITS[name]) for index in range(count)]
    tensor = _constants.packed_tensor(raw(name, packed(name, codes), count))
    signed = name.startswith("INT")
    assert tensor.dtype == (ir.DataType.INT4 if signed else ir.DataType.UINT4)
    nibbles = [int(meaning(name, code)) & 0xF for code in codes]
    assert list(tensor.tobytes()[: count // 2]) == [
        low | high << 4 for low, high in zip(nibbles[0::2], nibbles[1::2], strict=False)
    ]
    assert len(tensor.tobytes()) == -(-count // 2)
    if count % 2:
        assert tensor.tobytes()[-1] & 0xF == nibbles[-1]


def test_packed_constant_of_four_bits_is_the_tensor_itself():
    tensor = raw("INT4", b"\x21\x43", 4)
    assert _constants.packed_tensor(tensor) is tensor
    twin = _constants.packed_tensor(tensor, name="twin")
    assert (twin.name, twin.tobytes()) == ("twin", b"\x21\x43")
    assert tensor.name == "t"


@each_type
def test_blocks_and_the_whole_hold_the_same(name, tmp_path):
    # Longer than two blocks, in a shape of two axes, and no multiple of anything.
    size = 2 * BLOCK + 12_345
    payload = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8).tobytes()
    tensor = external(tmp_path, name, payload, size * 8 // BITS[name])
    carrier = _constants.carrier_tensor(tensor)
    mask = (1 << BITS[name]) - 1
    table = np.array([meaning(name, code) for code in range(1 << BITS[name])], CARRIERS[name])
    shifts = np.arange(0, 8, BITS[name], dtype=np.uint8)
    codes = (np.frombuffer(payload, np.uint8)[:, None] >> shifts & mask).reshape(-1)
    assert carrier.tobytes() == table[codes].tobytes()
    with open(tmp_path / "written", "wb") as file:
        carrier.tofile(file)
    assert (tmp_path / "written").read_bytes() == carrier.tobytes()
    assert b"".join(map(bytes, _constants.payload_blocks(tensor))) == payload


def test_conversion_of_a_large_tensor_goes_block_by_block():
    values = np.arange(3 * BLOCK, dtype=np.float32)
    seen = []

    def convert(block: np.ndarray) -> np.ndarray:
        seen.append(block.nbytes)
        return (block % 4).astype(np.uint8)

    from ort_castlike._types import element_type

    source = ir.Tensor(values, name="source")
    tensor = _constants.mapped_tensor(source, element_type("UINT2"), "result", convert)
    got = np.frombuffer(tensor.tobytes(), np.uint8)
    assert max(seen) <= BLOCK
    assert (got == 0b11_10_01_00).all()
    assert got.size == values.size // 4


@each_type
@pytest.mark.parametrize("how", ["raw_data", "int32_data"])
@pytest.mark.parametrize("difference", [-1, 1])
def test_payload_of_the_wrong_length_is_refused_with_both_lengths(name, how, difference, tmp_path):
    count = 16
    right = count * BITS[name] // 8
    tensor = stored(how, tmp_path, name, bytes(right + difference), count)
    with pytest.raises(ModelError) as caught:
        _constants.check_payload(tensor)
    message = str(caught.value)
    assert all(part in message for part in ("'t'", name, f"{right + difference} bytes", f"hold {right}"))
    with pytest.raises(ModelError, match=f"should hold {right}"):
        _constants.carrier_tensor(tensor).numpy()


@each_type
@pytest.mark.parametrize("difference", [-1, 1])
def test_external_data_of_the_wrong_length_is_refused_with_both_lengths(name, difference, tmp_path):
    right = 16 * BITS[name] // 8
    tensor = external(tmp_path, name, bytes(right + difference), 16)
    with pytest.raises(ModelError) as caught:
        _constants.check_payload(tensor)
    message = str(caught.value)
    assert all(part in message for part in ("'t'", name, f"{right + difference} bytes", f"have {right}"))


@each_type
def test_external_data_without_length_and_offset_is_read_from_the_start(name, tmp_path):
    codes = [index % (1 << BITS[name]) for index in range(8)]
    tensor = external(tmp_path, name, packed(name, codes), 8, before=b"", offset=None, length=None)
    assert bit_patterns(_constants.carrier_tensor(tensor).numpy()) == expected_patterns(name, codes)


@each_type
def test_external_file_that_ends_too_early_is_refused(name, tmp_path):
    count = 64
    size = count * BITS[name] // 8
    tensor = external(tmp_path, name, bytes(size), count)
    os.truncate(tmp_path / "data.bin", 3 + size - 1)
    with pytest.raises(ModelError, match=f"has {size + 2} bytes and the tensor needs bytes 3 to {size + 3}"):
        _constants.check_payload(tensor)
    tensor = external(tmp_path, name, bytes(size), count, length=None)
    os.truncate(tmp_path / "data.bin", 3 + size - 1)
    with pytest.raises(ModelError, match="not complete"):
        _constants.carrier_tensor(tensor).numpy()


def test_file_that_shrinks_while_it_is_read_is_a_model_error(tmp_path):
    tensor = external(tmp_path, "INT2", bytes(2 * BLOCK), 8 * BLOCK)
    blocks = _constants.payload_blocks(tensor)
    next(blocks)
    os.truncate(tmp_path / "data.bin", BLOCK)
    with pytest.raises(ModelError, match="cannot be read"):
        list(blocks)


@each_packed_type
def test_scalar_and_empty_tensors_are_read(name):
    code = (1 << BITS[name]) - 1
    scalar = TensorProto(name="t", data_type=TensorProto.DataType.Value(name), raw_data=bytes([code]))
    got = _constants.carrier_tensor(ir.serde.deserialize_tensor(scalar)).numpy()
    assert got.shape == ()
    assert bit_patterns(got) == expected_patterns(name, [code])
    empty = TensorProto(name="t", data_type=TensorProto.DataType.Value(name), dims=[3, 0, 2])
    got = _constants.carrier_tensor(ir.serde.deserialize_tensor(empty)).numpy()
    assert (got.shape, got.dtype) == ((3, 0, 2), CARRIERS[name])


@pytest.mark.opset(28)
@pytest.mark.parametrize(("name", "exponent_bits"), [("FLOAT6E2M3", 2), ("FLOAT6E3M2", 3)])
def test_every_code_of_the_float6_types_is_read(name, exponent_bits):
    mantissa_bits = 5 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - 1
    codes = list(range(64))
    total = sum(code << (index * 6) for index, code in enumerate(codes))
    expected = []
    for code in codes:
        exponent, mantissa = code >> mantissa_bits & ((1 << exponent_bits) - 1), code & ((1 << mantissa_bits) - 1)
        magnitude = (
            math.ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
            if exponent
            else math.ldexp(mantissa, 1 - bias - mantissa_bits)
        )
        expected.append(math.copysign(magnitude, -1 if code & 32 else 1))
    got = _constants.carrier_tensor(raw(name, total.to_bytes(48, "little"), 64)).numpy()
    assert bit_patterns(got) == bit_patterns(np.array(expected, np.float16))


def test_doc_string_and_metadata_of_a_tensor_stay_with_it():
    source = proto("INT2", 4, raw_data=b"\x1b", doc_string="doc")
    source.metadata_props.add(key="unit", value="volt")
    for encoded in (
        _constants.carrier_tensor(ir.serde.deserialize_tensor(source)),
        _constants.packed_tensor(ir.serde.deserialize_tensor(source)),
    ):
        written = ir.serde.serialize_tensor(encoded)
        assert (written.name, written.doc_string) == ("t", "doc")
        assert [(entry.key, entry.value) for entry in written.metadata_props] == [("unit", "volt")]


def test_negative_int32_data_of_an_old_file_runs():
    import ort_castlike

    # 0xE4 is the codes 0, 1, 2, 3; sign-extended to int32 it is -28.
    constant = proto("INT2", 4, int32_data=[-28])
    nodes = [onnx.helper.make_node("Cast", ["t"], ["y"], to=TensorProto.FLOAT)]
    output = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    graph = onnx.helper.make_graph(nodes, "g", [], [output], [constant])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=13)
    [y] = ort_castlike.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {})
    assert y.tolist() == [0, 1, -2, -1]
