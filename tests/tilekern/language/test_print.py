"""Printing, promises and dependent launches."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


def printed(kernel, *args, grid=1, capfd=None):
    kernel(*args).grid(grid).sync()
    ca.current_device().synchronize()
    return capfd.readouterr().out


@pytest.fixture
def output(device, capfd):
    """What a kernel prints; a GPU's lines come through the C library, once the device is idle."""

    def run(kernel, *args, grid=1):
        return printed(
            kernel,
            *[ca.from_host(a) if isinstance(a, np.ndarray) else a for a in args],
            grid=grid,
            capfd=capfd,
        )

    return run


def test_values_and_tiles_are_printed(output):
    @tk.kernel
    def show(x, n: int):
        t = tk.load(x, 0, 4)
        print("x", t, n, 2.5, True, sep="; ")
        print(t.reshape((2, 2)), end="!\n")
        print("100%", (n, t.max() > 2))

    expected = (
        "x; [0.500000, 1.500000, 2.500000, 3.500000]; 7; 2.5; True\n"
        "[[0.500000, 1.500000], [2.500000, 3.500000]]!\n"
        "100% (7, 1)\n"
    )
    assert output(show, np.array([0.5, 1.5, 2.5, 3.5], "f4"), 7) == expected


def test_f_strings_have_formats(output):
    @tk.kernel
    def show(x, n: int):
        t = tk.load(x, 0, 2)
        print(f"{n:5d}|{n:<5}|{n:+}|{n:x}|{t:.2f}|{t:10.3e}|{t.sum():g}|{3.14159:.2f}")

    text = output(show, np.array([1.0, -2.5], "f4"), 42)
    assert text == "   42|42   |+42|2a|[1.00, -2.50]|[ 1.000e+00, -2.500e+00]|-1.5|3.14\n"


def test_printf_is_that_of_c(output):
    @tk.kernel
    def show(x):
        t = tk.load(x, 0, 2)
        tk.printf("%5.1f|%lld|%x|%%|%u\n", t, t.astype(tk.int64), -1, t.astype(tk.uint8))

    assert output(show, np.array([1.0, 2.0], "f4")) == "[  1.0,   2.0]|[1, 2]|ffffffff|%|[1, 2]\n"


@pytest.mark.parametrize("dtype", ["?", "i1", "i8", "u2", "u8", "f2", "f8", tk.bfloat16.dtype], ids=str)
def test_every_type_is_printed(dtype, output):
    @tk.kernel
    def show(x):
        print(tk.load(x, 0, 2))

    x = np.array([0, 1]).astype(dtype)
    is_float = np.dtype(dtype).kind not in "biu"
    assert output(show, x) == ("[0.000000, 1.000000]\n" if is_float else "[0, 1]\n")


@pytest.mark.parametrize("dtype", ["u1", "u2", "u4", "u8"])
def test_the_largest_unsigned_numbers(dtype, output):
    @tk.kernel
    def show(x):
        t = tk.load(x, 0, 2)
        print(t, f"{t:d} {t:<5d}|{t:+}")
        tk.printf("%d %i\n", t, t)

    largest = int(np.iinfo(dtype).max)
    x = np.array([largest, 7], dtype)
    whole = f"[{largest}, 7]"
    assert output(show, x) == f"{whole} {whole} [{largest:<5d}, 7    ]|{whole}\n{whole} {whole}\n"


class Point(NamedTuple):
    x: object
    y: object


@dataclass(frozen=True)
class Pair:
    first: object
    second: object


def test_parts_of_aggregates_are_printed(output):
    @tk.kernel
    def show(n: int):
        print(Point(n, 2), (n,), Pair("a", n + 1))

    assert output(show, 1) == "Point(x=1, y=2) (1,) Pair(first='a', second=2)\n"


def test_every_block_prints(device, output):
    @tk.kernel
    def show(x):
        if tk.bid(0) % 2 == 1:
            print("block", tk.bid(0))
        print("done")

    lines = output(show, np.zeros(4, "f4"), grid=4).splitlines()
    if device.kind == "host":
        assert sorted(lines) == ["block 1", "block 3", *["done"] * 4]
    else:  # a GPU prints piece by piece, and blocks meanwhile
        assert sorted("".join(lines)) == sorted("block 1block 3" + "done" * 4)


REFUSED = [
    (lambda t: tk.printf("%d\n", t), "%d prints whole numbers, got a float32 tile"),
    (lambda t: tk.printf("%f %f\n", t), "has 2 conversions, got 1 values"),
    (lambda t: tk.printf("50%\n"), "begins no conversion"),
    (lambda t: print(f"{t:,}"), "',' is no format for a tile"),
    (lambda t: print(f"{t:d}"), "format d is for whole numbers"),
    (lambda t: print(t, file=None), "takes sep and end, got file"),
    (lambda t: tk.assume_divisible_by(t, 4), "takes whole numbers"),
    (lambda t: tk.assume_divisible_by(8, 3), "divisor is a power of two, got 3"),
    (lambda t: tk.assume_divisible_by(9, 4), "9 is no multiple of 4"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED)
def test_wrong_use_is_refused(function, message):
    @tk.kernel
    def show(x, f: tk.Constant[object]):
        f(tk.load(x, 0, 8))

    with pytest.raises(tk.KernelError, match=message):
        show.ir(tk.meta(8, "f4"), function)


# ------------------------------------------------------------------ promises and dependent launches


@tk.kernel
def promised(out: tk.Tile1D, n: int):
    out.store(tk.assume_divisible_by(n, 8) * 2)


def test_promise_gives_the_number(run):
    assert run(promised, ((4,), "i4", 4), 24).tolist() == [48] * 4


def test_broken_promise_is_found_on_the_host_device(host):
    op = promised(ca.zeros((4,), "i4").partition(4), 20)
    with pytest.raises(tk.KernelAssertionError, match="n is promised to be a multiple of 8, and is not"):
        op.sync()


def test_promise_is_in_the_bytecode():
    text = promised.tile_ir(tk.meta(4, "i4").partition(4), 24)
    assert "div_by<8>" in text


@tk.kernel
def dependent(out: tk.Tile1D, x: tk.Tensor1D):
    tk.grid_dependency_control_wait()
    t = tk.load_like(x, out)
    out.store(t + 1)
    tk.grid_dependency_control_launch_dependents()


def test_dependent_kernel_computes(run):
    assert run(dependent, ((4,), "f4", 4), np.arange(4, dtype="f4")).tolist() == [1, 2, 3, 4]


def test_no_access_moves_across_the_wait():
    """Loads and stores come after it by its token, those of memory that is only read too."""
    t = tk.meta(4, "f4")
    text = dependent.ir(t.partition(4), t)
    lines = [line.strip() for line in text.splitlines()]
    (wait,) = [line for line in lines if "grid_wait" in line]
    token = wait.split(" =")[0]
    (load,) = [line for line in lines if " load " in line]
    assert load.split("]")[1].startswith(f", {token}")
    assert dependent.bytecode(t.partition(4), t)[8:10] == bytes([13, 4])


def test_launch_that_may_begin_early_computes_the_same(run):
    """Ten kernels in a row, each on what the one before left."""
    early = dependent.with_options(programmatic_dependent_launch=True)
    x = ca.from_host(np.arange(4, dtype="f4")).sync()
    for _ in range(5):
        y = early(ca.empty(4, "f4").partition(4), x).first().unpartition().sync()
        x = early(ca.empty(4, "f4").partition(4), y).first().unpartition().sync()
    assert x.to_host().sync().tolist() == [10, 11, 12, 13]


@tk.kernel(programmatic_dependent_launch=True)
def plain_but_early(out: tk.Tile1D, x: tk.Tensor1D):
    out.store(tk.load_like(x, out) + 1)


def test_kernel_that_says_nothing_waits_at_its_beginning(run):
    """And lets the next one begin; all that it loads and stores comes behind its wait."""
    t = tk.meta(4, "f4")
    lines = [line.strip() for line in plain_but_early.ir(t.partition(4), t).splitlines()]
    (lets,) = [n for n, line in enumerate(lines) if "grid_launch_dependents" in line]
    (waits,) = [n for n, line in enumerate(lines) if "grid_wait" in line]
    (loads,) = [n for n, line in enumerate(lines) if " load " in line]
    assert lets < waits < loads
    token = lines[waits].split(" =")[0]
    assert lines[loads].split("]")[1].startswith(f", {token}")
    x = ca.from_host(np.arange(4, dtype="f4")).sync()
    for _ in range(20):
        x = plain_but_early(ca.empty(4, "f4").partition(4), x).first().unpartition().sync()
    assert x.to_host().sync().tolist() == [20, 21, 22, 23]


def test_kernel_that_lets_the_next_one_begin_says_itself_where_it_waits(host):
    @tk.kernel
    def half(out: tk.Tile1D, x: tk.Tensor1D):
        tk.grid_dependency_control_launch_dependents()
        out.store(tk.load_like(x, out))

    op = half(ca.zeros((4,), "f4").partition(4), ca.ones((4,), "f4"))
    with pytest.raises(tk.KernelValueError, match="before any load or store, outside of branches"):
        op.with_options(programmatic_dependent_launch=True).sync()


def test_kernel_that_begins_early_waits_first(host):
    @tk.kernel
    def hasty(out: tk.Tile1D, x: tk.Tensor1D):
        t = tk.load_like(x, out)
        tk.grid_dependency_control_wait()
        out.store(t)

    op = hasty(ca.zeros((4,), "f4").partition(4), ca.ones((4,), "f4"))
    with pytest.raises(tk.KernelValueError, match="before any load or store, outside of branches") as caught:
        op.with_options(programmatic_dependent_launch=True).sync()
    assert "tk.load_like(x, out)" in str(caught.value)
