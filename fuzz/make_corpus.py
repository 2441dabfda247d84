"""Writes the models that fuzzing begins from: small ones that hold each operator with a rule, and random graphs."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from graphs import function, graph, model, node, optional, sequence, tensor, untyped, value  # noqa: E402
from test_random_graphs import Builder  # noqa: E402

_RANDOM = 12
EMULATED = ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1", "FLOAT8E8M0")


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """The models and their names."""
    for dtype in EMULATED:
        code = TensorProto.DataType.Value(dtype)
        yield (
            f"cast_{dtype.lower()}",
            model(
                [node("Cast", ["x"], ["q"], to=code), node("Cast", ["q"], ["y"], to=TensorProto.FLOAT)],
                [value("x", "FLOAT", ["n", 4])],
                [value("q", dtype, ["n", 4]), value("y", "FLOAT", ["n", 4])],
            ),
        )
    yield (
        "castlike",
        model(
            [node("CastLike", ["x", "like"], ["q"]), node("CastLike", ["q", "x"], ["y"])],
            [value("x", "FLOAT16", [3])],
            [value("y", "FLOAT16", [3])],
            [tensor("like", [1, -1], "INT2")],
        ),
    )
    yield (
        "strings",
        model(
            [node("Cast", ["x"], ["q"], to=TensorProto.INT4), node("Cast", ["q"], ["y"], to=TensorProto.STRING)],
            [value("x", "STRING", [2])],
            [value("y", "STRING", [2])],
        ),
    )
    yield (
        "weights",
        model(
            [
                node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0, block_size=2),
                node("MatMul", ["x", "d"], ["y"]),
            ],
            [value("x", "FLOAT", ["n", 4])],
            [value("y", "FLOAT", ["n", 3])],
            [
                tensor("w", [[1, 0, -1], [-2, 1, 0], [0, 0, 1], [1, -1, -2]], "INT2"),
                tensor("s", [[0.5, 1, 2], [1, 2, 4]], "float32"),
                tensor("z", [[0, 1, 0], [0, 0, -1]], "INT2"),
            ],
        ),
    )
    yield (
        "quantize",
        model(
            [
                node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1),
                node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=1),
            ],
            [value("x", "FLOAT", [2, 3])],
            [value("y", "FLOAT", [2, 3])],
            [tensor("s", [0.5, 1, 2], "float32"), tensor("z", [1, 0, 2], "UINT4")],
        ),
    )
    yield (
        "float4_weights",
        model(
            [node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=2), node("MatMul", ["x", "d"], ["y"])],
            [value("x", "FLOAT", [1, 4])],
            [value("y", "FLOAT", [1, 2])],
            [
                tensor("w", [[0.5, 1], [-6, 2], [3, -4], [1.5, 0]], "FLOAT4E2M1"),
                tensor("s", [[0.5, 1], [2, 4]], "float32"),
            ],
        ),
    )
    yield (
        "float8_scales",
        model(
            [
                node("Cast", ["s"], ["scale"], to=TensorProto.FLOAT),
                node("DequantizeLinear", ["w", "scale"], ["y"], axis=0, block_size=2),
            ],
            [],
            [value("y", "FLOAT", [4, 2])],
            [
                tensor("w", [[0.5, 1], [-6, 2], [3, -4], [1.5, 0]], "FLOAT4E2M1"),
                tensor("s", [[0.5, 1], [2, 4]], "FLOAT8E8M0"),
            ],
        ),
    )
    yield "nbits", _nbits()
    yield (
        "shapes",
        model(
            [
                node("Reshape", ["x", "shape"], ["a"]),
                node("Transpose", ["a"], ["b"], perm=[1, 0]),
                node("Pad", ["b", "pads", "one"], ["c"]),
                node("Unsqueeze", ["c", "axes"], ["d"]),
                node("Squeeze", ["d", "axes"], ["e"]),
                node("Flatten", ["e"], ["f"]),
                node("Shape", ["f"], ["g"]),
                node("Size", ["f"], ["h"]),
            ],
            [value("x", "INT2", [2, 2])],
            [value("f", "INT2", [1, 5]), value("g", "INT64", [2]), value("h", "INT64", [])],
            [
                tensor("shape", [4, 1], "int64"),
                tensor("pads", [0, 1, 0, 0], "int64"),
                tensor("one", 1, "INT2"),
                tensor("axes", [0], "int64"),
            ],
        ),
    )
    yield (
        "constants",
        model(
            [
                node("Constant", [], ["c"], value=tensor("", [1, -2, 0], "INT2")),
                node("ConstantOfShape", ["n"], ["d"], value=tensor("", [3], "UINT4")),
                node("Cast", ["c"], ["y"], to=TensorProto.INT8),
                node("Identity", ["d"], ["z"]),
            ],
            [],
            [value("y", "INT8", [3]), value("z", "UINT4", [2])],
            [tensor("n", [2], "int64")],
        ),
    )
    yield (
        "bitcast",
        model(
            [node("BitCast", ["x"], ["y"], to=TensorProto.UINT4), node("BitCast", ["f"], ["g"], to=TensorProto.INT4)],
            [value("x", "INT4", [3]), value("f", "FLOAT4E2M1", [2])],
            [value("y", "UINT4", [3]), value("g", "INT4", [2])],
            opset=26,
        ),
    )
    yield (
        "containers",
        model(
            [
                node("SequenceConstruct", ["x", "x"], ["s"]),
                node("SequenceAt", ["s", "first"], ["a"]),
                node("Optional", ["a"], ["o"]),
                node("OptionalGetElement", ["o"], ["y"]),
            ],
            [value("x", "INT2", [2])],
            [value("y", "INT2", [2]), sequence("s", "INT2")],
            [tensor("first", 0, "int64")],
        ),
    )
    yield (
        "optional",
        model([node("OptionalHasElement", ["o"], ["y"])], [optional("o", "UINT2", [2])], [value("y", "BOOL", [])]),
    )
    yield "if", _if()
    yield "loop", _loop()
    yield (
        "scan",
        model(
            [
                node(
                    "Scan",
                    ["x"],
                    ["y"],
                    num_scan_inputs=1,
                    body=graph(
                        [node("Cast", ["e"], ["f"], to=TensorProto.INT2)],
                        "body",
                        [value("e", "FLOAT", [2])],
                        [value("f", "INT2", [2])],
                    ),
                )
            ],
            [value("x", "FLOAT", [3, 2])],
            [value("y", "INT2", [3, 2])],
        ),
    )
    yield (
        "functions",
        model(
            [node("Outer", ["x"], ["y"], domain="local")],
            [value("x", "FLOAT", [2])],
            [value("y", "FLOAT", [2])],
            functions=[
                function("Outer", ["a"], ["b"], [node("Inner", ["a"], ["b"], domain="local", kind=TensorProto.INT2)]),
                function(
                    "Inner",
                    ["a"],
                    ["c"],
                    [_referring("Cast", "to", "kind", ["a"], ["b"]), node("CastLike", ["b", "a"], ["c"])],
                    attributes=["kind"],
                ),
            ],
        ),
    )
    yield (
        "plain",
        model(
            [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])],
            [value("x", "FLOAT", [1, 2])],
            [value("y", "FLOAT", [1, 2])],
            [tensor("w", [[1, 2], [3, 4]], "float32")],
            opset=17,
        ),
    )
    yield (
        "defaults",
        model(
            [node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)],
            [value("x", "FLOAT4E2M1", [2])],
            [value("y", "FLOAT", [2])],
            [tensor("x", [1, 2], "FLOAT4E2M1")],
        ),
    )
    for seed in range(_RANDOM):
        builder = Builder(seed)
        builder.add_input()
        for _ in range(4):
            builder.grow()
        yield f"random{seed:02}", builder.build()


def _referring(op_type: str, name: str, reference: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    result = node(op_type, inputs, outputs)
    result.attribute.add(name=name, ref_attr_name=reference, type=onnx.AttributeProto.INT)
    return result


def _nbits() -> onnx.ModelProto:
    layer = node("MatMulNBits", ["x", "b", "s", "z"], ["y"], domain="com.microsoft", K=16, N=2, bits=2, block_size=16)
    made = model(
        [layer],
        [value("x", "FLOAT", [1, 16])],
        [value("y", "FLOAT", [1, 2])],
        [
            tensor("b", [[[27, 228, 0, 255]], [[1, 2, 3, 4]]], "uint8"),
            tensor("s", [0.5, 2], "float32"),
            tensor("z", [[1], [2]], "uint8"),
        ],
        opset=21,
    )
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


def _if() -> onnx.ModelProto:
    branches = {
        name: graph(
            [node("Cast", ["x"], [name[:4]], to=TensorProto.DataType.Value(kind))], name, [], [untyped(name[:4])]
        )
        for name, kind in (("then_branch", "UINT2"), ("else_branch", "UINT2"))
    }
    return model(
        [node("If", ["c"], ["y"], **branches)],
        [value("c", "BOOL", []), value("x", "FLOAT", [2])],
        [value("y", "UINT2", [2])],
    )


def _loop() -> onnx.ModelProto:
    body = graph(
        [
            node("Identity", ["go"], ["again"]),
            node("Cast", ["state"], ["wide"], to=TensorProto.FLOAT),
            node("Cast", ["wide"], ["next"], to=TensorProto.INT2),
        ],
        "body",
        [untyped("i"), untyped("go"), untyped("state")],
        [untyped("again"), untyped("next"), untyped("wide")],
    )
    return model(
        [node("Loop", ["times", "", "x"], ["y", "all"], body=body)],
        [value("x", "INT2", [2])],
        [value("y", "INT2", [2]), value("all", "FLOAT", [3, 2])],
        [tensor("times", 3, "int64")],
    )


def main() -> None:
    """Write them all."""
    folder = HERE / "corpus"
    folder.mkdir(exist_ok=True)
    for name, made in models():
        made.producer_name = ""
        (folder / f"{name}.onnx").write_bytes(made.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
