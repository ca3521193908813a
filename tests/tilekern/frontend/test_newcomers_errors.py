# ruff: noqa: B015, B018, F841, SIM108 - wrong code is what this is about
"""What people write who come from Python, NumPy or other GPU languages, and what they are told.

Each kernel has a comment `# error` on the line that must be named; the marked text is what the caret is under.
"""

import dataclasses
import enum
import functools
import linecache
import math
import os
import random
import sys
import time

import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern.errors import KernelError

X = tk.meta((64, 128), "f4")
OUT = X.partition((4, 8))
CASES = []


def told(message, under_caret):
    """The kernel is refused with a message that has these words, and a caret under that code."""

    def register(function):
        CASES.append(pytest.param(function, message, under_caret, id=function.__name__))
        return function

    return register


class Ordinary:
    def __init__(self, x):
        self.x = x


@dataclasses.dataclass
class Changeable:
    x: object


@dataclasses.dataclass(frozen=True)
class Record:
    a: object
    b: object = 1


@dataclasses.dataclass(frozen=True)
class WithInit:
    a: object

    def __init__(self, a):
        object.__setattr__(self, "a", a)


class Mode(enum.Enum):
    A = 1


NUMBERS = [1, 2, 3]


# ------------------------------------------------------------------ outputs and memory


@told("out is an output, and assigning to its name stores nothing; write out.store(tile)", "out")
def assigns_the_output(out, x):
    out = out.load() + 1  # error


@told("kernels return nothing; store the result with out.store(...)", "return out.load()")
def returns_the_result(out, x):
    return out.load()  # error


@told("partitions take no item assignment; store the tile with out.store(tile)", "out[...]")
def assigns_items_of_a_partition(out, x):
    out[...] = x  # error


@told("tensors take no item assignment; store a tile with tk.store(x, index, tile)", "x[0, 0]")
def assigns_items_of_a_tensor(out, x):
    x[0, 0] = 1.0  # error


@told("tiles do not change; choose elements with tk.where", "t[0, 0]")
def assigns_an_element(out, x):
    t = out.load()
    t[0, 0] = 3  # error


@told("tensor x takes no index; use tk.load(x, index, shape)", "x[0, 0]")
def indexes_a_tensor(out, x):
    out.store(x[0, 0])  # error


@told(
    "tk.load: too many positional arguments; it takes (array, index, shape, *, ", "tk.load(x, 0, 0, (4, 8))"
)
def spreads_the_index(out, x):
    tk.load(x, 0, 0, (4, 8))  # error


@told("tensor x has no load; use tk.load(x, index, shape)", "x.load")
def loads_a_tensor_whole(out, x):
    out.store(x.load())  # error


@told("store: missing a required argument: 'tile'; it takes (tile, *, latency=, allow_tma=)", "out.store()")
def stores_nothing(out, x):
    out.store()  # error


@told("what is stored is a tile or a number, got function exp", "out.store(tk.exp)")
def stores_a_function(out, x):
    out.store(tk.exp)  # error


@told("what is stored is a tile or a number, got Mode.A", "out.store(Mode.A)")
def stores_an_enumeration(out, x):
    out.store(Mode.A)  # error


@told("what is stored is a tile or a number, got the element type tk.float16", "out.store(tk.float16)")
def stores_a_type(out, x):
    out.store(tk.float16)  # error


@told("what is stored is a tile or a number, got an f-string that holds tiles", 'out.store(f"{out.load()}")')
def stores_a_string(out, x):
    out.store(f"{out.load()}")  # error


@told("a float32 tile of shape (4, 8) has no store; use out.store(tile)", "out.load().store")
def stores_the_wrong_way_round(out, x):
    out.load().store(x)  # error


@told("tensor x has no to_host; use an output", "x.to_host")
def copies_to_the_host(out, x):
    x.to_host()  # error


@told("cuda_async.zeros is for the host", "ca.zeros(3)")
def allocates(out, x):
    ca.zeros(3)  # error


@told("shape of tensor x cannot be assigned in a kernel", "x.shape")
def assigns_a_shape(out, x):
    x.shape = (1, 2)  # error


@told("only variables can be deleted", "x.shape")
def deletes_a_shape(out, x):
    del x.shape  # error


@told("an index is of whole numbers and integer", "tk.load(x, (0, 0.5), (4, 8))")
def loads_at_half_a_tile(out, x):
    tk.load(x, (0, 0.5), (4, 8))  # error


# ------------------------------------------------------------------ names of other systems


@told("tk has no program_id; use tk.bid(axis)", "tk.program_id")
def program_id(out, x):
    tk.program_id(0)  # error


@told("tk has no dot; use tk.mma(x, y, acc), or x @ y", "tk.dot")
def dot(out, x):
    tk.dot(out.load(), out.load())  # error


@told("tk has no maxmum; is tk.maximum meant?", "tk.maxmum")
def misspelt(out, x):
    tk.maxmum(out.load(), 1)  # error


@told("name 'num_tiles' is not defined; is tk.num_tiles meant?", "num_tiles")
def without_the_package(out, x):
    num_tiles(x, 0, (4, 8))  # error  # noqa: F821


@told("has no T; use x.transpose()", "out.load().T")
def transposed(out, x):
    out.store(out.load().T)  # error


@told("has no mean; use tk.sum(x, axis) / x.shape[axis]", "out.load().mean")
def mean(out, x):
    out.store(out.load().mean())  # error


@told("has no asype; is x.astype meant?", "out.load().asype")
def misspelt_method(out, x):
    out.load().asype(tk.float16)  # error


@told("np.zeros works on the host, before a kernel runs; use tk.zeros", "np.zeros((4, 8))")
def numpy_array(out, x):
    out.store(np.zeros((4, 8)))  # error


@told("function time.time cannot be called in a kernel: it is not written in Python", "time.time()")
def asks_for_the_time(out, x):
    out.store(time.time())  # error


@told("cannot be called in a kernel: it is not written in Python", "random.random()")
def draws_a_number(out, x):
    out.store(random.random())  # error


@told("at ['NO_SUCH_VARIABLE']: KeyError: 'NO_SUCH_VARIABLE'", 'os.environ["NO_SUCH_VARIABLE"]')
def reads_the_environment(out, x):
    out.store(os.environ["NO_SUCH_VARIABLE"])  # error


# ------------------------------------------------------------------ types and shapes


@told("got an int32 scalar; what comes from a tensor's shape", "tk.zeros((x.shape[0], 8), tk.float32)")
def shape_of_a_tensor(out, x):
    tk.zeros((x.shape[0], 8), tk.float32)  # error


@told("tk.zeros: missing a required argument: 'dtype'; it takes (shape, dtype)", "tk.zeros((4, 8))")
def no_type(out, x):
    tk.zeros((4, 8))  # error


@told("dtype is an element type such as tk.float32, got 'f2'; use tk.float16", 'out.load().astype("f2")')
def type_by_a_string(out, x):
    out.load().astype("f2")  # error


@told("got the class float; use tk.float32", "tk.zeros((4, 8), float)")
def type_by_a_class(out, x):
    tk.zeros((4, 8), float)  # error


@told("an int of 2001 bits is too large for float32", "tk.full((4, 8), 2**2000, tk.float32)")
def large_number(out, x):
    out.store(tk.full((4, 8), 2**2000, tk.float32))  # error


@told("an int of 20001 bits does not fit int32", "tk.full((4, 8), 2**20000, tk.int32)")
def larger_number(out, x):
    out.store(tk.full((4, 8), 2**20000, tk.int32))  # error


@told(
    "@ multiplies in one type, got int8 and uint8, and a cast would change values; tk.mma(x, y, acc) takes them",
    "tk.zeros((8, 8), tk.int8) @ tk.zeros((8, 8), tk.uint8)",
)
def product_of_two_signs(out, x):
    tk.zeros((8, 8), tk.int8) @ tk.zeros((8, 8), tk.uint8)  # error


@told("pow of tiles takes a base and an exponent; a remainder of it is x ** y % z", "pow(t, 2, 3)")
def power_with_a_remainder(out, x):
    t = tk.full((4, 8), 2, tk.int32)
    out.store(pow(t, 2, 3))  # error


@told("tk.Tile is for annotations and isinstance, and makes nothing; tk.full(", "type(t)(1)")
def class_of_a_tile_called(out, x):
    t = tk.full((4, 8), 2, tk.int32)
    out.store(type(t)(1))  # error


@told("cdiv by zero", "tk.cdiv(5, 0)")
def number_divided_by_zero(out, x):
    tk.cdiv(5, 0)  # error


@told("cdiv by zero", "tk.cdiv(tk.bid(0), 0)")
def tile_divided_by_zero(out, x):
    tk.cdiv(tk.bid(0), 0)  # error


@told("every side of a tile is a power of two", "tk.arange(6, dtype=tk.int32)")
def six_elements(out, x):
    tk.arange(6, dtype=tk.int32)  # error


@told("reshape: too many positional arguments; it takes (x, shape)", "out.load().reshape(4, 8)")
def reshape_by_sides(out, x):
    out.load().reshape(4, 8)  # error


@told("32 elements of a float32 tile of shape (4, 8) do not fill shape (8, 8)", "out.load().reshape((8, 8))")
def reshape_to_more(out, x):
    out.load().reshape((8, 8))  # error


@told("axes name every one of the 2 axes once, got (0, 0)", "out.load().permute((0, 0))")
def axis_twice(out, x):
    out.load().permute((0, 0))  # error


@told("a tile's index holds only :, None and ...; tk.extract takes parts", "out.load()[0]")
def row_of_a_tile(out, x):
    out.load()[0]  # error


@told("the sides in the middle differ", "out.load() @ out.load()")
def product_of_unequal_sides(out, x):
    out.load() @ out.load()  # error


@told("out holds float32, got a float64 tile of shape (4, 8)", "out.store(out.load() * np.float64(2))")
def double_of_numpy(out, x):
    out.store(out.load() * np.float64(2))  # error


@told("an operand is a tile or a number, got None", "out.load() + None")
def adds_nothing(out, x):
    out.load() + None  # error


@told("an operand is a tile or a number, got 'a'", 'out.load() + "a"')
def adds_a_string(out, x):
    out.load() + "a"  # error


@told("- takes a tile or a number, got 'a'", '-"a"')
def negates_a_string(out, x):
    -"a"  # error


@told("the argument of exp is a tile or a number, got tensor x; load a tile of it", "tk.exp(x)")
def exp_of_a_tensor(out, x):
    tk.exp(x)  # error


@told("load its tile with out.load()", "tk.exp(out)")
def exp_of_a_partition(out, x):
    tk.exp(out)  # error


@told("sqrt is computed at compile time and takes no tiles; tk.sqrt does", "math.sqrt(out.load())")
def square_root_of_python(out, x):
    math.sqrt(out.load())  # error


@told("Python's sum adds the items of a tuple; tk.sum adds the elements of a tile", "sum(out.load())")
def sum_of_python(out, x):
    sum(out.load())  # error


@told("3.5 is no whole number, and int32 holds only those", "tk.full((4,), 3.5, tk.int32)")
def fraction_as_integer(out, x):
    tk.full((4,), 3.5, tk.int32)  # error


# ------------------------------------------------------------------ conditions and loops


@told("while takes one truth value, got a bool tile of shape (4, 8); reduce it", "out.load() > 0")
def while_of_a_tile(out, x):
    while out.load() > 0:  # error
        pass


@told("if takes a condition, got tensor x", "x")
def truth_of_a_tensor(out, x):
    if x:  # error
        pass


@told("and takes one truth value, got a float32 tile", "out.load() and 1")
def and_of_tiles(out, x):
    out.load() and 1  # error


@told("not takes one truth value", "not out.load()")
def not_of_a_tile(out, x):
    not out.load()  # error


@told(
    "give a float32 tile of shape (4, 8) and None; they must be one type",
    "out.load() if tk.bid(0) > 0 else None",
)
def tile_or_none(out, x):
    out.load() if tk.bid(0) > 0 else None  # error


@told("and a float32 scalar is never False; compare with !=", "tk.sum(out.load()) is not False")
def identity_of_a_scalar(out, x):
    tk.sum(out.load()) is not False  # error


@told("a loop runs over range(...), a tuple or tk.static_iter(...), got tensor x; loop over its tiles", "x")
def loop_over_a_tensor(out, x):
    for _ in x:  # error
        pass


@told("range takes whole numbers and integer scalars, got 1.5", "range(1.5)")
def range_of_a_fraction(out, x):
    for _ in range(1.5):  # error
        pass


@told("range takes whole numbers and integer scalars, got a float32 tile", "range(out.load())")
def range_of_a_tile(out, x):
    for _ in range(out.load()):  # error
        pass


@told("static_iter takes a range known at compile time", "tk.static_iter(range(tk.bid(0)))")
def static_loop_of_the_grid(out, x):
    for _ in tk.static_iter(range(tk.bid(0))):  # error
        pass


@told("'s' is None before the loop and a float32 tile of shape (4, 8) after a turn", "s")
def nothing_before_the_loop(out, x):
    s = None
    for _ in range(tk.bid(0)):
        s = out.load()  # error
    out.store(s)


@told("what is unrolled has at most 1000 items, this has 2000", "tk.static_iter(range(2000))")
def long_unrolled_loop(out, x):
    for _ in tk.static_iter(range(2000)):  # error
        pass


@told("'z' is a tuple (1, a float32 tile of shape (4, 8)) or a tuple (1, 2, 3)", "z")
def two_structures(out, x):
    if tk.bid(0) > 0:
        z = (1, out.load())
    else:
        z = (1, 2, 3)
    out.store(z[1])  # error


# ------------------------------------------------------------------ Python's values


@told("lists are tuples in a kernel and do not change, so they have no append", "items.append")
def appends(out, x):
    items = []
    items.append(out.load())  # error


@told("append would change a list, and nothing changes in place in a kernel", "NUMBERS.append(3)")
def appends_to_a_global(out, x):
    NUMBERS.append(3)  # error


@told("dicts do not change in a kernel; make a new one, as in {**table, key: value}", 'd["a"]')
def sets_a_key(out, x):
    d = {}
    d["a"] = 1  # error


@told("tuples and lists do not change in a kernel", "items[0]")
def sets_an_item(out, x):
    items = [1, 2]
    items[0] = 3  # error


@told("keys of a dict are known at compile time, got an int32 scalar", "tk.bid(0)")
def key_at_run_time(out, x):
    {tk.bid(0): 1}  # error


@told("an index into list [1, 2, 3] is known at compile time, got an int32 scalar", "NUMBERS[tk.bid(0)]")
def index_at_run_time(out, x):
    NUMBERS[tk.bid(0)]  # error


@told("a tuple (1, 2) at [5]: tuple index out of range", "(1, 2)[5]")
def index_out_of_range(out, x):
    (1, 2)[5]  # error


@told(
    "Ordinary is an ordinary class and cannot hold tiles; make it a frozen dataclass", "Ordinary(out.load())"
)
def ordinary_class(out, x):
    Ordinary(out.load())  # error


@told("Changeable holds tiles and must not change: mark it @dataclass(frozen=True)", "Changeable(out.load())")
def changeable_class(out, x):
    Changeable(out.load())  # error


@told("WithInit has an __init__ of its own, which cannot take tiles", "WithInit(out.load())")
def class_with_init(out, x):
    WithInit(out.load())  # error


@told("records do not change; make a new one: dataclasses.replace(x, a=...)", "p.a")
def sets_a_field(out, x):
    p = Record(out.load())
    p.a = 3  # error


@told("Record: got an unexpected keyword argument 'c'", "Record(out.load(), c=3)")
def unknown_field(out, x):
    Record(out.load(), c=3)  # error


@told("Record has no field c; it has a, b", "dataclasses.replace(Record(out.load()), c=3)")
def replaces_an_unknown_field(out, x):
    dataclasses.replace(Record(out.load()), c=3)  # error


@told("Mode has no B; it has A", "Mode.B")
def unknown_member(out, x):
    out.store(Mode.B)  # error


@told("2 names take a tuple of 2 values, got a float32 tile of shape (4, 8)", "a, b")
def unpacks_a_tile(out, x):
    a, b = out.load()  # error  # noqa: RUF059


@told("a comprehension goes through a range known at compile time", "range(tk.bid(0))")
def comprehension_at_run_time(out, x):
    [j for j in range(tk.bid(0))]  # error  # noqa: C416


@told("the condition of a comprehension is known at compile time", "tk.bid(0) > j")
def comprehension_with_a_condition_at_run_time(out, x):
    [j for j in range(4) if tk.bid(0) > j]  # error


@told("sorted is computed at compile time and takes no tiles", "sorted((tk.bid(0), tk.bid(1)))")
def sorts_scalars(out, x):
    sorted((tk.bid(0), tk.bid(1)))  # error


@told("static_eval: NameError: name 'missing' is not defined", "tk.static_eval(missing + 1)")
def static_eval_of_an_unknown_name(out, x):
    tk.static_eval(missing + 1)  # error  # noqa: F821


@told("static_eval: TypeError: the truth of a float32 tile", "tk.static_eval(1 if t else 2)")
def static_eval_of_a_tile(out, x):
    t = out.load()
    tk.static_eval(1 if t else 2)  # error


@told("this is known only when the kernel runs: an int32 scalar", "tk.ensure_constant(tk.bid(0))")
def constant_at_run_time(out, x):
    tk.ensure_constant(tk.bid(0))  # error


# ------------------------------------------------------------------ functions and statements


@told("<lambda> needs an argument a", "f()")
def too_few_arguments(out, x):
    f = lambda a: a + 1  # noqa: E731
    f()  # error


@told("g takes 1 arguments, got 2", "g(1, 2)")
def keyword_by_position(out, x):
    def g(a, *, b):
        return a

    g(1, 2)  # error


@told("functions inside of kernels have no decorators", "functools.cache")
def decorated_inside(out, x):
    @functools.cache  # error
    def g():
        return 1

    g()


@told("tk.where: missing a required argument: 'y'", "tk.where(out.load() > 0, 1)")
def where_without_else(out, x):
    tk.where(out.load() > 0, 1)  # error


@told("kernels cannot use with; call the function and pass its value on", 'with open("f"):')
def with_statement(out, x):
    with open("f"):  # error
        pass


@told("kernels cannot use raise; tk.assert_ stops a kernel", 'raise ValueError("x")')
def raises(out, x):
    raise ValueError("x")  # error


@told("kernels cannot use import; import at the top of the module", "import json")
def imports(out, x):
    import json  # error  # noqa: F401


@told("kernels cannot use match; write if and elif", "match 1:")
def matches(out, x):
    match 1:  # error
        case 1:
            pass


@told("kernels cannot use class; define it outside of the kernel", "class A:")
def defines_a_class(out, x):
    class A:  # error
        pass


@told("kernels cannot use async def; a kernel runs on the device", "async def f():")
def defines_async(out, x):
    async def f():  # error
        pass


@told("kernels cannot use sets, which have no order; use a tuple", "{1, 2}")
def makes_a_set(out, x):
    {1, 2}  # error


@told("kernels cannot use := where a condition known only at run time decides", "n := 3")
def walrus_on_one_side(out, x):
    tk.bid(0) > 0 and (n := 3) > 1  # error


@told("kernels cannot use super(); name the class", "super()")
def asks_for_super(out, x):
    super().x  # error


# ------------------------------------------------------------------ element types, text, deep calls


@told("== compares an element type and the string 'float32', which are never equal", 'x.dtype == "float32"')
def compares_a_type_with_its_name(out, x):
    out.store(1.0 if x.dtype == "float32" else 2.0)  # error


@told("write (x > a) & (x < b)", "1 & x.shape[0] / 2")
def and_without_parentheses(out, x):
    tk.load_like(x, out) > 1 & x.shape[0] / 2 < 5  # error


@told("loop over the items, or over tk.static_iter(range(n))", "NUMBERS[i]")
def index_of_a_loop(out, x):
    for i in range(3):
        NUMBERS[i]  # error


@told("tilekern.rand is for the host and cannot be called in a kernel", "tk.rand((4, 8))")
def draws_on_the_host(out, x):
    out.store(tk.rand((4, 8)))  # error


@told("tilekern.kernels.softmax is for the host", "tk.kernels.softmax(tk.load_like(x, out))")
def calls_the_library(out, x):
    out.store(tk.kernels.softmax(tk.load_like(x, out)))  # error


@told("several numbers are given as a tuple, (2, 16)", "tk.load_like(x, out).reshape(2, 16)")
def reshapes_to_numbers(out, x):
    tk.load_like(x, out).reshape(2, 16)  # error


@told("has only its dtype, shape, ndim and size here", "tk.static_eval(x.ndim + out)")
def evaluates_a_tile(out, x):
    tk.static_eval(x.ndim + out)  # error


@told("got float16 and bfloat16; cast one", "tk.mma(a, b, tk.zeros((16, 16), tk.float32))")
def multiplies_types_that_do_not_meet(out, x):
    a, b = tk.zeros((16, 16), tk.float16), tk.zeros((16, 16), tk.bfloat16)
    tk.mma(a, b, tk.zeros((16, 16), tk.float32))  # error


@told("use float('inf')", "tk.inf")
def asks_for_infinity(out, x):
    tk.full((4,), tk.inf, tk.float32)  # error


@told("a `for` loop over range alone takes such bounds", "enumerate(range(x.shape[0]))")
def enumerates_what_is_not_known(out, x):
    for _ in enumerate(range(x.shape[0])):  # error
        pass


@told("round is computed at compile time and takes no tiles; use tk.floor(x + 0.5)", "round(x.shape[0] / 2)")
def rounds(out, x):
    round(x.shape[0] / 2)  # error


@told("tk has no sigmoid; use 1 / (1 + tk.exp(-x))", "tk.sigmoid")
def asks_for_sigmoid(out, x):
    tk.sigmoid(out.load())  # error


# before 3.12, what stands in an f-string has no place of its own
@told(
    "takes no format; give its parts one by one",
    "{x.shape:>5}" if sys.version_info >= (3, 12) else 'f"{x.shape:>5}"',
)
def formats_a_tuple(out, x):
    print(f"{x.shape:>5}")  # error


def marked_line(function):
    """Line number and text of the line with `# error`."""
    code = function.__code__
    for line in range(code.co_firstlineno, code.co_firstlineno + 20):
        text = linecache.getline(code.co_filename, line)
        if "# error" in text:
            return line, text.strip()
    raise AssertionError("no marked line")


@pytest.mark.parametrize(("function", "message", "under_caret"), CASES)
def test_newcomer_is_told(function, message, under_caret):
    with pytest.raises(KernelError) as caught:
        tk.kernel(function).ir(OUT, X)
    line, text = marked_line(function)
    assert message in caught.value.reason
    assert caught.value.location.line == line
    shown = str(caught.value).splitlines()
    source, caret = shown[1].split("| ", 1)[1], shown[2].split("| ", 1)[1]
    assert source == text
    start = caret.index("^")
    assert source[start : start + caret.count("^")].split("  #")[0] == under_caret
    assert len(caught.value.reason) < 400


def test_a_partition_in_tiles_of_other_sides_is_told_at_its_parameter():
    @tk.kernel
    def k(x, out):
        out.store(1.0)

    with pytest.raises(KernelError, match=r"out is a partition in tiles of \(4, 6\): every side") as caught:
        k.ir(X, X.partition((4, 6)))
    assert str(caught.value).splitlines()[2].endswith("|          ^^^")


def deeper(n):
    return deeper(n + 1)


def test_a_long_chain_of_calls_is_shown_at_its_ends():
    @tk.kernel
    def k(out, x):
        out.store(deeper(0))

    with pytest.raises(KernelError, match="calls nest deeper than 40") as caught:
        k.ir(OUT, X)
    text = str(caught.value)
    assert "... 34 calls in between" in text
    assert text.count("called from") == 6
    assert "in k\n" in text
