"""What the front end makes of each construct, as printed IR.

A golden file holds, per construct, the kernel's source and its IR before any pass. To write what the front end
makes now, run with --update-golden and review the difference.
"""

import dataclasses
import inspect
import textwrap
from pathlib import Path

import pytest

import tilekern as tk
from tilekern import ir

GOLDEN = Path(__file__).parent / "golden" / "constructs.txt"
N = tk.int32  # scalars without memory: what loads and stores become is golden elsewhere
CONSTRUCTS = []


def construct(function):
    CONSTRUCTS.append(function)
    return function


@dataclasses.dataclass(frozen=True)
class Span:
    low: object
    high: object

    def wider(self, by):
        return Span(self.low - by, self.high + by)


@construct
def arithmetic(n: N, m: N):
    assert n * 2 + 1 < m // 3


@construct
def loose_numbers(a: int, x: float):
    assert a + 1 < tk.full((), 7, tk.int16)
    assert x * 2 > a


@construct
def branch(n: N, m: N):
    r = n
    if n > m:
        r = m
        s = 1
    else:
        s = 2
    assert r < s


@construct
def one_side_branch(n: N):
    r = n
    if n > 3:
        r = r + 1
    assert r > 0


@construct
def conditional_expression(n: N, m: N):
    assert (n if n > m else m) > 0


@construct
def short_circuit(n: N, m: N):
    assert m == 0 or n % m == 0


@construct
def chained_comparison(n: N, m: N):
    assert 0 < n <= m


@construct
def early_return(n: N):
    def sign(x):
        if x < 0:
            return -1
        if x == 0:
            return 0
        return 1

    assert sign(n) > -2


@construct
def for_range(n: N):
    s = n
    for i in range(n):
        s = s + i
    assert s > 0


@construct
def for_counting_down(n: N):
    s = n
    for i in range(n, 0, -2):
        s = s * i
    assert s > 0


@construct
def for_with_break_and_continue(n: N):
    s = n
    for i in range(n):
        if i == 3:
            continue
        if s > 100:
            break
        s = s + i
    assert s > 0


@construct
def while_loop(n: N):
    while n > 1:
        n = n // 2
    assert n == 1


@construct
def while_true(n: N):
    while True:
        n = n - 1
        if n < 0:
            break
    assert n < 0


@construct
def number_carried_by_a_loop(n: N):
    total, count = 0, 0
    for i in range(n):
        total = total + i * n
        count += 1
    assert total >= count


@construct
def unrolled_loop(n: N):
    s = n
    for k in (1, 10):
        s = s + k
    assert s > n


@construct
def return_in_a_loop(n: N):
    def first(limit):
        for i in range(limit):
            if i * i > limit:
                return i
        return limit

    assert first(n) > 0


@construct
def else_of_a_loop(n: N):
    r = n
    for i in range(n):
        if i > 7:
            break
    else:
        r = r + 1
    assert r > 0


@construct
def record_in_a_loop(n: N):
    span = Span(n, n)
    for i in range(n):
        span = span.wider(i)
    assert span.low < span.high


@construct
def tuple_in_a_branch(n: N, m: N):
    pair = (n, (m, 1))
    if n > m:
        pair = (m, (n, 1))
    first, (second, _) = pair
    assert first <= second


@construct
def helper_with_star_arguments(n: N, m: N):
    def total(*parts, scale=1):
        s = 0
        for part in parts:
            s = s + part * scale
        return s

    assert total(n, m, scale=2) > 0


@construct
def comprehension(n: N):
    assert sum([n * k for k in range(3) if k != 1]) > 0


@construct
def membership(n: N, m: N):
    assert n in (m, 3)
    assert m in range(0, 10, 2)


@construct
def compile_time_condition(n: N):
    if tk.static_eval(2**10 == 1024):
        assert n > 0
    else:
        assert n < 0


def printed(function):
    count = len(inspect.signature(function).parameters)
    arguments = {"loose_numbers": (5, 0.5)}.get(function.__name__, (5,) * count)
    return tk.kernel(function).ir(*arguments, passes=False)


def source(function):
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()[1:]
    return "\n".join(f"# {line}".rstrip() for line in lines)


def read_golden():
    cases = {}
    for part in GOLDEN.read_text().split("\n== ")[1:]:
        title, _, body = part.partition("\n")
        cases[title] = body.strip() + "\n"
    return cases


@pytest.mark.parametrize("function", CONSTRUCTS, ids=lambda f: f.__name__)
def test_construct_is_the_golden_text(function, update_golden):
    if update_golden:
        pytest.skip("they are being written")
    assert f"{source(function)}\n{printed(function)}" == read_golden()[function.__name__]


def test_write_golden_file(update_golden):
    if not update_golden:
        assert list(read_golden()) == [function.__name__ for function in CONSTRUCTS]
        return
    parts = ["Constructs and what the front end makes of them; see test_printed_ir.py.\n"]
    parts += [f"\n== {f.__name__}\n{source(f)}\n{printed(f)}" for f in CONSTRUCTS]
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("".join(parts))


@pytest.mark.parametrize("function", CONSTRUCTS, ids=lambda f: f.__name__)
def test_construct_is_read_back(function):
    text = printed(function)
    read = ir.parse(text)
    read.verify()
    assert str(read) == text
