"""The pass that walks a model and applies the rules, and the postcondition that no emulated type is left."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import onnx_ir as ir

from ort_castlike import _constants, _opset
from ort_castlike._context import DOMAIN, Context, describe, emulated_element
from ort_castlike._defaults import shield_float16_defaults
from ort_castlike._errors import CastLikeError, ModelError, joined
from ort_castlike._inline._functions import infer_and_inline
from ort_castlike._metadata import RewriteRecord, read_record, write_record
from ort_castlike._opset._schemas import type_text
from ort_castlike._options import Options, resolve_options
from ort_castlike._report import EmulatedTensor, Report
from ort_castlike._results import leave_results_unplanned
from ort_castlike._rules import RULES, STOCK_RULES, WEIGHT_RULES
from ort_castlike._scopes import bring_in_outer_values, name_dead_outputs
from ort_castlike._sinking import sink_constants
from ort_castlike._stock import notes_on_refused_layers, releases_that_load, releases_that_run
from ort_castlike._wellformed import check_model, check_touched_node, names_emulated

__all__ = ["LegalizePass", "legalize"]

# For the inputs and for the outputs of a model, the original types of those that had emulated ones.
_Signature = tuple[dict[str, str], dict[str, str]]


class LegalizePass(ir.passes.InPlacePass):
    """An onnx_ir pass that makes a model run on stock onnxruntime plus this package's custom operators.

    Args:
        target: The onnxruntime release that must run the result, "1.20"; None is the installed one.
        lowering: "custom" or "standard", as in :func:`ort_castlike.rewrite`.
        rounding: How floats become 2- and 4-bit integers, as in :func:`ort_castlike.rewrite`.
        weights: What becomes of 2-bit weight layers, as in :func:`ort_castlike.rewrite`.

    Raises:
        OptionError: An option has a value that it does not take.
        TargetError: The target is not supported.
    """

    def __init__(
        self,
        *,
        target: str | None = None,
        lowering: str = "custom",
        rounding: str = "nearest_even",
        weights: str = "auto",
    ) -> None:
        super().__init__()
        self.options = resolve_options(target=target, lowering=lowering, rounding=rounding, weights=weights)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Legalize ``model`` in place."""
        return ir.passes.PassResult(model, legalize(model, self.options).changed)

    def ensures(self, model: ir.Model) -> None:
        """No value of an emulated type is left.

        Raises:
            onnx_ir.passes.PostconditionError: One is left, which is a defect of this package.
        """
        try:
            _verify(model)
        except CastLikeError as error:
            raise ir.passes.PostconditionError(str(error)) from error


def legalize(model: ir.Model, options: Options, report: Report | None = None) -> Report:
    """Rewrite ``model`` in place for the options' target and say what was done.

    Args:
        model: The model.
        options: What is asked for.
        report: The report to fill, which then says what was found out also when an error is raised.

    Raises:
        CastLikeError: The model is broken, holds operators that have no rule, or does not fit the target. One error
            stands for all that the rules refuse, or for all that the target does.
    """
    before = _versions(model)
    report = report or Report(str(options.target), (before[0], before[0]), (before[1], before[1]))
    context, untyped, inlined = _understand(model, options)
    original = dict(context.original)
    report.notes = list(options.notes)
    report.tensors = [_listed(value, type_) for value, type_ in original.items()]
    report.runs_on_before = releases_that_run(model, before, context.original)

    _check_touched_nodes(context)
    signature = _replace_emulated_types(context)
    report.changes = context.changes
    report.weights = context.weights.memory()
    report.tensors = [
        dataclasses.replace(tensor, carrier=type_text(type_))
        for tensor, type_ in zip(report.tensors, context.carriers(original), strict=True)
    ]

    lowered = _opset.lower(model, options.target)
    after = _versions(model)
    report.notes = [*options.notes, *inlined, *context.notes, *lowered]
    report.notes += notes_on_refused_layers(model, options.target)
    report.opset = (before[0], after[0])
    report.ir_version = (before[1], after[1])
    report.runs_on_after = releases_that_load(model, after)

    _verify(model)
    retyped = any(value.type != type_ for value, type_ in context.original.items())
    report.changed = bool(retyped or report.changes or inlined or lowered) or before != after
    if report.changed:
        _name_nodes(context)
        _record(model, options, signature)
    _forget_inferred_types(context, untyped)
    return report


def _versions(model: ir.Model) -> tuple[int, int]:
    """The opset of ONNX's domain and the IR version."""
    return model.opset_imports.get("", 1), model.ir_version


# To understand the model ------------------------------------------------------------------------------------


def _understand(model: ir.Model, options: Options) -> tuple[Context, list[ir.Value], list[str]]:
    """Check a model, bring it into a form in which every value has a type, and give carriers to the emulated ones.

    Returns:
        The state of the rewrite, the values whose types are inferred, and a line for each function inlined.
    """
    check_model(model)
    context = Context(model, options)
    name_dead_outputs(model, context.fresh_name)
    bring_in_outer_values(model.graph, context.fresh_name)
    untyped, inlined = infer_and_inline(model, context.fresh_name, functools.partial(_has_packable_weights, options))
    _remember_types(context)
    return context, untyped, inlined


def _has_packable_weights(options: Options, node: ir.Node, bits: int) -> bool:
    """Whether a node with so many bits is a layer of com.microsoft that a rule may make a 4-bit one."""
    return (node.domain, node.op_type) in WEIGHT_RULES and options.weights != "keep" and bits == 2


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for value in graph.initializers.values() if not value.is_graph_input())
    for node in graph:
        yield from node.outputs


def _remember_types(context: Context) -> None:
    for graph in context.model.graphs():
        for value in _values(graph):
            if value.is_initializer() and value.const_value is not None:
                _check_initializer(value)
            if emulated_element(value.type) is not None:
                context.remember(value)


def _check_initializer(value: ir.Value) -> None:
    tensor = value.const_value
    assert tensor is not None
    if value.type is None:
        value.type = ir.TensorType(tensor.dtype)
    if value.type.dtype != tensor.dtype:
        raise ModelError(
            f"initializer {value.name!r} holds {tensor.dtype.name} and its type in the graph is "
            f"{type_text(value.type)}; export the model again"
        )
    if emulated_element(value.type) is not None:
        _constants.check_payload(tensor)


def _check_touched_nodes(context: Context) -> None:
    errors = []
    for node in context.model.graph.all_nodes():
        touches = any(value is not None and value in context.original for value in (*node.inputs, *node.outputs))
        if touches or names_emulated(node):
            try:
                check_touched_node(node, context)
            except CastLikeError as error:
                errors.append(error)
    if errors:
        raise joined(errors)


# To replace what is emulated --------------------------------------------------------------------------------


def _replace_emulated_types(context: Context) -> _Signature:
    """Apply the rules, remove what they left without a use, and encode the constants for those who use them.

    Returns:
        The original types of the main graph's inputs and outputs.
    """
    model = context.model
    is_touched = bool(context.original)
    _apply_rules(context)
    shield_float16_defaults(context)
    leave_results_unplanned(context)
    signature = _signature(context)
    context.remove_dead()
    context.encode_constants()
    if is_touched:
        sink_constants(context)
    if any(node.domain == DOMAIN for node in model.graph.all_nodes()):
        model.opset_imports[DOMAIN] = 1
    return signature


def _apply_rules(context: Context) -> None:
    errors = [
        error
        for graph in tuple(context.model.graphs())
        for node in tuple(graph)
        if (error := _refusal(node, context)) is not None
    ]
    if errors:
        raise joined(errors)


def _refusal(node: ir.Node, context: Context) -> CastLikeError | None:
    """Apply the rules to a node, and give the error where one refuses it."""
    try:
        _apply_rule(node, context)
        weight_rule = WEIGHT_RULES.get((node.domain, node.op_type))
        if weight_rule is not None:
            weight_rule(node, context)
    except CastLikeError as error:
        return error
    return None


def _apply_rule(node: ir.Node, context: Context) -> None:
    touched = next(
        (value for value in (*node.inputs, *node.outputs) if value is not None and value in context.original),
        None,
    )
    if touched is None:
        stock_rule = STOCK_RULES.get((node.domain, node.op_type))
        if stock_rule is not None:
            stock_rule(node, context)
        return
    rule = RULES.get((node.domain, node.op_type))
    if rule is not None:
        rule(node, context)
    elif not (node.domain and _takes_packed(node, context)):
        raise context.unsupported(node, touched)


def _takes_packed(node: ir.Node, context: Context) -> bool:
    """Let the INT4 and UINT4 constants that a node takes stay packed; False where it touches other emulated values."""
    touched = [index for index, value in enumerate(node.inputs) if context.is_emulated(value)]
    for index in touched:
        element = context.element(node.inputs[index], node)
        if element.packed != element.name or context.constant(node.inputs[index]) is None:
            return False
    if any(context.is_emulated(output) for output in node.outputs):
        return False
    context.pack(node, *touched)
    return True


# To finish and tell what was done ---------------------------------------------------------------------------


def _verify(model: ir.Model) -> None:
    """Raise where a value of an emulated type is left, packed 4-bit constants aside."""
    for graph in model.graphs():
        for value in _values(graph):
            element = emulated_element(value.type)
            if element is None or (element.packed == element.name and value.const_value is not None):
                continue
            node = value.producer()
            if element.packed == element.name and node is not None and node.op_type == "Constant":
                continue
            where = f"given by node {describe(node)}" if node is not None else "of the graph"
            raise ModelError(
                f"value {value.name!r} {where} still has the type {element.name} after the rewrite; "
                "this is a defect of ort_castlike, please report it"
            )


def _forget_inferred_types(context: Context, untyped: list[ir.Value]) -> None:
    """Take the types off again that the model did not state, where nothing needs them."""
    for value in untyped:
        node = value.producer()
        # onnxruntime infers no shape for a custom operator, and a Scan needs the shapes of what its body gives.
        is_given = value.is_graph_output() and value.graph is not context.model.graph
        if value not in context.original and not is_given and (node is None or node.domain != DOMAIN):
            value.type, value.shape = None, None


def _name_nodes(context: Context) -> None:
    """Give a node another name where one of its graph has it, which onnxruntime 1.32 refuses; and casts of strings one.

    These fail for what is no number, and the runtime's error calls them by their names alone.
    """
    for graph in context.model.graphs():
        seen: set[str] = set()
        for node in graph:
            if node.name in seen:
                node.name = context.fresh_name(node.name)
            elif not node.name and _casts_string(node):
                node.name = context.fresh_name(f"{node.outputs[0].name}_{node.op_type}")
            if node.name:
                seen.add(node.name)


def _casts_string(node: ir.Node) -> bool:
    value = node.inputs[0] if node.op_type in ("Cast", "CastLike") and node.inputs else None
    return value is not None and value.dtype == ir.DataType.STRING


def _signature(context: Context) -> _Signature:
    """The original types of the main graph's inputs and outputs that had emulated ones, which their doc strings say."""
    graph = context.model.graph
    for value in (*graph.inputs, *graph.outputs):
        if value in context.original and not value.doc_string:
            value.doc_string = f"{type_text(context.original[value])} in the original model"
    return tuple(  # type: ignore[return-value]
        {value.name or "": type_text(context.original[value]) for value in values if value in context.original}
        for values in (graph.inputs, graph.outputs)
    )


def _record(model: ir.Model, options: Options, signature: _Signature) -> None:
    """Write what was done into the model, on top of what an earlier rewrite wrote."""
    earlier = read_record(model.metadata_props)
    inputs, outputs = signature
    if earlier is not None:
        inputs = {**earlier.inputs, **inputs}
        outputs = {**earlier.outputs, **outputs}
    chosen = {name: str(getattr(options, name)) for name in ("target", "lowering", "rounding", "weights")}
    write_record(RewriteRecord(chosen, inputs, outputs), model.metadata_props)


def _listed(value: ir.Value, type_: ir.TypeProtocol) -> EmulatedTensor:
    node = value.producer()
    if value.is_graph_input():
        role = "input"
    elif value.is_graph_output():
        role = "output"
    elif value.is_initializer():
        role = "initializer"
    else:
        role = "constant" if node is not None and node.op_type == "Constant" else "value"
    assert value.type is not None
    return EmulatedTensor(value.name or "", type_text(type_), role, type_text(value.type))
