"""Which new versions of the default domain's operators only added types or attributes.

Read from the schemas and documentation of opset 22 to 28. A bump named here took nothing away and changed the meaning
of nothing that was valid before, so the checks of attributes, arity and types prove a node at the lower version. A bump
that changed more has a rule in ``_rules``; one that is in neither, of a newer onnx, is refused.
"""

from __future__ import annotations

__all__ = ["ADDITIONS"]

_CARRIED = (
    "Cast CastLike Constant ConstantOfShape DequantizeLinear Flatten Identity If Loop Pad QuantizeLinear Reshape Scan "
    "Shape Size Squeeze Transpose Unsqueeze"
)

_BY_OPSET = {
    # bfloat16, and float8 for Dropout
    22: "Acos Acosh Asin Asinh Atan Atanh Bernoulli Conv ConvTranspose Cos Cosh DeformConv Det Dropout Elu EyeLike GRU "
    "GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample HardSigmoid HardSwish InstanceNormalization LSTM "
    "LpNormalization LpPool MaxRoiPool MaxUnpool Mish Multinomial NegativeLogLikelihoodLoss RNN RandomNormal "
    "RandomNormalLike RandomUniform RandomUniformLike RoiAlign Round Selu Sin Sinh Softplus Softsign Tan "
    "ThresholdedRelu",
    # float4e2m1
    23: " ".join(sorted(set(_CARRIED.split()) - {"DequantizeLinear", "QuantizeLinear"})),
    # float8e8m0, and bfloat16 for SplitToSequence and TopK
    24: " ".join(sorted(set(_CARRIED.split()) - {"Cast", "CastLike"})) + " SplitToSequence TopK",
    # int2 and uint2
    25: _CARRIED,
    # float6, bfloat16, every element type in optionals, and function bodies for operators that had none
    28: "Cast Celu Compress DepthToSpace DequantizeLinear Einsum OneHot Optional OptionalGetElement OptionalHasElement "
    "QuantizeLinear ReduceLogSum ReduceLogSumExp ReverseSequence Unique",
}

ADDITIONS: frozenset[tuple[str, int]] = frozenset(
    (op_type, opset) for opset, names in _BY_OPSET.items() for op_type in names.split()
)
