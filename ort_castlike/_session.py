"""The drop-in for ``onnxruntime.InferenceSession``: original names and types, ml_dtypes arrays in and out."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from ort_castlike._errors import FeedError, ModelError, OptionError, RegistrationError
from ort_castlike._free_memory import give_back_free_memory
from ort_castlike._io._io_binding import IOBinding
from ort_castlike._io._ort_values import to_ort_value, to_python
from ort_castlike._io._ports import InvalidFeedError, make_ports
from ort_castlike._metadata import read_record
from ort_castlike._options import resolve_options

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from ort_castlike._files._session_files import SessionFiles
    from ort_castlike._metadata import RewriteRecord

__all__ = ["InferenceSession"]

# What a session takes by name, "target" aside, which it is given by mistake; and what it hands to onnxruntime, which
# has no list of its own.
_OPTIONS = ("target", "sess_options", "providers", "provider_options", "lowering", "rounding", "weights")
_PASSED_ON = ("path_or_bytes", "disabled_optimizers", "enable_fallback", "read_config_from_model")


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """An ``onnxruntime.InferenceSession`` for models that hold emulated types, and for every other model.

    A model that needs it is rewritten for the installed onnxruntime; any other is handed over as it is. The
    session takes and gives numpy arrays of ml_dtypes' types for the emulated types, bfloat16 and float8. An
    ``OrtValue`` holds an emulated type in its carrier: int8 for INT2 and INT4, uint8 for UINT2 and UINT4,
    float16 for FLOAT4E2M1 and the float6 types, float for FLOAT8E8M0.

    Args:
        model: A path, the bytes of a model, an ``onnx.ModelProto`` or an ``onnx_ir.Model``.
        sess_options: As onnxruntime's. The custom operators are registered in it where the model needs them;
            nothing else in it changes.
        providers: As onnxruntime's.
        provider_options: As onnxruntime's.
        lowering: As for :func:`ort_castlike.rewrite`.
        rounding: As for :func:`ort_castlike.rewrite`.
        weights: As for :func:`ort_castlike.rewrite`.
        **kwargs: As onnxruntime's; ``path_or_bytes`` may name the model, as there.

    Raises:
        CastLikeError: As for :func:`ort_castlike.rewrite`.
        RegistrationError: ``sess_options`` holds the operators of onnxruntime-extensions already.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | None = None,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        lowering: str = "custom",
        rounding: str = "nearest_even",
        weights: str = "auto",
        **kwargs: Any,
    ) -> None:
        source = kwargs.pop("path_or_bytes", None) if model is None else model
        _check_names(kwargs)
        options = resolve_options(target=None, lowering=lowering, rounding=rounding, weights=weights)
        self._rewrite_record: RewriteRecord | None = None
        self._files: SessionFiles | None = None
        self._custom_ops: ModuleType | None = None
        is_large = False
        if not _is_for_onnxruntime(source, sess_options):
            from ort_castlike._session_model import model_for_session

            model_given = model_for_session(source, options)
            source, is_large = model_given.model, model_given.is_large
            self._rewrite_record = model_given.record
            self._files = model_given.files
            if model_given.uses_custom_ops:
                sess_options = onnxruntime.SessionOptions() if sess_options is None else sess_options
                self._custom_ops = _registered(sess_options)
        elif sess_options is None and _is_ort_format(source, sess_options):
            # What this format holds shows only when it is loaded, and then it needs its operators.
            sess_options = onnxruntime.SessionOptions()
            _registered(sess_options)
        try:
            with self._complete_files():
                super().__init__(source, sess_options, providers, provider_options, **kwargs)
        except Exception as error:
            _explain_conflict(error)
            raise
        if is_large:
            give_back_free_memory()
        if self._rewrite_record is None:
            self._rewrite_record = record = read_record(self.get_modelmeta().custom_metadata_map)
            if record is not None and record.options.get("lowering") == "custom":
                from ort_castlike import _custom_ops

                self._custom_ops = _custom_ops
        self._make_ports()

    def get_inputs(self) -> Sequence[Any]:
        """The inputs, with the types that they had before a rewrite."""
        return [self._input_ports[meta.name].arg for meta in super().get_inputs()]

    def get_outputs(self) -> Sequence[Any]:
        """The outputs, with the types that they had before a rewrite."""
        return [self._output_ports[meta.name].arg for meta in super().get_outputs()]

    def get_overridable_initializers(self) -> Sequence[Any]:
        """The initializers that a feed may replace, with the types that they had before a rewrite."""
        return [self._input_ports[meta.name].arg for meta in super().get_overridable_initializers()]

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
    ) -> None:
        """Make the underlying session again with other execution providers."""
        with self._complete_files():
            super().set_providers(providers, provider_options)
        self._make_ports()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> Sequence[Any]:
        """Compute the outputs.

        Args:
            output_names: Names of the outputs wanted; None for all of them.
            input_feed: A value for each input: as onnxruntime takes it, an array of an ml_dtypes type, or one of
                the carrier's dtype that holds no other values than the emulated type has.
            run_options: As onnxruntime's.

        Returns:
            As onnxruntime's, with arrays of ml_dtypes' types for the types that numpy lacks.

        Raises:
            FeedError: A value does not fit its input, or the model has no output of a name.
            CastLikeError: A cast met a value that it cannot take, such as a string that is no number.
        """
        feeds = input_feed
        dtypes = self._plain_dtypes
        if type(input_feed) is not dict:
            self._check_is_dict(input_feed)
        for name, value in input_feed.items():
            if type(value) is not np.ndarray or dtypes.get(name) is not value.dtype:
                feeds = self._feeds(input_feed)
                break
        if self._is_plain:
            try:
                return super().run(output_names, feeds, run_options)  # type: ignore[no-any-return]
            except Exception as error:
                self._blame_feeds(input_feed, error)
                self._names(output_names)
                raise
        return self._run(self._names(output_names), feeds, input_feed, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[Sequence[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """Compute the outputs on another thread, and give them to ``callback(results, user_data, error)`` there.

        Raises:
            FeedError: A value does not fit its input, or the model has no output of a name.
        """
        feeds, names = self._feeds(input_feed), self._names(output_names)
        if self._is_plain and all(feeds[name] is input_feed[name] for name in feeds):
            super().run_async(output_names, input_feed, callback, user_data, run_options)
            return

        def work() -> None:
            try:
                results = self._run(names, feeds, input_feed, run_options)
            except Exception as error:
                callback([], user_data, str(error))
            else:
                callback(results, user_data, "")

        # Not on onnxruntime's thread: that makes numpy arrays of the results, and a session that is dropped there
        # aborts the process.
        threading.Thread(target=work, name="ort_castlike.run_async").start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> Sequence[OrtValue]:
        """Compute the outputs from OrtValues to OrtValues, which hold emulated types in their carriers.

        Raises:
            FeedError: A value does not fit its input, or the model has no output of a name.
            CastLikeError: As for :meth:`run`.
        """
        self._names(output_names)
        self._check_is_dict(input_dict_ort_values)
        if self._emulated_inputs:
            input_dict_ort_values = self._feeds(input_dict_ort_values)
        with self._errors_of_run(input_dict_ort_values, run_options) as run_options:
            return super().run_with_ort_values(  # type: ignore[no-any-return]
                output_names, input_dict_ort_values, run_options
            )

    def run_with_iobinding(self, iobinding: onnxruntime.IOBinding, run_options: Any = None) -> None:
        """Compute into the outputs that are bound.

        Raises:
            CastLikeError: As for :meth:`run`.
        """
        with self._errors_of_run(None, run_options) as run_options:
            super().run_with_iobinding(iobinding, run_options)

    def run_with_ortvaluevector(self, *args: Any, **kwargs: Any) -> None:
        """Compute as onnxruntime does, on OrtValues that hold emulated types in their carriers.

        Raises:
            CastLikeError: As for :meth:`run`.
        """
        with self._errors_of_run(None, None):
            super().run_with_ortvaluevector(*args, **kwargs)

    def io_binding(self) -> IOBinding:
        """An IOBinding that takes and gives ml_dtypes arrays."""
        return IOBinding(self, self._input_ports, self._output_ports)

    def _complete_files(self) -> contextlib.AbstractContextManager[None]:
        """Have the files of a model in place that is too large for memory."""
        return contextlib.nullcontext() if self._files is None else self._files.complete()

    def _make_ports(self) -> None:
        record = self._rewrite_record
        inputs = [*super().get_inputs(), *super().get_overridable_initializers()]
        self._input_ports = make_ports(inputs, record.inputs if record else {})
        self._output_ports = make_ports(super().get_outputs(), record.outputs if record else {})
        self._required = [meta.name for meta in super().get_inputs() if self._input_ports[meta.name].is_required]
        self._plain_dtypes = {
            name: port.plain_dtype for name, port in self._input_ports.items() if port.plain_dtype is not None
        }
        outputs = self._output_ports.values()
        self._opaque_outputs = frozenset(port.name for port in outputs if port.is_opaque)
        self._emulated_inputs = any(port.is_emulated for port in self._input_ports.values())
        self._is_plain = self._custom_ops is None and not any(port.is_emulated or port.is_opaque for port in outputs)

    def _names(self, output_names: Sequence[str] | None) -> list[str]:
        """The names of the outputs wanted.

        Raises:
            FeedError: The model has no output of a name.
        """
        ports = self._output_ports
        for name in output_names or ():
            if name not in ports:
                raise InvalidFeedError(
                    f"the model has no output {name!r}; its outputs are {', '.join(map(repr, ports)) or 'none'}"
                )
        return list(output_names or ports)

    def _check_is_dict(self, input_feed: object) -> None:
        """Refuse a list of values and the like.

        Raises:
            FeedError: It is no dict.
        """
        if not hasattr(input_feed, "items"):
            raise InvalidFeedError(
                f"a feed is a dict from the name of each input to its value, and not {type(input_feed).__name__}; the "
                f"model's inputs are {', '.join(map(repr, self._input_ports)) or 'none'}"
            )

    def _feeds(self, input_feed: Mapping[str, Any]) -> dict[str, Any]:
        """The feed that onnxruntime takes in the place of the user's.

        Raises:
            FeedError: A name, a type, a shape or a value does not fit the model.
        """
        ports = self._input_ports
        feeds = {}
        self._check_is_dict(input_feed)
        for name, value in input_feed.items():
            port = ports.get(name)
            if port is None:
                raise InvalidFeedError(
                    f"the model has no input {name!r}; its inputs are {', '.join(map(repr, ports)) or 'none'}"
                )
            feeds[name] = port.feed(value)
        missing = [name for name in self._required if name not in feeds]
        if missing:
            expected = ", ".join(f"{name!r} ({ports[name].arg.type})" for name in missing)
            raise InvalidFeedError(
                f"no value was given for input {expected}; the feed holds {list(feeds) or 'nothing'}"
            )
        return feeds

    def _blame_feeds(self, input_feed: Mapping[str, Any], error: Exception) -> None:
        """Raise a FeedError in the place of onnxruntime's ``error`` where a feed is what was wrong."""
        if not isinstance(error, FeedError):
            try:
                self._feeds(input_feed)
            except FeedError as blame:
                raise blame from error

    @contextlib.contextmanager
    def _errors_of_run(self, input_feed: Mapping[str, Any] | None, run_options: Any) -> Iterator[Any]:
        """Raise what the operators met; put a FeedError or a clear one in the place of onnxruntime's errors.

        Gives the run options for the run, which Ctrl-C ends soon if nobody else's options say otherwise.
        """
        custom_ops = self._custom_ops
        failure = None
        try:
            if custom_ops is None:
                yield run_options
                return
            notify = None
            if run_options is None:
                run_options = onnxruntime.RunOptions()
                notify = functools.partial(setattr, run_options, "terminate", True)
            mark = custom_ops.error_mark()
            with custom_ops.deferred_interrupts(notify):
                try:
                    yield run_options
                finally:
                    failure = custom_ops.take_error(mark)
        except Exception as error:
            if failure is not None:
                raise failure from error
            if input_feed is not None:
                self._blame_feeds(input_feed, error)
            if self._rewrite_record is not None:
                _explain_literal(error)
            raise
        if failure is not None:
            raise failure

    def _run(
        self, names: list[str], feeds: Mapping[str, Any], input_feed: Mapping[str, Any], run_options: Any
    ) -> list[Any]:
        """The outputs for ``feeds``, which were made of the user's ``input_feed``."""
        with self._errors_of_run(input_feed, run_options) as run_options:
            if self._opaque_outputs.isdisjoint(names):
                results = super().run(names, feeds, run_options)
            else:
                results = self._run_ort_values(names, feeds, run_options)
        return [self._output_ports[name].fetch(value) for name, value in zip(names, results, strict=True)]

    def _run_ort_values(self, names: list[str], feeds: Mapping[str, Any], run_options: Any) -> list[Any]:
        values = {}
        for name, value in feeds.items():
            if value is None:
                continue
            try:
                values[name] = to_ort_value(value, self._input_ports[name].carrier_type)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidFeedError(
                    f"input {name!r}, given where an output is bfloat16 or float8: {error}"
                ) from error
        return [to_python(value) for value in super().run_with_ort_values(names, values, run_options)]


def _is_ort_format(source: Any, sess_options: onnxruntime.SessionOptions | None) -> bool:
    """Whether onnxruntime reads ``source`` (a path of a file or bytes) as a model in its own format."""
    is_path = isinstance(source, (str, os.PathLike))
    is_named = is_path and os.fspath(source).endswith(".ort")
    if not is_named and _start(source)[4:] != b"ORTM":
        return False
    if sess_options is not None:  # to ask for an entry that is not there takes long
        with contextlib.suppress(RuntimeError):
            return str(sess_options.get_session_config_entry("session.load_model_format")).upper() == "ORT"
    return is_named or not is_path


def _start(source: Any) -> bytes:
    """The first eight bytes of a file or of bytes."""
    if isinstance(source, bytes):
        return source[:8]
    if isinstance(source, (str, os.PathLike)):
        with contextlib.suppress(OSError, ValueError), open(source, "rb", buffering=0) as file:
            return file.read(8)
    return b""


def _check_names(kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that neither this package nor onnxruntime knows, which ignores them."""
    for name in kwargs:
        if name in _PASSED_ON:
            continue
        meant = difflib.get_close_matches(name, (*_OPTIONS, *_PASSED_ON), 1)
        if meant == ["target"]:
            raise OptionError(
                f"{name}= is no option of a session, which is for the installed onnxruntime; leave it out"
            )
        if meant:
            raise OptionError(f"there is no option {name}=; did you mean {meant[0]}=?")
        raise OptionError(f"there is no option {name}=; a session takes {', '.join((*_OPTIONS[1:], *_PASSED_ON))}")


def _is_for_onnxruntime(source: Any, sess_options: onnxruntime.SessionOptions | None) -> bool:
    """Whether there is nothing to rewrite: what onnxruntime alone can read, or refuse in its own words."""
    if isinstance(source, (str, os.PathLike)):
        if not os.path.isfile(source):
            return not os.path.isdir(source)
    elif not isinstance(source, bytes):
        return not hasattr(source, "graph")
    return _is_ort_format(source, sess_options)


def _registered(sess_options: onnxruntime.SessionOptions) -> ModuleType:
    from ort_castlike import _custom_ops

    _custom_ops.register(sess_options)
    return _custom_ops


def _explain_conflict(error: Exception) -> None:
    if "Conflicting with a registered kernel" in str(error):
        raise RegistrationError(
            "the operators of onnxruntime-extensions are registered twice in these session options; this package "
            "registers them itself, with all that the extensions library holds: give session options without "
            "register_custom_ops_library(onnxruntime_extensions.get_library_path())"
        ) from error


def _explain_literal(error: Exception) -> None:
    """Say what onnxruntime's Cast means where it names the C function alone that read the string."""
    match = re.search(r"running Cast node. Name:'(.*?)' Status Message: sto[a-z]+\b", str(error))
    if match is not None:
        raise ModelError(
            f"node {match[1]!r} casts a string that is no number, or one out of range; a number is written as "
            "'-1', '0.5', '1e3', 'INF' or 'NaN'"
        ) from error
