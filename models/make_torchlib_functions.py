"""Writes ``torchlib_functions``: a graph of functions from PyTorch's exporter, which are full of CastLike.

It needs PyTorch and onnxscript, whose function library this is; the expected outputs are PyTorch's own, and the
2-bit ones plain numpy on top of them. Run it as ``python models/make_torchlib_functions.py``.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import torch
from example_files import write_example
from onnx import TensorProto, helper, numpy_helper
from onnxscript.function_libs.torch_lib.ops import core, nn, special

DOMAIN = "pkg.onnxscript.torch_lib"
# A function of one float tensor, and what PyTorch computes by it.
FUNCTIONS = {
    "erfc": (special.aten_special_erfc, torch.special.erfc),
    "expm1": (special.aten_special_expm1, torch.special.expm1),
    "log1p": (core.aten_log1p, torch.log1p),
    "sinc": (special.aten_special_sinc, torch.special.sinc),
    "hardtanh": (nn.aten_hardtanh, torch.nn.functional.hardtanh),
    "softplus": (nn.aten_softplus, torch.nn.functional.softplus),
}
OPSET = 25
ROWS, COLUMNS = 4, 16


def build() -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model, its inputs and its expected outputs: for each function, its result and that as INT2 and back."""
    x = (np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) - 2.0) / 32
    nodes, outputs, protos = [], {}, []
    for name, (function, reference) in FUNCTIONS.items():
        proto = function.to_function_proto()
        proto.domain = DOMAIN
        proto.opset_import[0].version = OPSET  # the library is written for 18; the operators in these mean the same
        protos.append(proto)
        nodes.append(helper.make_node(proto.name, ["x"], [name], name, domain=DOMAIN))
        nodes.append(helper.make_node("CastLike", [name, "two_bits"], [f"{name}_int2"], f"{name}_cast"))
        nodes.append(helper.make_node("CastLike", [f"{name}_int2", "x"], [f"{name}_back"], f"{name}_cast_back"))
        value = reference(torch.from_numpy(x)).numpy()
        codes = (np.rint(value).astype(np.int64) + 2) % 4 - 2
        outputs[name] = value
        outputs[f"{name}_back"] = codes.astype(np.float32)
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [ROWS, COLUMNS]) for name in outputs]
    graph = helper.make_graph(
        nodes,
        "torchlib_functions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS])],
        infos,
        [numpy_helper.from_array(np.zeros(1, ml_dtypes.int2), "two_bits")],
    )
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=protos, ir_version=13)
    return model, {"x": x}, outputs


if __name__ == "__main__":
    write_example(Path(__file__).parent / "torchlib_functions", *build())
