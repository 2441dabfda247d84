"""The drop-in session: what it reports, what it takes and gives, and what it says when a feed is wrong."""

from __future__ import annotations

import _thread
import inspect
import pathlib
import re
import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import onnxruntime_extensions
import pytest
from graphs import since
from onnx import TensorProto, helper
from onnxruntime import OrtValue
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile

import ort_castlike
from ort_castlike import InferenceSession, _session
from ort_castlike._errors import FeedError, ModelError, OptionError, RegistrationError
from ort_castlike._metadata import RewriteRecord, write_record
from ort_castlike._types import CASTLIKE_TYPES, ELEMENT_TYPES, EMULATED_TYPES, ElementType

OPAQUE = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
FLOAT6 = ("FLOAT6E2M3", "FLOAT6E3M2")
INT2 = ELEMENT_TYPES["INT2"]
STRING_OF_ANY_LENGTH = np.dtypes.StringDType() if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else np.dtype(object)


def tensor(name: str, element: str, shape: Sequence[int | str] | None = ("N", 2)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[element].code, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 21,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=14 if opset > 26 else 13 if opset > 21 else 10)


def identity(element: str, shape: Sequence[int | str] | None = ("N", 2)) -> onnx.ModelProto:
    """Returns its input; the newest opset where only that knows the type."""
    opset = 28 if element in FLOAT6 else 25 if element in EMULATED_TYPES else 21
    nodes = [helper.make_node("Identity", ["x"], ["y"], name="copy")]
    return model_of(nodes, [tensor("x", element, shape)], [tensor("y", element, shape)], opset=opset)


def session_of(model: onnx.ModelProto, **kwargs: Any) -> InferenceSession:
    return InferenceSession(model.SerializeToString(), **kwargs)


def sample(element: ElementType) -> np.ndarray:
    """Some values of a type, two to a row; every value of the small ones."""
    if element.name == "STRING":
        return np.array([["a", ""], ["bé", "1.5"]], object)
    if element.name == "BOOL":
        return np.array([[True, False]])
    if element.bits <= 8:
        return np.arange(1 << element.bits, dtype=np.uint8).view(element.dtype).reshape(-1, 2)
    return np.array([[0, 1], [2, 100]]).astype(element.dtype)


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """The same type, shape and bits."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype == object:
        assert actual.tolist() == expected.tolist()
    else:
        assert actual.tobytes() == expected.tobytes()


# What every type does.


@pytest.mark.parametrize("name", [*CASTLIKE_TYPES, *since(28, *FLOAT6)])
def test_every_type_goes_in_and_comes_out(name: str) -> None:
    session = session_of(identity(name))
    array = sample(ELEMENT_TYPES[name])
    (result,) = session.run(None, {"x": array})
    same(result, array)
    same(session.run(["y"], {"x": array[:0]})[0], array[:0])


@pytest.mark.parametrize("name", [*CASTLIKE_TYPES, *since(28, *FLOAT6)])
def test_every_type_is_reported_as_it_was(name: str) -> None:
    session = session_of(identity(name))
    for arg, expected in ((session.get_inputs(), "x"), (session.get_outputs(), "y")):
        assert [(one.name, one.type.lower(), one.shape) for one in arg] == [
            (expected, f"tensor({name.lower()})", ["N", 2])
        ]


@pytest.mark.parametrize("name", [*CASTLIKE_TYPES, *since(28, *FLOAT6)])
def test_scalars_and_strided_arrays_go_in(name: str) -> None:
    array = sample(ELEMENT_TYPES[name])
    scalar = array[:1, 1:].reshape(())
    same(session_of(identity(name, ())).run(None, {"x": scalar})[0], scalar)
    session = session_of(identity(name, ("M", "N")))
    same(session.run(None, {"x": array[::-1]})[0], array[::-1].copy())
    same(session.run(None, {"x": array.T})[0], array.T.copy())


@pytest.mark.parametrize("name", [name for name in CASTLIKE_TYPES if name != "STRING"])
def test_lists_of_numbers_go_in(name: str) -> None:
    session = session_of(identity(name))
    numbers = [[1, 0], [1, 1]] if name != "FLOAT8E8M0" else [[1, 2], [0.5, 4]]
    (result,) = session.run(None, {"x": numbers})
    same(result, np.array(numbers).astype(ELEMENT_TYPES[name].dtype))


@pytest.mark.parametrize("name", CASTLIKE_TYPES)
def test_results_outlive_the_session_and_the_feed(name: str) -> None:
    array = sample(ELEMENT_TYPES[name])
    feed = array.copy()
    (result,) = session_of(identity(name)).run(None, {"x": feed})
    feed[...] = feed[::-1].copy()
    same(result, array)
    result[...] = result[0, 0]  # it can be written to


# Emulated types: what an array may hold.


@pytest.mark.parametrize("name", [*sorted(EMULATED_TYPES.keys() - set(FLOAT6)), *since(28, *FLOAT6)])
def test_an_array_of_the_carrier_goes_in(name: str) -> None:
    element = ELEMENT_TYPES[name]
    array = sample(element)
    carrier = array.astype(ELEMENT_TYPES[element.carrier].dtype)
    same(session_of(identity(name)).run(None, {"x": carrier})[0], array)
    big_endian = carrier.astype(carrier.dtype.newbyteorder(">"))
    same(session_of(identity(name)).run(None, {"x": big_endian})[0], array)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INT2", 2),
        ("INT2", -3),
        ("UINT2", 4),
        ("INT4", -9),
        ("UINT4", 16),
        ("FLOAT4E2M1", 2.5),
        ("FLOAT4E2M1", 8.0),
        pytest.param("FLOAT6E2M3", 7.75, marks=pytest.mark.opset(28)),
        pytest.param("FLOAT6E3M2", 1.125, marks=pytest.mark.opset(28)),
        ("FLOAT8E8M0", 3.0),
        ("FLOAT8E8M0", 0.0),
    ],
)
def test_a_value_of_the_carrier_that_the_type_lacks_is_refused(name: str, value: float) -> None:
    session = session_of(identity(name))
    carrier = np.ones((2, 2), ELEMENT_TYPES[ELEMENT_TYPES[name].carrier].dtype)
    carrier[1, 0] = value
    for feed in (carrier, OrtValue.ortvalue_from_numpy(carrier), carrier.tolist()):
        with pytest.raises(FeedError, match=rf"'x' is tensor\({name.lower()}\): {value} is no value"):
            session.run(None, {"x": feed})


def test_bits_of_an_int2_byte_above_the_element_are_ignored() -> None:
    dirty = np.array([[0x02, 0xFE], [0x0C, 0x83]], np.uint8).view(ml_dtypes.int2)
    (result,) = session_of(identity("INT2")).run(None, {"x": dirty})
    assert result.astype(np.int8).tolist() == [[-2, -2], [0, -1]]


def test_a_list_that_int2_cannot_hold_exactly_is_refused() -> None:
    session = session_of(identity("INT2"))
    for numbers in ([[0.5, 1]], [["a", "b"]], [[1, 2], [3]], [[1, 300]]):
        with pytest.raises(FeedError, match="'x'"):
            session.run(None, {"x": numbers})


@pytest.mark.parametrize("name", ["INT2", "FLOAT4E2M1", "BFLOAT16", "FLOAT", "INT64", "BOOL", "STRING"])
def test_a_list_whose_rows_differ_in_length_is_refused(name: str) -> None:
    with pytest.raises(FeedError, match=r"'x' takes tensor.*it was given a list; its rows differ in length"):
        session_of(identity(name)).run(None, {"x": [[1, 0], [1]]})


@pytest.mark.parametrize("name", ["INT2", "BFLOAT16", "FLOAT", "INT64"])
def test_a_list_of_words_is_refused_where_numbers_go_in(name: str) -> None:
    with pytest.raises(FeedError, match=r"'x' takes tensor.*it was given an array of <U"):
        session_of(identity(name)).run(None, {"x": [["a", "b"]]})


@pytest.mark.parametrize(
    ("name", "array", "advice"),
    [
        ("FLOAT", np.zeros((1, 2)), "array.astype(numpy.float32), which changes the values that numpy"),
        ("FLOAT", np.zeros((1, 2), np.float16), "array.astype(numpy.float32), which holds the same values"),
        ("INT64", np.zeros((1, 2), np.int32), "array.astype(numpy.int64), which holds the same values"),
        ("BFLOAT16", np.zeros((1, 2), np.float32), "array.astype(ml_dtypes.bfloat16), which changes the values"),
        ("INT2", np.zeros((1, 2), np.float32), "give ml_dtypes.int2, or int8 with no other values than it has"),
        ("FLOAT", np.array([["a", "b"]]), "give numpy.float32"),
        ("FLOAT", 1.5, "give a numpy array of numpy.float32"),
    ],
)
def test_a_feed_of_another_type_is_told_how_to_get_there(name: str, array: Any, advice: str) -> None:
    with pytest.raises(FeedError, match=rf"it was given .*{re.escape(advice)}"):
        session_of(identity(name)).run(None, {"x": array})


@pytest.mark.parametrize("name", ["INT2", "FLOAT"])
@pytest.mark.parametrize("feed", [[np.zeros((1, 2), np.float32)], np.zeros((1, 2), np.float32), None])
def test_a_feed_is_a_dict(name: str, feed: Any) -> None:
    session = session_of(identity(name))
    message = rf"a feed is a dict from the name of each input to its value, and not {type(feed).__name__}; .* 'x'$"
    for run in (
        lambda: session.run(None, feed),
        lambda: session.run_with_ort_values(None, feed),
        lambda: session.run_async(None, feed, print, None),
    ):
        with pytest.raises(FeedError, match=message):
            run()


def test_what_is_no_int2_is_to_be_clipped_first() -> None:
    with pytest.raises(FeedError, match=r"3 is no value of it; its values are -2 to 1; clip it first with array\.clip"):
        session_of(identity("INT2")).run(None, {"x": np.full((1, 2), 3, np.int8)})


def test_an_empty_list_is_an_empty_tensor() -> None:
    (result,) = session_of(identity("INT2", ("N",))).run(None, {"x": []})
    same(result, np.zeros(0, ml_dtypes.int2))


# Feeds that do not fit.

MISFITS = [
    (np.zeros((2, 2), np.float64), r"an array of float64 of shape \[2, 2\]"),
    (np.zeros((2, 2), ml_dtypes.uint2), r"an array of uint2"),
    (np.zeros((2, 2), ml_dtypes.bfloat16), r"an array of bfloat16"),
    (np.zeros(2, None), r"of shape \[2\]"),
    (np.zeros((2, 3), None), r"of shape \[2, 3\]"),
    (np.zeros((), None), r"of shape \[\]"),
    ("text", "a str"),
    (None, "None"),
    (OrtValue.ortvalue_from_numpy(np.zeros((2, 2))), r"an OrtValue of tensor\(double\)"),
]


@pytest.mark.parametrize("name", ["INT2", "FLOAT8E8M0", "FLOAT", "BFLOAT16", "FLOAT8E5M2"])
@pytest.mark.parametrize(("value", "given"), MISFITS)
def test_a_feed_that_does_not_fit_is_refused(name: str, value: Any, given: str) -> None:
    element = ELEMENT_TYPES[name]
    if isinstance(value, np.ndarray) and value.shape != (2, 2):
        value = value.astype(element.dtype)  # of the right type and the wrong shape
    if isinstance(value, np.ndarray) and value.dtype == element.dtype and value.shape == (2, 2):
        value = value.astype(np.float64)
        given = "float64"
    session = session_of(identity(name))
    with pytest.raises(FeedError, match=rf"'x' takes tensor\({name.lower()}\).*\['N', 2\].*{given}"):
        session.run(None, {"x": value})


@pytest.mark.parametrize("name", ["INT2", "FLOAT", "BFLOAT16"])
def test_a_missing_input_and_one_too_many_are_refused(name: str) -> None:
    session = session_of(identity(name))
    array = np.zeros((1, 2), ELEMENT_TYPES[name].dtype)
    with pytest.raises(FeedError, match=rf"'x' \(tensor\({name.lower()}\)\)"):
        session.run(None, {})
    with pytest.raises(FeedError, match="no input 'z'; its inputs are 'x'"):
        session.run(None, {"x": array, "z": array})


@pytest.mark.parametrize("name", ["INT2", "FLOAT"])
def test_a_feed_error_is_caught_by_clauses_written_for_onnxruntime(name: str) -> None:
    session = session_of(identity(name))
    for kind in (InvalidArgument, ValueError, ort_castlike.CastLikeError):
        with pytest.raises(kind):
            session.run(None, {"x": np.zeros((1, 2))})


# Native types: as onnxruntime does, or better.


def test_what_onnxruntime_takes_for_a_native_input_goes_in() -> None:
    model = identity("FLOAT")
    ours, stock = session_of(model), onnxruntime.InferenceSession(model.SerializeToString())
    array = np.array([[0, 1], [2, 3]], np.float32)
    read_only = array.copy()
    read_only.setflags(write=False)
    values = [
        array,
        array.tolist(),
        array.T,
        array[::-1],
        read_only,
        np.ma.masked_array(array),
        OrtValue.ortvalue_from_numpy(array),
    ]
    for value in values:
        same(ours.run(None, {"x": value})[0], stock.run(None, {"x": value})[0])


def test_arrays_of_the_other_byte_order_and_numpy_scalars_are_understood() -> None:
    array = np.array([[0, 1], [2, 3]], np.float32)
    same(session_of(identity("FLOAT")).run(None, {"x": array.astype(">f4")})[0], array)
    same(session_of(identity("FLOAT", ())).run(None, {"x": np.float32(3)})[0], np.array(3, np.float32))


@pytest.mark.parametrize(
    "array",
    [np.array([["a", "bc"]]), np.array([[b"a", b"bc"]]), np.array([["a", "bc"]], STRING_OF_ANY_LENGTH)],
    ids=["unicode", "bytes", "variable"],
)
def test_strings_of_any_dtype_go_in(array: np.ndarray) -> None:
    (result,) = session_of(identity("STRING")).run(None, {"x": array})
    assert result.tolist() == [["a", "bc"]]


@pytest.mark.parametrize("names", [["z"], ["y", "z"]])
@pytest.mark.parametrize("element", ["INT2", "FLOAT", "BFLOAT16"])
def test_a_name_that_no_output_has_is_refused(element: str, names: list[str]) -> None:
    session = session_of(identity(element))
    feeds = {"x": np.zeros((1, 2), ELEMENT_TYPES[element].dtype)}
    values = {"x": OrtValue.ortvalue_from_numpy(np.zeros((1, 2), np.int8))}
    for call in (
        lambda: session.run(names, feeds),
        lambda: session.run_async(names, feeds, print, None),
        lambda: session.run_with_ort_values(names, values),
    ):
        with pytest.raises(FeedError, match=r"the model has no output 'z'; its outputs are 'y'") as caught:
            call()
        assert isinstance(caught.value, InvalidArgument)


def test_an_optimizer_error_is_not_blamed_on_the_feed() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = [tensor("x", "FLOAT", ("N",)), tensor("shape", "INT64", ("M",))]
    session = session_of(model_of(nodes, inputs, [tensor("y", "FLOAT", ("K",))]))
    feeds = {"x": np.zeros(4, np.float32), "shape": np.array([3], np.int64)}
    with pytest.raises(Exception, match="Reshape") as caught:
        session.run(None, feeds)
    assert not isinstance(caught.value, FeedError)


# Sequences, optionals, and types together.


def sequence_model(element: str) -> onnx.ModelProto:
    tensor_type = helper.make_tensor_type_proto(ELEMENT_TYPES[element].code, ["N"])
    info = helper.make_sequence_type_proto(tensor_type)
    names = [("x", "y"), ("b", "c")]
    return model_of(
        [helper.make_node("Identity", [source], [target]) for source, target in names],
        [helper.make_value_info("x", info), tensor("b", "BFLOAT16", ("N",))],
        [helper.make_value_info("y", info), tensor("c", "BFLOAT16", ("N",))],
        opset=25 if element in EMULATED_TYPES else 21,
    )


@pytest.mark.parametrize("element", ["INT8", "INT2", "FLOAT4E2M1"])
@pytest.mark.parametrize("wanted", [["y"], ["c", "y"]])
def test_sequences_go_in_and_come_out(element: str, wanted: list[str]) -> None:
    session = session_of(sequence_model(element))
    assert session.get_inputs()[0].type == f"seq(tensor({element.lower()}))"
    bfloats = np.array([1.5], ml_dtypes.bfloat16)
    arrays = [np.array([1, 0], ELEMENT_TYPES[element].dtype), np.array([1], ELEMENT_TYPES[element].dtype)]
    for items in (arrays, [], arrays[:1]):
        results = dict(zip(wanted, session.run(wanted, {"x": items, "b": bfloats}), strict=True))
        assert isinstance(results["y"], list)
        assert len(results["y"]) == len(items)
        for result, item in zip(results["y"], items, strict=True):
            same(result, item)
        if "c" in results:
            same(results["c"], bfloats)


def test_a_sequence_with_a_wrong_element_is_refused() -> None:
    session = session_of(sequence_model("INT2"))
    bfloats = np.zeros(1, ml_dtypes.bfloat16)
    with pytest.raises(FeedError, match=r"'x'.*list of tensors"):
        session.run(["y"], {"x": np.zeros(2, ml_dtypes.int2), "b": bfloats})
    with pytest.raises(FeedError, match=r"'x'.*3 is no value"):
        session.run(["y"], {"x": [np.array([3], np.int8)], "b": bfloats})


def optional_model(element: str) -> onnx.ModelProto:
    info = helper.make_optional_type_proto(helper.make_tensor_type_proto(ELEMENT_TYPES[element].code, ["N"]))
    nodes = [
        helper.make_node("OptionalHasElement", ["x"], ["has"]),
        helper.make_node("Identity", ["x"], ["y"]),
    ]
    outputs = [tensor("has", "BOOL", ()), helper.make_value_info("y", info)]
    return model_of(nodes, [helper.make_value_info("x", info)], outputs, opset=21)


@pytest.mark.parametrize("element", ["INT8", "FLOAT"])
def test_optionals_may_be_left_out(element: str) -> None:
    session = session_of(optional_model(element))
    array = np.array([1, 2], ELEMENT_TYPES[element].dtype)
    has, result = session.run(None, {"x": array})
    assert has
    same(result, array)
    for feeds in ({}, {"x": None}):
        has, result = session.run(None, feeds)
        assert not has
        assert result is None


def test_strings_go_in_where_a_bfloat16_comes_out() -> None:
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ("s", "b", "i")]
    infos = [("s", "STRING"), ("b", "BFLOAT16"), ("i", "INT2")]
    model = model_of(
        nodes,
        [tensor(name, element) for name, element in infos],
        [tensor(f"{name}_out", element) for name, element in infos],
        opset=25,
    )
    feeds = {name: sample(ELEMENT_TYPES[element]) for name, element in infos}
    for name, result in zip(feeds, session_of(model).run(None, feeds), strict=True):
        same(result, feeds[name])


# Other ways to run.


def test_ort_values_hold_the_carrier() -> None:
    session = session_of(identity("INT2"))
    carrier = np.array([[1, -2]], np.int8)
    (result,) = session.run_with_ort_values(None, {"x": OrtValue.ortvalue_from_numpy(carrier)})
    assert result.data_type() == "tensor(int8)"
    same(result.numpy(), carrier)
    with pytest.raises(FeedError, match="3 is no value"):
        session.run_with_ort_values(None, {"x": OrtValue.ortvalue_from_numpy(carrier + np.int8(2))})
    with pytest.raises(FeedError, match=r"an OrtValue carries it as tensor\(int8\)"):
        session.run_with_ort_values(None, {"x": OrtValue.ortvalue_from_numpy(carrier.astype(np.int32))})


@pytest.mark.parametrize("name", ["FLOAT", "INT2", "BFLOAT16", "STRING"])
def test_run_async_gives_converted_results(name: str) -> None:
    session = session_of(identity(name))
    array = sample(ELEMENT_TYPES[name])
    done = threading.Event()
    calls: list[tuple[Any, ...]] = []

    def callback(*args: Any) -> None:
        calls.append(args)
        done.set()

    session.run_async(None, {"x": array.copy()}, callback, "mine")
    assert done.wait(20)
    ((results, user_data, error),) = calls
    assert (user_data, error) == ("mine", "")
    same(results[0], array)
    with pytest.raises(FeedError, match="'x'"):
        session.run_async(None, {"x": np.zeros((2, 2), np.int64)}, callback, "mine")


@pytest.mark.parametrize("name", ["FLOAT", "INT2", "FLOAT4E2M1", "BFLOAT16", "FLOAT8E4M3FN"])
def test_an_io_binding_takes_and_gives_arrays(name: str) -> None:
    session = session_of(identity(name))
    array = sample(ELEMENT_TYPES[name])
    binding = session.io_binding()
    binding.bind_cpu_input("x", array)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    (result,) = binding.copy_outputs_to_cpu()
    same(result, array)
    binding.clear_binding_outputs()
    assert binding.copy_outputs_to_cpu() == []


def test_an_io_binding_takes_ort_values_and_pointers_to_carriers() -> None:
    session = session_of(identity("INT2"))
    carrier = np.array([[1, -2]], np.int8)
    target = OrtValue.ortvalue_from_shape_and_type([1, 2], np.int8)
    binding = session.io_binding()
    with pytest.raises(FeedError, match=r"'x' is tensor\(int2\) and its memory holds tensor\(int8\)"):
        binding.bind_input("x", "cpu", 0, INT2.code, (1, 2), carrier.ctypes.data)
    with pytest.raises(FeedError, match="output 'y'"):
        binding.bind_output("y", "cpu", 0, ml_dtypes.int2, (1, 2), target.data_ptr())
    binding.bind_input("x", "cpu", 0, np.int8, (1, 2), carrier.ctypes.data)
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    same(target.numpy(), carrier)
    same(binding.copy_outputs_to_cpu()[0], carrier.astype(ml_dtypes.int2))


def test_set_providers_keeps_the_session_as_it_was() -> None:
    session = session_of(identity("INT2"))
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_inputs()[0].type == "tensor(int2)"
    array = sample(INT2)
    same(session.run(None, {"x": array})[0], array)


def test_one_session_serves_many_threads() -> None:
    session = session_of(identity("INT2"))
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for size in range(1, 60):
                array = ((np.arange(2 * size) + seed) % 4 - 2).astype(ml_dtypes.int2).reshape(size, 2)
                same(session.run(None, {"x": array})[0], array)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# The custom operators.


def cast_model(source: str, target: str) -> onnx.ModelProto:
    """y = x as the target type."""
    nodes = [helper.make_node("CastLike", ["x", "like"], ["y"], name="cast")]
    inputs = [tensor("x", source, ("N",)), tensor("like", target, (1,))]
    return model_of(nodes, inputs, [tensor("y", target, ("N",))], opset=25)


def failing_model() -> onnx.ModelProto:
    """A rewritten model whose two casts fail when they run: there is no rounding named "sideways"."""
    attributes = {
        "from_type": "FLOAT",
        "to_type": "INT2",
        "rounding": "sideways",
        "saturate": 1,
        "round_mode": "up",
    }
    nodes = [helper.make_node("CastLike", ["x", "like"], [name], domain="ort_castlike", **attributes) for name in "yz"]
    like = helper.make_tensor("like", TensorProto.INT8, [0], [])
    outputs = [tensor(name, "INT8", ("N",)) for name in "yz"]
    model = model_of(nodes, [tensor("x", "FLOAT", ("N",))], outputs, [like])
    model.opset_import.add(domain="ort_castlike", version=1)
    metadata: dict[str, str] = {}
    types = dict.fromkeys("yz", "tensor(int2)")
    options = {"target": "1.20", "lowering": "custom", "rounding": "nearest_even"}
    write_record(RewriteRecord(options, {}, types), metadata)
    helper.set_model_props(model, metadata)
    return model


FLOATS = np.array([0.5, 1.5, -0.5, 2.5, -1.5], np.float32)
LIKE = np.zeros(1, ml_dtypes.int2)


@pytest.mark.parametrize("lowering", ["custom", "standard"])
@pytest.mark.parametrize(
    ("rounding", "integers"),
    [
        ("nearest_even", [0, -2, 0, -2, -2]),
        ("toward_zero", [0, 1, 0, -2, -1]),
        ("half_away", [1, -2, -1, -1, -2]),
    ],
)
def test_a_cast_runs_with_the_options_of_the_session(lowering: str, rounding: str, integers: list[int]) -> None:
    session = session_of(cast_model("FLOAT", "INT2"), lowering=lowering, rounding=rounding)
    (result,) = session.run(None, {"x": FLOATS, "like": LIKE})
    same(result, np.array(integers, np.int8).astype(ml_dtypes.int2))


def test_a_rewritten_model_keeps_the_options_that_it_was_rewritten_with() -> None:
    model = ort_castlike.rewrite(cast_model("FLOAT", "INT2"), rounding="half_away")
    (result,) = session_of(model).run(None, {"x": FLOATS, "like": LIKE})
    assert result.astype(np.int8).tolist() == [1, -2, -1, -1, -2]


def test_a_session_can_be_made_again_with_its_operators() -> None:
    session = session_of(cast_model("FLOAT", "INT2"), sess_options=onnxruntime.SessionOptions())
    session.set_providers(["CPUExecutionProvider"])
    (result,) = session.run(None, {"x": FLOATS, "like": LIKE})
    assert result.astype(np.int8).tolist() == [0, -2, 0, -2, -2]


@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_a_string_that_is_no_number_is_a_clear_error(lowering: str) -> None:
    session = session_of(cast_model("STRING", "INT2"), lowering=lowering)
    feeds = {"x": np.array(["1", "-2.5", "1e0"], object), "like": LIKE}
    assert session.run(None, feeds)[0].astype(np.int8).tolist() == [1, -2, 1]
    feeds["x"][1] = "two"
    with pytest.raises(ort_castlike.CastLikeError, match="a string that is no number"):
        session.run(None, feeds)


@pytest.mark.parametrize("name", ["", "narrow"])
def test_a_stock_cast_of_a_string_that_is_no_number_is_called_by_a_name(name: str) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["y"], name, to=TensorProto.FLOAT),
        helper.make_node("Identity", ["q"], ["p"]),
    ]
    inputs = [tensor("x", "STRING", ["N"]), tensor("q", "INT2", ["N"])]
    session = session_of(model_of(nodes, inputs, [tensor("y", "FLOAT", ["N"]), tensor("p", "INT2", ["N"])], opset=25))
    with pytest.raises(ort_castlike.CastLikeError, match=f"node '{name or 'y_Cast'}' casts a string that is no number"):
        session.run(["y"], {"x": np.array(["two"], object), "q": np.zeros(1, ml_dtypes.int2)})


@pytest.mark.parametrize("parallel", [False, True])
def test_what_a_custom_operator_meets_is_raised_once(parallel: bool) -> None:
    options = onnxruntime.SessionOptions()
    if parallel:
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = 2
    broken = session_of(failing_model(), sess_options=options)
    sound = session_of(cast_model("FLOAT", "INT2"), sess_options=options)
    for _ in range(3):
        with pytest.raises(OptionError, match="sideways"):
            broken.run(None, {"x": FLOATS})
        assert sound.run(None, {"x": FLOATS, "like": LIKE})[0].astype(np.int8).tolist() == [0, -2, 0, -2, -2]
    with pytest.raises(OptionError, match="sideways"):
        broken.run_with_ort_values(None, {"x": OrtValue.ortvalue_from_numpy(FLOATS)})
    binding = broken.io_binding()
    binding.bind_cpu_input("x", FLOATS)
    binding.bind_output("y")
    with pytest.raises(OptionError, match="sideways"):
        broken.run_with_iobinding(binding)


def test_what_a_custom_operator_meets_reaches_the_callback_of_run_async() -> None:
    calls: list[tuple[Any, ...]] = []
    done = threading.Event()

    def callback(*args: Any) -> None:
        calls.append(args)
        done.set()

    session_of(failing_model()).run_async(None, {"x": FLOATS}, callback, None)
    assert done.wait(20)
    ((results, _, error),) = calls
    assert len(results) == 0
    assert "sideways" in error


@pytest.mark.usefixtures("default_handler")
def test_an_interrupt_ends_a_run_with_custom_operators() -> None:
    attributes = {
        "from_type": "FLOAT",
        "to_type": "INT2",
        "rounding": "nearest_even",
        "saturate": 1,
        "round_mode": "up",
    }
    body = helper.make_graph(
        [
            helper.make_node("CastLike", ["outer", "like"], ["cast"], domain="ort_castlike", **attributes),
            helper.make_node("Identity", ["condition_in"], ["condition_out"]),
        ],
        "body",
        [tensor("iteration", "INT64", ()), tensor("condition_in", "BOOL", ())],
        [tensor("condition_out", "BOOL", ()), tensor("cast", "INT8", ("N",))],
    )
    nodes = [helper.make_node("Loop", ["count", ""], ["y"], body=body), helper.make_node("Identity", ["x"], ["outer"])]
    like = helper.make_tensor("like", TensorProto.INT8, [0], [])
    inputs = [tensor("count", "INT64", ()), tensor("x", "FLOAT", ("N",))]
    model = model_of(nodes[::-1], inputs, [tensor("y", "INT8", None)], [like])
    model.opset_import.add(domain="ort_castlike", version=1)
    session = session_of(model)
    feeds = {"count": np.array(3, np.int64), "x": FLOATS}
    assert session.run(None, feeds)[0].tolist() == [[0, -2, 0, -2, -2]] * 3
    endless = {"count": np.array(1 << 40, np.int64), "x": FLOATS}
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(None, endless)
    timer.join()
    assert session.run(None, feeds)[0].tolist() == [[0, -2, 0, -2, -2]] * 3


def test_a_wrong_feed_is_refused_where_custom_operators_are() -> None:
    session = session_of(cast_model("FLOAT", "INT2"))
    with pytest.raises(FeedError, match="'x'"):
        session.run(None, {"x": FLOATS.reshape(1, -1), "like": LIKE})
    with pytest.raises(FeedError, match="'like'"):
        session.run(None, {"x": FLOATS, "like": FLOATS[:1]})


def test_the_operators_registered_twice_are_an_error_that_says_so() -> None:
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    with pytest.raises(RegistrationError, match="registered twice"):
        session_of(cast_model("FLOAT", "INT2"), sess_options=options)


def test_options_that_hold_the_operators_already_are_as_good() -> None:
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    for _ in range(2):
        session = session_of(cast_model("FLOAT", "INT2"), sess_options=options)
        assert session.run(None, {"x": FLOATS, "like": LIKE})[0].astype(np.int8).tolist() == [0, -2, 0, -2, -2]


# What a session is made from.


@pytest.mark.parametrize("name", ["INT2", "FLOAT"])
def test_every_kind_of_model_makes_a_session(name: str, tmp_path: pathlib.Path) -> None:
    proto = identity(name)
    path = tmp_path / "model.onnx"
    onnx.save_model(proto, path)
    sources = [path, str(path), proto.SerializeToString(), proto, ir.from_proto(proto), ort_castlike.rewrite(proto)]
    array = sample(ELEMENT_TYPES[name])[:2]
    for source in sources:
        same(InferenceSession(source).run(None, {"x": array})[0], array)
    same(InferenceSession(path_or_bytes=path).run(None, {"x": array})[0], array)


def test_a_path_that_needs_no_rewrite_stays_a_path(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(identity("FLOAT"), path)
    session = InferenceSession(path)
    assert session._model_path == str(path)
    assert session.get_modelmeta().custom_metadata_map == {}


def test_a_model_in_onnxruntimes_own_format_makes_a_session(tmp_path: pathlib.Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(ort_castlike.rewrite(identity("INT2")).SerializeToString(), options)
    array = sample(INT2)
    explicit = onnxruntime.SessionOptions()
    explicit.add_session_config_entry("session.load_model_format", "ORT")
    content = (tmp_path / "model.ort").read_bytes()
    for session in (
        InferenceSession(tmp_path / "model.ort", onnxruntime.SessionOptions()),
        InferenceSession(content, onnxruntime.SessionOptions()),
        InferenceSession(content, explicit),
    ):
        assert session.get_inputs()[0].type == "tensor(int2)"
        same(session.run(None, {"x": array})[0], array)


def test_a_folder_is_no_model(tmp_path: pathlib.Path) -> None:
    for load in (InferenceSession, ort_castlike.rewrite):
        with pytest.raises(ModelError, match="is no file"):
            load(tmp_path)


def test_a_file_that_is_missing_is_onnxruntimes_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NoSuchFile):
        InferenceSession(tmp_path / "none.onnx")


@pytest.mark.parametrize("source", [None, 3, ["model.onnx"]])
def test_what_is_no_model_is_a_type_error(source: Any) -> None:
    with pytest.raises(TypeError):
        InferenceSession(source)


def test_bytes_that_are_no_model_are_a_model_error() -> None:
    with pytest.raises(ModelError):
        InferenceSession(b"\x08\x0anonsense")


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="rounding='up'"):
        session_of(identity("INT2"), rounding="up")
    with pytest.raises(OptionError, match="lowering='fast'"):
        session_of(identity("FLOAT"), lowering="fast")


def test_the_constructor_takes_onnxruntimes_arguments() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    provider = "CPUExecutionProvider"
    data = identity("INT2").SerializeToString()
    for session in (
        InferenceSession(data, options, [provider], [{}]),
        InferenceSession(data, sess_options=options, providers=[(provider, {})]),
        InferenceSession(data, providers=[provider], provider_options=[{}], disabled_optimizers=["ConstantFolding"]),
    ):
        assert isinstance(session, onnxruntime.InferenceSession)
        assert session.get_providers() == [provider]
        assert provider in session.get_provider_options()


def test_the_rest_of_the_interface_is_onnxruntimes(tmp_path: pathlib.Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = InferenceSession(identity("INT2"), options)
    session.run(None, {"x": sample(INT2)})
    assert pathlib.Path(session.end_profiling()).is_file()
    assert session.get_profiling_start_time_ns() > 0
    assert session.get_modelmeta().graph_name == "g"
    session.disable_fallback()
    session.enable_fallback()
    assert session.get_session_options().enable_profiling
    assert session.get_overridable_initializers() == []


def test_an_initializer_that_a_feed_may_replace_keeps_its_type() -> None:
    default = TensorProto(name="w", data_type=TensorProto.INT2, dims=[1, 2], raw_data=b"\x0d")  # 1, -1
    nodes = [
        helper.make_node("Identity", ["w"], ["y"]),
        helper.make_node("Identity", ["x"], ["z"]),
    ]
    inputs = [tensor("x", "FLOAT"), tensor("w", "INT2", (1, 2))]
    outputs = [tensor("y", "INT2", (1, 2)), tensor("z", "FLOAT")]
    session = session_of(model_of(nodes, inputs, outputs, [default], opset=25))
    assert [arg.name for arg in session.get_inputs()] == ["x"]
    (arg,) = session.get_overridable_initializers()
    assert (arg.name, arg.type, arg.shape) == ("w", "tensor(int2)", [1, 2])
    x = np.zeros((1, 2), np.float32)
    same(session.run(["y"], {"x": x})[0], np.array([[1, -1]], ml_dtypes.int2))
    given = np.array([[-2, 0]], ml_dtypes.int2)
    same(session.run(["y"], {"x": x, "w": given})[0], given)
    with pytest.raises(FeedError, match="'w'"):
        session.run(["y"], {"x": x, "w": np.zeros((1, 2), np.float32)})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("roundng", r"did you mean rounding=\?"),
        ("provders", r"did you mean providers=\?"),
        ("session_options", r"did you mean sess_options=\?"),
        ("enable_falback", r"did you mean enable_fallback=\?"),
        ("quiet", r"there is no option quiet=; a session takes sess_options, .*read_config_from_model$"),
        ("target", "the installed onnxruntime"),
    ],
)
def test_a_misspelt_option_is_refused(wrong, said):
    with pytest.raises(ort_castlike.CastLikeError, match=said):
        ort_castlike.InferenceSession(b"", **{wrong: "1.20"})


def test_every_argument_that_onnxruntime_reads_is_passed_on() -> None:
    source = inspect.getsource(onnxruntime.InferenceSession.__init__)
    read = set(re.findall(r'"(\w+)" in kwargs|kwargs\.get\("(\w+)"|kwargs\["(\w+)"\]', source))
    assert {name for names in read for name in names if name} <= set(_session._PASSED_ON)
    session = InferenceSession(
        path_or_bytes=identity("INT2").SerializeToString(),
        enable_fallback=0,
        read_config_from_model=0,
        disabled_optimizers=["ConstantFolding"],
    )
    assert [port.name for port in session.get_inputs()] == ["x"]
