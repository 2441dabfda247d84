"""Compares a rewritten model, as onnxruntime runs it, with an evaluation of the original node by node.

Every node of the original is evaluated by itself (see ``_reference``), on the values that the rewritten model really
has for its inputs. So an error is found at the node that makes it, however small, and not at those that follow, and
what floats lose on the way does not add up. That is done without the runtime's optimizer; what the
optimizer makes of the whole model is compared with it at the end.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime

from ort_castlike._check._compare import Difference, Tolerance, find_difference, largest
from ort_castlike._check._feeds import boundary_feed, boundary_rounds, input_specs, random_feed
from ort_castlike._check._probe import quiet_options
from ort_castlike._check._reference import Reference, element_of, free_names
from ort_castlike._check._tensor_files import read_inputs
from ort_castlike._context import DOMAIN
from ort_castlike._custom_ops import register
from ort_castlike._errors import ModelError, OptionError
from ort_castlike._files._read import read_proto
from ort_castlike._io._ort_values import to_ort_value, to_python
from ort_castlike._io._ports import make_ports
from ort_castlike._metadata import RewriteRecord, read_record
from ort_castlike._rewrite import rewrite
from ort_castlike._session import InferenceSession
from ort_castlike._targets import resolve_target
from ort_castlike._tensor_array import array_of

__all__ = ["Mismatch", "Verification", "verify"]

# What a float of each type may be off after a node that adds up, as a part of the largest value.
_PRECISION = {"DOUBLE": 1e-9, "FLOAT": 1e-4, "FLOAT16": 4e-3, "BFLOAT16": 3e-2}
_LOOSE = 0.15  # the float 8 types
# onnxruntime may round the left side of this one to 8 bits.
_BLOCKWISE = ("com.microsoft", "MatMulNBits")
# What an output may be off that is behind sums, when the optimizer has fused and reordered them: this is garbage.
_GARBAGE = 0.25
# Operators without a sum in them: nothing may differ.
_EXACT = frozenset(
    [
        *("BitCast", "Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"),
        *("Concat", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Shape", "Size"),
        *("Slice", "Split", "Squeeze", "TensorScatter", "Tile", "Transpose", "Unsqueeze", "Where"),
        *("Optional", "OptionalGetElement", "OptionalHasElement"),
        *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
    ]
)


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A value of the rewritten model that is not what the original says.

    Attributes:
        node: The node of the original that gives it: its name, or a description; for an output of the model that is
            wrong only where the optimizer is let loose on the whole model, "".
        op_type: Its operator.
        value: The name of the value.
        inputs: Which inputs it was found with.
        difference: How it differs.
    """

    node: str
    op_type: str
    value: str
    inputs: str
    difference: Difference


@dataclasses.dataclass
class Verification:
    """What a comparison found.

    Attributes:
        feeds: What the model was run with.
        nodes: How many nodes the original has, constants left out.
        compared: How many of them have outputs that are still there after the rewrite, and were compared.
        gone: Nodes whose outputs are not in the rewritten model under their names, and so were not.
        unknown: Nodes that the evaluator cannot evaluate, and why; they were taken to be right.
        mismatches: What differs, in the order of the original's nodes; one entry a value.
        failed: The made-up feeds that the rewritten model did not run on, and why.
    """

    feeds: list[str] = dataclasses.field(default_factory=list)
    nodes: int = 0
    compared: int = 0
    gone: list[str] = dataclasses.field(default_factory=list)
    unknown: dict[str, str] = dataclasses.field(default_factory=dict)
    mismatches: list[Mismatch] = dataclasses.field(default_factory=list)
    failed: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether all that was compared is right; see ``not_compared`` for the rest."""
        return not self.mismatches

    @property
    def not_compared(self) -> int:
        """How many nodes were not compared: those that are gone, and those that are unknown."""
        return self.nodes - self.compared

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data for JSON."""
        return {"right": self.is_right, "not_compared": self.not_compared, **dataclasses.asdict(self)}


def verify(
    original: str | os.PathLike[str],
    rewritten: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    options: Mapping[str, str] | None = None,
    files: Mapping[str, str] | None = None,
    dims: Mapping[str, int] | None = None,
    default_dim: int = 2,
    rounds: int = 2,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Verification:
    """Run a rewritten model on random and boundary inputs, and compare it with the original node by node.

    Args:
        original: Path of the original model.
        rewritten: Path of the rewritten one; None rewrites the original here.
        target: The release to rewrite it for here, the installed one or an older one; None is the installed one.
        options: The other options of :func:`ort_castlike.rewrite` where it is rewritten here.
        files: Files with values for the inputs that are not to be made up, by name.
        dims: Sizes of dimensions that have names.
        default_dim: The size of every other open dimension.
        rounds: How many random feeds there are, beside the boundary ones.
        seed: The seed of the first.
        progress: Told after each node: how many are done, and how many there are in all.

    Raises:
        CastLikeError: A model cannot be read, rewritten, or given such inputs; or the original was rewritten.
    """
    _check_target(target, rewritten)
    source = _with_data(original)
    if _is_rewritten(source):
        raise ModelError("the original was rewritten already: give the model that it was made from")
    # One that is rewritten already stays as it is.
    result = rewrite(source if rewritten is None else _with_data(rewritten), target=target, **(options or {}))
    runner = _Runner(result)
    _check_signature(source, runner.session)
    given = read_inputs(files or {}, runner.session.get_inputs())
    feeds = list(_feeds(runner, source, given, dims or {}, default_dim, rounds, seed))
    comparison = _Comparison(source, result)
    steps = sum(node.op_type != "Constant" for node in source.graph.node) * len(feeds)
    done = 0
    for label, feed in feeds:
        try:
            outputs, values = runner.run(feed)
        except Exception as error:
            # Inputs that are made up may be out of what the model is for, but not all of them.
            comparison.verification.failed[label] = _first_line(error)
            if len(comparison.verification.failed) == len(feeds):
                raise
            continue
        comparison.verification.feeds.append(label)
        for _ in comparison.walk(label, feed, values):
            done += 1
            if progress is not None:
                progress(done, steps)
        comparison.check_outputs(label, outputs, values)
    return comparison.finished()


def _check_target(target: str | None, rewritten: str | os.PathLike[str] | None) -> None:
    if target is None:
        return
    if rewritten is not None:
        raise OptionError(
            "a target is for a model that is rewritten here, and a rewritten one was given: leave one away"
        )
    installed = resolve_target(None)
    if resolve_target(target) > installed:
        raise OptionError(
            f"what is made for onnxruntime {target} cannot be run here, where {installed} is installed: "
            "name that one or an older one"
        )


def _is_rewritten(model: onnx.ModelProto) -> bool:
    """Whether it has the record of a rewrite, or a node that only a rewrite makes."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    return _record(model) is not None or _has_custom_node(nodes)


def _has_custom_node(nodes: Iterable[onnx.NodeProto]) -> bool:
    for node in nodes:
        if node.domain == DOMAIN:
            return True
        graphs = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
        if any(_has_custom_node(graph.node) for graph in graphs):
            return True
    return False


def _with_data(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """A model and its external data in memory."""
    proto = read_proto(path)
    try:
        onnx.load_external_data_for_model(proto, os.path.dirname(os.path.abspath(path)))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"the external data of {os.fspath(path)!r} cannot be read: {error}") from error
    return proto


def _check_signature(source: onnx.ModelProto, session: InferenceSession) -> None:
    constants = {tensor.name for tensor in source.graph.initializer}
    expected = [[value.name for value in source.graph.input if value.name not in constants]]
    expected.append([value.name for value in source.graph.output])
    found = [[argument.name for argument in arguments] for arguments in (session.get_inputs(), session.get_outputs())]
    for kind, wanted, names in zip(("inputs", "outputs"), expected, found, strict=True):
        if wanted != names:
            raise ModelError(
                f"the rewritten model has the {kind} {names} and the original has {wanted}; "
                "is the one a rewrite of the other?"
            )


class _Runner:
    """The rewritten model in onnxruntime: as it is, and once more with every value as an output."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.session = InferenceSession(model, quiet_options())
        traced = onnx.ModelProto()
        traced.CopyFrom(model)
        known = {value.name for value in traced.graph.output}
        for node in traced.graph.node:
            for name in node.output:
                if name and name not in known and node.op_type != "Constant":
                    known.add(name)
                    traced.graph.output.append(onnx.ValueInfoProto(name=name))
        options = quiet_options()
        # The optimizer may replace what is compared: 1.24 and later round the bias of a Conv behind DequantizeLinear.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        register(options)
        self._traced = onnxruntime.InferenceSession(traced.SerializeToString(), options, self.session.get_providers())
        record = _record(model)
        self._ports = make_ports(self._traced.get_inputs(), record.inputs if record else {})
        self._names = [argument.name for argument in self._traced.get_outputs()]

    def run(self, feed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The outputs, and every value by name, in its carrier."""
        names = [argument.name for argument in self.session.get_outputs()]
        outputs = self.session.run(names, feed)
        carried = {
            name: to_ort_value(self._ports[name].feed(value), self._ports[name].carrier_type)
            for name, value in feed.items()
        }
        values = [to_python(value) for value in self._traced.run_with_ort_values(self._names, carried)]
        return dict(zip(names, outputs, strict=True)), dict(zip(self._names, values, strict=True))


def _record(model: onnx.ModelProto) -> RewriteRecord | None:
    return read_record({entry.key: entry.value for entry in model.metadata_props})


def _feeds(
    runner: _Runner,
    source: onnx.ModelProto,
    given: dict[str, Any],
    dims: Mapping[str, int],
    default_dim: int,
    rounds: int,
    seed: int,
) -> Iterator[tuple[str, dict[str, Any]]]:
    specs = input_specs(runner.session.get_inputs(), given, dims, default_dim, source)
    if not specs:
        yield "the given inputs" if given else "no inputs", given
        return
    for index in range(rounds):
        yield f"random inputs of seed {seed + index}", {**random_feed(specs, seed + index), **given}
    for index in range(boundary_rounds(specs)):
        yield f"boundary inputs {index}", {**boundary_feed(specs, index), **given}


class _Comparison:
    def __init__(self, source: onnx.ModelProto, rewritten: onnx.ModelProto) -> None:
        self._source = source
        record = _record(rewritten)
        rounding = record.options.get("rounding", "nearest_even") if record else "nearest_even"
        self._reference = Reference(source, rounding)
        self._constants = {tensor.name: array_of(tensor) for tensor in source.graph.initializer}
        self._inexact: set[str] = set()
        self._seen: set[str] = set()
        self._mismatches: dict[tuple[int, str], Mismatch] = {}
        self.verification = Verification(nodes=sum(node.op_type != "Constant" for node in source.graph.node))

    def walk(self, label: str, feed: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[None]:
        """Evaluate and compare one node after the other."""
        values = {**self._constants, **feed}
        for index, node in enumerate(self._source.graph.node):
            expected = self._evaluate(node, values)
            for name, value in zip([name for name in node.output if name], expected, strict=False):
                if name in given and node.op_type != "Constant":
                    self._seen.add(name)
                    pair = _where_defined(node, values, value, given[name])
                    self._compare(index, node, name, *pair, label)
                values[name] = _retyped(given[name], value) if name in given else value
            for name in node.output:
                if name in given and name not in values:
                    values[name] = given[name]
            if node.op_type != "Constant":
                yield

    def check_outputs(self, label: str, outputs: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Compare the model as the optimizer leaves it with the one that gives every value."""
        blamed = {mismatch.value for mismatch in self._mismatches.values()}
        for name, value in outputs.items():
            if name in blamed:
                continue
            difference = find_difference(values[name], value)
            if difference is not None and (name not in self._inexact or _is_garbage(values[name], value)):
                self._add(len(self._source.graph.node), Mismatch("", "", name, label, difference))

    def finished(self) -> Verification:
        """The result, in order."""
        verification = self.verification
        for node in self._source.graph.node:
            outputs = [name for name in node.output if name]
            if node.op_type == "Constant" or _described(node) in verification.unknown:
                continue
            if self._seen.issuperset(outputs):
                verification.compared += 1
            else:
                verification.gone.append(_described(node))
        verification.mismatches = [self._mismatches[key] for key in sorted(self._mismatches)]
        return verification

    def _evaluate(self, node: onnx.NodeProto, values: Mapping[str, Any]) -> list[Any]:
        names = free_names(node)
        if any(name in self._inexact for name in names) or not _is_exact(node):
            self._inexact.update(node.output)
        missing = [name for name in names if name not in values]
        if missing:
            self.verification.unknown[_described(node)] = f"the value of {missing[0]!r} is not known"
            return []
        try:
            return self._reference.run(node, values)
        except Exception as error:
            # Whatever onnx's evaluator makes of an operator that it lacks, or has a defect in.
            self.verification.unknown[_described(node)] = _first_line(error)
            return []

    def _compare(self, index: int, node: onnx.NodeProto, name: str, expected: Any, given: Any, label: str) -> None:
        if _is_exact(node):
            tolerance = None
        else:
            loose = 0.02 if (node.domain, node.op_type) == _BLOCKWISE else 0.0
            tolerance = _tolerance(expected, loose)
        difference = _type_difference(expected, given) or find_difference(expected, given, tolerance)
        if difference is not None:
            self._add(index, Mismatch(_described(node), node.op_type, name, label, difference))

    def _add(self, index: int, mismatch: Mismatch) -> None:
        self._mismatches.setdefault((index, mismatch.value), mismatch)


def _is_exact(node: onnx.NodeProto) -> bool:
    return node.domain == "" and (node.op_type in _EXACT or node.op_type == "Constant")


def _where_defined(node: onnx.NodeProto, values: Mapping[str, Any], expected: Any, given: Any) -> tuple[Any, Any]:
    """Two values with zeros where ONNX does not say what they are: a float out of the range of an integer type."""
    if node.domain or node.op_type not in ("Cast", "CastLike") or not isinstance(given, np.ndarray):
        return expected, given
    source, target = values[node.input[0]], element_of(expected)
    if not element_of(source).is_float or not target.is_integer or target.is_emulated or given.shape != source.shape:
        return expected, given
    low, high = target.integer_range
    whole = np.trunc(source.astype(np.float64))
    is_open = ~((whole >= low) & (whole < float(high + 1)))
    zero = np.zeros((), expected.dtype)
    return np.where(is_open, zero, expected), np.where(is_open, zero.astype(given.dtype), given)


def _tolerance(expected: Any, least: float) -> Tolerance | None:
    if not isinstance(expected, np.ndarray) or not element_of(expected).is_float:
        return None
    part = max(_PRECISION.get(element_of(expected).name, _LOOSE), least)
    return Tolerance(part, part * largest(expected))


def _is_garbage(expected: Any, given: Any) -> bool:
    """Whether floats behind sums are far from what they should be; of an integer, say an index, nothing is known."""
    if not isinstance(expected, np.ndarray) or not element_of(expected).is_float:
        return False
    if expected.shape != given.shape:
        return True
    a, b = expected.astype(np.float64), given.astype(np.float64)
    finite = np.isfinite(a)
    if (finite != np.isfinite(b)).any():
        return True
    return bool(np.linalg.norm((a - b)[finite]) > _GARBAGE * np.linalg.norm(a[finite]))


def _type_difference(expected: Any, given: Any) -> Difference | None:
    """A type that is neither the original's nor its carrier."""
    if not isinstance(expected, np.ndarray) or not isinstance(given, np.ndarray):
        return None
    wanted, found = element_of(expected), element_of(given)
    if found.name in (wanted.name, wanted.carrier):
        return None
    return Difference(wanted.name, found.name)


def _retyped(given: Any, expected: Any) -> Any:
    """A value of the rewritten model in the type that it has in the original."""
    if isinstance(given, list) and isinstance(expected, list) and expected:
        return [_retyped(item, expected[0]) for item in given]
    if not isinstance(given, np.ndarray) or not isinstance(expected, np.ndarray):
        return given
    with np.errstate(all="ignore"):
        return given if element_of(given) == element_of(expected) else given.astype(expected.dtype)


def _described(node: onnx.NodeProto) -> str:
    return node.name or f"the {node.op_type} that gives {node.output[0]!r}"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:160]}"
