"""What is wrong with a kernel is said at the user's line.

Each kernel has a comment `# error` on the line that must be named; the marked text is what the caret must be under.
"""

import linecache

import numpy as np
import pytest

import tilekern as tk
from tilekern.errors import KernelError

X = tk.meta((64, 128), "f4")
OUT = X.partition((4, 8))
CASES = []


def refused(message, under_caret):
    """The kernel is refused with that message, and a caret under that code."""

    def register(function):
        CASES.append(pytest.param(function, message, under_caret, id=function.__name__))
        return function

    return register


@refused("name 'undefined_thing' is not defined", "undefined_thing")
def unknown_name(out, x):
    out.store(undefined_thing)  # error  # noqa: F821


@refused("tensor x takes no index; use tk.load(x, index, shape)", "x[tk.bid(0)]")
def index_into_tensor(out, x):
    out.store(x[tk.bid(0)])  # error


@refused("partition out takes no index; use out.load()", "out[0]")
def index_into_partition(out, x):
    out.store(out[0])  # error


@refused("np.exp computes arrays on the host, not tiles; use tk.exp", "np.exp(out.load())")
def numpy_function(out, x):
    out.store(np.exp(out.load()))  # error


@refused("np.multiply computes arrays on the host, not tiles; use tk.mul", "np.multiply(out.load(), 2)")
def numpy_function_of_another_name(out, x):
    out.store(np.multiply(out.load(), 2))  # error


@refused("np.norm computes arrays on the host", "np.linalg.norm(out.load())")
def numpy_function_that_is_not_there(out, x):
    out.store(np.linalg.norm(out.load()))  # error


@refused(
    "an index is of whole numbers and integer tiles, got 0.5", "tk.extract(out.load(), (0, 0.5), (1, 1))"
)
def fraction_of_a_part(out, x):
    out.store(tk.extract(out.load(), (0, 0.5), (1, 1)))  # error


@refused(
    "an index is of whole numbers and integer scalars, got an int32 tile of shape (2,)",
    "tk.insert(out.load(), (0, tk.arange(2, dtype=tk.int32)), out.load())",
)
def several_parts_at_once(out, x):
    out.store(tk.insert(out.load(), (0, tk.arange(2, dtype=tk.int32)), out.load()))  # error


@refused("np.ones works on the host, before a kernel runs; use tk.ones", "np.ones(8)")
def numpy_function_written_in_python(out, x):
    out.store(out.load() + np.ones(8))  # error


@refused("tensor x has no len; use x.shape[0]", "len(x)")
def len_of_tensor(out, x):
    out.store(len(x))  # error


@refused("'later' is used before it is set", "later")
def used_before_set(out, x):
    y = later + 1  # error  # noqa: F821, F841
    later = 2  # noqa: F841


@refused("'y' is set on one side of a run-time condition only", "y")
def set_on_one_side(out, x):
    if tk.bid(0) > 1:
        y = 1.0
    out.store(y)  # error


@refused("'y' has a value only inside of the loop", "y")
def set_in_loop_only(out, x):
    for i in range(tk.bid(0)):
        y = i
    out.store(y)  # error


@refused(
    "'i', which the loop counts with, has no value behind it; keep what is needed in another variable", "i"
)
def counter_behind_its_loop(out, x):
    i = 7
    for i in range(tk.num_tiles(x, 1, (4, 8))):  # noqa: B007
        pass
    out.store(i)  # error


@refused("'t' is a float16 tile of shape (4, 8) or a float32 tile of shape (4, 8)", "t")
def two_types_in_branches(out, x):
    t = out.load()
    if tk.bid(0) > 1:
        t = tk.zeros((4, 8), tk.float16)
    out.store(t)  # error


@refused("int32 and uint32 do not mix", "a + b")
def signed_meets_unsigned(out, x):
    a = tk.full((4, 8), 1, tk.int32)
    b = tk.full((4, 8), 1, tk.uint32)
    out.store(a + b)  # error


@refused("float16 and bfloat16 do not mix", "tk.full((), 1, tk.float16) * tk.full((), 1, tk.bfloat16)")
def half_meets_bfloat(out, x):
    return tk.full((), 1, tk.float16) * tk.full((), 1, tk.bfloat16)  # error


@refused("float8_e4m3fn is for storage", "tk.full((4,), 1, tk.float8_e4m3fn) + 1")
def fp8_arithmetic(out, x):
    return tk.full((4,), 1, tk.float8_e4m3fn) + 1  # error


@refused("300 does not fit int8, which holds -128 to 127", "tk.full((4,), 1, tk.int8) + 300")
def number_too_large(out, x):
    return tk.full((4,), 1, tk.int8) + 300  # error


@refused("// by zero", "tk.bid(0) // 0")
def division_by_constant_zero(out, x):
    return tk.bid(0) // 0  # error


@refused("if takes one truth value, got a bool tile of shape (4, 8)", "out.load() > 0")
def truth_of_a_tile(out, x):
    if out.load() > 0:  # error
        pass


@refused("shapes (4, 8) and (4, 4) do not broadcast", "out.load() + tk.zeros((4, 4), tk.float32)")
def shapes_do_not_broadcast(out, x):
    out.store(out.load() + tk.zeros((4, 4), tk.float32))  # error


@refused("got shape (3, 8); use 4 in place of 3", "tk.zeros((3, 8), tk.float32)")
def side_no_power_of_two(out, x):
    tk.zeros((3, 8), tk.float32)  # error


@refused("at most 2**24 = 16777216 elements", "tk.zeros((8192, 4096), tk.float32)")
def tile_too_big(out, x):
    tk.zeros((8192, 4096), tk.float32)  # error


@refused("known at compile time, got an int32 scalar", "tk.zeros((tk.bid(0), 8), tk.float32)")
def shape_not_static(out, x):
    tk.zeros((tk.bid(0), 8), tk.float32)  # error


@refused("x is given for reading; give it as ca.mut(x)", "tk.store(x, (0, 0), tk.zeros((4, 8), tk.float32))")
def store_to_read_argument(out, x):
    tk.store(x, (0, 0), tk.zeros((4, 8), tk.float32))  # error


@refused("a block has only its own tile", "tk.store(out, (0, 0), tk.zeros((4, 8), tk.float32))")
def store_to_partition_by_index(out, x):
    tk.store(out, (0, 0), tk.zeros((4, 8), tk.float32))  # error


@refused("x has rank 2, the index has 1 numbers", "tk.load(x, (0,), (4, 8))")
def wrong_index_rank(out, x):
    tk.load(x, (0,), (4, 8))  # error


@refused("x has rank 2 and takes tiles of 2 sides", "tk.load(x, (0, 0), (8,))")
def wrong_tile_rank(out, x):
    tk.load(x, (0, 0), (8,))  # error


@refused("tile -1 of x is before its first one", "tk.load(x, (0, -1), (4, 8))")
def negative_tile_index(out, x):
    tk.load(x, (0, -1), (4, 8))  # error


@refused("out holds float32, got a float64 tile", "out.store(tk.zeros((4, 8), tk.float64))")
def stored_type_differs(out, x):
    out.store(tk.zeros((4, 8), tk.float64))  # error


@refused("tensor x takes no +", "x + 1")
def arithmetic_on_a_tensor(out, x):
    out.store(x + 1)  # error


@refused("load its tile with out.load()", "out * 2")
def arithmetic_on_a_partition(out, x):
    out.store(out * 2)  # error


@refused("axis is 2, but there are 2 axes", "tk.sum(out.load(), axis=2)")
def bad_axis(out, x):
    tk.sum(out.load(), axis=2)  # error


@refused("tk.sum: got an unexpected keyword argument 'axes'", "tk.sum(out.load(), axes=1)")
def bad_argument_name(out, x):
    tk.sum(out.load(), axes=1)  # error


@refused("tk.load: missing a required argument: 'shape'", "tk.load(x, (0, 0))")
def missing_argument(out, x):
    tk.load(x, (0, 0))  # error


@refused("has no mean; use tk.sum(x, axis) / x.shape[axis]", "out.load().mean")
def unknown_attribute(out, x):
    out.load().mean()  # error


@refused("tiles do not change", "t[0]")
def item_assignment(out, x):
    t = out.load()
    t[0] = 1  # error


@refused("kernels cannot use try", "try:")
def try_statement(out, x):
    try:  # error
        pass
    except ValueError:
        pass


@refused("sets, which have no order; use a list comprehension", "{i + 1 for i in (1, 2)}")
def comprehension(out, x):
    {i + 1 for i in (1, 2)}  # error


@refused("variables of modules are constants", "global something")
def global_statement(out, x):
    global something  # error
    something = 1


@refused("kernels cannot use yield", "yield")
def yield_expression(out, x):
    out.store((yield))  # error


@refused("a loop runs over range(...)", "out.load()")
def loop_over_tile(out, x):
    for _ in out.load():  # error
        pass


@refused("'t' is a float16 tile of shape (4, 8) before the loop and a float32 tile", "t")
def loop_changes_type(out, x):
    t = tk.zeros((4, 8), tk.float16)
    for _ in range(tk.bid(0)):
        t = t + out.load()  # error
        out.store(0)


@refused("kernels return nothing; store the result", "return i")
def return_of_a_value_in_a_loop(out, x):
    for i in range(10):
        if i > tk.bid(0):
            return i  # error


@refused("return at run time is not possible inside of an unrolled loop that has break", "tk.bid(0) > n")
def return_at_run_time_of_unrolled_loop(out, x):
    for n in (1, 2):
        if tk.bid(0) > n:  # error
            return
        if n == 2:
            break


@refused("needs a condition known at compile time", "break")
def break_of_unrolled_loop_at_run_time(out, x):
    for i in tk.static_iter(range(4)):
        if tk.bid(0) > i:
            break  # error


@refused("the step of range is 0", "range(0, 4, 0)")
def step_zero(out, x):
    for _ in range(0, 4, 0):  # error
        pass


@refused("calls nest deeper than 40", "again(n + 1)")
def endless_recursion(out, x):
    def again(n):
        return again(n + 1)  # error

    again(0)


@refused("calls nest deeper than 40", "down(n - 1)")
def recursion_at_run_time(out, x):
    def down(n):
        return 0 if n == 0 else down(n - 1)  # error

    down(tk.bid(0))


@refused("static assertion failed: eight rows", 'tk.static_assert(out.shape[0] == 8, "eight rows")')
def failing_static_assert(out, x):
    tk.static_assert(out.shape[0] == 8, "eight rows")  # error


@refused("assertion failed: out.shape[0] == 8", "out.shape[0] == 8")
def failing_assert(out, x):
    assert out.shape[0] == 8  # error


@refused("open cannot be called in a kernel", 'open("x")')
def call_of_builtin(out, x):
    open("x")  # error  # noqa: SIM115


@refused("round is computed at compile time and takes no tiles", "round(tk.bid(0))")
def tile_to_python_function(out, x):
    round(tk.bid(0))  # error


@refused(
    "mma takes two factors of one element type",
    "tk.mma(a, a.astype(tk.bfloat16), tk.zeros((16, 16), tk.float32))",
)
def mma_of_two_types(out, x):
    a = tk.zeros((16, 16), tk.float16)
    tk.mma(a, a.astype(tk.bfloat16), tk.zeros((16, 16), tk.float32))  # error


@refused(
    "bfloat16 factors accumulate in float32, got bfloat16",
    "tk.mma(a, a, tk.zeros((16, 16), tk.bfloat16))",
)
def mma_accumulator(out, x):
    a = tk.zeros((16, 16), tk.bfloat16)
    tk.mma(a, a, tk.zeros((16, 16), tk.bfloat16))  # error


@refused("(M, K), (K, N) and (M, N) are needed", "tk.mma(a, a, tk.zeros((16, 16), tk.float32))")
def mma_shapes(out, x):
    a = tk.zeros((16, 32), tk.float16)
    tk.mma(a, a, tk.zeros((16, 16), tk.float32))  # error


@refused("load takes a tensor parameter, got object", "tk.load(VECTOR_PARAMETER, 0, 8)")
def padding_of_integers(out, x):
    tk.load(VECTOR_PARAMETER, 0, 8)  # error


@refused("load_like takes a tensor parameter, got a tuple", "tk.load_like(out.tensor_shape, out)")
def load_like_of_another_rank(out, x):
    tk.load_like(out.tensor_shape, out)  # error


@refused("& takes integers or bools, got float32", "out.load() & 1")
def bitwise_on_floats(out, x):
    out.load() & 1  # error


@refused("<< moves by 0 to 31 places here, got 32", "tk.bid(0) << 32")
def shift_too_far(out, x):
    tk.bid(0) << 32  # error


@refused("only with a constant exponent", "tk.bid(0) ** tk.bid(1)")
def integer_power_at_run_time(out, x):
    tk.bid(0) ** tk.bid(1)  # error


@refused("3 names for 2 values", "a, b, c")
def unpack_mismatch(out, x):
    a, b, c = out.shape  # error  # noqa: RUF059


@refused("is a kernel and cannot be called from one", "other_kernel(out)")
def kernel_in_kernel(out, x):
    other_kernel(out)  # error


@tk.kernel
def other_kernel(out):
    out.store(0)


VECTOR_PARAMETER = object()


def marked_line(function):
    """Line number and text of the line with `# error`."""
    code = function.__code__
    for line in range(code.co_firstlineno, code.co_firstlineno + 20):
        text = linecache.getline(code.co_filename, line)
        if "# error" in text:
            return line, text.strip()
    raise AssertionError("no marked line")


@pytest.mark.parametrize(("function", "message", "under_caret"), CASES)
def test_error_points_at_the_users_line(function, message, under_caret):
    with pytest.raises(KernelError) as caught:
        tk.kernel(plain(function)).ir(OUT, X)
    error = caught.value
    line, text = marked_line(function)
    assert message in error.reason
    assert error.location is not None
    assert error.location.line == line
    shown = str(error).splitlines()
    source, caret = shown[1].split("| ", 1)[1], shown[2].split("| ", 1)[1]
    assert source == text
    start = caret.index("^")
    assert source[start : start + caret.count("^")].split("  #")[0] == under_caret


def plain(function):
    """`function` as a kernel may be made of it: without the flag of a generator."""
    code = function.__code__
    if code.co_flags & 0x20:
        function = type(function)(
            code.replace(co_flags=code.co_flags & ~0x20), function.__globals__, function.__name__
        )
    return function


def test_error_shows_the_calls_that_led_there():
    def inner(t):
        return tk.sum(t, axis=5)

    def helper(t):
        return inner(t) + 1

    @tk.kernel
    def outer(out, x):
        out.store(helper(out.load()))

    with pytest.raises(tk.KernelValueError) as caught:
        outer.ir(OUT, X)
    text = str(caught.value)
    assert [part.split(":")[0] for part in text.split("called from ")[1:]] == [__file__, __file__]
    assert "in helper" in text
    assert "in outer" in text
    assert text.count("^") == len("tk.sum(t, axis=5)") + len("inner(t)") + len("helper(out.load())")
    assert [place.function for place in caught.value.location.chain()] == ["inner", "helper", "outer"]


def test_caret_counts_characters_not_bytes():
    @tk.kernel
    def kernel(out, x):
        größe = "äöü" + 1  # noqa: F841

    with pytest.raises(KernelError) as caught:
        kernel.ir(OUT, X)
    shown = str(caught.value).splitlines()
    start = shown[2].index("^")
    assert shown[1][start : start + shown[2].count("^")] == '"äöü" + 1'


def test_error_classes_tell_kinds_apart():
    kinds = {
        unknown_name: (tk.KernelNameError, NameError),
        signed_meets_unsigned: (tk.KernelTypeError, TypeError),
        bad_axis: (tk.KernelValueError, ValueError),
        try_statement: (tk.KernelSyntaxError, tk.TilekernError),
    }
    for function, classes in kinds.items():
        for cls in classes:
            with pytest.raises(cls):
                tk.kernel(function).ir(OUT, X)


def test_language_is_for_kernels_only():
    with pytest.raises(tk.TilekernError, match="exp has a meaning only inside a kernel"):
        tk.exp(1.0)
    with pytest.raises(tk.TilekernError, match="Tile has a meaning only inside"):
        tk.Tile()
    assert tk.cdiv(7, 2) == 4
