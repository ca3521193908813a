"""What the tests of the kernel library share: values, and how close results must be.

The folder is made an import path, for the samples: folders of tests are none in the import mode they run in.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca

sys.path.insert(0, str(Path(__file__).parent))

DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
SMALLEST = {"f32": 0.0, "f16": 2.0**-24, "bf16": 0.0}
"""Distance of the smallest numbers, where rounding is no longer relative."""


class Values:
    """Random operands of one element type, and the comparison of results with float64."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = DTYPES[name]
        self.random = np.random.default_rng(7)

    def __call__(self, *shape, scale=1.0):
        """(tensor, the same numbers in float64)."""
        array = (self.random.standard_normal(shape) * scale).astype(self.dtype)
        return ca.from_host(array).sync(), array.astype(np.float64)

    def close(self, op, expected, *, terms=1, scale=None):
        """Run `op` and compare: within a rounding of the type, and of float32 for each of `terms` summands."""
        result = op.to_host().sync()
        assert result.dtype == self.dtype
        assert result.shape == expected.shape
        bound = np.abs(expected) if scale is None else scale
        allowed = 1.01 * ROUNDING[self.name] * np.abs(expected) + SMALLEST[self.name]
        allowed = allowed + 4e-7 * (2 + terms**0.5) * (bound + 1e-3)
        difference = np.abs(result.astype(np.float64) - expected)
        worst = np.unravel_index(np.argmax(difference - allowed), difference.shape)
        assert difference[worst] <= allowed[worst], f"{result[worst]}, not {expected[worst]}, at {worst}"
        return result


@pytest.fixture(params=list(DTYPES))
def values(request, device):
    """`values(rows, columns)`: a tensor on the test's device and its numbers; `values.close(op, expected)`."""
    return Values(request.param)
