"""What a model must be so that it can be read at all, checked before anything is made of it.

A broken model is refused here, with the culprit named, so that the rest may take for granted what ONNX promises:
known element types, attributes that hold what they say, names that something has, nodes with the inputs and outputs of
their operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from ort_castlike._context import DOMAIN, Context, describe, described, emulated_element, tensor_dtype
from ort_castlike._errors import ModelError
from ort_castlike._files import _protos
from ort_castlike._opset._schemas import newest_opset, schema, signature, type_text
from ort_castlike._types import ELEMENT_TYPES, EMULATED_TYPES, element_type

__all__ = ["check_model", "check_proto", "check_touched_node", "names_emulated"]

_CODES = frozenset(element.code for element in ELEMENT_TYPES.values())
_EMULATED_CODES = frozenset(element.code for element in EMULATED_TYPES.values())
_LARGEST = 1 << 62  # elements
_FIRST_EMULATED = 21  # the opset that brought the first of the emulated types
_HIGHEST_OPSET = 1 << 16
# The attributes of the default domain that name an element type.
_TYPE_ATTRIBUTES = frozenset(("dtype", "output_dtype", "to"))
# Operators of other domains that have rules: all their attributes are integers.
_OF_INTEGERS = frozenset((("com.microsoft", "GatherBlockQuantized"), ("com.microsoft", "MatMulNBits")))
# The field that holds the value of an attribute of each type.
_FIELDS = {
    onnx.AttributeProto.TENSOR: "t",
    onnx.AttributeProto.GRAPH: "g",
    onnx.AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    onnx.AttributeProto.TYPE_PROTO: "tp",
}
_EXACT = 1 << 16  # bytes
# Where a tensor without raw data has its elements, int32_data for the other types.
_DATA_FIELDS = {
    "FLOAT": "float_data",
    "COMPLEX64": "float_data",
    "DOUBLE": "double_data",
    "COMPLEX128": "double_data",
    "INT64": "int64_data",
    "UINT32": "uint64_data",
    "UINT64": "uint64_data",
    "STRING": "string_data",
}
_AGAIN = "export the model again"


def check_proto(proto: onnx.ModelProto) -> None:
    """Refuse a model with names, tensors, types or attributes that say what cannot be.

    Raises:
        ModelError: One is found. The message names it.
    """
    for graph in _protos.graphs(proto.graph):
        for infos in (graph.input, graph.output, graph.value_info):
            for info in infos:
                _check_type(info.type, f"the type of {info.name!r}")
        for sparse in graph.sparse_initializer:
            _check_tensor(sparse.values)
    for tensor in _protos.tensors(proto):
        _check_tensor(tensor)
    _check_names(proto.graph, f"graph {proto.graph.name!r}", [])
    for function in proto.functions:
        _check_node_names(function.node, f"function {function.name!r}", [set(function.input)])
    for node in _protos.nodes(proto):
        if not node.op_type:
            raise ModelError(f"node {_name(node)} has no operator; {_AGAIN}")
        _check_text(node.op_type, node.domain, node.name, *node.input, *node.output)
        if node.attribute:
            _check_attributes(node)
    for graph in _protos.graphs(proto.graph):
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.ref_attr_name:
                    raise ModelError(
                        f"node {_name(node)} takes its attribute {attribute.name!r} from a function and lies in none; "
                        f"{_AGAIN}"
                    )


def check_model(model: ir.Model) -> None:
    """Refuse versions that are none, and a node that lacks what its operator must have or has what it cannot.

    Raises:
        ModelError: One is found. The message names it.
    """
    if not 0 < model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            f"the model has the IR version {model.ir_version}, and the installed onnx knows 1 to {onnx.IR_VERSION}; is "
            "onnx up to date?"
        )
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain, version in imports.items():
            if not 0 < version <= _HIGHEST_OPSET:
                raise ModelError(f"the model imports version {version} of the domain {domain or 'ai.onnx'!r}; {_AGAIN}")
    _check_nodes(model.graph.all_nodes(), model.opset_imports)
    for function in model.functions.values():
        _check_nodes(function.all_nodes(), function.opset_imports)


def check_touched_node(node: ir.Node, context: Context) -> None:
    """Refuse a node of an emulated type that does not fit its operator as of when there were such types.

    Raises:
        ModelError: It lacks an input or an attribute, or has too many or of another type; or its values have types that
            contradict each other.
    """
    opset = context.model.opset_imports.get("", 1)
    since = opset if opset >= _FIRST_EMULATED else _FIRST_EMULATED
    if schema(node.op_type, since) is None:
        since = newest_opset()
    entry = schema(node.op_type, since)
    if node.domain != "" or entry is None:
        return
    if since != opset:
        _check_node(node, since)
    # Rules read what came later, too.
    _check_attribute_types(node, signature(node.op_type, newest_opset()).attributes)
    _check_types(node, context, entry)


def _check_types(node: ir.Node, context: Context, entry: onnx.defs.OpSchema) -> None:
    """Refuse types that contradict each other: what ONNX infers does not tell, where the model says something else."""
    variables = {
        constraint.type_param_str: {_container(text) for text in constraint.allowed_type_strs}
        for constraint in entry.type_constraints
    }
    seen: dict[str, tuple[str, ir.TypeProtocol]] = {}
    for values, formals in ((node.inputs, entry.inputs), (node.outputs, entry.outputs)):
        for index, value in enumerate(values):
            formal = formals[min(index, len(formals) - 1)]
            if value is None or formal.type_str not in variables or not formal.is_homogeneous:
                continue
            type_ = context.original.get(value, value.type)
            if type_ is None or tensor_dtype(type_) in (None, ir.DataType.UNDEFINED):
                continue
            if _container(type_text(type_)) not in variables[formal.type_str]:
                raise ModelError(
                    f"node {describe(node)}: {value.name!r} is {type_text(type_)} in the model, which {node.op_type} "
                    f"neither takes nor gives; {_AGAIN}"
                )
            first = seen.setdefault(formal.type_str, (value.name or "", type_))
            if type_text(first[1]) != type_text(type_):
                raise _conflict(node, first, (value.name or "", type_))
    to = node.attributes.get("to") or node.attributes.get("output_dtype")
    if to is not None and not to.is_ref() and to.as_int() != onnx.TensorProto.UNDEFINED:
        output = node.outputs[0]
        dtype = tensor_dtype(context.original.get(output, output.type))
        if dtype is not None and dtype != ir.DataType.UNDEFINED and int(dtype) != to.as_int():
            raise ModelError(
                f"node {describe(node)} casts to element type {ir.DataType(to.as_int()).name} and {output.name!r} is "
                f"{dtype.name} in the model; {_AGAIN}"
            )


def names_emulated(node: ir.Node) -> bool:
    """Whether a node of the default domain says by an attribute that it gives an emulated type."""
    return node.domain == "" and any(
        not attribute.is_ref() and attribute.type == ir.AttributeType.INT and attribute.as_int() in _EMULATED_CODES
        for name in _TYPE_ATTRIBUTES
        if (attribute := node.attributes.get(name)) is not None
    )


def _conflict(node: ir.Node, *sides: tuple[str, ir.TypeProtocol]) -> ModelError:
    """The error for two values, each a name and a type, of a node that has one type for both."""
    (first, second), emulated = sides, [name for name, type_ in sides if emulated_element(type_) is not None]
    advice = _AGAIN
    if len(emulated) == 1:
        advice = f"put a DequantizeLinear or a Cast between {emulated[0]!r} and the node"
    return ModelError(
        f"node {describe(node)}: {second[0]!r} is {type_text(second[1])} and {first[0]!r} is {type_text(first[1])} in "
        f"the model, and for {node.op_type} both have one type; {advice}"
    )


def _container(type_text: str) -> str:
    """What a type has around its tensor: "seq(" of "seq(tensor(int2))"."""
    return type_text.partition("tensor(")[0]


def _check_names(graph: onnx.GraphProto, where: str, outer: Sequence[set[str]]) -> None:
    """Refuse names that nothing has, and names that several things have."""
    known: set[str] = set()
    for kind, names in (
        ("input", [info.name for info in graph.input]),
        ("initializer", [tensor.name for tensor in graph.initializer]),
        ("initializer", [sparse.values.name for sparse in graph.sparse_initializer]),
    ):
        seen: set[str] = set()
        _check_text(*names)
        for name in names:
            if name in seen:
                raise ModelError(f"{where} has the {kind} {name!r} more than once; {_AGAIN}")
            seen.add(name)
        known |= seen
    scopes = [*outer, known]
    _check_node_names(graph.node, where, scopes)
    for info in graph.output:
        if not any(info.name in scope for scope in scopes):
            raise ModelError(f"nothing gives {info.name!r}, an output of {where}; {_AGAIN}")


def _check_node_names(nodes: Sequence[onnx.NodeProto], where: str, scopes: Sequence[set[str]]) -> None:
    """Check the nodes of a graph, whose inputs and initializers are the last of ``scopes``; their outputs join it."""
    known = scopes[-1]
    for node in nodes:
        for name in node.output:
            if name and name in known:
                raise ModelError(f"node {_name(node)} gives {name!r}, which is there before it in {where}; {_AGAIN}")
            known.add(name)
    for node in nodes:
        for name in node.input:
            if name and not any(name in scope for scope in scopes):
                raise ModelError(f"nothing gives {name!r}, an input of node {_name(node)} in {where}; {_AGAIN}")
        for attribute in node.attribute:
            for graph in _protos.held_graphs(attribute):
                _check_names(graph, f"{attribute.name} of node {_name(node)}", scopes)


def _check_text(*names: str) -> None:
    for name in names:
        if type(name) is not str:  # protobuf gives bytes for what does not decode
            raise ModelError(f"the name {name!r} is no UTF-8; {_AGAIN}")


def _check_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type not in _CODES:
        raise ModelError(f"tensor {tensor.name!r} has the element type {tensor.data_type}, which is none; {_AGAIN}")
    if any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) > _LARGEST:
        raise ModelError(f"tensor {tensor.name!r} has the shape {list(tensor.dims)}, which is none; {_AGAIN}")
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        _check_payload(tensor)


def _check_payload(tensor: onnx.TensorProto) -> None:
    """Refuse a payload of another size than the shape and the type say."""
    element = element_type(tensor.data_type)
    count = math.prod(tensor.dims)
    if tensor.HasField("raw_data") and element.name != "STRING":
        expected, unit = -(-count * element.bits // 8), "bytes of data"
        size = tensor.ByteSize()  # of the whole message: to read the payload is to copy it
        if size <= _EXACT:
            size = len(tensor.raw_data)
        elif expected <= size <= expected + _EXACT:
            size = expected
    else:
        field = _DATA_FIELDS.get(element.name, "int32_data")
        size, unit = len(getattr(tensor, field)), f"entries in {field}"
        expected = -(-count * element.bits // 8) if 0 < element.bits < 8 else count
        if element.name.startswith("COMPLEX"):
            expected *= 2
    if size != expected:
        raise ModelError(
            f"tensor {tensor.name!r} ({element.name}, shape {list(tensor.dims)}) holds {size} {unit} and should hold "
            f"{expected}; {_AGAIN}"
        )


def _check_type(type_: onnx.TypeProto, what: str) -> None:
    inner = _protos.innermost_type(type_)
    kind = inner.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        code = getattr(inner, kind).elem_type
        if code not in _CODES and code != onnx.TensorProto.UNDEFINED:
            raise ModelError(f"{what} has the element type {code}, which is none; {_AGAIN}")


def _check_attributes(node: onnx.NodeProto) -> None:
    names = set()
    for attribute in node.attribute:
        _check_text(attribute.name, attribute.ref_attr_name)
        if not attribute.name or attribute.name in names:
            raise ModelError(f"node {_name(node)} has the attribute {attribute.name!r} more than once; {_AGAIN}")
        names.add(attribute.name)
        if attribute.ref_attr_name:
            if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
                # Neither onnx_ir nor onnxruntime walk past it.
                raise ModelError(
                    f"node {_name(node)} takes its graph {attribute.name!r} from a function; export the model with its "
                    "functions inlined"
                )
            continue
        field = _FIELDS.get(attribute.type)
        if attribute.type == onnx.AttributeProto.UNDEFINED or (field is not None and not attribute.HasField(field)):
            raise ModelError(f"node {_name(node)} has an attribute {attribute.name!r} that holds nothing; {_AGAIN}")
        for is_held, type_, what in (
            (attribute.HasField("g"), onnx.AttributeProto.GRAPH, "a graph"),
            (attribute.HasField("t"), onnx.AttributeProto.TENSOR, "a tensor"),
            (bool(attribute.graphs), onnx.AttributeProto.GRAPHS, "graphs"),
            (bool(attribute.tensors), onnx.AttributeProto.TENSORS, "tensors"),
        ):
            if is_held and attribute.type != type_:
                raise ModelError(
                    f"node {_name(node)} has an attribute {attribute.name!r} that holds {what} and says that it holds "
                    f"something else; {_AGAIN}"
                )
        if attribute.type == onnx.AttributeProto.TYPE_PROTO:
            _check_type(attribute.tp, f"the attribute {attribute.name!r} of node {_name(node)}")


def _name(node: onnx.NodeProto) -> str:
    return described(node.name, node.op_type, node.output)


def _check_nodes(nodes: Iterable[ir.Node], opset_imports: Mapping[str, int]) -> None:
    opset = opset_imports.get("", 1)
    for node in nodes:
        if node.domain == "":
            if schema(node.op_type, opset) is not None:
                _check_node(node, opset)
        elif (node.domain, node.op_type) in _OF_INTEGERS:
            for name, attribute in node.attributes.items():
                if attribute.type != ir.AttributeType.INT or not node.outputs:
                    raise ModelError(
                        f"node {describe(node)}: its attribute {name!r} is of the type {attribute.type.name} and all "
                        f"of {node.op_type} are INT; {_AGAIN}"
                    )
        elif node.domain == DOMAIN and (node.op_type, len(node.inputs), len(node.outputs)) != ("CastLike", 2, 1):
            raise ModelError(
                f"node {describe(node)}: the domain {DOMAIN!r} has a CastLike of two inputs and one output alone; "
                "rewrite the original model again"
            )


def _check_node(node: ir.Node, opset: int) -> None:
    entry = signature(node.op_type, opset)
    given = [value is not None and value.name != "" for value in node.inputs]
    if len(given) > entry.max_input:
        raise ModelError(
            f"node {describe(node)} has {len(given)} inputs and {node.op_type} takes {entry.max_input}; {_AGAIN}"
        )
    for index, formal in enumerate(entry.inputs):
        if formal.required and not (index < len(given) and given[index]):
            raise ModelError(f"node {describe(node)} lacks the input {formal.name} that {node.op_type} must have")
    if not node.outputs or len(node.outputs) > entry.max_output:
        raise ModelError(
            f"node {describe(node)} has {len(node.outputs)} outputs and {node.op_type} gives {entry.max_output}; "
            f"{_AGAIN}"
        )
    _check_attribute_types(node, entry.attributes)
    for name in _TYPE_ATTRIBUTES & node.attributes.keys():
        attribute = node.attributes[name]
        if attribute.type == ir.AttributeType.INT and not attribute.is_ref() and attribute.as_int() not in _CODES:
            if attribute.as_int() == onnx.TensorProto.UNDEFINED and name != "to":
                continue
            raise ModelError(
                f"node {describe(node)}: its attribute {name!r} names the element type {attribute.as_int()}, which is "
                f"none; {_AGAIN}"
            )
    for name, known in entry.attributes.items():
        if known.required and name not in node.attributes:
            raise ModelError(f"node {describe(node)} lacks the attribute {name!r} that {node.op_type} must have")


def _check_attribute_types(node: ir.Node, known_attributes: Mapping[str, Any]) -> None:
    for name, attribute in node.attributes.items():
        known = known_attributes.get(name)
        if known is not None and not attribute.is_ref() and int(attribute.type) != int(known.type.value):
            raise ModelError(
                f"node {describe(node)}: its attribute {name!r} is of the type {attribute.type.name} and "
                f"{node.op_type} takes {known.type.name}; {_AGAIN}"
            )
