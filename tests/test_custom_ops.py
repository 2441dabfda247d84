"""The custom-op domain in sessions of the installed onnxruntime, and what must never abort a process."""

from __future__ import annotations

import functools
import importlib
import itertools
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnxruntime
import processes
import pytest
from onnx import TensorProto, helper
from onnxruntime_extensions import Opdef

import ort_castlike
from ort_castlike import _custom_ops
from ort_castlike._errors import RegistrationError
from ort_castlike._types import ELEMENT_TYPES

EMULATED_CROSSING = {"FLOAT", "INT8", "UINT8"}

SETUP = """
import numpy as np, onnxruntime
from test_custom_ops import cast_model, session_of
"""
python = functools.partial(processes.python, setup=SETUP)


def cast_node(source: str, to: str, x: str, target: str, y: str, **attributes: object) -> onnx.NodeProto:
    given = {"from_type": source, "to_type": to, "rounding": "nearest_even", "saturate": 1, "round_mode": "up"}
    return helper.make_node("CastLike", [x, target], [y], domain="ort_castlike", **(given | attributes))


def value_info(name: str, element_type: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, getattr(TensorProto, element_type), None)


def empty(name: str, element_type: str) -> onnx.TensorProto:
    return helper.make_tensor(name, getattr(TensorProto, element_type), [0], [])


def serialized(graph: onnx.GraphProto) -> bytes:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ort_castlike", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()


def cast_model(source: str, to: str, crossing: tuple[str, str] | None = None, **attributes: object) -> bytes:
    taken, given = crossing or (ELEMENT_TYPES[source].crossing, ELEMENT_TYPES[to].crossing)
    node = cast_node(source, to, "x", "t", "y", **attributes)
    return serialized(
        helper.make_graph([node], "g", [value_info("x", taken)], [value_info("y", given)], [empty("t", given)])
    )


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.fixture(autouse=True)
def no_errors_left_over():
    while _custom_ops.take_error() is not None:
        pass
    yield
    assert _custom_ops.take_error() is None


# Overloads --------------------------------------------------------------------------------------------------


def test_there_is_an_overload_for_every_pair_with_an_emulated_type_on_one_side():
    crossing = {row.crossing for name, row in ELEMENT_TYPES.items() if not name.startswith("COMPLEX")}
    assert len(crossing) == 11
    expected = {pair for pair in itertools.product(crossing, crossing) if EMULATED_CROSSING & set(pair)}
    assert len(expected) == 57
    assert set(_custom_ops.OVERLOADS) == expected
    assert len(_custom_ops.OVERLOADS) == 57


def test_every_overload_casts_in_a_session():
    sources = sorted({source for source, _ in _custom_ops.OVERLOADS})
    targets = sorted({target for _, target in _custom_ops.OVERLOADS})
    names = {pair: "_".join(pair) for pair in _custom_ops.OVERLOADS}
    graph = helper.make_graph(
        [cast_node(s, t, f"x_{s}", f"t_{t}", name) for (s, t), name in names.items()],
        "g",
        [value_info(f"x_{name}", name) for name in sources],
        [value_info(name, target) for (_, target), name in names.items()],
        [empty(f"t_{name}", name) for name in targets],
    )
    numbers = [[0, 1, 2], [3, 4, 100]]
    feeds = {f"x_{name}": np.array(numbers, ELEMENT_TYPES[name].dtype) for name in sources}
    results = session_of(serialized(graph)).run(list(names.values()), feeds)
    for (source, target), result in zip(names, results, strict=True):
        stored = [[int(n != 0) for n in line] for line in numbers] if source == "BOOL" else numbers
        expected = [[n != 0 for n in line] for line in numbers] if target == "BOOL" else stored
        assert result.dtype == ELEMENT_TYPES[target].dtype, (source, target)
        assert result.tolist() == expected, (source, target)


@pytest.mark.parametrize(
    ("source", "to", "values", "attributes", "expected"),
    [
        ("FLOAT", "INT2", [-3.0, -2.5, 0.5, 1.5, 2.5, 1e30], {}, [1, -2, 0, -2, -2, 0]),
        ("FLOAT", "UINT2", [-3.0, -2.5, 0.5, 1.5, 2.5, 1e30], {}, [1, 2, 0, 2, 2, 0]),
        ("FLOAT", "INT4", [-1.5, 0.5, 2.5], {"rounding": "half_away"}, [-2, 1, 3]),
        ("FLOAT", "INT4", [-1.5, 0.5, 2.5], {"rounding": "toward_zero"}, [-1, 0, 2]),
        ("DOUBLE", "INT4", [2.0**60 + 256, 7.5], {}, [0, -8]),
        ("FLOAT", "FLOAT4E2M1", [2.5, 9.0, -0.2], {}, [2.0, 6.0, -0.0]),
        ("INT64", "UINT4", [-1, 16, 17], {}, [15, 0, 1]),
        ("FLOAT", "FLOAT8E8M0", [3.0, 0.75], {}, [4.0, 1.0]),
        ("FLOAT", "FLOAT8E8M0", [3.0, 0.75], {"round_mode": "down"}, [2.0, 0.5]),
        ("FLOAT", "FLOAT8E4M3FN", [1000.0], {}, [448.0]),
        ("FLOAT", "FLOAT8E5M2", [1e6], {"saturate": 0}, [np.inf]),
        ("INT2", "FLOAT16", [-2, 1], {}, [-2.0, 1.0]),
        ("STRING", "INT4", [2.5], {}, [2]),
    ],
)
def test_the_attributes_decide_what_a_node_does(source, to, values, attributes, expected):
    fed = np.array(values, ELEMENT_TYPES[ELEMENT_TYPES[source].crossing].dtype)
    (result,) = session_of(cast_model(source, to, **attributes)).run(None, {"x": fed})
    assert result.tolist() == expected
    assert np.signbit(result).tolist() == np.signbit(expected).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3, 4)])
def test_shapes_come_out_as_they_went_in(shape):
    session = session_of(cast_model("FLOAT", "INT2"))
    fed = np.ones(shape, np.float32)
    (result,) = session.run(None, {"x": fed})
    assert result.shape == shape
    assert result.tolist() == np.ones(shape, np.int8).tolist()


def test_the_feed_is_not_changed_by_a_body_that_writes_into_its_input():
    session = session_of(cast_model("FLOAT", "INT2"))
    fed = np.linspace(-5, 5, 70_000, dtype=np.float32)
    before = fed.tobytes()
    value = onnxruntime.OrtValue.ortvalue_from_numpy(fed)
    for _ in range(2):
        session.run_with_ort_values(["y"], {"x": value})
        session.run(None, {"x": fed})
    assert fed.tobytes() == before
    assert value.numpy().tobytes() == before


def test_a_tensor_with_two_readers_keeps_its_values_for_both():
    nodes = [
        helper.make_node("Neg", ["x"], ["v"]),
        cast_node("FLOAT", "INT2", "v", "t", "a"),
        cast_node("FLOAT", "INT2", "v", "t", "b"),
        helper.make_node("Identity", ["v"], ["c"]),
    ]
    outputs = [value_info("a", "INT8"), value_info("b", "INT8"), value_info("c", "FLOAT")]
    graph = helper.make_graph(nodes, "g", [value_info("x", "FLOAT")], outputs, [empty("t", "INT8")])
    a, b, c = session_of(serialized(graph)).run(None, {"x": np.array([-1.0, 0.0, 3.0], np.float32)})
    assert (a.tolist(), b.tolist(), c.tolist()) == ([1, 0, 1], [1, 0, 1], [1.0, 0.0, -3.0])


# Handing the result over ------------------------------------------------------------------------------------


def test_the_result_is_handed_over_as_an_array_and_not_element_by_element(monkeypatch):
    for opdef in Opdef._odlist.values():
        monkeypatch.setattr(opdef, "cast_attributes", lambda attributes: pytest.fail("the way of any other operator"))
    numbers = np.random.default_rng(3).integers(-1000, 1000, 1 << 20)
    (result,) = session_of(cast_model("FLOAT", "INT4")).run(None, {"x": numbers.astype(np.float32)})
    assert result.tobytes() == ((numbers + 8 & 15) - 8).astype(np.int8).tobytes()


def test_the_result_is_right_where_it_is_handed_over_element_by_element():
    ran = python(
        """
        from onnxruntime_extensions import PyCustomOpDef, _ocos
        session = session_of(cast_model("FLOAT", "INT2"))
        PyCustomOpDef.install_hooker(_ocos._on_pyop_invocation)
        (result,) = session.run(None, {"x": np.array([[1.0, 2.0]], np.float32)})
        print(result.dtype, result.tolist())
        """
    )
    assert (ran.returncode, ran.stdout.split("\n")[0]) == (0, "int8 [[1, -2]]"), ran.stderr


def test_another_python_operator_is_called_as_ever():
    ran = python(
        """
        from onnxruntime_extensions import PyCustomOpDef, onnx_op

        @onnx_op(op_type="Twice", inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float],
                 attrs={"times": PyCustomOpDef.dt_int64})
        def twice(values, times):
            return values * times

        import ort_castlike
        from onnx import helper
        node = helper.make_node("Twice", ["x"], ["y"], domain="ai.onnx.contrib", times=3)
        x, y = (helper.make_tensor_value_info(name, 1, None) for name in "xy")
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.contrib", 1)]
        model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=imports, ir_version=10)
        (result,) = session_of(model.SerializeToString()).run(None, {"x": np.array([1.0, 2.0], np.float32)})
        print(result.dtype, result.tolist())
        """
    )
    assert (ran.returncode, ran.stdout.split("\n")[0]) == (0, "float32 [3.0, 6.0]"), ran.stderr


# Registering ------------------------------------------------------------------------------------------------


def test_registering_twice_is_harmless():
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    ort_castlike.register(options)
    session = onnxruntime.InferenceSession(cast_model("FLOAT", "INT2"), options, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.array([3.0], np.float32)})[0].tolist() == [-1]


@pytest.mark.parametrize("way", ["reload", "import again"])
def test_a_module_that_is_loaded_again_takes_over_the_domain(way, monkeypatch):
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    model = cast_model("FLOAT", "INT2", rounding="nonsense")
    before = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = "ort_castlike._custom_ops"
    if way == "reload":
        again = importlib.reload(sys.modules[name])
    else:
        monkeypatch.setattr(ort_castlike, "_custom_ops", _custom_ops)  # both are put back at the end
        monkeypatch.delitem(sys.modules, name)
        again = importlib.import_module(name)
    again.register(options)
    fresh = onnxruntime.SessionOptions()
    again.register(fresh)
    after = onnxruntime.InferenceSession(model, fresh, providers=["CPUExecutionProvider"])
    for session in (before, after):
        session.run(None, {"x": np.array([3.0], np.float32)})
        assert "nonsense" in str(again.take_error())
    from onnxruntime_extensions import Opdef

    ours = [opdef for opdef in Opdef._odlist.values() if opdef.op_type == "ort_castlike::CastLike"]
    assert len(ours) == 57


def test_options_that_were_registered_before_a_reload_are_recognised_without_a_note_of_it():
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    _custom_ops._shared.registered.clear()
    _custom_ops.register(options)
    onnxruntime.InferenceSession(cast_model("FLOAT", "INT2"), options, providers=["CPUExecutionProvider"])


def test_a_library_that_the_user_registered_after_the_domain_was_declared_will_do():
    from onnxruntime_extensions import get_library_path

    ort_castlike.register(onnxruntime.SessionOptions())
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    ort_castlike.register(options)
    onnxruntime.InferenceSession(cast_model("FLOAT", "INT2"), options, providers=["CPUExecutionProvider"])


def test_a_library_that_the_user_registered_twice_is_refused():
    from onnxruntime_extensions import get_library_path

    ort_castlike.register(onnxruntime.SessionOptions())
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    options.register_custom_ops_library(get_library_path())
    with pytest.raises(RegistrationError, match="twice"):
        ort_castlike.register(options)


def test_a_library_that_the_user_registered_before_the_domain_was_declared_is_refused():
    result = python("""
        from onnxruntime_extensions import get_library_path
        import ort_castlike
        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(get_library_path())
        try:
            ort_castlike.register(options)
        except ort_castlike.CastLikeError as error:
            print(type(error).__name__, error)
        # Options without it are none the worse.
        print(session_of(cast_model("FLOAT", "INT2")).run(None, {"x": np.array([3], np.float32)}))
    """)
    assert result.returncode == 0, result.stderr
    assert "RegistrationError" in result.stdout
    assert "leave out your own register_custom_ops_library()" in result.stdout
    assert "array([-1]" in result.stdout


def test_registering_leaves_the_options_as_they_were_and_no_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.optimized_model_filepath = "optimized.onnx"
    options.intra_op_num_threads = 2
    options.inter_op_num_threads = 3
    ort_castlike.register(options)
    assert options.enable_profiling
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.optimized_model_filepath == "optimized.onnx"
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("wrong", [None, "options", onnxruntime.RunOptions()])
def test_registering_in_anything_else_is_refused(wrong):
    with pytest.raises(RegistrationError, match="SessionOptions"):
        ort_castlike.register(wrong)


def test_without_onnxruntime_extensions_the_error_says_how_to_get_it_and_how_to_do_without():
    result = python("""
        sys.modules["onnxruntime_extensions"] = None
        import ort_castlike
        try:
            ort_castlike.register(onnxruntime.SessionOptions())
        except ort_castlike.CastLikeError as error:
            print(type(error).__name__, error)
    """)
    assert result.returncode == 0, result.stderr
    assert "RegistrationError" in result.stdout
    assert "pip install onnxruntime-extensions" in result.stdout
    assert "lowering='standard'" in result.stdout


def test_importing_the_module_imports_no_heavy_package():
    code = "import sys, ort_castlike._custom_ops; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"onnx", "onnx_ir", "onnxruntime", "onnxruntime_extensions"} & set(loaded)


@pytest.mark.parametrize("order", ["before", "after"])
def test_python_operators_of_others_work_beside_the_domain(order):
    result = python(
        """
        from onnx import TensorProto, helper
        from onnxruntime_extensions import PyCustomOpDef, onnx_op
        import ort_castlike

        def declare():
            @onnx_op(op_type="others::Twice", inputs=[PyCustomOpDef.dt_float], outputs=[PyCustomOpDef.dt_float])
            def twice(x):
                return x * 2

        if sys.argv[1] == "before":
            declare()
        session = session_of(cast_model("FLOAT", "INT2"))
        if sys.argv[1] == "after":
            declare()
        options = onnxruntime.SessionOptions()
        ort_castlike.register(options)
        info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        graph = helper.make_graph([helper.make_node("Twice", ["x"], ["y"], domain="others")], "g", [info("x")],
                                  [info("y")])
        imports = [helper.make_opsetid("", 21), helper.make_opsetid("others", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
        other = onnxruntime.InferenceSession(model, options)
        x = np.array([3], np.float32)
        print(other.run(None, {"x": x})[0], session.run(None, {"x": x})[0])
        print(session_of(cast_model("FLOAT", "INT2")).run(None, {"x": x})[0])
        """,
        order,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["[6.]", "[-1]", "[-1]"]


# What goes wrong in a body ----------------------------------------------------------------------------------

NONSENSE = (
    ("INT2", {"to_type": "FOO"}),
    ("INT2", {"from_type": ""}),
    ("INT2", {"from_type": "INT8"}),
    ("INT2", {"to_type": "FLOAT"}),
    ("FLOAT", {"to_type": "INT2"}),
    ("INT2", {"to_type": "STRING"}),
    ("INT2", {"from_type": "COMPLEX64"}),
    ("INT2", {"rounding": "x"}),
    ("INT2", {"rounding": ""}),
    ("FLOAT8E8M0", {"round_mode": "\u00e9\U0001f600"}),
    ("FLOAT8E8M0", {"round_mode": "x" * 10_000}),
)


@pytest.mark.parametrize(("to", "attributes"), NONSENSE)
def test_attributes_that_are_nonsense_give_zeros_and_an_error_for_the_session(to, attributes):
    session = session_of(cast_model("FLOAT", to, **attributes))
    (result,) = session.run(None, {"x": np.ones((2, 3), np.float32)})
    assert result.shape == (2, 3)
    assert not result.any()
    error = _custom_ops.take_error()
    assert isinstance(error, ort_castlike.CastLikeError)
    assert "ort_castlike::CastLike(" in str(error)
    assert "rewrite the original model again" in str(error)


def test_nonsense_never_aborts_the_process():
    result = python("""
        from test_custom_ops import NONSENSE
        for to, attributes in NONSENSE + (("INT2", {"saturate": -(2**63)}), ("INT2", {"rounding": 7}),
                                          ("INT2", {"saturate": "yes"}), ("INT2", {"to_type": [1, 2]})):
            try:
                session_of(cast_model("FLOAT", to, **attributes)).run(None, {"x": np.ones(3, np.float32)})
            except Exception as error:
                print("refused at load:", type(error).__name__)
        print("alive")
    """)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.endswith("alive\n")


@pytest.mark.parametrize("raised", [MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError])
def test_nothing_that_is_raised_in_a_body_leaves_it(monkeypatch, raised):
    def fail(*args, **options):
        raise raised("from a test")

    session = session_of(cast_model("FLOAT", "INT2"))
    monkeypatch.setattr(_custom_ops, "convert", fail)
    (result,) = session.run(None, {"x": np.ones(4, np.float32)})
    assert result.tolist() == [0, 0, 0, 0]
    assert type(_custom_ops.take_error()) is raised


def test_a_body_without_memory_for_zeros_still_returns(monkeypatch):
    def fail(*args, **options):
        raise MemoryError

    monkeypatch.setattr(_custom_ops, "convert", fail)
    monkeypatch.setattr(_custom_ops.np, "shape", fail)
    body = _custom_ops._Body("FLOAT", "INT8", _custom_ops._shared)
    attributes = {"from_type": "FLOAT", "to_type": "INT2", "rounding": "", "saturate": 1, "round_mode": ""}
    assert body(np.ones(4, np.float32), None, **attributes).size == 0
    assert isinstance(_custom_ops.take_error(), MemoryError)
    assert _custom_ops.take_error() is None


def test_an_error_goes_to_the_thread_that_ran_into_it():
    session = session_of(cast_model("FLOAT", "INT2", rounding="mine"))
    ran, asked = threading.Event(), threading.Event()
    found: list[BaseException | None] = []

    def work() -> None:
        session.run(None, {"x": np.ones(1, np.float32)})
        ran.set()
        assert asked.wait(30)
        found.append(_custom_ops.take_error())

    thread = threading.Thread(target=work)
    thread.start()
    assert ran.wait(30)
    assert _custom_ops.take_error() is None
    asked.set()
    thread.join()
    assert isinstance(found[0], ort_castlike.CastLikeError)
    assert "mine" in str(found[0])


def test_an_error_of_a_thread_of_the_runtime_goes_to_whoever_asks():
    nodes = [cast_node("FLOAT", "INT2", "x", "t", f"y{index}", rounding="wrong") for index in range(8)]
    outputs = [value_info(f"y{index}", "INT8") for index in range(8)]
    graph = helper.make_graph(nodes, "g", [value_info("x", "FLOAT")], outputs, [empty("t", "INT8")])
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 4
    ort_castlike.register(options)
    session = onnxruntime.InferenceSession(serialized(graph), options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones(100_000, np.float32)})
    assert isinstance(_custom_ops.take_error(), ort_castlike.CastLikeError)
    assert _custom_ops.take_error() is None


def test_what_a_thread_met_before_a_run_is_no_error_of_the_run():
    plain = session_of(cast_model("FLOAT", "INT2", rounding="stale"))
    plain.run(None, {"x": np.ones(1, np.float32)})
    mark = _custom_ops.error_mark()
    assert _custom_ops.take_error(mark) is None
    assert _custom_ops.take_error() is None


def test_a_good_run_is_not_blamed_for_what_a_plain_session_left():
    plain = session_of(cast_model("FLOAT", "INT2", rounding="stale"))
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.INT2)]
    graph = helper.make_graph(nodes, "g", [value_info("x", "FLOAT")], [value_info("y", "INT2")])
    good = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    session = ort_castlike.InferenceSession(good)
    feeds = {"x": np.ones(1, np.float32)}
    plain.run(None, feeds)
    assert session.run(None, feeds)[0].astype(int).tolist() == [1]


# Threads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ORT_SEQUENTIAL", "ORT_PARALLEL"])
def test_one_session_in_many_threads(mode):
    nodes = [cast_node("FLOAT", "INT2", "x", "t", "a"), cast_node("FLOAT", "UINT4", "x", "u", "b")]
    graph = helper.make_graph(
        nodes,
        "g",
        [value_info("x", "FLOAT")],
        [value_info("a", "INT8"), value_info("b", "UINT8")],
        [empty("t", "INT8"), empty("u", "UINT8")],
    )
    options = onnxruntime.SessionOptions()
    options.execution_mode = getattr(onnxruntime.ExecutionMode, mode)
    ort_castlike.register(options)
    session = onnxruntime.InferenceSession(serialized(graph), options, providers=["CPUExecutionProvider"])
    wrong: list[int] = []

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(-99, 99, 70_000)
        for _ in range(5):
            a, b = session.run(None, {"x": numbers.astype(np.float32)})
            if not (np.array_equal(a, (numbers + 2 & 3) - 2) and np.array_equal(b, numbers & 15)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_options_may_be_registered_from_many_threads_at_once():
    result = python("""
        import threading
        import ort_castlike
        sessions = []
        def work():
            sessions.append(session_of(cast_model("FLOAT", "INT2")))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(*(int(session.run(None, {"x": np.array([3], np.float32)})[0][0]) for session in sessions))
    """)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["-1"] * 8
