"""A kernel that forgets to store is refused; one that leaves an output alone on purpose is not."""

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk

X = tk.meta((8,), "f4")
OUT = X.partition(4)


def returned(out, x):
    return tk.load_like(x, out) * 2


def assigned(out, x):
    out = tk.load_like(x, out)


def forgotten(out, x):
    t = tk.load_like(x, out) * 2  # noqa: F841


def only_loaded(out, x):
    t = out.load() * 2  # noqa: F841


@pytest.mark.parametrize(
    ("function", "message", "line"),
    [
        (returned, r"kernels return nothing; store the result with out\.store\(\.\.\.\)", 1),
        (assigned, r"assigning to its name stores nothing; write out\.store\(tile\)", 1),
        (forgotten, "nothing is stored to out, a partition", 0),
        (only_loaded, "nothing is stored to out, a partition", 0),
    ],
)
def test_kernel_that_stores_nothing_is_refused_at_its_line(function, message, line):
    with pytest.raises(tk.KernelError, match=message) as caught:
        tk.kernel(function).ir(OUT, X)
    assert caught.value.location.line == function.__code__.co_firstlineno + line


def test_output_given_as_mut_is_named():
    @tk.kernel
    def kernel(out, y, x):
        out.store(tk.load_like(x, out))

    with pytest.raises(tk.KernelValueError, match=r"nothing is stored to y, given as mut; .*tk\.store\(y"):
        kernel.ir(OUT, X.mut(), X)
    kernel.ir(OUT, X, X)


def test_second_output_that_is_forgotten_is_named():
    @tk.kernel
    def kernel(out, second, x):
        out.store(tk.load_like(x, second))

    with pytest.raises(tk.KernelValueError, match=r"nothing is stored to second, a partition.*\.grid"):
        kernel.ir(OUT, OUT, X)


def test_output_that_is_only_read_beside_another_is_fine():
    @tk.kernel
    def kernel(out, second):
        out.store(second.load())

    kernel.ir(OUT, OUT)


def test_kernel_that_only_checks_is_fine():
    @tk.kernel
    def kernel(out):
        assert out.load() > 0

    kernel.ir(OUT)


@pytest.mark.parametrize("save", [True, False])
def test_output_left_alone_by_a_constant_is_fine(device, save):
    def keep(second, t):
        second.store(t)

    @tk.kernel
    def by_if(out, second, save: tk.Constant[bool]):
        out.store(1)
        if save:
            second.store(2)

    @tk.kernel
    def by_return(out, second, save: tk.Constant[bool]):
        out.store(1)
        if not save:
            return
        keep(second, 2)

    @tk.kernel
    def by_loop(out, second, save: tk.Constant[bool]):
        out.store(1)
        for value in tk.static_iter((2,) if save else ()):
            second.store(value)

    for kernel in (by_if, by_return, by_loop):
        out, second = ca.zeros(8, "f4"), ca.zeros(8, "f4")
        _, left, _ = kernel(out.partition(4), second.partition(4), save).sync()
        expected = np.full(8, 2.0 if save else 0.0)
        assert left.unpartition().to_host().sync().tolist() == expected.tolist()


def test_return_of_none_is_fine():
    @tk.kernel
    def kernel(out):
        if tk.bid(0) > 0:
            return out.store(1)
        out.store(0)
        return None

    kernel.ir(OUT)
