"""The custom-op domain: every overload of its CastLike, declared once in a process, and register().

onnxruntime-extensions lets Python functions serve as operators. It asks for care: what is declared stays declared,
nothing may be declared any more once a session was made, and an exception that leaves a function aborts the process.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ort_castlike._errors import CastLikeError, ModelError, RegistrationError
from ort_castlike._hook import Hook, guarded
from ort_castlike._interrupts import deferred_interrupts
from ort_castlike._kernels import convert
from ort_castlike._metadata import DOMAIN
from ort_castlike._types import ELEMENT_TYPES, element_type

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["DOMAIN", "OP_TYPE", "OVERLOADS", "VERSION", "deferred_interrupts", "error_mark", "register", "take_error"]

OP_TYPE = "CastLike"
VERSION = 1

_QUALIFIED = f"{DOMAIN}::{OP_TYPE}"
_CROSSING = tuple(
    name for name, row in ELEMENT_TYPES.items() if row.crossing == name and not name.startswith(("COMPLEX", "STRING"))
)
# One side of every cast that a rewrite makes is emulated, and so crosses as one of these.
_EMULATED_CROSSING = frozenset(row.crossing for row in ELEMENT_TYPES.values() if row.is_emulated)
# Crossing types of the input and of the output.
OVERLOADS = tuple(pair for pair in itertools.product(_CROSSING, _CROSSING) if not _EMULATED_CROSSING.isdisjoint(pair))

_LARGE = 1 << 24  # bytes

_log = logging.getLogger(__name__)
_lock = threading.RLock()


class _Shared:
    """What all overloads share, and a reloaded module takes over from the one that declared them."""

    def __init__(self) -> None:
        # A number that grows, the thread that a body ran on, and what went wrong in it. Nobody may ever ask, so the
        # oldest go.
        self.errors: deque[tuple[int, int, BaseException]] = deque(maxlen=64)
        self.numbers = itertools.count()
        self.registered: weakref.WeakSet[onnxruntime.SessionOptions] = weakref.WeakSet()


class _Body:
    """The Python function behind one overload. No exception leaves it."""

    def __init__(self, source: str, target: str, shared: _Shared) -> None:
        self.pair = (source, target)
        self.shared = shared
        self._dtype = ELEMENT_TYPES[target].dtype
        self._read: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}

    def __call__(self, values: Any, target: Any, **attributes: Any) -> np.ndarray:
        """The cast of ``values``; zeros of the right shape and type where there is none, and a note of why."""
        result = None
        try:
            result = self._cast(values, attributes)
        except BaseException as error:
            self._keep(error, attributes)
        return self._zeros(values) if result is None else result

    def _cast(self, values: Any, attributes: dict[str, Any]) -> np.ndarray:
        key = tuple(attributes.items())
        options = self._read.get(key)
        if options is None:
            options = self._read[key] = self._options(**attributes)
        result = convert(values, **options)
        if result.dtype != self._dtype:
            result = result.astype(self._dtype)
        if result.nbytes > _LARGE:
            np.empty(result.nbytes, np.uint8)  # The runtime takes as much, and ends the process where it cannot.
        return result

    def _options(
        self, *, from_type: str, to_type: str, rounding: str, saturate: int | str, round_mode: str
    ) -> dict[str, Any]:
        """What ``convert`` takes for a node's attributes; an integer may come as the text that crossed."""
        source, target = element_type(from_type), element_type(to_type)
        if (source.crossing, target.crossing) != self.pair or target.name == "STRING":
            raise ModelError(
                f"its input is {self.pair[0]} and its target_type {self.pair[1]}, "
                f"where {source.name} crosses as {source.crossing} and {target.name} as {target.crossing}"
            )
        return {
            "from_type": source,
            "to_type": target,
            "rounding": rounding,
            "saturate": bool(int(saturate)),
            "round_mode": round_mode,
            "give_away": True,
        }

    def _zeros(self, values: Any) -> np.ndarray:
        try:
            return np.zeros(np.shape(values), self._dtype)
        except BaseException as error:
            self._keep(error, {})
            # Of the wrong shape, for want of memory: what follows in the model may fail, and an error is kept.
            return np.zeros((0,), self._dtype)

    def _keep(self, error: BaseException, attributes: dict[str, Any]) -> None:
        """Leave ``error`` for take_error(), and in the log for those who run a session of onnxruntime's own."""
        with contextlib.suppress(BaseException):
            if isinstance(error, CastLikeError):
                error = _explained(error, attributes)
        self.shared.errors.append((next(self.shared.numbers), threading.get_ident(), error))
        with contextlib.suppress(BaseException):
            _log.error("%s: %s", type(error).__name__, error)


def _explained(error: CastLikeError, attributes: dict[str, Any]) -> CastLikeError:
    given = ", ".join(f"{name}={value!r}" for name, value in attributes.items())
    explained = type(error)(
        f"a node {_QUALIFIED}({given}) gives zeros, since there is no such cast: {error}; "
        "rewrite the original model again"
    )
    explained.__cause__ = error
    return explained


def error_mark() -> int:
    """Where the errors of a run begin that begins now, for :func:`take_error`."""
    return next(_shared.numbers)


def take_error(since: int = 0) -> BaseException | None:
    """The first error that a node of this domain met in a run, None where all went well.

    An operator must not raise, so a session asks for this when a run has ended. What bodies met that ran in the
    calling thread is given to it alone; what they met in threads that Python did not start, the runtime's own, is
    given to whoever asks first. All of it is gone then. A KeyboardInterrupt is among these errors.

    Args:
        since: The :func:`error_mark` of when the run began. What the thread met before, in a session of onnxruntime's
            own that nobody asked after, is dropped.
    """
    errors = _shared.errors
    if not errors:
        return None
    first = None
    own = threading.get_ident()
    with _lock:
        # A dummy stands for a thread that Python did not start.
        threads = [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]
        others = {thread.ident for thread in threads} - {own}
        for entry in tuple(errors):
            number, thread_id, error = entry
            if thread_id in others or (thread_id != own and number < since):
                continue
            errors.remove(entry)
            if number >= since and first is None:
                first = error
    return first


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Put the domain's operators, with all of onnxruntime-extensions, into ``session_options``.

    Doing so again does nothing.

    Args:
        session_options: The options of a session that is made afterwards.

    Raises:
        RegistrationError: onnxruntime-extensions cannot be imported, ``session_options`` is something else, or
            it holds onnxruntime-extensions already without this domain.
    """
    import onnxruntime

    if not isinstance(session_options, onnxruntime.SessionOptions):
        raise RegistrationError(
            f"custom operators are registered in an onnxruntime.SessionOptions, not in {session_options!r}"
        )
    with _lock:
        extensions = _extensions()
        _declare()
        if session_options in _shared.registered:
            return
        if not _loads(session_options, _extensions_probe()):
            try:
                session_options.register_custom_ops_library(extensions.get_library_path())
            except Exception as error:
                raise RegistrationError(f"onnxruntime refuses onnxruntime-extensions: {error}") from error
        elif not _loads(session_options, _domain_probe()):
            raise RegistrationError(
                "these SessionOptions hold onnxruntime-extensions already, from before ort_castlike's operators "
                "were declared; leave out your own register_custom_ops_library() of it, since "
                "ort_castlike.register() registers all of onnxruntime-extensions"
            )
        _shared.registered.add(session_options)


def _extensions() -> Any:
    try:
        import onnxruntime_extensions
    except ImportError as error:
        raise RegistrationError(
            f"onnxruntime-extensions cannot be imported ({error}): pip install onnxruntime-extensions; or rewrite "
            "the model with lowering='standard', which needs no custom operators"
        ) from error
    return onnxruntime_extensions


def _declare() -> None:
    """Declare every overload, unless this has been done in this process, by a module that was reloaded since."""
    from onnxruntime_extensions import Opdef, PyCustomOpDef

    if any(opdef.op_type == _QUALIFIED for opdef in Opdef._odlist.values()):
        return
    attributes = {
        "from_type": PyCustomOpDef.dt_string,
        "to_type": PyCustomOpDef.dt_string,
        "rounding": PyCustomOpDef.dt_string,
        "saturate": PyCustomOpDef.dt_int64,
        "round_mode": PyCustomOpDef.dt_string,
    }
    bodies: dict[int, _Body] = {}
    # Half a domain could not be completed later, when sessions may have been made.
    with deferred_interrupts():
        for pair in OVERLOADS:
            types = [getattr(PyCustomOpDef, f"dt_{ELEMENT_TYPES[name].ort_name}") for name in pair]
            body = _Body(*pair, _shared)
            opdef = Opdef.create(body, op_type=_QUALIFIED, inputs=types, outputs=types[1:], attrs=attributes)
            bodies[id(opdef)] = body
        # Where a release has no hook of this name, results cross element by element, and Ctrl-C in a session of
        # onnxruntime's own may end the process.
        hook = getattr(sys.modules.get("onnxruntime_extensions._ocos"), "_on_pyop_invocation", None)
        if hook is not None:
            PyCustomOpDef.install_hooker(guarded(_short_cut(bodies, hook)))


def _short_cut(bodies: Mapping[int, _Body], hook: Hook) -> Hook:
    """The hook through which onnxruntime-extensions calls every Python operator, with a shorter way to our own.

    That of 0.12 to 0.15.2 asks C++ up to three times for the type of each attribute, which costs more than all else
    of a small node, and makes a list of the result, a Python object for every element. A flat array does as well.
    """

    def invoke(k_id: int, feed: Any, attributes: Any) -> Any:
        body = bodies.get(k_id)
        if body is None:
            return hook(k_id, feed, attributes)
        result = body(*feed, **attributes)
        return k_id, result.shape, result.reshape(-1)

    return invoke


def _shared_of_process() -> _Shared:
    """What the module shared before it was reloaded, if it was."""
    extensions = sys.modules.get("onnxruntime_extensions")
    opdefs = extensions.Opdef._odlist.values() if extensions is not None else ()
    return next((opdef.body.shared for opdef in opdefs if opdef.op_type == _QUALIFIED), None) or _Shared()


def _loads(session_options: onnxruntime.SessionOptions, model: bytes) -> bool:
    """Whether onnxruntime, with these options, knows the operators of ``model``.

    There is no other way to ask what SessionOptions hold. The model is loaded and no more: no kernel is made and
    no file is written.

    Raises:
        RegistrationError: The options hold the same operators twice, so that no session can be made with them.
    """
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    before = {name: getattr(session_options, name) for name in _QUIET}
    try:
        for name, value in _QUIET.items():
            setattr(session_options, name, value)
        state.InferenceSession(session_options, model, False, False)
    except Exception as error:
        if "Conflicting with a registered kernel" in str(error):
            raise RegistrationError(
                "these SessionOptions hold the same custom operators twice, and no session can be made with them; "
                f"leave out your own register_custom_ops_library() of onnxruntime-extensions ({error})"
            ) from error
        return False
    finally:
        for name, value in before.items():
            setattr(session_options, name, value)
    return True


def _probe(domain: str, op_type: str, element_types: tuple[str, ...], **attributes: Any) -> bytes:
    """A model of one node; its output is of the last of the types."""
    from onnx import helper

    values = [
        helper.make_tensor_value_info(f"x{index}", ELEMENT_TYPES[name].code, None)
        for index, name in enumerate(element_types)
    ]
    output = helper.make_tensor_value_info("y", ELEMENT_TYPES[element_types[-1]].code, None)
    node = helper.make_node(op_type, [value.name for value in values], ["y"], domain=domain, **attributes)
    graph = helper.make_graph([node], "probe", values, [output])
    imports = [helper.make_opsetid("", 13), helper.make_opsetid(domain, 1)]
    model: bytes = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    return model


@functools.cache
def _extensions_probe() -> bytes:
    return _probe("ai.onnx.contrib", "StringLower", ("STRING",))


@functools.cache
def _domain_probe() -> bytes:
    return _probe(
        DOMAIN,
        OP_TYPE,
        OVERLOADS[0],
        from_type="BOOL",
        to_type="INT8",
        rounding="nearest_even",
        saturate=1,
        round_mode="up",
    )


# What would make a probe slow, or leave traces.
_QUIET = {"enable_profiling": False, "intra_op_num_threads": 1, "inter_op_num_threads": 1}
_shared = _shared_of_process()


def _renew_lock() -> None:
    """Another thread that held the lock when the process was forked is not there to give it back."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
