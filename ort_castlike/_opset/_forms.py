"""Lower forms that are written here: exact, in operators that every supported release has."""

from __future__ import annotations

import onnx_ir as ir

from ort_castlike._opset._fragments import FragmentBuilder
from ort_castlike._opset._site import Refusal, Site, Verdict

__all__ = ["bit_cast", "bit_shift", "cropped_pool", "cum_prod", "floor_mod", "tensor_scatter"]


def bit_cast(site: Site) -> Verdict:
    """Between integers of one width a Cast keeps the bits: it wraps. A bool is a byte of 0 or 1."""
    to = site.integer("to", 0)
    source = site.element(0)
    if source is None or to is None:
        return Refusal("its type is not known, and only a BitCast between integers has a lower form")
    target = ir.DataType(to).name.lower()
    build = FragmentBuilder(site)
    if source == target:
        return build.finish(build.op("Identity", build.input(0)), how="BitCast to its own type is Identity")
    if source == "bool" and target in ("int8", "uint8"):
        return build.finish(build.cast(build.input(0), target), how="BitCast of bool is Cast")
    if source.removeprefix("u") != target.removeprefix("u") or "int" not in source:
        return Refusal(f"reading the bits of {source} as {target} has no lower form")
    return build.finish(build.cast(build.input(0), target), how="BitCast between integers is Cast")


def bit_shift(site: Site, element: str) -> Verdict:
    """The shift done in 64 bits, with the results of 28 for signed values and for shifts by the width or more."""
    left = site.text("direction", "") == "LEFT"
    signed = not element.startswith("u")
    width = ir.DataType[element.upper()].bitwidth
    build = FragmentBuilder(site)
    amount = build.cast(build.input(1), "uint64")
    shift = build.op("Min", amount, build.constant(width - 1, "uint64"))
    if signed and not left:
        # A negative number is the complement of one that is not; a shift by all bits but one leaves the sign.
        wide = build.cast(build.input(0), "int64")
        zero = build.constant(0)
        sign = build.op("Where", build.op("Less", wide, zero), build.constant(-1), zero)
        bits = build.cast(build.op("BitwiseXor", wide, sign), "uint64")
        shifted = build.cast(build.op("BitShift", bits, shift, direction="RIGHT"), "int64")
        result = build.op("BitwiseXor", shifted, sign)
    else:
        bits = build.cast(build.input(0), "uint64")
        direction = "LEFT" if left else "RIGHT"
        shifted = build.cast(build.op("BitShift", bits, shift, direction=direction), "int64")
        clipped = build.cast(build.op("Min", amount, build.constant(width, "uint64")), "int64")
        inside = build.op("Less", clipped, build.constant(width))
        result = build.op("Where", inside, shifted, build.constant(0))
    return build.finish(build.cast(result, element), how="BitShift is done in 64 bits")


def floor_mod(site: Site) -> Verdict:
    """The truncated remainder, moved into the divisor's sign."""
    element = site.element(0) or site.element(1)
    assert element is not None
    build = FragmentBuilder(site)
    a, b = build.input(0), build.input(1)
    sign = build.op("Sign", b)
    rest = build.op("Mod", a, b, fmod=1)
    differs = build.op("Less", build.op("Mul", build.op("Sign", rest), sign), build.constant(0.0, element))
    moved = build.op("Where", differs, build.op("Add", rest, b), rest)
    # The sign is set last: a remainder of zero has the divisor's too, and onnxruntime's Where loses that of -0.
    result = build.op("Mul", build.op("Abs", moved), sign)
    return build.finish(result, how="Mod of floats is made of the truncated remainder")


def cropped_pool(site: Site, kernel: list[int], strides: list[int], pads: list[int]) -> Verdict:
    """The pool without its windows that start in the padding at the end, whether a release computes them or not.

    Args:
        site: An AveragePool or MaxPool with ``ceil_mode``.
        kernel: Length of the dilated window on each axis.
        strides: Its stride on each axis.
        pads: The padding before each axis, then after each.
    """
    rank = len(kernel)
    node = site.node
    build = FragmentBuilder(site)
    pooled = build.ops(node.op_type, build.inputs(), outputs=len(node.outputs), **node.attributes)
    sizes = build.op("Shape", build.input(0), start=2)
    # Windows by rounding up, less the one that starts behind the data.
    room = [pads[axis] + pads[rank + axis] - kernel[axis] + strides[axis] - 1 for axis in range(rank)]
    stride = build.constant(strides)
    last = build.op("Div", build.op("Add", sizes, build.constant(room)), stride)
    data_end = build.op("Add", sizes, build.constant(pads[:rank]))
    inside = build.cast(build.op("Less", build.op("Mul", last, stride), data_end), "int64")
    count = build.op("Add", last, inside)
    start, axes = build.constant([0] * rank), build.constant(list(range(2, rank + 2)))
    cropped = [build.op("Slice", value, start, count, axes) for value in pooled]
    return build.finish(*cropped, how="windows that start in the padding are cut off")


def cum_prod(site: Site) -> Verdict:
    """A Scan that multiplies along the axis, over the input as (before, axis, after)."""
    element = site.element(0)
    exclusive, reverse = site.integer("exclusive", 0), site.integer("reverse", 0)
    if element is None or exclusive is None or reverse is None:
        return Refusal("its type or its attributes are not known, and its lower form, a Scan, needs them")
    build = FragmentBuilder(site)
    sizes = build.op("Shape", build.input(0))
    zero, one, end = build.constant([0]), build.constant([1]), build.constant([2**63 - 1])
    axis = build.op("Reshape", build.cast(build.input(1), "int64"), one)
    axis = build.op("Mod", axis, build.op("Shape", sizes))
    after_axis = build.op("Add", axis, one)
    before, length, after = (
        build.op("ReduceProd", build.op("Concat", one, build.op("Slice", sizes, *bounds, zero), axis=0))
        for bounds in ((zero, axis), (axis, after_axis), (after_axis, end))
    )
    folded = build.op("Reshape", build.input(0), build.op("Concat", before, length, after, axis=0))
    ones = ir.tensor([1], dtype=ir.DataType[element.upper()])
    start = build.op("ConstantOfShape", build.op("Concat", before, after, axis=0), element=element, value=ones)
    kind = ir.TensorType(ir.DataType[element.upper()])
    state, item = ir.Value(name="state", type=kind), ir.Value(name="item", type=kind)
    product = ir.Node("", "Mul", [state, item], outputs=[ir.Value(name="product", type=kind)])
    row = ir.Node(
        "", "Identity", [state if exclusive else product.outputs[0]], outputs=[ir.Value(name="row", type=kind)]
    )
    body = ir.Graph([state, item], [product.outputs[0], row.outputs[0]], nodes=[product, row], name="multiply")
    _, scanned = build.ops(
        "Scan",
        [start, folded],
        outputs=2,
        body=body,
        num_scan_inputs=1,
        scan_input_axes=[1],
        scan_output_axes=[1],
        scan_input_directions=[reverse],
        scan_output_directions=[reverse],
    )
    return build.finish(build.op("Reshape", scanned, sizes), how="CumProd is a Scan")


def tensor_scatter(site: Site) -> Verdict:
    """A ScatterElements whose indices count from each sample's write index."""
    cache = site.input(0)
    axis, mode = site.integer("axis", -2), site.text("mode", "linear")
    if cache is None or cache.shape is None or axis is None or mode is None:
        return Refusal("its lower form, ScatterElements, needs a cache of known rank")
    rank = len(cache.shape)
    axis %= rank
    build = FragmentBuilder(site)
    sizes = build.op("Shape", build.input(1))
    zero, one = build.constant(0), build.constant(1)
    length = build.op("Gather", sizes, build.constant(axis))
    steps = build.op("Range", zero, length, one)
    column = [-1 if index == axis else 1 for index in range(rank)]
    positions = build.op("Reshape", steps, build.constant(column))
    if site.input(2) is not None:
        samples = build.constant([-1] + [1] * (rank - 1))
        positions = build.op("Add", positions, build.op("Reshape", build.input(2), samples))
    if mode == "circular":
        capacity = build.op("Gather", build.op("Shape", build.input(0)), build.constant(axis))
        positions = build.op("Mod", positions, capacity)
    indices = build.op("Expand", positions, sizes)
    result = build.op("ScatterElements", build.input(0), indices, build.input(1), axis=axis)
    return build.finish(result, how="TensorScatter is ScatterElements")
