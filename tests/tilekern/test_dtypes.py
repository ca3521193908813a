"""Element types and the numbers they hold."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.dtypes import DTYPES

DIGITS = {
    dtype: 11 if dtype is tk.tfloat32 else ml_dtypes.finfo(dtype.dtype).nmant + 1
    for dtype in DTYPES.values()
    if dtype.is_float and dtype not in (tk.float64, tk.float8_e8m0fnu)
}


@pytest.mark.parametrize("dtype", DIGITS, ids=str)
def test_floats_are_rounded_once(dtype):
    """Just above half way, by less than float32 tells where it can hold more."""
    last = 2.0 ** (1 - DIGITS[dtype])
    assert dtype.rounded(1 + last / 2 + 2.0**-50) == 1 + last
    assert dtype.rounded(-1 - last / 2 - 2.0**-50) == -1 - last
    assert dtype.rounded(1 + last / 2) == 1


@pytest.mark.parametrize("dtype", [tk.bfloat16, tk.tfloat32, tk.float32], ids=str)
@pytest.mark.parametrize("exponent", [30, 60, 90])
def test_integers_are_rounded_once(dtype, exponent):
    last = 1 << (exponent + 1 - DIGITS[dtype])
    for sign in (1, -1):
        assert dtype.rounded(sign * ((1 << exponent) + last // 2 + 1)) == sign * ((1 << exponent) + last)
    assert dtype.rounded((1 << exponent) + last // 2) == 1 << exponent


@tk.kernel
def constants(out, number: tk.Constant[object], kind: tk.Constant[object]):
    tk.store(out, 0, tk.full(1, number, out.dtype))
    tk.store(out, 1, tk.zeros(1, out.dtype) + number)
    tk.store(out, 2, tk.full(1, number, kind).astype(out.dtype))


@tk.kernel
def arguments(out, typed: tk.bfloat16, loose):
    tk.store(out, 0, typed.reshape(1))
    tk.store(out, 1, tk.zeros(1, out.dtype) + loose)


NEAR_TIES = [(1 + 2**-8 + 2**-40, tk.float64, 1 + 2**-7), (2**30 + 2**22 + 1, tk.int32, 2**30 + 2**23)]


@pytest.mark.parametrize(("number", "kind", "expected"), NEAR_TIES, ids=["float", "int"])
def test_numbers_of_kernels_are_rounded_once(device, number, kind, expected):
    for kernel, args, places in ((constants, (number, kind), 3), (arguments, (number, number), 2)):
        out = ca.zeros(places, "bfloat16").sync()
        kernel(ca.mut(out), *args).grid(1).sync()
        np.testing.assert_array_equal(out.to_host().sync().astype("f8"), np.full(places, float(expected)))


@pytest.mark.filterwarnings("error")
def test_constants_beyond_a_type_are_infinite_without_a_warning(device):
    @tk.kernel
    def kernel(out):
        tk.store(out, 0, tk.arange(4, start=100_000, dtype=tk.float16))
        tk.store(out, 1, tk.full(4, 1e30, tk.float32).astype(tk.float16))

    out = ca.zeros(8, "f2").sync()
    kernel(ca.mut(out)).grid(1).sync()
    np.testing.assert_array_equal(out.to_host().sync(), np.full(8, np.inf, "f2"))
