"""Numbers that NVIDIA's assembler takes for granted never to come, or rounds twice, unless the lowering goes about it.

On the host device runs what the assembler made.
"""

import numpy as np
import pytest

import tilekern as tk

pytestmark = pytest.mark.usefixtures("assembled")


def in_float64():
    """What is computed further from such a number shows what the assembler believes of it."""

    @tk.kernel
    def kernel(out: tk.Tile1D, x: tk.Tensor1D, one: int, compute: tk.Constant[object]):
        out.store(compute(tk.load_like(x, out), one).astype(tk.float64))

    return kernel


def quotient_in_loop(x, one):
    for i in range(-1, 0):
        x = x // i.astype(x.dtype)
    return x // 2


WRAPPED = {
    "abs": lambda x, one: tk.abs(x) // 2,
    "negative": lambda x, one: -x // 2,
    "minus-one": lambda x, one: x // -1 // 2,
    "divmod": lambda x, one: divmod(x, -1)[0] // 2,
    "selected": lambda x, one: x // tk.where(x < 0, -1, -1).astype(x.dtype) // 2,
    "not-zero": lambda x, one: x // (~(tk.bid(0) >> 31)).astype(x.dtype) // 2,
    "argument": lambda x, one: x // (-one).astype(x.dtype) // 2,
    "loop": quotient_in_loop,
}


@pytest.mark.parametrize("operation", WRAPPED)
@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8"])
def test_smallest_integer_wraps_to_itself(run, dtype, operation):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([least, least + 1, 3, -3], dtype)
    found = run(in_float64(), ((4,), "f8", 4), x, 1, WRAPPED[operation])
    others = [most // 2, 1, 1] if operation == "abs" else [most // 2, -2, 1]
    np.testing.assert_array_equal(found, np.float64([least // 2, *others]))


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8"])
def test_what_is_left_by_minus_one_is_nothing(run, dtype):
    x = np.array([np.iinfo(dtype).min, -1, 0, 5], dtype)
    for remainder in (lambda x, one: x % -1, lambda x, one: x % (-one).astype(x.dtype)):
        np.testing.assert_array_equal(run(in_float64(), ((4,), "f8", 4), x, 1, remainder), np.zeros(4))


def in_bfloat16(x, one):
    return x.astype(tk.bfloat16).astype(tk.float32)


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8"])
def test_integers_are_rounded_once(run, dtype):
    """Just above half way, closer than float32 tells; enough of them to be converted in pairs."""
    exponent = np.arange(1024) % (np.iinfo(dtype).bits - 26) + 25
    x = ((1 << exponent) + (1 << (exponent - 8)) + 1).astype(dtype)
    found = run(in_float64(), ((1024,), "f8", 1024), x, 1, in_bfloat16)
    np.testing.assert_array_equal(found, 2.0**exponent + 2.0 ** (exponent - 7))


@pytest.mark.parametrize(
    ("dtype", "x", "expected"),
    [
        ("i4", [-(2**30) - 2**22 - 1, -(2**30) - 2**22, -(2**31)], [-(2**30) - 2**23, -(2**30), -(2**31)]),
        ("u4", [2**32 - 1, 2**32 - 2**23 - 1, 2**31 + 2**23 + 1], [2**32, 2**32 - 2**24, 2**31 + 2**24]),
    ],
    ids=["negative", "unsigned"],
)
def test_largest_integers_are_rounded_once(run, dtype, x, expected):
    found = run(in_float64(), ((4,), "f8", 4), np.array([*x, 1], dtype), 1, in_bfloat16)
    np.testing.assert_array_equal(found, np.float64([*expected, 1]))
