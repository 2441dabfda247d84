"""Mutations of models at the level of the protobuf: what parses still, and is wrong.

Flipped bits rarely survive parsing, so types, dims, names, attributes and payloads are changed where they are.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

__all__ = ["mutated", "splice"]

_INTEGERS = (0, 1, -1, 2, 3, 7, 8, 16, 255, 256, 65_536, 2**31 - 1, -(2**31), 2**31, 2**62, 2**63 - 1, -(2**63))
_STRINGS = ("", "x", "\u00e9\U0001f600", "a/../../b", "x" * 300, "ort_castlike", "ai.onnx", "com.microsoft")
_OPERATORS = (
    *("Cast", "CastLike", "BitCast", "Identity", "Reshape", "Pad", "Transpose", "Squeeze", "Unsqueeze", "Flatten"),
    *("Shape", "Size", "ConstantOfShape", "Constant", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
    *("If", "Loop", "Scan", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceConstruct", "SequenceAt"),
    *("SplitToSequence", "ConcatFromSequence", "MatMul", "MatMulNBits", "Gather", "Concat", "Where", "Add", "NoSuchOp"),
)
_ATTRIBUTES = ("to", "axis", "block_size", "saturate", "round_mode", "dtype", "output_dtype", "value", "body", "perm")
_ELEMENT_TYPES = range(30)
# Fields whose contents decide what a rewrite does, and how much likelier they are to be chosen.
_LIKELY = {
    **dict.fromkeys(("elem_type", "data_type", "op_type", "input", "output", "dims", "dim_value"), 6),
    **dict.fromkeys(("raw_data", "int32_data", "attribute", "i", "t", "g", "name"), 3),
    **dict.fromkeys(("doc_string", "metadata_props", "producer_name", "producer_version", "denotation"), 0.1),
}


def mutated(model: bytes, rng: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """A model with a few things changed in it.

    Args:
        model: A serialized model.
        rng: Where chance comes from.
        others: Serialized models that parts may come from.
    """
    if rng.random() < 0.08:
        return _mangled(model, rng)
    proto = onnx.ModelProto.FromString(model)
    donors: list[Message] = [proto]
    if others and rng.random() < 0.3:
        donors.append(onnx.ModelProto.FromString(rng.choice(others)))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        _mutate(proto, donors, rng)
    try:
        return proto.SerializeToString()
    except (ValueError, UnicodeError):
        return model


def splice(first: bytes, second: bytes, rng: random.Random) -> bytes:
    """The first model with parts of the second."""
    proto, donor = onnx.ModelProto.FromString(first), onnx.ModelProto.FromString(second)
    for _ in range(3):
        _replace_message(proto, [donor], rng)
    return proto.SerializeToString()


def _mangled(model: bytes, rng: random.Random) -> bytes:
    """Bytes flipped, cut off, doubled or dropped."""
    data = bytearray(model)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(data) or 1)
        kind = rng.randrange(4)
        if kind == 0 and data:
            data[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place:place] = data[place : place + rng.randrange(1, 32)]
        else:
            del data[place : place + rng.randrange(1, 8)]
    return bytes(data)


def _messages(message: Message, depth: int = 0) -> Iterator[Message]:
    yield message
    if depth > 40:
        return
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for item in value if _is_repeated(message, field) else (value,):
                yield from _messages(item, depth + 1)


def _is_repeated(message: Message, field: FieldDescriptor) -> bool:
    return hasattr(getattr(message, field.name), "extend")  # protobuf before 6 has no field.is_repeated


def _mutate(proto: onnx.ModelProto, donors: list[Message], rng: random.Random) -> None:
    for _ in range(20):
        message = rng.choice(list(_messages(proto)))
        if isinstance(message, onnx.NodeProto) and rng.random() < 0.3:
            _mutate_node(message, proto, rng)
            return
        if rng.random() < 0.15 and _replace_message(proto, donors, rng):
            return
        present = [field for field, _ in message.ListFields()]
        fields = present if present and rng.random() < 0.85 else list(message.DESCRIPTOR.fields)
        fields = [field for field in fields if field.type != FieldDescriptor.TYPE_GROUP]
        if not fields:
            continue
        field = rng.choices(fields, [_LIKELY.get(field.name, 1) for field in fields])[0]
        try:
            if _is_repeated(message, field):
                _mutate_list(message, field, proto, rng)
            elif field.type == FieldDescriptor.TYPE_MESSAGE:
                if message.HasField(field.name):
                    message.ClearField(field.name)
                else:
                    getattr(message, field.name).SetInParent()
            else:
                setattr(message, field.name, _scalar(field, getattr(message, field.name), proto, rng))
        except (ValueError, TypeError, OverflowError):
            continue
        return


def _mutate_node(node: onnx.NodeProto, proto: onnx.ModelProto, rng: random.Random) -> None:
    """What is worth trying at a node: another operator, other operands, other types."""
    kind = rng.randrange(6)
    names = _names(proto)
    if kind == 0:
        node.op_type = rng.choice(_OPERATORS)
    elif kind == 1 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "dangling"])
    elif kind == 2:
        node.input.append(rng.choice([*names, ""]))
    elif kind == 3 and node.output:
        node.output[rng.randrange(len(node.output))] = rng.choice([*names, "", "elsewhere"])
    elif kind == 4:
        attribute = node.attribute.add(name=rng.choice(_ATTRIBUTES))
        attribute.type = onnx.AttributeProto.INT
        attribute.i = rng.choice([*_ELEMENT_TYPES, *_INTEGERS])
    elif node.attribute:
        attribute = rng.choice(node.attribute)
        if attribute.type == onnx.AttributeProto.INT:
            attribute.i = rng.choice([*_ELEMENT_TYPES, *_INTEGERS])
        else:
            attribute.type = rng.choice(list(onnx.AttributeProto.AttributeType.values()))


def _names(proto: onnx.ModelProto) -> list[str]:
    found = {
        name
        for message in _messages(proto)
        if isinstance(message, onnx.NodeProto)
        for name in (*message.input, *message.output)
    }
    found.update(info.name for info in (*proto.graph.input, *proto.graph.output))
    return sorted(found)


def _replace_message(proto: onnx.ModelProto, donors: list[Message], rng: random.Random) -> bool:
    """Copy a message over another of the same kind."""
    messages = list(_messages(proto))[1:]
    if not messages:
        return False
    message = rng.choice(messages)
    donor = rng.choice(donors)
    same = [item for item in _messages(donor) if item.DESCRIPTOR is message.DESCRIPTOR and item is not message]
    if not same:
        return False
    copy = type(message)()
    copy.CopyFrom(rng.choice(same))
    message.CopyFrom(copy)
    return True


def _mutate_list(message: Message, field: FieldDescriptor, proto: onnx.ModelProto, rng: random.Random) -> None:
    items: Any = getattr(message, field.name)
    kind = rng.randrange(4)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        if kind == 0 and items:
            del items[rng.randrange(len(items))]
        elif kind == 1 and items:
            items.add().CopyFrom(rng.choice(items))
        elif kind == 2 and len(items) > 1:
            copies = [type(item)() for item in items]
            for copy, item in zip(copies, items, strict=True):
                copy.CopyFrom(item)
            rng.shuffle(copies)
            del items[:]
            items.extend(copies)
        else:
            items.add()
    elif kind == 0 and items:
        del items[rng.randrange(len(items))]
    elif kind == 1 or not items:
        items.append(_scalar(field, items[0] if items else field.default_value, proto, rng))
    else:
        index = rng.randrange(len(items))
        items[index] = _scalar(field, items[index], proto, rng)


def _scalar(field: FieldDescriptor, value: Any, proto: onnx.ModelProto, rng: random.Random) -> Any:
    if field.name in ("elem_type", "data_type"):
        return rng.choice(_ELEMENT_TYPES)
    if field.name == "op_type":
        return rng.choice(_OPERATORS)
    if field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return rng.choice((0.0, -1.0, 1e30, float("inf"), float("nan"), 0.5))
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(list(field.enum_type.values_by_number))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _mangled(bytes(value) * rng.choice((1, 1, 2)), rng) if value else rng.choice((b"", b"\xff", b"to"))
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice((*_STRINGS, *_names(proto)))
    if isinstance(value, bool):
        return not value
    return rng.choice((value + 1, value - 1, -value, rng.choice(_INTEGERS)))
