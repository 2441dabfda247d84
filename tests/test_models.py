"""The example models in models/: reproducible, valid, and run to the bit by every way into the package."""

from __future__ import annotations

from pathlib import Path

import example_files
import make_castlike_examples
import make_control_flow
import make_digits
import make_mixed_int2
import make_nvfp4
import make_qdq_conv
import make_transformer_block
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import ort_castlike

MODELS = Path(__file__).parent.parent / "models"
CASTLIKE = tuple(
    MODELS / "castlike" / f"test_cc_castlike_{pair}"
    for pair in (
        "FLOAT16_to_INT2",
        "FLOAT16_to_UINT2",
        "FLOAT_to_INT2",
        "FLOAT_to_UINT2",
        "INT2_to_FLOAT",
        "INT2_to_FLOAT16",
        "INT2_to_INT8",
        "UINT2_to_FLOAT",
        "UINT2_to_FLOAT16",
        "UINT2_to_UINT8",
    )
)
# How far an output may be from the expected one, as a share of the largest expected number; all others are exact.
TOLERANCES = {
    ("digits", "logits"): 1e-6,  # float32 sums
    ("nvfp4", "y"): 2e-3,  # float16 sums
    ("transformer_block", "y"): 1e-6,  # float32 sums, a softmax
}
NETWORKS = tuple(MODELS / name for name in ("control_flow", "digits", "nvfp4", "qdq_conv", "transformer_block"))
EXAMPLES = (*CASTLIKE, MODELS / "mixed_int2", *NETWORKS)
CARRIERS = {
    np.dtype(ml_dtypes.int2): np.int8,
    np.dtype(ml_dtypes.uint2): np.uint8,
    np.dtype(ml_dtypes.int4): np.int8,
}

each_example = pytest.mark.parametrize("folder", EXAMPLES, ids=lambda folder: folder.name)
each_network = pytest.mark.parametrize("folder", NETWORKS, ids=lambda folder: folder.name)


@pytest.fixture(params=[None, (1,), (0,)], ids=["target as input", "target (1,)", "target (0,)"])
def target_shape(request: pytest.FixtureRequest) -> tuple[int, ...] | None:
    """How a CastLike example gives its target: as the graph input it has, or as an initializer of a shape."""
    return request.param


def with_constant_target(model: onnx.ModelProto, shape: tuple[int, ...]) -> onnx.ModelProto:
    """A copy in which the graph input ``target_type`` is an initializer of ``shape``."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    [target] = [value for value in copy.graph.input if value.name == "target_type"]
    copy.graph.input.remove(target)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(target.type.tensor_type.elem_type)
    copy.graph.initializer.append(numpy_helper.from_array(np.zeros(shape, dtype), "target_type"))
    return copy


def variant(folder: Path, target_shape: tuple[int, ...] | None):
    """An example's model, inputs and expected outputs, its target given as ``target_shape`` says."""
    model, inputs, outputs = example_files.read_example(folder)
    if target_shape is not None:
        model = with_constant_target(model, target_shape)
        del inputs["target_type"]
    return model, inputs, outputs


def on_carriers(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays as a plain session takes and gives them: INT2 as int8, UINT2 as uint8."""
    return {name: array.astype(CARRIERS.get(array.dtype, array.dtype)) for name, array in arrays.items()}


def assert_same_bits(got: list[np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert len(got) == len(expected)
    for array, (name, wanted) in zip(got, expected.items(), strict=True):
        assert (name, array.dtype, array.shape) == (name, wanted.dtype, wanted.shape)
        assert array.tobytes() == wanted.tobytes(), name


def assert_right(folder: Path, got: list[np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """As :func:`assert_same_bits`, save for what ``TOLERANCES`` lets be."""
    assert len(got) == len(expected)
    for array, (name, wanted) in zip(got, expected.items(), strict=True):
        tolerance = TOLERANCES.get((folder.name, name))
        if tolerance is None:
            assert_same_bits([array], {name: wanted})
        else:
            assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
            np.testing.assert_allclose(array, wanted, rtol=0, atol=tolerance * np.abs(wanted).max(), err_msg=name)


def exact_options() -> onnxruntime.SessionOptions:
    """Options under which the runtime leaves activations in float where it fuses them with 4-bit weights."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    return options


def run_plain(model: onnx.ModelProto, inputs: dict[str, np.ndarray], *, registered: bool) -> list[np.ndarray]:
    options = exact_options()
    if registered:
        ort_castlike.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, on_carriers(inputs))


def domains(model: onnx.ModelProto) -> set[str]:
    return {node.domain for node in model.graph.node}


@pytest.mark.parametrize(
    ("make", "folder"),
    [
        (make_castlike_examples.make, MODELS / "castlike"),
        (make_control_flow.make, MODELS / "control_flow"),
        (make_digits.make, MODELS / "digits"),
        (make_mixed_int2.make, MODELS / "mixed_int2"),
        (make_nvfp4.make, MODELS / "nvfp4"),
        (make_qdq_conv.make, MODELS / "qdq_conv"),
        (make_transformer_block.make, MODELS / "transformer_block"),
    ],
    ids=["castlike", "control_flow", "digits", "mixed_int2", "nvfp4", "qdq_conv", "transformer_block"],
)
def test_script_reproduces_the_files_byte_for_byte(make, folder, tmp_path):
    make(tmp_path)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.suffix in {".onnx", ".pb"}
    }
    assert made == kept


@each_example
def test_model_is_valid(folder):
    onnx.checker.check_model(folder / "model.onnx", full_check=True)


def test_two_bit_data_is_packed_four_per_byte_from_the_lowest_bits():
    # 1, -2, -1, 0 are 01, 10, 11, 00; the last byte holds three elements and two bits of zero.
    tensor = onnx.load_tensor(CASTLIKE[0] / "test_data_set_0" / "output_0.pb")
    assert tensor.raw_data == bytes([0b00_11_10_01, 0b00_11_10_01])


@pytest.mark.parametrize("folder", CASTLIKE, ids=lambda folder: folder.name)
def test_castlike_example_runs_in_a_session(folder, target_shape, tmp_path):
    model, inputs, expected = variant(folder, target_shape)
    onnx.save(model, tmp_path / "model.onnx")
    session = ort_castlike.InferenceSession(str(tmp_path / "model.onnx"))
    assert_same_bits(session.run(None, inputs), expected)


@pytest.mark.parametrize("folder", CASTLIKE, ids=lambda folder: folder.name)
def test_castlike_example_runs_rewritten_in_a_plain_session(folder, target_shape):
    model, inputs, expected = variant(folder, target_shape)
    rewritten = ort_castlike.rewrite(model)
    assert "ort_castlike" in domains(rewritten)
    assert_same_bits(run_plain(rewritten, inputs, registered=True), on_carriers(expected))


@pytest.mark.parametrize("folder", CASTLIKE, ids=lambda folder: folder.name)
def test_castlike_example_runs_with_standard_operators_alone(folder, target_shape):
    model, inputs, expected = variant(folder, target_shape)
    rewritten = ort_castlike.rewrite(model, lowering="standard")
    assert domains(rewritten) == {""}
    assert_same_bits(run_plain(rewritten, inputs, registered=False), on_carriers(expected))


@each_example
def test_checked_in_file_runs_in_a_session(folder):
    _, inputs, expected = example_files.read_example(folder)
    session = ort_castlike.InferenceSession(str(folder / "model.onnx"), exact_options())
    assert_right(folder, session.run(None, inputs), expected)


@each_network
@pytest.mark.parametrize("lowering", ["custom", "standard"])
def test_network_runs_rewritten_in_a_plain_session(folder, lowering):
    model, inputs, expected = example_files.read_example(folder)
    rewritten = ort_castlike.rewrite(model, lowering=lowering)
    got = run_plain(rewritten, inputs, registered=lowering == "custom")
    assert_right(folder, got, on_carriers(expected))
    if lowering == "standard":
        assert "ort_castlike" not in domains(rewritten)


@each_network
def test_network_runs_with_standard_operators_in_a_session(folder):
    _, inputs, expected = example_files.read_example(folder)
    session = ort_castlike.InferenceSession(str(folder / "model.onnx"), exact_options(), lowering="standard")
    assert_right(folder, session.run(None, inputs), expected)


def test_mixed_example_runs_rewritten_in_a_plain_session():
    model, inputs, expected = example_files.read_example(MODELS / "mixed_int2")
    rewritten = ort_castlike.rewrite(model)
    assert "ort_castlike" in domains(rewritten)
    assert_same_bits(run_plain(rewritten, inputs, registered=True), on_carriers(expected))


def test_mixed_example_runs_with_standard_operators_alone():
    model, inputs, expected = example_files.read_example(MODELS / "mixed_int2")
    rewritten = ort_castlike.rewrite(model, lowering="standard")
    assert domains(rewritten) == {""}
    assert_same_bits(run_plain(rewritten, inputs, registered=False), on_carriers(expected))


def test_mixed_example_shows_its_int2_output_as_int2():
    session = ort_castlike.InferenceSession(str(MODELS / "mixed_int2" / "model.onnx"))
    types = {output.name: (output.type, output.shape) for output in session.get_outputs()}
    assert types == {
        "as_float": ("tensor(float)", [5, 7]),
        "as_float16": ("tensor(float16)", [5, 7]),
        "codes": ("tensor(int2)", [5, 7]),
    }


def test_digits_are_read_as_well_with_2_bits_as_with_32():
    arrays = make_digits.trained()
    _, inputs, expected = example_files.read_example(MODELS / "digits")
    labels = arrays["labels"]
    assert labels.shape == (360,)
    path = str(MODELS / "digits" / "model.onnx")
    logits, digit = ort_castlike.InferenceSession(path, exact_options()).run(None, inputs)
    in_32_bits = make_digits.accuracy(make_digits.float_logits(arrays, arrays["images"]), labels)
    in_2_bits = make_digits.accuracy(logits, labels)
    np.testing.assert_array_equal(digit, expected["digit"])
    assert in_2_bits >= in_32_bits - 0.02
    # What the page of the example says.
    assert f"{in_32_bits:.1%}, {in_2_bits:.1%}" == "92.5%, 93.1%"
    # By default the runtime rounds activations to 8 bits, which is seen in a digit or two.
    _, by_default = ort_castlike.InferenceSession(path).run(None, inputs)
    assert (by_default != digit).sum() <= 2


def test_stock_onnxruntime_reads_the_digits_as_the_page_says():
    path = MODELS / "digits" / "model.onnx"
    _, inputs, _ = example_files.read_example(path.parent)
    release = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    if release < (1, 24):
        with pytest.raises(Exception, match="Unsupported model IR version: 13"):
            onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return
    _, digit = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
    share = (digit == make_digits.trained()["labels"]).mean()
    assert share < 0.5 if release >= (1, 27) else share > 0.9


def test_digits_are_read_as_well_with_2_bit_activations():
    arrays = make_qdq_conv.trained()
    _, inputs, _ = example_files.read_example(MODELS / "qdq_conv")
    _, _, digit = ort_castlike.InferenceSession(str(MODELS / "qdq_conv" / "model.onnx")).run(None, inputs)
    in_32_bits, in_2_bits = arrays["accuracies"]
    assert in_2_bits == (digit == arrays["labels"]).mean() >= in_32_bits - 0.02
    assert f"{in_32_bits:.1%}, {in_2_bits:.1%}" == "95.6%, 96.1%"


@pytest.mark.parametrize("shape", [(1, 1), (3, 20)])
def test_transformer_block_takes_any_batch_and_sequence(shape):
    session = ort_castlike.InferenceSession(str(MODELS / "transformer_block" / "model.onnx"))
    y, codes = session.run(None, {"x": np.ones((*shape, 64), np.float32)})
    assert (y.shape, codes.shape, codes.dtype) == ((*shape, 64), (*shape, 64), ml_dtypes.int4)


def test_an_odd_number_of_pascals_triangle_is_what_lucas_says():
    # In the first 32 rows 3**5 numbers are odd; the model keeps all rows but the first, which is 1.
    _, inputs, _ = example_files.read_example(MODELS / "control_flow")
    *_, odd = ort_castlike.InferenceSession(str(MODELS / "control_flow" / "model.onnx")).run(None, inputs)
    assert odd == 3**5 - 1


def test_control_flow_example_runs_for_other_steps_and_both_branches():
    session = ort_castlike.InferenceSession(str(MODELS / "control_flow" / "model.onnx"))
    first = np.eye(1, 32, dtype=np.int8)[0].astype(ml_dtypes.int2)
    feeds = {"first": first, "steps": np.array(4, np.int64), "mirror": np.array(False)}
    last, picture, _, _ = session.run(None, feeds)
    # 1 4 6 4 1, modulo 4, from -2 to 1.
    assert last.astype(int)[:6].tolist() == [1, 0, -2, 0, 1, 0]
    np.testing.assert_array_equal(picture[-1].astype(int), last.astype(int))
