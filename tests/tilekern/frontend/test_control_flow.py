"""Control flow means in a kernel what it means in Python.

Each function here is run by Python on plain ints, and as the body of a kernel on the same numbers as run-time
scalars, then as compile-time constants. The results must be equal.
"""

import itertools

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk


def branch_both(a, b):
    if a > b:
        r = a - b
    elif a == b:
        r = 100
    else:
        r = b - a
    return r


def branch_one(a, b):
    r = a
    if b > 2:
        r = r + b
    return r


def early_return(a, b):
    if a < 0:
        return -1
    if b < 0:
        if a > 5:
            return 7
        return 8
    c = a + b
    if c == 3:
        return 33
    return c * 2


def return_in_known_branch(a, b):
    if True:
        if a > b:
            return 1
        c = a
    return c + 10


def conditional_expression(a, b):
    return (a if a > b else b) + (1 if b == 0 else 2)


def short_circuit(a, b):
    r = 0
    if b != 0 and a // b > 1:
        r += 1
    if b == 0 or a % b == 1:
        r += 10
    if not (a > 3 and b > 3) or a == b:
        r += 100
    return r


def chained_compare(a, b):
    r = 0
    if 0 < a <= b < 7:
        r = 1
    return r + (a if -2 < b < 2 else 0)


def sum_range(a, b):
    s = 0
    for i in range(a, b):
        s = s + i * i
    return s


def count_down(a, b):
    s = 0
    for i in range(b, a, -2):
        s = s * 3 + i
    return s


def run_time_step(a, b):
    s = 0
    for i in range(a, 12, b if b != 0 else 1):
        s = s + i
    for i in range(12, a, -1 if b == 0 else -b):
        s = s + 100 * i
    return s


def nested_loops(a, b):
    s = 0
    for i in range(a):
        t = 0
        for j in range(i, b):
            t += i * j + 1
        s += t * (i + 1)
    return s


def continue_in_branch(a, b):
    s = 0
    for i in range(a):
        if i == b:
            continue
        if i % 2 == 0:
            s += 5
            continue
        s += i
    return s


def break_in_branch(a, b):
    s, n = 0, 0
    for i in range(a):
        n = n + 1
        if i > b:
            break
        s += i
    return s * 100 + n


def while_loop(a, b):
    n = 0
    while a > 1:
        a = a // 2 if a % 2 == 0 else 3 * a + 1
        n += 1
    return n + b


def while_with_break(a, b):
    n = 0
    while True:
        n += 1
        if n * n > a:
            break
        if n == b:
            n = n + 10
            continue
    return n


def break_on_both_sides(a, b):
    s = 0
    for i in range(a):
        s += i
        if i > b:
            s += 100
            break
        else:
            s += 1
            continue
    return s


def loop_else(a, b):
    s = 0
    for i in range(a):
        s += i
    else:
        s += b
    return s


def swap_in_loop(a, b):
    x, y = 0, 1
    for _ in range(a):
        x, y = y, x + y
    return x + b


def carried_tuple(a, b):
    p = (a, 0)
    for i in range(b):
        p = (p[0] + 1, p[1] + p[0] * i)
    return p[0] * 1000 + p[1]


def carried_number_stays_constant(a, b):
    k = 3
    s = 0
    for i in range(a):
        k = 3
        s += k * i
    return s + b


def helper(x, y=2, *rest, scale=1, **more):
    s = x * y * scale
    for r in rest:
        s = s + r
    return s + more.get("extra", 0)


def call_helpers(a, b):
    return helper(a) + helper(a, b) + helper(1, 2, a, b, scale=3) + helper(b, extra=4)


def fib(n, a, b):
    return a if n == 0 else fib(n - 1, b, a + b)


def compile_time_recursion(a, b):
    return fib(7, a, b)


OFFSETS = (1, 10, 100)


def unrolled(a, b):
    s = 0
    for k, offset in enumerate(OFFSETS):
        if k == 2:
            break
        s += offset * a
    for x in (a, b, 3):
        if x is None:
            continue
        s = s * 2 + x
    return s


def inner_functions(a, b):
    scale = 3

    def times(x, by=scale):
        return x * by + b

    square = lambda x: x * x  # noqa: E731
    return times(a) + square(b) + times(1, 2)


def branch_in_loop_in_branch(a, b):
    s = 0
    if a > 2:
        for i in range(a):
            if i == b:
                s = s - 1
                s = s * 2
            else:
                s = s + i
    else:
        while s < b:
            s += 3
    return s


def python_functions(a, b):
    return max(a, b, 3) * 10 + min(a, b) + abs(a - b) + len(OFFSETS) + int(a > b) + divmod(17, 5)[1]


def augmented(a, b):
    a += b
    a *= 3
    a -= 1
    a //= 2
    a %= 7
    a <<= 2
    a |= 1
    a ^= b & 3
    a >>= 1
    return a


FUNCTIONS = [
    *(branch_both, branch_one, early_return, return_in_known_branch, conditional_expression, short_circuit),
    *(
        chained_compare,
        sum_range,
        count_down,
        run_time_step,
        nested_loops,
        continue_in_branch,
        break_in_branch,
    ),
    *(while_loop, while_with_break, break_on_both_sides, loop_else, swap_in_loop, carried_tuple),
    *(carried_number_stays_constant, call_helpers, compile_time_recursion, unrolled, inner_functions),
    *(branch_in_loop_in_branch, python_functions, augmented),
]
PAIRS = [(0, 0), (3, 1), (1, 3), (5, 5), (6, 2), (9, 4), (2, 7), (7, 9), (-3, 2), (4, -5), (-6, -2)]


@tk.kernel
def at_run_time(out: tk.Tile1D, a: int, b: int, f: tk.Constant[object]):
    out.store(f(a, b))


@tk.kernel
def per_block(out: tk.Tile1D, a: tk.Tensor1D, b: tk.Tensor1D, f: tk.Constant[object]):
    out.store(f(tk.load(a, out.index, 1).item(), tk.load(b, out.index, 1).item()))


@tk.kernel
def at_compile_time(out: tk.Tile1D, a: tk.Constant[int], b: tk.Constant[int], f: tk.Constant[object]):
    out.store(f(a, b))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_python_at_run_time(function, run):
    for a, b in PAIRS:
        assert run(at_run_time, ((1,), "i4", 1), a, b, function)[0] == function(a, b), (a, b)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_blocks_go_their_own_ways(function, run):
    """All pairs in one launch: conditions and trip counts differ between blocks."""
    a, b = (np.array(numbers, "i4") for numbers in zip(*PAIRS))
    expected = [function(x, y) for x, y in PAIRS]
    assert run(per_block, ((len(PAIRS),), "i4", 1), a, b, function).tolist() == expected


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_python_at_compile_time(function, run):
    for a, b in PAIRS[:4]:
        assert run(at_compile_time, ((1,), "i4", 1), a, b, function)[0] == function(a, b), (a, b)


@tk.kernel
def step_by_argument(out: tk.Tile1D, start: int, stop: int, step: int):
    s = 0
    for i in range(start, stop, step):
        s += i * i
    out.store(s)


def test_step_zero_is_refused_before_the_launch(run):
    assert run(step_by_argument, ((1,), "i4", 1), 20, 4, -5)[0] == 750
    assert run(step_by_argument, ((1,), "i4", 1), 3, 9, -2)[0] == 0
    with pytest.raises(ca.LaunchError, match="argument step is 0"):
        run(step_by_argument, ((1,), "i4", 1), 1, 2, 0)


@tk.kernel
def computed_step(out: tk.Tile1D, n: int):
    s = 0
    for i in range(0, 10, n - 3):
        s += i
    out.store(s)


def test_computed_step_zero_stops_the_kernel(run, device):
    assert run(computed_step, ((1,), "i4", 1), 5)[0] == 20
    if device.kind == "host":
        with pytest.raises(tk.KernelAssertionError, match="the step of range is 0"):
            run(computed_step, ((1,), "i4", 1), 3)
        assert run(computed_step, ((1,), "i4", 1), 8)[0] == 5


@tk.kernel
def long_loop(out: tk.Tile1D, n: int):
    s = 0.0
    for i in range(2**31 - 3, n):
        s += i - (2**31 - 4)
    out.store(s)


def test_loop_beyond_32_bits(run):
    assert run(long_loop, ((1,), "f4", 1), 2**31 + 2)[0] == sum(range(1, 6))


@tk.kernel
def loose_numbers(out: tk.Tile1D, x: tk.Tensor1D, n: int):
    acc = 0.0  # becomes what the tile is
    count = 0
    for i in range(n):
        acc = acc + tk.load(x, i, 4)
        count += 1
    out.store(acc * count)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_number_carried_by_a_loop_takes_the_tiles_type(dtype, run):
    x = np.arange(12, dtype=dtype)
    expected = x.reshape(3, 4).sum(0) * 3
    assert np.array_equal(run(loose_numbers, ((4,), dtype, 4), x, 3), expected)
    assert np.array_equal(run(loose_numbers, ((4,), dtype, 4), x, 0), np.zeros(4, dtype))


@pytest.mark.parametrize("names", [2, 7, 16])
def test_numbers_that_a_loop_passes_on_one_to_the_next(names, device):
    """Each takes its type from the next one, and the last from the counter: the types settle one by one."""
    chain = [f"v{i}" for i in range(names)]
    lines = [f"    {name} = {i}" for i, name in enumerate(chain)]
    lines += [
        "    for i in range(n):",
        *(f"        {one} = {following}" for one, following in itertools.pairwise(chain)),
        f"        {chain[-1]} = i",
        "    out.store(tk.full((1,), v0, tk.int32))",
    ]
    text = "\n".join(["import tilekern as tk", "def kernel(out, n: int):", *lines, ""])
    space = {}
    exec(compile(text, tk.register_source(text), "exec"), space)
    kernel = tk.kernel(space["kernel"])
    for turns in (0, 3, 40):
        values = [*range(names), *range(turns)]
        out = kernel(ca.empty(1, "i4").partition(1), turns).first().unpartition().to_host().sync()
        assert out[0] == values[turns]
