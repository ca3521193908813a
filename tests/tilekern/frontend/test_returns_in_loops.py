"""`return` inside of loops, and `else` of loops, mean in a kernel what they mean in Python."""

import numpy as np
import pytest

import tilekern as tk


def first_divisor(a, b):
    for i in range(2, a):
        if a % i == 0:
            return i
    return b


def from_while(a, b):
    while a < 50:
        a = a * 2 + 1
        if a % 3 == b % 3:
            return a
        b += 1
    return -1


def endless(a, b):
    n = a
    while True:
        n += 1
        if n % 5 == b % 5:
            return n * 10


def nested(a, b):
    for i in range(a):
        for j in range(b):
            if i * j == 6:
                return i * 100 + j
        if i > 7:
            return -i
    return -100


def nested_under_condition(a, b):
    s = 0
    for i in range(a):
        if i % 2 == 1:
            for j in range(b):
                if i + j == 5:
                    return 1000 + s
                s += j
        elif i == 8:
            return s
        s += i
    return -s


def tuples(a, b):
    def find(n):
        for i in range(n):
            if i * i > b:
                return i, (i * i, 2)
        return -1, (0, 2)

    i, (square, two) = find(a)
    return i * 100 + square + two


def then_more_loops(a, b):
    r = 0
    for i in range(a):
        if i == b:
            return i
        r += i
    for i in range(b):
        if i > a:
            return r * 100 + i
        r -= 1
    return r


def always(a, b):
    for i in range(a):
        return i + b
    return -7


def with_break_and_continue(a, b):
    s = 0
    for i in range(a):
        if i == 2:
            continue
        if i > b:
            break
        if s > 6:
            return s * 100
        s += i
    return s


def unrolled_at_run_time(a, b):
    for k, limit in enumerate((1, 3, 5)):
        if a < limit:
            return k * 10 + b
        b = b + limit
    return b * 100


def unrolled_inside_of_a_loop(a, b):
    for i in range(a):
        for limit in (2, 4):
            if i * limit > b + 3:
                return i * 10 + limit
    return -3


def returned_in_a_known_turn(a, b):
    for n in (1, 2, 3):
        if n == 2:
            return a * n + b
    return 0


def broken_or_else(a, b):
    s = 0
    for i in range(a):
        if i == b:
            break
        s += 1
    else:
        s += 100
    while s < 110:
        s += 3
        if s % 7 == 0:
            break
    else:
        s += 1000
    return s


def else_that_returns(a, b):
    for i in range(a):
        if i > 3:
            break
    else:
        if b > 2:
            return 5
        b += 1
    return b


def nested_else(a, b):
    s = 0
    for i in range(a):
        for j in range(b):
            if j == i:
                break
            s += 1
        else:
            s += 50
        if s > 120:
            break
    else:
        return -s
    return s


def unrolled_else(a, b):
    for n in (1, 2):
        if n == 3:
            break
    else:
        a += 10
    for n in (1, 2):
        if n == 2:
            break
    else:
        a += 100
    return a + b


def inner_break_without_else(a, b):
    s = 0
    for i in range(a):
        for j in range(b):
            if j > i:
                break
            s += 1
        if s > 40:
            break
    else:
        s += 1000
    return s


def else_leaves_the_outer_loop(a, b):
    s = 0
    for i in range(a):
        for j in range(b):
            if i + j == 4:
                break
            s += 1
        else:
            if i > 2:
                break
            continue
        s += 100
    else:
        s += 1000
    return s


def return_in_else(a, b):
    for i in range(a):
        if i == b:
            break
    else:
        return a * 10
    return a + b


def many_turns(a, b):
    for n in range_of_64:
        if n == a:
            return n * 2 + b
    return b


range_of_64 = tuple(range(64))

FUNCTIONS = [
    *(first_divisor, from_while, endless, nested, nested_under_condition, tuples, then_more_loops, always),
    *(with_break_and_continue, unrolled_at_run_time, unrolled_inside_of_a_loop, returned_in_a_known_turn),
    *(broken_or_else, else_that_returns, nested_else, unrolled_else, inner_break_without_else),
    *(else_leaves_the_outer_loop, return_in_else, many_turns),
]
PAIRS = [(0, 0), (3, 1), (1, 3), (5, 5), (9, 4), (2, 7), (7, 9), (15, 2), (13, 6)]


@tk.kernel
def per_block(out: tk.Tile1D, a: tk.Tensor1D, b: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load(a, out.index, 1).item(), tk.load(b, out.index, 1).item()))


@tk.kernel
def with_numbers(out: tk.Tile1D, a: int, b: tk.Constant[int], f: tk.Constant[object]):
    out.store(f(a, b))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_python(function, run):
    a, b = (np.array(numbers, "i4") for numbers in zip(*PAIRS))
    expected = [function(x, y) for x, y in PAIRS]
    assert run(per_block, ((len(PAIRS),), "i4", 1), a, b, function).tolist() == expected
    for (x, y), wanted in zip(PAIRS[3:6], expected[3:6]):
        assert run(with_numbers, ((1,), "i4", 1), x, y, function)[0] == wanted, (x, y)


@tk.kernel
def stop_early(out: tk.Tile1D, x: tk.Tensor1D, limit: int):
    out.store(-1)
    for i in range(limit):
        t = tk.load(x, i, 1)
        if t.item() > 3:
            out.store(t)
            return
        if i > 5:
            return
    out.store(-2)


@pytest.mark.parametrize(("limit", "expected"), [(0, -2), (3, -2), (8, 5), (6, 5)])
def test_kernel_returns_from_a_loop(limit, expected, run):
    assert run(stop_early, ((1,), "i4", 1), np.array([1, 2, 0, 5, 9, 9, 9, 9], "i4"), limit)[0] == expected


@tk.kernel
def tile_returned(out: tk.Tile1D, x: tk.Tensor1D):
    def first_large(limit):
        for i in range(4):
            t = tk.load(x, i, 4)
            if tk.max(t) > limit:
                return t
        return tk.zeros((4,), tk.float32)

    out.store(first_large(6.5) + first_large(100.0))


def test_tile_returned_from_a_loop(run):
    x = np.arange(16, dtype="f4")
    assert run(tile_returned, ((4,), "f4", 4), x).tolist() == [4, 5, 6, 7]


def test_types_of_returned_values_differ():
    def either(n):
        for i in range(n):
            if i == 3:
                return tk.zeros((4,), tk.float32)
            if i == 4:
                return tk.zeros((4,), tk.float16)
        return tk.zeros((4,), tk.float32)

    @tk.kernel
    def kernel(out: tk.Tile1D, n: int):
        out.store(either(n))

    with pytest.raises(
        tk.KernelTypeError, match=r"the function returns a float32 tile .* or a float16 tile"
    ) as caught:
        kernel.ir(tk.meta(4, "f4").partition(4), 3)
    assert "return tk.zeros((4,), tk.float16)" in str(caught.value)


def test_code_that_nests_too_deeply_is_refused():
    lines = (
        ["def many(n):"] + [f"    if n == {i}:\n        return {i}" for i in range(400)] + ["    return n"]
    )
    text = "\n".join(lines) + "\n\ndef kernel(out, n: int):\n    out.store(many(n))\n"
    names = {}
    exec(compile(text, tk.register_source(text), "exec"), names)
    with pytest.raises(tk.KernelValueError, match="the code nests too deeply here"):
        tk.kernel(names["kernel"]).ir(tk.meta(4, "f4").partition(4), 3)
