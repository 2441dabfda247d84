"""The IOBinding of a session: ml_dtypes arrays in and out, carriers in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from ort_castlike._io._ort_values import to_python
from ort_castlike._io._ports import InvalidFeedError, Port

__all__ = ["IOBinding"]


class IOBinding(onnxruntime.IOBinding):  # type: ignore[misc]
    """An ``onnxruntime.IOBinding`` for models that hold emulated types.

    An array of an emulated type is converted when it is bound: what is written into it later is not seen.
    OrtValues and pointers hold emulated types in their carriers.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        input_ports: Mapping[str, Port],
        output_ports: Mapping[str, Port],
    ) -> None:
        super().__init__(session)
        self._input_ports = input_ports
        self._output_ports = output_ports
        self._names_of_outputs: dict[str, None] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array, in the types that the session's ``run`` takes.

        Raises:
            FeedError: The array does not fit the input.
        """
        port = self._input_ports.get(name)
        value = port.feed(arr_on_cpu) if port is not None else arr_on_cpu
        if isinstance(value, OrtValue):
            super().bind_ortvalue_input(name, value)
            self._numpy_obj_references[name] = value
        else:
            super().bind_cpu_input(name, value)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
    ) -> None:
        """Bind memory of the carrier's type.

        Raises:
            FeedError: ``element_type`` is an emulated type, which no memory of onnxruntime holds unpacked.
        """
        _refuse_emulated(self._input_ports.get(name), element_type, "input")
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to memory of the carrier's type, or to memory that the runtime takes.

        Raises:
            FeedError: As for :meth:`bind_input`.
        """
        _refuse_emulated(self._output_ports.get(name), element_type, "output")
        super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._names_of_outputs[name] = None

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to an OrtValue of the carrier's type."""
        super().bind_ortvalue_output(name, ortvalue)
        self._names_of_outputs[name] = None

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        super().clear_binding_outputs()
        self._names_of_outputs.clear()

    def copy_outputs_to_cpu(self) -> Sequence[Any]:
        """The outputs, in the order in which they were bound, as the session's ``run`` gives them."""
        ports = [self._output_ports[name] for name in self._names_of_outputs]
        if any(port.is_opaque for port in ports):
            results = [to_python(value) for value in self.get_outputs()]
        else:
            results = super().copy_outputs_to_cpu()
        return [port.fetch(value) for port, value in zip(ports, results, strict=True)]


def _refuse_emulated(port: Port | None, element_type: Any, what: str) -> None:
    if port is None or not port.is_emulated or port.element is None or element_type is None:
        return
    is_code = isinstance(element_type, int)
    if element_type == port.element.code if is_code else np.dtype(element_type) == port.element.dtype:
        raise InvalidFeedError(
            f"{what} {port.name!r} is {port.arg.type} and its memory holds {port.carrier_type}: bind it so"
        )
