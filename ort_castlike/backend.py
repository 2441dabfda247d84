"""The ONNX backend interface: models and single nodes run through :class:`ort_castlike.InferenceSession`.

``onnx.backend.test.BackendTest(ort_castlike.backend, __name__)`` makes test cases of ONNX's own suite from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from ort_castlike._bfloat16 import compute_in_float32
from ort_castlike._errors import CastLikeError, FeedError, OptionError
from ort_castlike._files import _protos
from ort_castlike._files._load import to_ir, to_proto
from ort_castlike._files._read import ModelSource
from ort_castlike._options import resolve_options
from ort_castlike._rewrite import rewrite
from ort_castlike._session import InferenceSession
from ort_castlike._tensor_array import array_of

__all__ = [
    "CastLikeBackend",
    "CastLikeBackendRep",
    "is_compatible",
    "prepare",
    "run_model",
    "run_node",
    "supports_device",
]


class CastLikeBackendRep(BackendRep):
    """A model that is ready to run, as often as wanted.

    Attributes:
        session: The session behind it.
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._inputs = [argument.name for argument in session.get_inputs()]
        self._outputs = namedtupledict("Outputs", [argument.name for argument in session.get_outputs()])

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute the outputs.

        Args:
            inputs: A value for each input of the model, in order; or a mapping of names to values; or the value
                itself where the model has one input. A value is an array, a ``TensorProto``, a list of these for a
                sequence, or None for an optional that holds nothing.
            **kwargs: None has a meaning.

        Returns:
            The outputs in order, which can be had by their names too.

        Raises:
            FeedError: A value does not fit its input, or there are too many.
            CastLikeError: As for :meth:`ort_castlike.InferenceSession.run`.
        """
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            values = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(values) > len(self._inputs):
                raise FeedError(f"{len(values)} values were given; the model has inputs {self._inputs}")
            feeds = dict(zip(self._inputs, values, strict=False))
        feeds = {name: _plain(value) for name, value in feeds.items()}
        outputs: tuple[Any, ...] = self._outputs(*self.session.run(None, feeds))
        return outputs


class CastLikeBackend(Backend):
    """ONNX's ``Backend`` on :class:`ort_castlike.InferenceSession`."""

    @classmethod
    def is_compatible(cls, model: ModelSource, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the installed onnxruntime can be given the model, rewritten where it needs it.

        Args:
            model: As for :func:`ort_castlike.rewrite`.
            device: As for :meth:`supports_device`.
            **kwargs: None has a meaning.
        """
        if not cls.supports_device(device):
            return False
        try:
            rewrite(model)
        except CastLikeError:
            return False
        return True

    @classmethod
    def prepare(
        cls,
        model: ModelSource,
        device: str = "CPU",
        *,
        sess_options: onnxruntime.SessionOptions | None = None,
        lowering: str = "custom",
        rounding: str = "nearest_even",
        **kwargs: Any,
    ) -> CastLikeBackendRep:
        """Make a model ready to run.

        On the CPU, operators of bfloat16 compute in float32 and round once, since onnxruntime has none there.

        Args:
            model: As for :func:`ort_castlike.rewrite`; a ``ModelProto`` is checked by ONNX first.
            device: "CPU", or "CUDA" or "CUDA:1" where the installed onnxruntime has it.
            sess_options: As for :class:`ort_castlike.InferenceSession`.
            lowering: As for :func:`ort_castlike.rewrite`.
            rounding: As for :func:`ort_castlike.rewrite`.
            **kwargs: Ignored; ONNX's test runner gives its tolerances here.

        Raises:
            OptionError: The device is not there.
            onnx.checker.ValidationError: The model is not valid ONNX.
            CastLikeError: As for :func:`ort_castlike.rewrite`.
        """
        if not cls.supports_device(device):
            raise OptionError(
                f"there is no device {device!r}; the installed onnxruntime has {onnxruntime.get_available_providers()}"
            )
        if isinstance(model, onnx.ModelProto):
            super().prepare(model, device)
            if Device(device).type == DeviceType.CPU and _mentions_bfloat16(model):
                model = _for_cpu(model)
        session = InferenceSession(
            model, sess_options, providers=_providers(device), lowering=lowering, rounding=rounding
        )
        return CastLikeBackendRep(session)

    @classmethod
    def run_model(cls, model: ModelSource, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Make a model ready and run it once.

        Args:
            model: As for :meth:`prepare`.
            inputs: As for :meth:`CastLikeBackendRep.run`.
            device: As for :meth:`prepare`.
            **kwargs: As for :meth:`prepare`.

        Raises:
            CastLikeError: As for :meth:`prepare` and :meth:`CastLikeBackendRep.run`.
        """
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Sequence[int]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node.

        Args:
            node: The node.
            inputs: A value for each input that the node names, in order: an array, a ``TensorProto``, or a list of
                these for a sequence. Their types are the inputs' types.
            device: As for :meth:`prepare`.
            outputs_info: The dtype and the shape of each output; by default they are what ONNX infers.
            **kwargs: ``opset_version`` is the version of the operator set of the node's domain, the newest by default;
                the others are as for :meth:`prepare`.

        Raises:
            FeedError: The values are not as many as the names, or one has no ONNX type.
            CastLikeError: As for :meth:`run_model`.
        """
        version = kwargs.pop("opset_version", None)
        super().run_node(node, inputs, device, **({} if version is None else {"opset_version": version}))
        values = [_plain(value) for value in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        return cls.run_model(_model_of(node, values, outputs_info, version), values, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether the installed onnxruntime has a device: "CPU", "CUDA", "CUDA:1"."""
        try:
            needed = Device(device).type
        except (AttributeError, ValueError):
            return False
        return needed == DeviceType.CPU or "CUDAExecutionProvider" in onnxruntime.get_available_providers()


is_compatible = CastLikeBackend.is_compatible
prepare = CastLikeBackend.prepare
run_model = CastLikeBackend.run_model
run_node = CastLikeBackend.run_node
supports_device = CastLikeBackend.supports_device


def _providers(device: str) -> list[str | tuple[str, dict[Any, Any]]]:
    chosen = Device(device)
    if chosen.type == DeviceType.CPU:
        return ["CPUExecutionProvider"]
    return [("CUDAExecutionProvider", {"device_id": chosen.device_id}), "CPUExecutionProvider"]


def _mentions_bfloat16(model: onnx.ModelProto) -> bool:
    code = onnx.TensorProto.BFLOAT16
    infos = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    return any(info.type.tensor_type.elem_type == code for info in infos) or any(
        tensor.data_type == code for tensor in _protos.tensors(model)
    )


def _for_cpu(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with bfloat16 computed in float32, since the CPU has no arithmetic for it."""
    widened = to_ir(model)
    compute_in_float32(widened, resolve_options(target=None, lowering="custom", rounding="nearest_even"))
    return to_proto(widened, model)


def _plain(value: Any) -> Any:
    """A value with arrays in the place of TensorProtos."""
    if isinstance(value, onnx.TensorProto):
        return array_of(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _model_of(
    node: onnx.NodeProto,
    values: Sequence[Any],
    outputs_info: Sequence[tuple[Any, Sequence[int]]] | None,
    version: int | None,
) -> onnx.ModelProto:
    """A model of one node, the inputs typed as the values are."""
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(values) != len(names):
        raise FeedError(f"{len(values)} values were given; the {node.op_type} node has inputs {names}")
    inputs = [helper.make_value_info(name, _type_of(value)) for name, value in zip(names, values, strict=True)]
    if outputs_info is None:
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    else:
        outputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in zip(filter(None, node.output), outputs_info, strict=True)
        ]
    imports = [helper.make_opsetid(node.domain, version or _newest(node.domain))]
    graph = helper.make_graph([node], node.op_type, inputs, outputs)
    ir_version = helper.find_min_ir_version_for(imports, ignore_unknown=True)
    model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    return onnx.shape_inference.infer_shapes(model)


def _newest(domain: str) -> int:
    """The newest version of an operator set that ONNX has released; 1 for those that it does not know."""
    released: Iterable[tuple[str, int]] = helper.OP_SET_ID_VERSION_MAP
    return max((version for name, version in released if name == (domain or "ai.onnx")), default=1)


def _type_of(value: Any) -> onnx.TypeProto:
    if isinstance(value, list):
        if not value:
            raise FeedError("an empty sequence does not say what it is a sequence of; give a model to run_model")
        return helper.make_sequence_type_proto(_type_of(value[0]))
    array = np.asarray(value)
    try:
        element = helper.np_dtype_to_tensor_dtype(np.dtype(object) if array.dtype.kind in "SU" else array.dtype)
    except (KeyError, ValueError) as error:
        raise FeedError(f"ONNX has no element type for a value of dtype {array.dtype}") from error
    return helper.make_tensor_type_proto(element, array.shape)
