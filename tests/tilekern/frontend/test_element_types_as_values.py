"""Element types as what a kernel decides by and shows: NumPy's names for them, their text, functions as arguments."""

import functools
import math
import operator

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


@tk.kernel
def answers(out, x):
    tk.static_assert(x.dtype == np.float32 and np.float32 == x.dtype)
    tk.static_assert(x.dtype == np.dtype("f4") and x.dtype is np.float32)
    tk.static_assert(x.dtype != np.float16 and x.dtype is not np.int32)
    tk.static_assert(x.dtype in (np.float16, np.float32) and np.float32 in (tk.float32, None))
    tk.static_assert(x.dtype not in (np.float16, np.int32) and x.dtype != None)  # noqa: E711
    tk.static_assert(str(x.dtype) == "float32" and f"{x.dtype}" == "float32" and repr(x.dtype) == "float32")
    out.store(1.0)


def test_numpys_types_are_the_types_they_name():
    x = tk.meta(8, "f4")
    assert "store" in answers.ir(x.partition(8), x)


@tk.kernel
def shows(out, x):
    n = x.shape[0]
    t = tk.load_like(x, out)
    print(f"{n=} {x.shape} {(n, 1.5)!r} {t.dtype}", t.dtype)
    out.store(t)


def test_text_with_parts_known_at_run_time(host, capfd):
    shows(ca.empty(2, "f4").partition(2), ca.ones((2,)).sync()).sync()
    assert capfd.readouterr().out == "n=2 (2,) (2, 1.5) float32 float32\n"


@tk.kernel
def applied(out, x, function):
    out.store(function(tk.load_like(x, out)))


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def apply(self, t):
        return t * self.factor


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (functools.partial(operator.mul, 3), [-3, 6]),
        (abs, [1, 2]),
        (operator.neg, [1, -2]),
        (Scale(4).apply, [-4, 8]),
        (tk.abs, [1, 2]),
    ],
    ids=["partial", "builtin", "operator", "method", "ours"],
)
def test_functions_of_all_kinds_are_arguments(device, function, expected):
    x = ca.from_host(np.float32([-1, 2])).sync()
    out = applied(ca.empty(2, "f4").partition(2), x, function).first().unpartition()
    assert out.to_host().sync().tolist() == expected


@pytest.mark.parametrize(("function", "advice"), [(np.exp, "use tk.exp"), (math.exp, "tk.exp does")])
def test_functions_of_the_host_are_refused_where_they_are_called(function, advice):
    x = tk.meta(8, "f4")
    with pytest.raises(tk.KernelTypeError, match=advice):
        applied.ir(x.partition(8), x, function)


def test_a_numpy_type_is_an_argument(host):
    @tk.kernel
    def converted(out, x, dtype):
        out.store(tk.load_like(x, out).astype(dtype).astype(tk.float32))

    x = ca.from_host(np.float32([2049, 2])).sync()
    out = converted(ca.empty(2, "f4").partition(2), x, np.dtype("f2")).first().unpartition()
    assert out.to_host().sync().tolist() == [2048, 2]  # float16 has 11 bits


def test_a_type_that_a_target_lacks_is_told_at_its_parameter():
    @tk.kernel
    def k(out, x, y):
        out.store(tk.load_like(y, out).astype(tk.float32) + tk.load_like(x, out))

    x, y = tk.meta(8, "f4"), tk.meta(8, tk.float8_e4m3fn)
    with pytest.raises(tk.KernelTypeError, match="float8_e4m3fn needs sm_89") as caught:
        k.cubin(x.partition(8), x, y, arch="sm_80")
    source, caret = str(caught.value).splitlines()[1:3]
    assert source[caret.index("^")] == "y"
    assert caret.count("^") == 1
