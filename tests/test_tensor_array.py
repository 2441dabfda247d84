"""TensorProtos become arrays of their type and shape, scalars too."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import DTYPES, assert_same
from onnx import numpy_helper

from ort_castlike._tensor_array import array_of


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0, 2)])
@pytest.mark.parametrize("name", sorted(DTYPES))
def test_an_array_comes_back_as_it_was(name, shape):
    array = np.ones(shape, DTYPES[name])
    assert_same(array_of(numpy_helper.from_array(array)), array)


def test_a_string_comes_back_as_it_was():
    assert array_of(numpy_helper.from_array(np.array("é", object))).item() == "é"
