"""Element types and shapes that operands meet in."""

import itertools

import numpy as np
import pytest

import tilekern as tk
from tilekern.dtypes import DTYPES
from tilekern.errors import KernelError

PLAIN = [d for d in DTYPES.values() if not d.restricted]
RESTRICTED = [d for d in DTYPES.values() if d.restricted]


def result_type(expression):
    """The element type of what `expression()` gives in a kernel."""

    @tk.kernel
    def kernel(out):
        tk.static_assert(False, expression().dtype.name)

    try:
        kernel.ir(tk.meta((8,), "f4").partition(8))
    except tk.KernelValueError as error:
        if "static assertion failed" not in error.reason:
            raise
        return error.reason.split(": ")[1]
    raise AssertionError("no type found")


def expected_type(a, b):
    """The rule, as docs/language.md states it; None where a cast is needed."""
    if a is b:
        return a
    if "bool" in (a.kind, b.kind):
        return b if a.kind == "bool" else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.kind != b.kind or a.bits == b.bits:
        return None
    return max(a, b, key=lambda d: d.bits)


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations_with_replacement(PLAIN, 2)), ids=str)
def test_two_types_meet(a, b):
    expected = expected_type(a, b)
    for x, y in ((a, b), (b, a)):
        if expected is None:
            with pytest.raises(tk.KernelTypeError, match="do not mix"):
                result_type(lambda x=x, y=y: tk.maximum(tk.ones((), x), tk.ones((), y)))
        else:
            assert result_type(lambda x=x, y=y: tk.maximum(tk.ones((), x), tk.ones((), y))) == expected.name


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
def test_number_takes_the_tiles_type(dtype):
    if dtype.kind == "bool":
        assert result_type(lambda: tk.ones((), dtype) + 1) == "int32"
        assert result_type(lambda: tk.ones((), dtype) + 0.5) == "float32"
        return
    assert result_type(lambda: tk.ones((), dtype) + 1) == dtype.name
    assert result_type(lambda: tk.ones((), dtype) + True) == dtype.name
    assert result_type(lambda: 2.5 * tk.ones((), dtype)) == (dtype.name if dtype.is_float else "float32")


@pytest.mark.parametrize("dtype", RESTRICTED, ids=str)
def test_restricted_type_meets_nothing(dtype):
    for other in (tk.float32, tk.int32, dtype):
        with pytest.raises(tk.KernelTypeError):
            result_type(lambda other=other: tk.ones((), dtype) + tk.ones((), other))
    assert result_type(lambda: tk.ones((), dtype).astype(tk.float32) + 1) == "float32"


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        (lambda: tk.full((), 3, tk.int64) / tk.full((), 2, tk.int64), "float32"),
        (lambda: tk.full((), 3, tk.float16) / 2, "float16"),
        (lambda: tk.exp(tk.full((), 3, tk.int32)), "float32"),
        (lambda: tk.exp(tk.full((), 3, tk.bfloat16)), "bfloat16"),
        (lambda: tk.ones((), tk.bool_) + tk.ones((), tk.bool_), "int32"),
        (lambda: tk.ones((), tk.bool_) & tk.ones((), tk.bool_), "bool_"),
        (lambda: tk.ones((), tk.float64) < 1, "bool_"),
        (lambda: tk.sum(tk.ones((4,), tk.bool_)), "int32"),
        (lambda: tk.sum(tk.ones((4,), tk.int8)), "int8"),
        (lambda: tk.sum(tk.ones((4,), tk.bfloat16)), "bfloat16"),
        (lambda: tk.argmax(tk.ones((4,), tk.float64)), "int32"),
        (lambda: tk.where(tk.ones((), tk.bool_), 1, 2.5), "float32"),
        (lambda: tk.ones((16, 16), tk.float16) @ tk.ones((16, 16), tk.float32), "float32"),
        (lambda: tk.ones((16, 16), tk.bfloat16) @ tk.ones((16, 16), tk.bfloat16), "bfloat16"),
        (lambda: tk.ones((16, 16), tk.int8) @ tk.ones((16, 16), tk.int8), "int32"),
        (lambda: tk.bid(0) + (2**31 - 1), "int32"),
        (lambda: tk.int64(tk.bid(0)) + 2**40, "int64"),
        (lambda: tk.ones((), tk.float32) + np.float64(1), "float64"),
        (lambda: tk.ones((), tk.int16) + np.int8(1), "int16"),
        (lambda: tk.float16(1), "float16"),
        (lambda: tk.ones((), tk.int32) ** 3, "int32"),
        (lambda: tk.ones((), tk.int32) // tk.ones((), tk.int8), "int32"),
    ],
)
def test_result_type(expression, name):
    assert result_type(expression) == name


def test_number_that_does_not_fit():
    with pytest.raises(KernelError, match="-1 does not fit uint8"):
        result_type(lambda: tk.ones((), tk.uint8) + -1)
    with pytest.raises(KernelError, match="2147483648 does not fit int32"):
        result_type(lambda: tk.bid(0) + 2**31)


@tk.kernel
def broadcast_add(out: tk.Tile3D, a, b, shape_a: tk.Constant[tuple], shape_b: tk.Constant[tuple]):
    x = tk.load(a, (0,) * len(shape_a), shape_a)
    y = tk.load(b, (0,) * len(shape_b), shape_b)
    tk.static_assert((x + y).shape == out.shape)
    out.store(x + y)


@pytest.mark.parametrize(
    ("shape_a", "shape_b"),
    [
        ((2, 4, 8), (2, 4, 8)),
        ((8,), (2, 4, 1)),
        ((1, 4, 1), (2, 1, 8)),
        ((4, 8), (2, 1, 1)),
        ((2, 4, 8), (1,)),
    ],
)
def test_shapes_broadcast_like_numpy(shape_a, shape_b, run):
    a = np.arange(np.prod(shape_a), dtype="i4").reshape(shape_a)
    b = 100 * np.arange(np.prod(shape_b), dtype="i4").reshape(shape_b)
    result = run(broadcast_add, ((2, 4, 8), "i4", (2, 4, 8)), a, b, shape_a, shape_b)
    assert np.array_equal(result, a + b)
