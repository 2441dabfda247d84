"""Makes docs/support-matrix.md: what stock onnxruntime and this package do with each emulated type and operator.

Every cell is a probe: a model of one operator at the lowest opset at which ONNX has it for the type, run, and its
result compared bit for bit with what ONNX says. A stock session gets the operand as an initializer and gives its
result as an OrtValue, since it takes and gives no arrays of these types; this package's session gets arrays.

    python docs/make_support_matrix.py          # probe the installed onnxruntime, and write the page anew
    python docs/make_support_matrix.py --check  # probe it, and fail where the page says something else
"""

from __future__ import annotations

import ctypes
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import helper

HERE = pathlib.Path(__file__).parent
DATA, PAGE = HERE / "support-matrix.json", HERE / "support-matrix.md"
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from arithmetic import bounds, cast, dtype_of, grid, is_integer, values_of  # noqa: E402

import ort_castlike  # noqa: E402
from ort_castlike._types import EMULATED_TYPES, element_type  # noqa: E402

TYPES = tuple(EMULATED_TYPES)
SHAPE = (3, 4)
WORDS = {"right": "yes", "wrong": "wrong", "refused": "no", "crash": "crash"}
IR_VERSIONS = {"FLOAT4E2M1": 11, "FLOAT8E8M0": 12, "INT2": 13, "UINT2": 13, "FLOAT6E2M3": 14, "FLOAT6E3M2": 14}


class Operand(NamedTuple):
    """A tensor that a probe takes: its element type and its array."""

    type: str
    array: np.ndarray


class Probe(NamedTuple):
    """A model to run.

    Attributes:
        nodes: Its nodes, from "x" (and "u") to "y".
        operands: What the nodes take, by name; of the emulated type, or to be fed in any case.
        constants: Initializers.
        gives: The element type of "y".
        expected: What "y" must be.
    """

    nodes: list[onnx.NodeProto]
    operands: dict[str, Operand]
    constants: list[onnx.TensorProto]
    gives: str
    expected: np.ndarray


def code(name: str) -> int:
    """ONNX's number of an element type."""
    return element_type(name).code


def sample(name: str) -> np.ndarray:
    """All values of a type of up to 4 bits; of a wider one some from end to end."""
    listed = grid(name)
    places = np.linspace(0, len(listed) - 1, 12).astype(int) if len(listed) > 16 else np.arange(12) % len(listed)
    return listed[places].reshape(SHAPE)


def floats() -> np.ndarray:
    """Numbers between, on and beyond the values of the types."""
    return np.array([0, -0.25, 0.5, 0.75, 1.5, -1.5, 2.5, 3.5, -5, 7.5, 100, 0.1], np.float32).reshape(SHAPE)


def integers(name: str, numbers: list[int]) -> onnx.TensorProto:
    """A list of integers as an initializer."""
    return helper.make_tensor(name, code("INT64"), [len(numbers)], numbers)


def tensor_of(name: str, type_: str, array: np.ndarray) -> onnx.TensorProto:
    """An array as an initializer of an element type."""
    if element_type(type_).is_emulated:
        return onnx.TensorProto(name=name, data_type=code(type_), dims=array.shape, raw_data=packed(array, type_))
    return onnx.numpy_helper.from_array(array, name)


def packed(array: np.ndarray, name: str) -> bytes:
    """The payload of a tensor: the codes from the lowest bits up, a byte each where they do not divide one."""
    bits = element_type(name).bits
    codes = array.view(np.uint8).reshape(-1).astype(np.uint16)
    if bits not in (2, 4):
        return array.tobytes()
    codes &= (1 << bits) - 1
    each = 8 // bits
    codes = np.append(codes, np.zeros(-codes.size % each, np.uint16)).reshape(-1, each)
    return (codes << (np.arange(each) * bits).astype(np.uint16)).sum(axis=1).astype(np.uint8).tobytes()


def move(op_type: str, result: Callable[[np.ndarray], np.ndarray], numbers: list[int] | None = None, **attributes: Any):
    """The probe of an operator that moves elements, with a list of integers as its second input or none."""

    def make(name: str) -> Probe:
        names = ["x"] if numbers is None else ["x", "numbers"]
        constants = [] if numbers is None else [integers("numbers", numbers)]
        x = sample(name)
        node = helper.make_node(op_type, names, ["y"], **attributes)
        gives = "INT64" if op_type in ("Shape", "Size") else name
        return Probe([node], {"x": Operand(name, x)}, constants, gives, result(x))

    return make


def to_float(name: str) -> Probe:
    """A cast from the type."""
    x = sample(name)
    node = helper.make_node("Cast", ["x"], ["y"], to=code("FLOAT"))
    return Probe([node], {"x": Operand(name, x)}, [], "FLOAT", cast(x, name, "FLOAT"))


def from_float(name: str) -> Probe:
    """A cast to the type."""
    x = floats() if name != "FLOAT8E8M0" else np.abs(floats())
    node = helper.make_node("Cast", ["x"], ["y"], to=code(name))
    return Probe([node], {"x": Operand("FLOAT", x)}, [], name, cast(x, "FLOAT", name))


def cast_like(name: str) -> Probe:
    """The same cast by CastLike."""
    probe = from_float(name)
    node = helper.make_node("CastLike", ["x", "like"], ["y"])
    return probe._replace(nodes=[node], constants=[tensor_of("like", name, sample(name)[:1, 0])])


def constant(name: str) -> Probe:
    """A Constant of the type."""
    x = sample(name)
    return Probe([helper.make_node("Constant", [], ["y"], value=tensor_of("", name, x))], {}, [], name, x)


def constant_of_shape(name: str) -> Probe:
    """A tensor of one value of the type."""
    element = sample(name)[1, :1]
    node = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=tensor_of("", name, element))
    return Probe([node], {}, [integers("shape", [2, 3])], name, np.tile(element, (2, 3)))


def pad(name: str) -> Probe:
    """A Pad with a value of the type."""
    x, filler = sample(name), sample(name)[1, 2]
    node = helper.make_node("Pad", ["x", "pads", "filler"], ["y"])
    y = np.full((4, 6), filler)
    y[1:, 1:5] = x
    constants = [integers("pads", [1, 1, 0, 1]), tensor_of("filler", name, np.array(filler))]
    return Probe([node], {"x": Operand(name, x)}, constants, name, y)


def if_(name: str) -> Probe:
    """An If whose branches give the type."""
    x = sample(name)
    branches = {}
    for branch in ("then_branch", "else_branch"):
        value = helper.make_tensor_value_info(branch, code(name), SHAPE)
        branches[branch] = helper.make_graph([helper.make_node("Identity", ["x"], [branch])], branch, [], [value])
    node = helper.make_node("If", ["c"], ["y"], **branches)
    return Probe([node], {"x": Operand(name, x), "c": Operand("BOOL", np.array(True))}, [], name, x)


def loop(name: str) -> Probe:
    """A Loop that carries the type."""
    x = sample(name)
    make = helper.make_tensor_value_info
    inputs = [make("i", code("INT64"), []), make("c", code("BOOL"), []), make("v", code(name), SHAPE)]
    outputs = [make("d", code("BOOL"), []), make("w", code(name), SHAPE)]
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Identity", ["v"], ["w"])]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    count = helper.make_tensor("n", code("INT64"), [], [2])
    return Probe([node], {"x": Operand(name, x)}, [count], name, x)


def scan(name: str) -> Probe:
    """A Scan over rows of the type."""
    x = sample(name)
    values = [helper.make_tensor_value_info(value, code(name), SHAPE[1:]) for value in ("v", "w")]
    body = helper.make_graph([helper.make_node("Identity", ["v"], ["w"])], "body", values[:1], values[1:])
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    return Probe([node], {"x": Operand(name, x)}, [], name, x)


def quantize(name: str) -> Probe:
    """To the type; where that can only be a scale, to INT8 by such a scale."""
    x = floats()
    if name == "FLOAT8E8M0":
        scale = tensor_of("s", name, np.array(126, np.uint8).view(dtype_of(name)))
        node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=code("INT8"))
        result = np.clip(np.rint(x * 2.0), -128, 127).astype(np.int8)
        return Probe([node], {"x": Operand("FLOAT", x)}, [scale], "INT8", result)
    ratio = x / np.float32(0.5)
    if is_integer(name):
        low, high = bounds(name)
        result = cast(np.clip(np.rint(ratio), low, high).astype(np.float32), "FLOAT", name)
    else:
        result = cast(ratio, "FLOAT", name)
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], output_dtype=code(name))
    scale = tensor_of("s", "FLOAT", np.array(0.5, np.float32))
    return Probe([node], {"x": Operand("FLOAT", x)}, [scale], name, result)


def dequantize(name: str) -> Probe:
    """From the type; where that can only be a scale, from INT8 by such a scale."""
    if name == "FLOAT8E8M0":
        x = np.arange(-6, 6, dtype=np.int8).reshape(SHAPE)
        scale = tensor_of("s", name, np.array(126, np.uint8).view(dtype_of(name)))
        node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], output_dtype=code("FLOAT"))
        return Probe([node], {"x": Operand("INT8", x)}, [scale], "FLOAT", (x * 0.5).astype(np.float32))
    x = sample(name)
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    scale = tensor_of("s", "FLOAT", np.array(0.5, np.float32))
    result = (values_of(x, name) * 0.5).astype(np.float32)
    return Probe([node], {"x": Operand(name, x)}, [scale], "FLOAT", result)


def bit_cast(name: str) -> Probe:
    """To another type of the same width."""
    partners = {"INT2": "UINT2", "UINT2": "INT2", "INT4": "UINT4", "FLOAT8E8M0": "UINT8"}
    to = partners.get(name, "INT4")
    x = sample(name)
    node = helper.make_node("BitCast", ["x"], ["y"], to=code(to))
    return Probe([node], {"x": Operand(name, x)}, [], to, x.view(np.uint8).view(dtype_of(to)))


def optional(name: str) -> Probe:
    """Into an optional and out of it."""
    x = sample(name)
    nodes = [helper.make_node("Optional", ["x"], ["o"]), helper.make_node("OptionalGetElement", ["o"], ["y"])]
    return Probe(nodes, {"x": Operand(name, x)}, [], name, x)


def tensor_scatter(name: str) -> Probe:
    """A row of a cache replaced."""
    cache, update = sample(name)[None], sample(name)[None, 2:]
    y = cache.copy()
    y[0, 1] = update[0, 0]
    node = helper.make_node("TensorScatter", ["x", "u", "at"], ["y"], axis=1)
    return Probe([node], {"x": Operand(name, cache), "u": Operand(name, update)}, [integers("at", [1])], name, y)


# Rows of the page: what it says, the operator whose schema decides whether ONNX has the type there, and the probe.
ROWS: tuple[tuple[str, str, Callable[[str], Probe]], ...] = (
    ("Cast to FLOAT", "Cast", to_float),
    ("Cast from FLOAT", "Cast", from_float),
    ("CastLike from FLOAT", "CastLike", cast_like),
    ("QuantizeLinear", "QuantizeLinear", quantize),
    ("DequantizeLinear", "DequantizeLinear", dequantize),
    ("Identity", "Identity", move("Identity", lambda x: x)),
    ("Reshape", "Reshape", move("Reshape", lambda x: x.reshape(2, 6), [2, 6])),
    ("Flatten", "Flatten", move("Flatten", lambda x: x.reshape(1, 12), axis=0)),
    ("Squeeze, Unsqueeze", "Unsqueeze", move("Unsqueeze", lambda x: x[None], [0])),
    ("Transpose", "Transpose", move("Transpose", lambda x: x.T.copy())),
    ("Shape", "Shape", move("Shape", lambda x: np.array(x.shape, np.int64))),
    ("Size", "Size", move("Size", lambda x: np.array(x.size, np.int64))),
    ("Pad", "Pad", pad),
    ("TensorScatter", "TensorScatter", tensor_scatter),
    ("Constant", "Constant", constant),
    ("ConstantOfShape", "ConstantOfShape", constant_of_shape),
    ("If", "If", if_),
    ("Loop", "Loop", loop),
    ("Scan", "Scan", scan),
    ("BitCast", "BitCast", bit_cast),
    ("Optional", "Optional", optional),
)


def first_opset(op_type: str, name: str) -> int | None:
    """The lowest opset at which an operator takes a type, None where the installed ONNX has none."""
    text = f"tensor({name.lower()})"
    for opset in range(21, onnx.defs.onnx_opset_version() + 1):
        if not onnx.defs.has(op_type, opset):
            continue
        schema = onnx.defs.get_schema(op_type, opset)
        if any(text in kind for constraint in schema.type_constraints for kind in constraint.allowed_type_strs):
            return opset
    return None


def model_of(probe: Probe, opset: int, name: str, *, as_initializers: bool) -> onnx.ModelProto:
    """The model of a probe."""
    inputs, constants = [], list(probe.constants)
    for key, (type_, array) in probe.operands.items():
        if as_initializers and element_type(type_).is_emulated:
            constants.append(tensor_of(key, type_, array))
        else:
            inputs.append(helper.make_tensor_value_info(key, code(type_), array.shape))
    outputs = [helper.make_tensor_value_info("y", code(probe.gives), probe.expected.shape)]
    graph = helper.make_graph(probe.nodes, "probe", inputs, outputs, constants)
    imports = [helper.make_opsetid("", opset)]
    least = helper.find_min_ir_version_for(imports)
    return helper.make_model(graph, opset_imports=imports, ir_version=max(least, IR_VERSIONS.get(name, 10)))


def run_stock(probe: Probe, model: onnx.ModelProto) -> bool:
    """Whether stock onnxruntime gives the right result."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        meta.name: onnxruntime.OrtValue.ortvalue_from_numpy(probe.operands[meta.name].array)
        for meta in session.get_inputs()
    }
    (value,) = session.run_with_ort_values(None, feeds)
    if not element_type(probe.gives).is_emulated:
        return bool(np.array_equal(value.numpy(), probe.expected, equal_nan=not is_integer(probe.gives)))
    expected = packed(probe.expected, probe.gives)
    if tuple(value.shape()) != probe.expected.shape:
        return False
    return ctypes.string_at(value.data_ptr(), len(expected)) == expected


def run_here(probe: Probe, model: onnx.ModelProto) -> bool:
    """Whether this package's session gives the right result."""
    session = ort_castlike.InferenceSession(model, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {key: operand.array for key, operand in probe.operands.items()})
    if (got.dtype, got.shape) != (probe.expected.dtype, probe.expected.shape):
        return False
    if not element_type(probe.gives).is_emulated:
        return bool(np.array_equal(got, probe.expected, equal_nan=not is_integer(probe.gives)))
    return packed(got, probe.gives) == packed(probe.expected, probe.gives)


def cells() -> Iterator[tuple[str, str, str]]:
    """The type, the row and the runner of every cell that ONNX has."""
    for name in TYPES:
        for row, op_type, _ in ROWS:
            if first_opset(op_type, name) is not None:
                yield from ((name, row, runner) for runner in ("stock", "here"))


def probe_cell(name: str, row: str, runner: str) -> str:
    """What becomes of one cell: "right", "wrong" or "refused"."""
    op_type, make = next((op_type, make) for title, op_type, make in ROWS if title == row)
    probe = make(name)
    opset = first_opset(op_type, name)
    assert opset is not None
    model = model_of(probe, opset, name, as_initializers=runner == "stock")
    try:
        right = run_stock(probe, model) if runner == "stock" else run_here(probe, model)
    except Exception:
        return "refused"
    return "right" if right else "wrong"


def probe_cells(skip: int) -> None:
    """Probe the cells from the given one on, a line for each as it is done."""
    onnxruntime.set_default_logger_severity(4)
    for cell in list(cells())[skip:]:
        print(json.dumps(probe_cell(*cell)), flush=True)


def probe_installed() -> dict[str, dict[str, list[str]]]:
    """What the installed onnxruntime does, by type and row: stock and here. A process that crashes is one cell."""
    listed, outcomes = list(cells()), []
    while len(outcomes) < len(listed):
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--probe", str(len(outcomes))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        outcomes += map(json.loads, done.stdout.splitlines())
        if done.returncode > 0:
            raise RuntimeError(done.stderr)
        if done.returncode < 0:
            outcomes.append("crash")
    table: dict[str, dict[str, list[str]]] = {}
    for (name, row, _), outcome in zip(listed, outcomes, strict=True):
        table.setdefault(name, {}).setdefault(row, []).append(outcome)
    return table


def release() -> str:
    """The installed onnxruntime, "1.20"."""
    return ".".join(onnxruntime.__version__.split(".")[:2])


def stored() -> dict[str, dict[str, dict[str, list[str]]]]:
    """What was measured so far, by release, type and row."""
    return json.loads(DATA.read_text()) if DATA.is_file() else {}


def rendered(data: dict[str, dict[str, dict[str, list[str]]]]) -> str:
    """The page."""
    releases = sorted(data, key=lambda text: tuple(map(int, text.split("."))))
    lines = [
        "# Support matrix",
        "",
        "What stock onnxruntime does with each emulated type / what it does with this package.",
        "Every cell is a model of one operator, at the lowest opset at which ONNX has the type there, run on the CPU;",
        "`make_support_matrix.py` makes this page from what it measures.",
        "",
        "| word | meaning |",
        "| --- | --- |",
        "| yes | runs, and every bit is as ONNX says |",
        "| wrong | runs, and gives something else |",
        "| no | refused: the type, the opset or the kernel is missing |",
        "| crash | ends the process |",
        "",
        "Stock onnxruntime is asked less: no release takes or gives numpy arrays of these types, so its operands are",
        "initializers, and its results are read from memory. An operator that a table leaves out does not take the",
        "type in ONNX. QuantizeLinear and DequantizeLinear take FLOAT8E8M0 as a scale.",
        "",
    ]
    lines += totals(data, releases)
    for name in TYPES:
        lines += ["", f"## {name}", "", f"| operator | {' | '.join(releases)} |", f"| --- |{' --- |' * len(releases)}"]
        for row, _, _ in ROWS:
            listed = [data[text].get(name, {}).get(row) for text in releases]
            if any(listed):
                words = [" / ".join(WORDS[outcome] for outcome in pair or ["refused"] * 2) for pair in listed]
                lines.append(f"| {row} | {' | '.join(words)} |")
    return "\n".join([*lines, ""])


def totals(data: dict[str, dict[str, dict[str, list[str]]]], releases: list[str]) -> Iterator[str]:
    """How many cells are right on each release."""
    yield "| onnxruntime | cells | right in stock | wrong or crash in stock | right here |"
    yield "| --- | --- | --- | --- | --- |"
    for text in releases:
        pairs = [pair for rows in data[text].values() for pair in rows.values()]
        stock, here = ([pair[index] for pair in pairs] for index in (0, 1))
        bad = sum(outcome in ("wrong", "crash") for outcome in stock)
        yield f"| {text} | {len(pairs)} | {stock.count('right')} | {bad} | {here.count('right')} |"


def check(data: dict[str, dict[str, dict[str, list[str]]]], table: dict[str, dict[str, list[str]]]) -> int:
    """Say where the page differs from what was probed; 1 if it does."""
    known = data.get(release(), {})
    lines = [
        f"onnxruntime {release()}, {row} of {name}: {pair} was probed, the page has {known.get(name, {}).get(row)}"
        for name, rows in table.items()
        for row, pair in rows.items()
        if known.get(name, {}).get(row) != pair
    ]
    if PAGE.read_text() != rendered(data):
        lines.append(f"{PAGE.name} is not what {DATA.name} says")
    print("\n".join(lines))
    return 1 if lines else 0


def main(arguments: list[str]) -> int:
    """Probe, and write or check."""
    if arguments[:1] == ["--probe"]:
        probe_cells(int(arguments[1]))
        return 0
    data = stored()
    table = probe_installed()
    if arguments[:1] == ["--check"]:
        return check(data, table)
    data[release()] = table
    DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(rendered(data))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
