"""2-bit weights of a matrix product, laid out so that onnxruntime fuses their DequantizeLinear with it.

It fuses a constant matrix (K, N) that has blocks of 16 to 256 along K and goes straight into a MatMul: the product
then runs on the packed weights. Up to 1.24 it does not where there is one scale for all or one for a column, and no
release does where the matrix is kept as (N, K) and transposed, or goes into a Gemm. Each of these is a matrix of
blocks that holds the same values. The product is 5 to 20 times as fast then at one row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from ort_castlike import _constants
from ort_castlike._context import Context
from ort_castlike._files._streams import StreamedTensor
from ort_castlike._rules.granularity import Granularity
from ort_castlike._targets import LONGEST_FUSED_BLOCK
from ort_castlike._types import element_type

__all__ = ["make_fusible"]

_SMALLEST_BLOCK = 16
# The first release that looks for products to fuse before it makes a Gemm of a MatMul of matrices and an Add.
_FUSES_FIRST = (1, 25)
_NEGATED = (np.float32, np.float16)
_STRIP = 1 << 24  # codes that are transposed at a time


def make_fusible(node: ir.Node, context: Context) -> None:
    """Change a DequantizeLinear of constant INT2 or UINT2 weights, and what is behind it, so that they are fused."""
    inputs = [*node.inputs, None][:3]
    data = context.constant(inputs[0])
    if data is None or element_type(data.dtype).bits != 2 or len(data.shape) != 2:
        return
    if any(value is not None and context.constant(value) is None for value in inputs):
        return
    output = node.outputs[0]
    turned = _is_turned(output)
    if turned is None:
        return
    granularity = Granularity.of(node)
    assert inputs[0] is not None
    granularity.check(node, inputs[0], *inputs[1:])
    shape = tuple(data.shape.numpy())
    depth = shape[1] if turned else shape[0]
    block = granularity.block_size or _block_for(depth)
    if not _is_fused(block, depth) or not _lies_well(granularity, inputs[1], turned):
        return
    if not turned and granularity.block_size:
        _bypass(output, context)
        return
    for index, value in enumerate(inputs[1:], 1):
        if value is not None:
            node.replace_input_with(index, _blocked(context, value, granularity, shape, block, turned))
    if turned:
        node.replace_input_with(0, _derived(context, inputs[0], "transposed", _transposed))
        output.shape = ir.Shape(shape[::-1])
    context.let_go(inputs)
    node.attributes["axis"] = ir.AttrInt64("axis", 0)
    node.attributes["block_size"] = ir.AttrInt64("block_size", block)
    _bypass(output, context)


def _block_for(depth: int) -> int:
    """The block size for a matrix that has no blocks: as few blocks as can be."""
    return min(LONGEST_FUSED_BLOCK, max(_SMALLEST_BLOCK, 1 << (depth - 1).bit_length()))


def _is_fused(block: int, depth: int) -> bool:
    return block & (block - 1) == 0 and block >= _SMALLEST_BLOCK and depth >= _SMALLEST_BLOCK


def _is_turned(value: ir.Value) -> bool | None:
    """Whether the products that take a matrix take its transpose; None where it has other uses."""
    if value.is_graph_output() or not value.uses():
        return None
    found: set[bool | None] = set()
    for use in value.uses():
        if _is_product(use.node, use.idx):
            found.add(use.node.attributes.get_int("transB", 0) == 1)
        elif _is_transpose(use.node):
            inner = _is_turned(use.node.outputs[0])
            found.add(None if inner is None else not inner)
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _is_transpose(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Transpose") and tuple(node.attributes.get_ints("perm", (1, 0))) == (
        1,
        0,
    )


def _is_product(node: ir.Node, index: int) -> bool:
    """Whether a node multiplies by its input ``index`` and fuses, as it is or as a MatMul and an Add."""
    if index != 1 or node.domain != "":
        return False
    if node.op_type == "MatMul":
        return True
    attributes = node.attributes
    return (
        node.op_type == "Gemm"
        and node.inputs[0] is not node.inputs[1]
        and not any(attribute.is_ref() for attribute in attributes.values())
        and attributes.get_int("transA", 0) == 0
        and attributes.get_float("alpha", 1.0) == 1.0
        and (len(node.inputs) < 3 or node.inputs[2] is None or attributes.get_float("beta", 1.0) == 1.0)
    )


def _lies_well(granularity: Granularity, scale: ir.Value | None, turned: bool) -> bool:
    """Whether the scales are one for all, one for each output, or in blocks along what is summed over."""
    assert scale is not None
    if scale.shape is None:
        return False
    axis = granularity.axis % 2
    if granularity.block_size:
        return axis == turned
    return len(scale.shape) == 0 or axis != turned or scale.shape == (1,)


def _blocked(
    context: Context, value: ir.Value, granularity: Granularity, shape: tuple[int, ...], block: int, turned: bool
) -> ir.Value:
    """Scales or zero points for each block of each column."""
    depth, columns = shape[::-1] if turned else shape

    def derive(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        def encode() -> Iterator[np.ndarray]:
            values = _constants.values(tensor)
            if granularity.block_size:
                values = np.ascontiguousarray(values.T)
            else:
                values = np.broadcast_to(values.reshape(-1), (-(-depth // block), columns))
            element = element_type(tensor.dtype)
            if element.is_emulated:
                yield np.frombuffer(_constants.emulated_tensor(values.copy(), element, "").tobytes(), np.uint8)
            else:
                yield np.frombuffer(values.tobytes(), np.uint8)

        return StreamedTensor(encode, tensor.dtype, (-(-depth // block), columns), name=tensor.name, like=tensor)

    return _derived(context, value, f"blocks_{block}_{depth}_{columns}", derive)


def _derived(context: Context, value: ir.Value, kind: str, derive: object) -> ir.Value:
    """A derived constant, of an emulated type too."""
    derived = context.derived_constant(value, kind, derive)  # type: ignore[arg-type]
    if context.is_emulated(value) and not context.is_emulated(derived):
        context.remember(derived)
    return derived


def _transposed(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """The transpose of a matrix of 2-bit codes, made a strip of its columns after the other."""
    rows, columns = tensor.shape.numpy()
    shifts = np.array([0, 2, 4, 6], np.uint8)

    def encode() -> Iterator[np.ndarray]:
        data = _constants.payload(tensor)
        if columns % 4:
            codes = ((data[:, None] >> shifts) & np.uint8(3)).reshape(-1)[: rows * columns].reshape(rows, columns)
            yield _packed(np.ascontiguousarray(codes.T).reshape(-1))
            return
        data = data.reshape(rows, columns // 4)
        step = max(1, _STRIP // max(1, 4 * rows))
        for start in range(0, columns // 4, step):
            strip = np.ascontiguousarray(data[:, start : start + step].T)  # (bytes, rows)
            yield _packed(((strip[:, None, :] >> shifts[:, None]) & np.uint8(3)).reshape(-1))

    return StreamedTensor(encode, tensor.dtype, (columns, rows), name=tensor.name, like=tensor)


def _packed(codes: np.ndarray) -> np.ndarray:
    codes = np.pad(codes, (0, -codes.size % 4)).reshape(-1, 4)
    packed: np.ndarray = (
        codes[:, 0] | codes[:, 1] << np.uint8(2) | codes[:, 2] << np.uint8(4) | codes[:, 3] << np.uint8(6)
    )
    return packed


def _bypass(value: ir.Value, context: Context) -> None:
    """Let the products take a matrix (K, N) itself, and be MatMuls."""
    pending = [value]
    while pending:
        given = pending.pop()
        for use in tuple(given.uses()):
            if use.node.op_type == "Transpose":
                pending.append(use.node.outputs[0])
                context.changed(use.node, "Transpose", "nothing: the weights are laid out as the product takes them")
            elif use.node.op_type == "Gemm":
                _split_gemm(use.node, value, context)
            else:
                if given is not value:
                    use.node.replace_input_with(use.idx, value)
                    context.let_go([given])
                _keep_apart(use.node, context)


def _keep_apart(node: ir.Node, context: Context) -> None:
    """Let what is added to a MatMul be subtracted, negated, where a release would make a Gemm of the two."""
    rank = node.inputs[0].shape if node.inputs[0] is not None else None
    if context.options.target.release >= _FUSES_FIRST or (rank is not None and len(rank) != 2):
        return
    for use in tuple(node.outputs[0].uses()):
        bias = use.node.inputs[1 - use.idx] if use.node.op_type == "Add" and use.node.domain == "" else None
        if bias is not None and bias is not node.outputs[0]:
            _subtract(use.node, node.outputs[0], bias, context)


def _subtract(node: ir.Node, product: ir.Value, bias: ir.Value, context: Context) -> None:
    """Make of a node that adds a bias one that subtracts its negation, which gives the same."""
    tensor = context.constant(bias)
    if tensor is None or element_type(tensor.dtype).dtype not in _NEGATED:
        assert bias.type is not None
        negated = context.insert(node, "Neg", [bias], gives=bias.type.dtype.name, shape=bias.shape)
    else:
        negated = context.derived_constant(bias, "negated", _negated)
    context.become(node, "Sub", [product, negated])
    context.changed(node, "Add", "a Sub, which leaves the MatMul to fuse with its 2-bit weights")


def _negated(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    element = element_type(tensor.dtype)
    return _constants.mapped_tensor(tensor, element, "", lambda values: (-values).astype(element.dtype))


def _split_gemm(node: ir.Node, matrix: ir.Value, context: Context) -> None:
    """A Gemm as a MatMul by ``matrix`` and an Add."""
    left, bias = node.inputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None:
        context.become(node, "MatMul", [left, matrix])
    else:
        output = node.outputs[0]
        assert output.type is not None
        product = context.insert(node, "MatMul", [left, matrix], gives=output.type.dtype.name, shape=output.shape)
        context.become(node, "Add", [product, bias])
        made = product.producer()
        assert made is not None
        _keep_apart(made, context)
    context.changed(node, "Gemm", "a MatMul, which fuses with its 2-bit weights")
