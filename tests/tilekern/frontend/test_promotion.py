"""Element types and shapes that operands meet in."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
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
    assert result_type(lambda: 2.5 * tk.ones((2,), dtype)) == (dtype.name if dtype.is_float else "float32")


@pytest.mark.parametrize("dtype", RESTRICTED, ids=str)
def test_restricted_type_meets_nothing(dtype):
    for other in (tk.float32, tk.int32, dtype):
        with pytest.raises(tk.KernelTypeError):
            result_type(lambda other=other: tk.ones((2,), dtype) + tk.ones((), other))
    assert result_type(lambda: tk.ones((2,), dtype).astype(tk.float32) + 1) == "float32"


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


@tk.kernel
def with_scalar(out: tk.Tile1D, x: tk.Tensor1D, s, f: tk.Constant[object]):
    out.store(f(tk.load_like(x, out), s))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_float_argument_takes_the_tiles_type(dtype, run):
    """As the same number in the source would: rounded once, to the tile's type."""
    x = np.zeros(4, dtype)
    expected = np.full(4, 0.1).astype(dtype)
    assert np.array_equal(run(with_scalar, ((4,), dtype, 4), x, 0.1, lambda t, s: t + s), expected)
    assert np.array_equal(run(with_scalar, ((4,), dtype, 4), x, 0.5, lambda t, s: t + s / 5), expected)
    assert np.array_equal(run(with_scalar, ((4,), dtype, 4), x, 1, lambda t, s: t + s / 10), expected)
    assert np.array_equal(run(with_scalar, ((4,), dtype, 4), x, 0.1, lambda t, s: t + abs(-s)), expected)


def test_float_argument_beside_integers_is_float32(run):
    x = np.arange(4, dtype="i4")
    result = run(with_scalar, ((4,), "f4", 4), x, 0.1, lambda t, s: t * s)
    assert np.array_equal(result, x.astype("f4") * np.float32(0.1))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "i8", "u8"])
def test_int_argument_takes_the_tiles_type(dtype, run):
    x = np.arange(4, dtype=dtype)
    assert np.array_equal(run(with_scalar, ((4,), dtype, 4), x, 3, lambda t, s: t * s + s), x * 3 + 3)
    if np.iinfo(dtype).min > -200:
        with pytest.raises(ca.LaunchError, match="argument s is -200, which does not fit"):
            run(with_scalar, ((4,), dtype, 4), x, -200, lambda t, s: t + s)


@pytest.mark.parametrize(
    ("f", "n", "shown"),
    [
        (lambda t, s: (t > s * 2).astype(tk.uint8), 200, "2 \\* s is 400"),
        (lambda t, s: t + (3 * s - s * s), 200, "3 \\* s - s \\* s is -39400"),
        (lambda t, s: t + -s, 3, "-s is -3"),
        (lambda t, s: t + s**3, 7, "s \\* s \\* s is 343"),
        (lambda t, s: s + 1, 255, "s \\+ 1 is 256"),
        (lambda t, s: tk.full((4,), s + 0, tk.uint8), 400, "s is 400"),
        (lambda t, s: tk.full((4,), s, tk.uint8), 400, "s is 400"),
        (lambda t, s: tk.arange(4, start=s, dtype=tk.uint8), -1, "s is -1"),
        (lambda t, s: tk.astile((s, s, 1, 2), tk.uint8), 256, "s is 256"),
    ],
)
def test_what_is_made_of_loose_integers_fits_the_tiles_type(run, f, n, shown):
    x = np.arange(4, dtype="u1")
    with pytest.raises(ca.LaunchError, match=rf"{shown}, which does not fit uint8"):
        run(with_scalar, ((4,), "u1", 4), x, n, f)
    run(with_scalar, ((4,), "u1", 4), x, 0, f)


def test_a_cast_and_a_power_of_none_of_a_loose_integer(run):
    """A cast wraps what it is given, as `astype` does; a power of 0 is the number 1."""
    x = np.arange(4, dtype="u1")
    assert np.array_equal(run(with_scalar, ((4,), "u1", 4), x, 300, lambda t, s: t + tk.uint8(s)), x + 44)
    assert np.array_equal(run(with_scalar, ((4,), "u1", 4), x, 300, lambda t, s: t + s**0), x + 1)


@pytest.mark.parametrize(
    ("dtype", "a", "b", "names"),
    [
        ("i4", 2**31 - 1, 1, "int32, in which it is computed; make the arguments tiles"),
        ("u4", 2**31 - 1, 1, "int32, in which it is computed; uint32, the type of the tile"),
        ("i8", 2**31 - 1, 1, "int32, in which it is computed"),
        ("f4", 2**31 - 1, 1, "int32, in which it is computed; make the arguments tiles"),
        ("i8", 2**63 - 1, 1, "int64, in which it is computed"),
        ("i2", 2**15 - 1, 1, "int16, the type of the tile it meets"),
    ],
)
def test_sums_of_loose_integers_do_not_wrap(run, dtype, a, b, names):
    @tk.kernel
    def add(out: tk.Tile1D, x: tk.Tensor1D, a: int, b: int):
        out.store(tk.load_like(x, out) + (a + b))

    x = np.zeros(4, dtype)
    with pytest.raises(ca.LaunchError, match=rf"a \+ b is {a + b}, which does not fit {names}"):
        run(add, ((4,), dtype, 4), x, a, b)
    assert np.array_equal(run(add, ((4,), dtype, 4), x, a, 0), np.full(4, a, dtype))

    @tk.kernel
    def wrapping(out: tk.Tile1D, x: tk.Tensor1D, a: int, b: int):
        out.store(tk.load_like(x, out) + (tk.int32(a) + b))

    x = np.zeros(4, "i4")
    assert np.array_equal(run(wrapping, ((4,), "i4", 4), x, 2**31 - 1, 1), np.full(4, -(2**31), "i4"))


@pytest.mark.parametrize(
    "f",
    [
        lambda t, a, b: t + (a + b) // 2,
        lambda t, a, b: t + (a + b) % 7,
        lambda t, a, b: t + (a + b) * 1.5,
        lambda t, a, b: tk.where(a + b > 0, t, 0),
        lambda t, a, b: t + ((a + b) ^ 1),
        lambda t, a, b: t + ~(a + b),
        lambda t, a, b: t + abs(a + b),
        lambda t, a, b: t + max(a + b, 0),
        lambda t, a, b: t + tk.int64(a + b),
        lambda t, a, b: t + tk.broadcast_to(a + b, (4,)),
        lambda t, a, b: tk.where(a + b, t, 0),
        lambda t, a, b: t + (1 if a + b else 0),
        lambda t, a, b: t + (0 if not a + b else 1),
    ],
    ids=[
        "quotient",
        "rest",
        "float",
        "comparison",
        "bits",
        "complement",
        "absolute",
        "largest",
        "cast",
        "spread",
        "choice",
        "truth",
        "untruth",
    ],
)
def test_what_is_more_than_a_sum_takes_sums_that_did_not_wrap(run, f):
    @tk.kernel
    def use(out: tk.Tile1D, x: tk.Tensor1D, a: int, b: int):
        out.store(f(tk.load_like(x, out), a, b).astype(tk.float64))

    x = np.zeros(4, "i4")
    with pytest.raises(
        ca.LaunchError, match="b is 2147483648, which does not fit int32, in which it is computed"
    ):
        run(use, ((4,), "f8", 4), x, 2**31 - 1, 1)
    run(use, ((4,), "f8", 4), x, 2**31 - 1, 0)


def test_sums_may_wrap_on_the_way(run):
    @tk.kernel
    def use(out: tk.Tile1D, x: tk.Tensor1D, a: int, b: int, c: int):
        out.store(tk.load_like(x, out) + (a + b - c))

    x = np.arange(4, dtype="i4")
    assert np.array_equal(run(use, ((4,), "i4", 4), x, 2**31 - 1, 5, 2**31 - 1), x + 5)


def test_a_condition_may_see_to_it_that_a_loose_integer_fits(run):
    @tk.kernel
    def guarded(out: tk.Tile1D, x: tk.Tensor1D, s: int):
        t = tk.load_like(x, out)
        if s < 100:
            t = t + 2 * s
        out.store(t)

    x = np.arange(4, dtype="u1")
    assert np.array_equal(run(guarded, ((4,), "u1", 4), x, 50), x + 100)
    assert np.array_equal(run(guarded, ((4,), "u1", 4), x, 400), x)


def test_loose_numbers_are_of_pythons_classes(run):
    @tk.kernel
    def kinds(out: tk.Tile1D, x: tk.Tensor1D, n: int, s: float):
        tk.static_assert(
            isinstance(n, int) and isinstance(n + 1, int) and not isinstance(n, (float, tk.Tile))
        )
        tk.static_assert(isinstance(s, float) and isinstance(n * s, float) and type(s) is float)
        tk.static_assert(isinstance(int(s), int) and isinstance(float(n), float))
        tk.static_assert(isinstance(x.shape[0], tk.Tile) and not isinstance(x.shape[0], int))
        tk.static_assert(isinstance(tk.int32(n), tk.Tile) and isinstance(n.astype(tk.int32), tk.Tile))
        tk.static_assert(isinstance(tk.float64(s), tk.Tile))
        out.store(tk.load_like(x, out) + int(n * s))

    x = np.arange(4, dtype="i4")
    assert np.array_equal(run(kinds, ((4,), "i4", 4), x, 5, 1.5), x + 7)


@tk.kernel
def loose_through_control_flow(out: tk.Tile1D, n: int, s: float):
    total = 0.0
    scale = 1
    for i in range(n):
        total = total + s
        scale = scale * 2 if i % 2 == 0 else scale
    if n > 3:
        total = total + 0.1
    out.store(total * scale)


def test_loose_numbers_stay_loose_through_control_flow(run):
    for n in (0, 3, 5):
        total = 0.0
        for _ in range(n):
            total += 0.7
        expected = (total + (0.1 if n > 3 else 0)) * 2 ** ((n + 1) // 2)
        assert run(loose_through_control_flow, ((1,), "f8", 1), n, 0.7)[0] == expected
        assert run(loose_through_control_flow, ((1,), "f2", 1), n, 0.7)[0] == np.float16(expected)


def test_typed_arguments_keep_their_type(run):
    x = np.zeros(4, "f2")
    result = run(with_scalar, ((4,), "f4", 4), x, np.float32(0.1), lambda t, s: t + s)
    assert np.array_equal(result, np.full(4, 0.1, "f4"))


@tk.kernel
def converted(out: tk.Tile1D, s, f: tk.Constant[object]):
    out.store(f(s))


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        (lambda s: tk.float64(s), 0.1, 0.1),
        (lambda s: tk.float32(s), 0.1, np.float32(0.1)),
        (lambda s: float(s) / 10, 1, 0.1),
        (lambda s: int(s) * 1.0, 3.7, 3.0),
        (lambda s: int(s) + 0.1, 3, 3.1),
        (lambda s: s.astype(tk.float64), 0.1, 0.1),
        (lambda s: tk.full((1,), s, tk.float64), 0.1, 0.1),
        (lambda s: tk.arange(1, start=s, dtype=tk.float64), 0.1, 0.1),
        (lambda s: s**2, 0.1, 0.1**2),
        (lambda s: s // 0.3, 1.0, 1.0 // 0.3),
        (lambda s: -s % 0.3, 1.0, -1.0 % 0.3),
    ],
)
def test_loose_numbers_converted(function, value, expected, run):
    assert run(converted, ((1,), "f8", 1), value, function)[0] == expected
