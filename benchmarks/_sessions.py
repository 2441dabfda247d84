"""Models of one node and sessions with bound inputs and outputs, as the benchmarks run them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from _timing import Call
from onnx import TensorProto, helper

import ort_castlike

__all__ = ["RELEASE", "bound", "one_node", "options", "plain_options", "python_operators"]

RELEASE = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


class _AsArray(np.ndarray):
    """A result that crosses at once and not as a list."""

    def flatten(self, order: str = "C") -> np.ndarray:
        return self.reshape(-1)

    def tolist(self) -> np.ndarray:
        return np.asarray(self)


@functools.cache
def python_operators() -> None:
    """Declare the Python operators that serve as contestants, which must come before the first session."""
    from onnxruntime_extensions import Opdef, PyCustomOpDef

    types = {"inputs": [PyCustomOpDef.dt_float], "outputs": [PyCustomOpDef.dt_int8]}

    def default_path(values: np.ndarray) -> np.ndarray:
        return ((np.rint(values).astype(np.int8) & np.int8(3)) ^ np.int8(2)) - np.int8(2)

    def empty(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1).view(np.int8)[: values.size].view(_AsArray)

    Opdef.create(default_path, op_type="ai.onnx.contrib::DefaultPath", **types)
    Opdef.create(empty, op_type="ai.onnx.contrib::Empty", **types)


@functools.cache
def options() -> onnxruntime.SessionOptions:
    """Session options of one thread with the custom operators."""
    made = plain_options()
    ort_castlike.register(made)
    return made


def plain_options() -> onnxruntime.SessionOptions:
    """New session options of one thread."""
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads = 1
    made.log_severity_level = 4
    return made


def one_node(
    node: onnx.NodeProto,
    x_type: int,
    y_type: int,
    *,
    opset: int = 21,
    ir_version: int = 10,
    initializers: Sequence[TensorProto] = (),
) -> bytes:
    """A model from ``x`` to ``y`` by one node."""
    x = helper.make_tensor_value_info("x", x_type, ["n"])
    y = helper.make_tensor_value_info("y", y_type, ["n"])
    graph = helper.make_graph([node], "one", [x], [y], initializers)
    imports = [helper.make_opsetid(domain, 1) for domain in {node.domain} - {""}]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *imports], ir_version=ir_version)
    return model.SerializeToString()


def bound(
    model: bytes,
    feed: np.ndarray | Mapping[str, np.ndarray],
    session_options: onnxruntime.SessionOptions | None = None,
) -> Call:
    """A call that runs a model on arrays (one alone is ``x``), into the memory of the run before."""
    feeds = {"x": feed} if isinstance(feed, np.ndarray) else feed
    session = onnxruntime.InferenceSession(model, session_options or options(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)
