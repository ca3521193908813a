"""What a launch is given: typed scalars, big ints, wrong counts, odd shapes, tensors from elsewhere."""

from __future__ import annotations

import ctypes
import math
import re
import struct

import numpy as np
import pytest

import cuda_async as ca

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request):
    """One loop: how arguments are packed has nothing to do with it."""
    return request.param


async def made(device, how, function, grid, block, arguments, uses=(), **options):
    """A launch, or a bound one."""
    if how == "bind":
        return await function.bind(grid, block, *arguments, device=device, **options).launch()
    return await function.launch(grid, block, *arguments, uses=uses, **options)


# -------------------------------------------------- PTX that stores its scalar argument

WIDTHS = {8: "%rs", 16: "%rs", 32: "%r", 64: "%rd"}


def store(kind):
    """PTX of a kernel that stores its second argument, of PTX type `kind` such as `s16`, at its first."""
    bits = int(kind.lstrip("subf"))
    register = WIDTHS[bits]
    declared = {8: "b16", 16: "b16", 32: "b32", 64: "b64"}[bits]
    return f"""
.version 7.8
.target sm_80
.address_size 64
.visible .entry store(.param .u64 out, .param .{kind} value)
{{
    .reg .b64 %out;
    .reg .{declared} {register}1;
    ld.param.u64 %out, [out];
    ld.param.b{bits} {register}1, [value];
    st.global.b{bits} [%out], {register}1;
    ret;
}}
"""


_stores = {}


def store_kernel(kind, signature=None):
    key = (kind, signature)
    if key not in _stores:
        module = ca.Module.from_ptx(store(kind), name=f"store {kind}")
        _stores[key] = module.function("store", signature=("ptr", signature) if signature else None)
    return _stores[key]


async def stored(function, value, size):
    """The bytes that the kernel stores, and the canary behind them."""
    out = await ca.full(16, 0xA5, "uint8")
    await function.launch(1, 1, ca.mut(out), value)
    data = (await out.to_host()).tobytes()
    assert data[size:] == b"\xa5" * (16 - size)
    return data[:size]


# ----------------------------------------------------------------- Case C21: typed scalars

FLOATS = [0.1, -0.0, 1e-8, math.inf, -math.inf, 3.0, 65504.0]


def typed_scalars():
    """(PTX type, value)."""
    for size in (8, 16, 32, 64):
        low, high = -(2 ** (size - 1)), 2 ** (size - 1) - 1
        signed, unsigned = np.dtype(f"int{size}").type, np.dtype(f"uint{size}").type
        for number in (-3, 0, 1, low, low + 1, high):
            yield f"s{size}", signed(number)
        for number in (250, 0, 2**size - 1, 2 ** (size - 1)):
            yield f"u{size}", unsigned(number)
    yield "s16", np.int16(-300)
    yield "u32", np.uint32(4_000_000_000)
    yield "s64", np.int64(2**40)
    yield "u64", np.uint64(2**63 + 1)
    for size in (16, 32, 64):
        kind = np.dtype(f"float{size}").type
        for number in FLOATS:
            with np.errstate(over="ignore"):
                yield ("b16" if size == 16 else f"f{size}"), kind(number)
        yield (
            ("b16" if size == 16 else f"f{size}"),
            np.frombuffer(b"\x01" * (size // 8 - 1) + b"\x7f", kind)[0],
        )
    yield "u8", np.bool_(True)
    yield "u8", np.bool_(False)


def describe(value):
    return f"{type(value).__name__} {value}"


@pytest.mark.parametrize(("kind", "value"), list(typed_scalars()), ids=describe)
async def test_typed_scalar_arrives_bit_for_bit(device, kind, value):
    """Case C21: NumPy scalars, whatever the kernel calls their type."""
    assert await stored(store_kernel(kind), value, value.nbytes) == value.tobytes()
    unsigned = f"b{value.nbytes * 8}"
    assert await stored(store_kernel(unsigned), value, value.nbytes) == value.tobytes()


class Handle(ctypes.c_int):
    """A subclass of a ctypes int."""


class Pair(ctypes.Structure):
    _fields_ = (("x", ctypes.c_short), ("y", ctypes.c_float))


CTYPES = [
    ("s8", ctypes.c_byte(-3)),
    ("u8", ctypes.c_ubyte(250)),
    ("u8", ctypes.c_bool(True)),
    ("u8", ctypes.c_char(b"x")),
    ("s16", ctypes.c_short(-300)),
    ("u16", ctypes.c_ushort(65535)),
    ("s32", Handle(-7)),
    ("s32", ctypes.c_int(-(2**31))),
    ("u32", ctypes.c_uint(4_000_000_000)),
    ("s64", ctypes.c_longlong(2**40)),
    ("u64", ctypes.c_ulonglong(2**63 + 1)),
    ("f32", ctypes.c_float(0.1)),
    ("f64", ctypes.c_double(0.1)),
    ("b64", Pair(-2, 0.1)),
    ("b64", (ctypes.c_int * 2)(5, -6)),
]


@pytest.mark.parametrize(
    ("kind", "value"), CTYPES, ids=lambda v: v if isinstance(v, str) else type(v).__name__
)
async def test_ctypes_value_arrives_bit_for_bit(device, kind, value):
    """Case C21: ctypes values, structures and arrays, and subclasses."""
    assert await stored(store_kernel(kind), value, ctypes.sizeof(value)) == bytes(value)


class Level(int):
    """A subclass of int, as an IntEnum is."""


PYTHON = [
    ("u8", True, b"\x01"),
    ("u8", False, b"\x00"),
    ("s32", True, b"\x01\x00\x00\x00"),
    ("s32", Level(-5), struct.pack("<i", -5)),
    ("f32", 0.1, struct.pack("<f", 0.1)),
    ("f64", 0.1, struct.pack("<d", 0.1)),
    ("f32", 3, struct.pack("<f", 3.0)),
    ("f64", -(2**53), struct.pack("<d", -(2.0**53))),
    ("f32", math.inf, struct.pack("<f", math.inf)),
    ("f32", 3.4028234663852886e38, struct.pack("<I", 0x7F7FFFFF)),
]


@pytest.mark.parametrize(("kind", "value", "expected"), PYTHON, ids=str)
async def test_python_number_arrives(device, kind, value, expected):
    """Case C21 for plain Python values, packed for the type that the kernel declares."""
    assert await stored(store_kernel(kind), value, len(expected)) == expected


async def test_numbers_of_one_type_take_turns(device):
    """A launch that was written for a type before still converts, or refuses, what does not pack as it is."""
    integers, floats = store_kernel("s32"), store_kernel("f32")
    for value in (7, -7, 2**32 - 1, 7, -(2**31)):
        assert await stored(integers, value, 4) == (value % 2**32).to_bytes(4, "little")
        with pytest.raises(OverflowError, match="takes -2147483648 to 4294967295"):
            await stored(integers, 2**32, 4)
    for value in (1.5, math.inf, 3.4028234663852886e38, -1.5):
        assert await stored(floats, value, 4) == struct.pack("<f", value)
        with pytest.raises(OverflowError, match=r"takes up to 3\.40282e"):
            await stored(floats, 1e39, 4)


async def test_half_precision_from_a_float(device):
    """Case C21: a signature says that 16 bits are a float."""
    assert await stored(store_kernel("b16", "f16"), 0.1, 2) == np.float16(0.1).tobytes()
    with pytest.raises(OverflowError, match=r"value.*65504"):
        await stored(store_kernel("b16", "f16"), 65520.0, 2)
    assert await stored(store_kernel("b16", "f16"), 65519.9, 2) == np.float16(65504).tobytes()


WRONG_SIZES = [
    ("s32", np.int64(1)),
    ("s32", np.int16(1)),
    ("s64", np.int32(1)),
    ("f32", np.float64(1)),
    ("f64", np.float32(1)),
    ("u8", np.uint16(1)),
    ("s32", ctypes.c_longlong(1)),
    ("s64", Handle(1)),
    ("s32", Pair(1, 1)),
]


@pytest.mark.parametrize(
    ("kind", "value"), WRONG_SIZES, ids=lambda v: v if isinstance(v, str) else type(v).__name__
)
async def test_typed_scalar_of_another_size_is_refused(device, kind, value):
    """Case C21: neither cut nor widened."""
    size = (
        ctypes.sizeof(value) if isinstance(value, (ctypes._SimpleCData, ctypes.Structure)) else value.nbytes
    )
    with pytest.raises(TypeError, match=rf"argument 1 \(value: .*{type(value).__name__}.*{size} bytes"):
        await stored(store_kernel(kind), value, 0)


WRONG_KINDS = [
    ("f32", None, np.int32(3), "no float"),
    ("f64", None, np.uint64(3), "no float"),
    ("f16", None, np.int16(3), "no float"),
    ("f64", None, np.complex64(1), "no float"),
    ("f64", None, np.datetime64(3, "s"), "no float"),
    ("f32", None, ctypes.c_int(3), "no float"),
    ("b32", "f32", Handle(3), "no float"),
    ("b32", "u32", np.float32(3), "no integer"),
    ("b64", "i64", ctypes.c_double(3), "no integer"),
    ("b64", "u64", np.complex64(1), "no integer"),
    ("b64", "ptr", np.float64(3), "no integer"),
]


@pytest.mark.parametrize(
    ("kind", "signature", "value", "message"),
    WRONG_KINDS,
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
async def test_typed_scalar_of_another_kind_is_refused(device, kind, signature, value, message):
    """Case C21: bit for bit, an integer where a float is known to be taken would arrive as another number."""
    with pytest.raises(TypeError, match=rf"store: argument 1 \(value: .*{type(value).__name__}.*{message}"):
        await stored(store_kernel(kind, signature), value, 0)


async def test_bytes_fit_every_kind(device):
    """Case C21: `np.void` and structures hold what their author says."""
    for kind, signature in (("f64", None), ("b64", "f64"), ("b64", "u64"), ("b64", None)):
        function = store_kernel(kind, signature)
        assert await stored(function, np.void(b"12345678"), 8) == b"12345678"
        assert await stored(function, Pair(-2, 0.1), 8) == bytes(Pair(-2, 0.1))
    with pytest.raises(TypeError, match=r"^store: argument 1 .*given 3 bytes, the parameter has 8"):
        await stored(store_kernel("f64"), np.void(b"123"), 0)


# --------------------------------------------------------------- Case C22: big Python ints

NUMBERS = [-(2**63) - 1, -(2**63), -(2**31) - 1, -(2**31), -1, 0, 1, 255, 256]
NUMBERS += [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]
RANGES = {f"i{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32, 64)}
RANGES |= {f"u{n}": (0, 2**n - 1) for n in (8, 16, 32, 64)}


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("number", NUMBERS, ids=hex)
async def test_int_with_a_signature(device, kind, number):
    """Case C22: what fits arrives exactly; the rest is an OverflowError that names parameter and type."""
    low, high = RANGES[kind]
    bits = int(kind[1:])
    function = store_kernel(kind.replace("i", "s"), kind)
    if low <= number <= high:
        expected = (number % 2**bits).to_bytes(bits // 8, "little")
        assert await stored(function, number, bits // 8) == expected
    else:
        with pytest.raises(
            OverflowError, match=rf"store: argument 1 \(value: {kind}\).*{low} to {high}.*{number}"
        ):
            await stored(function, number, 0)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("kind", "sub")
@pytest.mark.parametrize("number", NUMBERS, ids=hex)
async def test_int_without_a_signature(device, kind, bits, number):
    """Case C22: PTX does not keep signedness, so both ranges fit; what is in neither does not."""
    function = store_kernel(f"{kind}{bits}")
    if -(2 ** (bits - 1)) <= number < 2**bits:
        expected = (number % 2**bits).to_bytes(bits // 8, "little")
        assert await stored(function, number, bits // 8) == expected
    else:
        with pytest.raises(OverflowError, match=rf"store: argument 1 \(value: {bits}-bit integer.*{number}"):
            await stored(function, number, 0)


@pytest.mark.parametrize(
    "value",
    [0.5, "1", None, b"\x01\0\0\0", [1], (1,), 1j, object(), np.arange(1)],
    ids=lambda v: type(v).__name__,
)
async def test_what_is_no_integer_is_refused(device, value):
    """Case C22: a TypeError that names the parameter."""
    with pytest.raises(TypeError, match=rf"argument 1 \(value: 32-bit integer.*{type(value).__name__}"):
        await stored(store_kernel("s32"), value, 0)


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
async def test_int_too_large_for_a_float(device, kernels, kind):
    """Case C22 for a float parameter: the message names kernel and parameter, as for a float."""
    function, out = store_kernel(kind), await ca.zeros(1, f"float{kind[1:]}")
    for number in (2**1024, -(2**2000)):
        with pytest.raises(OverflowError, match=rf"^store: argument 1 \(value: {kind}\) takes up to"):
            await function.launch(1, 1, ca.mut(out), number)
    await function.launch(1, 1, ca.mut(out), -(2**11))
    assert (await out.to_host()).tolist() == [-2048.0]


async def test_cubin_knows_sizes_only(device, kernels_can_be_compiled):
    """Case C22 through CUDA C++, which a CUDA device gets as a cubin: exact with a signature."""
    source = 'extern "C" __global__ void put(long long* out, unsigned a, int b) { out[0] = a; out[1] = b; }'
    module = ca.Module.from_cuda_source(source)
    put = module.function("put", signature=("ptr", "u32", "i32"))
    out = await ca.zeros(2, "int64")
    await put.launch(1, 1, ca.mut(out), 2**32 - 1, -(2**31))
    assert (await out.to_host()).tolist() == [2**32 - 1, -(2**31)]
    for arguments in ((-1, 0), (2**32, 0), (0, 2**31), (0, -(2**31) - 1)):
        with pytest.raises(OverflowError, match="put: argument"):
            await put.launch(1, 1, ca.mut(out), *arguments)
    assert (await out.to_host()).tolist() == [2**32 - 1, -(2**31)]


class Record(ctypes.Structure):
    _fields_ = (("a", ctypes.c_int32), ("b", ctypes.c_double))


RECORD = np.dtype([("a", "i4"), ("b", "f8")], align=True)


@pytest.mark.parametrize(
    "value",
    [Record(-7, 2.5), np.array((-7, 2.5), RECORD)[()], np.rec.array([(-7, 2.5)], dtype=RECORD)[0]],
    ids=["ctypes", "void", "record"],
)
async def test_structures_beside_a_signature(device, kernels_can_be_compiled, value):
    """Case C21: None in a signature is a parameter that has no name among the types."""
    source = """
    struct Record { int a; double b; };
    extern "C" __global__ void put(double* out, Record r, unsigned c) { out[0] = r.a; out[1] = r.b; out[2] = c; }
    """
    put = ca.Module.from_cuda_source(source).function("put", signature=("ptr", None, "u32"))
    out = await ca.zeros(3, "float64")
    await put.launch(1, 1, ca.mut(out), value, 2**32 - 1)
    assert (await out.to_host()).tolist() == [-7.0, 2.5, 2.0**32 - 1]
    with pytest.raises(OverflowError, match="put: argument 2"):
        await put.launch(1, 1, ca.mut(out), value, -1)
    with pytest.raises(TypeError, match=r"put: argument 1 .* was given 3 bytes, the parameter has 16"):
        await put.launch(1, 1, ca.mut(out), np.void(b"123"), 1)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (np.bytes_(b"12345678"), r"pass bytes as np\.void\(bytes\)"),
        (np.str_("12"), r"pass bytes as np\.void\(bytes\)"),
        (ctypes.c_char_p(b"12345678"), "it is an address in this process, where no kernel can look"),
        (ctypes.py_object(3), "it is an address in this process, where no kernel can look"),
    ],
    ids=["bytes", "str", "char pointer", "object"],
)
async def test_values_that_no_kernel_can_use(device, value, hint):
    out = await ca.zeros(1, "int64")
    with pytest.raises(TypeError, match=rf"store: argument 1 .* was given a {type(value).__name__}; {hint}"):
        await store_kernel("b64").launch(1, 1, ca.mut(out), value)
    assert (await out.to_host()).tolist() == [0]


# ---------------------------------------------------------- Case C23: wrong number of arguments

FOUR = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry four(.param .u64 out, .param .u32 n, .param .f32 a, .param .u64 b)
{
    .reg .b64 %out;
    .reg .b32 %one;
    ld.param.u64 %out, [out];
    mov.b32 %one, 1;
    st.global.b32 [%out], %one;
    ret;
}
"""


@pytest.fixture(scope="module")
def four():
    return ca.Module.from_ptx(FOUR, name="four").function("four")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6, 20])
@pytest.mark.parametrize("how", ["launch", "bind"])
async def test_wrong_number_of_arguments(device, four, count, how):
    """Case C23: before the launch, with what is expected and what was given."""
    out = await ca.zeros(1, "int32")
    arguments = [ca.mut(out), 1, 2.0, 3, *range(20)][:count]
    expected = r"four takes 4 arguments \(out: .*, n: 32-bit integer, a: f32, b: .*\), got " + str(count)
    with pytest.raises(TypeError, match=expected):
        await made(device, how, four, 1, 1, arguments)
    assert (await out.to_host()).tolist() == [0]
    await four.launch(1, 1, ca.mut(out), 1, 2.0, 3)
    assert (await out.to_host()).tolist() == [1]


def in_place_of(position, value):
    def arguments(out):
        made = [ca.mut(out), 1, 2.0, 3]
        made[position] = value(out)
        return made

    return arguments


WRONG_ARGUMENTS = {
    "a tensor for a 4-byte scalar": (in_place_of(1, ca.read), r"argument 1 \(n: .*8 bytes"),
    "a writable tensor for a 4-byte scalar": (in_place_of(1, ca.mut), r"argument 1 \(n: .*8 bytes"),
    "a tensor for a float": (in_place_of(2, ca.read), r"argument 2 \(a: f32"),
    "a bare tensor": (in_place_of(0, lambda out: out), r"argument 0 .*read\(tensor\) or mut\(tensor\)"),
    "an array": (in_place_of(0, lambda out: np.zeros(1)), r"argument 0 .*from_host"),
    "an operation": (in_place_of(0, lambda out: ca.zeros(1)), r"argument 0 "),
    "a float for an address": (in_place_of(0, lambda out: 1.5), r"argument 0 "),
    "a string": (in_place_of(3, lambda out: "3"), r"argument 3 .*str"),
    "None": (in_place_of(3, lambda out: None), r"argument 3 .*NoneType"),
}


@pytest.mark.parametrize("what", WRONG_ARGUMENTS)
async def test_argument_of_the_wrong_kind(device, four, what):
    """Case C23: a TypeError that names the parameter, and nothing was launched."""
    arguments, message = WRONG_ARGUMENTS[what]
    out = await ca.zeros(1, "int32")
    for _ in range(2):
        with pytest.raises(TypeError, match=message):
            await four.launch(1, 1, *arguments(out))
    assert (await out.to_host()).tolist() == [0]


# -------------------------------------------------------------- Case C24: odd launch shapes


def odd_shapes(limits):
    """(grid, block, error, in the message)."""
    x, y, z = limits.max_grid
    bx, by, bz = limits.max_block
    threads = limits.max_threads_per_block
    limit = ca.LaunchError
    return {
        "float": ((4.0,), 1, TypeError, r"4\.0"),
        "bare float": (4.0, 1, TypeError, r"4\.0"),
        "NumPy float": ((np.float64(4),), 1, TypeError, "4"),
        "string": ("4", 1, TypeError, "4"),
        "string in a tuple": (("4",), 1, TypeError, "4"),
        "None": (None, 1, TypeError, "None"),
        "set": ({1}, 1, TypeError, "1"),
        "float block": (1, (32.0,), TypeError, r"32\.0"),
        "negative": ((-1,), 1, limit, f"-1.*{x}"),
        "negative y": ((1, -2), 1, limit, f"-2.*{y}"),
        "x too long": ((x + 1,), 1, limit, f"{x + 1}.*{x}"),
        "far too long": ((2**40,), 1, limit, f"{2**40}.*{x}"),
        "y too long": ((1, 70_000, 1), 1, limit, f"70000.*{y}"),
        "z too long": ((1, 1, z + 1), 1, limit, f"{z + 1}.*{z}"),
        "four dimensions": ((1, 1, 1, 1), 1, limit, "4 axes.*3"),
        "no dimension": ((), 1, limit, "0 axes"),
        "block of 2048": (1, 2048, limit, f"2048.*{threads}"),
        "block of four": (1, (1, 1, 1, 1), limit, "4 axes"),
        "block of none": (1, (), limit, "0 axes"),
        "block y": (1, (1, by + 1), limit, f"{by + 1}.*{by}"),
        "block z": (1, (1, 1, bz + 1), limit, f"{bz + 1}.*{bz}"),
        "block of 0": (1, 0, limit, "0"),
        "block with a 0": (1, (32, 0), limit, "0"),
        "negative block": (1, -32, limit, "-32"),
        "many threads": (1, (bx, 2), limit, f"{2 * bx} threads.*{threads}"),
        "0 and too long": ((0, 70_000), 1, limit, f"70000.*{y}"),
        "0 and negative": ((0, -1), 1, limit, "-1"),
    }


@pytest.mark.parametrize("amount", [1.0, 0.0, "16", None, np.float32(0)], ids=repr)
@pytest.mark.parametrize("how", ["launch", "second launch", "bind"])
async def test_shared_memory_is_an_int(device, kernels, how, amount):
    """Bytes of shared memory are an int, as grid and block are, also where a checked launch asked for as many."""
    function, out = store_kernel("s32"), await ca.full(1, -1, "int32")
    if how == "second launch":
        await function.launch(1, 1, ca.mut(out), -1, shared_mem_bytes=np.int32(0))
    with pytest.raises(TypeError, match=r"shared_mem_bytes is .*; expected an int"):
        await made(device, how, function, 1, 1, (ca.mut(out), 3), shared_mem_bytes=amount)
    assert (await out.to_host()).tolist() == [-1]


@pytest.mark.parametrize("what", odd_shapes(ca.Device("host:0").limits))
@pytest.mark.parametrize("how", ["launch", "bind"])
async def test_odd_launch_shape(device, kernels, what, how):
    """Case C24: TypeError for what is no integer, ValueError naming the limit for the rest."""
    grid, block, error, message = odd_shapes(device.limits)[what]
    out = await ca.full(4, -1, "int32")
    with pytest.raises(error, match=message) as info:
        await made(device, how, kernels.fill_int, grid, block, (ca.mut(out), 4, 1))
    assert isinstance(info.value, TypeError if error is TypeError else ValueError)
    assert (await out.to_host() == -1).all()


GOOD_SHAPES = {
    "int": (4, 32),
    "NumPy ints": ((np.int32(2), np.int64(2)), np.uint8(32)),
    "bare NumPy int": (np.int64(4), np.int64(32)),
    "list": ([4], [32]),
    "list of NumPy ints": (list(np.array([2, 2])), (32, np.int16(1), 1)),
    "bool": (4, (32, True)),
    "two": ((4, 1), (32, 1)),
    "three": ((4, 1, 1), (32, 1, 1)),
    "y and z": ((1, 2, 2), (8, 2, 2)),
}


@pytest.mark.parametrize("what", GOOD_SHAPES)
async def test_launch_shape_that_works(device, kernels, what):
    """Case C24: every spelling of the same number of blocks; each block adds one."""
    grid, block = GOOD_SHAPES[what]
    counter = await ca.zeros(1, "int32")
    await kernels.count.launch(grid, block, ca.mut(counter))
    blocks = (await counter.to_host()).tolist()
    assert blocks == [16 if what == "y and z" else 4]


# --------------------------------------------------------- Case C39: tensor on the wrong device


@pytest.fixture
def elsewhere(device, monkeypatch):
    """Another device than `device`."""
    monkeypatch.setenv("CUDA_ASYNC_HOST_DEVICES", "2")
    return ca.Device("host:1").open()


def wrong_operands(elsewhere):
    """What is given in a tensor's place, and (error, message)."""
    there = ca.zeros(8).schedule(ca.SingleStream(device=elsewhere)).sync()
    freed = ca.zeros(8).sync()
    freed.free()
    name = str(elsewhere)
    return {
        "other device": (there, ca.ContextError, rf"is on {name}, but this runs on"),
        "view on other device": (there[::2], ca.ContextError, rf"is on {name}"),
        "freed": (freed, ca.ClosedError, "freed"),
        "view of freed": (freed[::2], ca.ClosedError, "freed"),
    }


@pytest.mark.parametrize("what", ["other device", "view on other device", "freed", "view of freed"])
@pytest.mark.parametrize("access", [ca.read, ca.mut])
@pytest.mark.parametrize("how", ["launch", "second launch", "uses", "bind"])
async def test_kernel_on_a_tensor_from_elsewhere(device, elsewhere, kernels, what, access, how):
    """Case C39: the error names the argument, its device and the launch's, and nothing runs."""
    operand, error, message = wrong_operands(elsewhere)[what]
    good = await ca.full(8, 1.0)
    if how == "second launch":  # takes the path of a kernel that ran before
        await kernels.copy_floats.launch(1, 8, access(good[:4]), ca.mut(good[4:]), 4)
    if how != "uses":
        message = f"copy_floats: argument 0 .*{message}"
    function, arguments, uses = kernels.copy_floats, (access(operand), ca.mut(good), 4), ()
    if how == "uses":
        function, arguments, uses = kernels.affine, (ca.mut(good), 8, 2.0, 0.0), [access(operand)]
    with pytest.raises(error, match=message):
        await made(device, how, function, 1, 8, arguments, uses=uses)
    assert (await good.to_host() == 1.0).all()


OPERATIONS = {
    "to_host": lambda t: t.to_host(),
    "astype": lambda t: t.astype("int32"),
    "copy": lambda t: ca.copy(t),
    "fill": lambda t: ca.fill(t, 1.0),
    "memcpy to": lambda t: ca.memcpy(t, np.zeros(t.shape, "f4")),
    "memcpy from": lambda t: ca.memcpy(t, t),
}


@pytest.mark.parametrize("what", ["other device", "view on other device", "freed", "view of freed"])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_operation_on_a_tensor_from_elsewhere(device, elsewhere, what, operation):
    """Case C39 for copies and the like: a step of a chain on this device; alone, it runs where its tensor is."""
    operand, error, message = wrong_operands(elsewhere)[what]
    with pytest.raises(error, match=message):
        await (
            ca.zeros(1)
            .then(lambda _: OPERATIONS[operation](operand))
            .schedule(ca.SingleStream(device=device))
        )
    if error is ca.ContextError:
        await OPERATIONS[operation](operand)


@pytest.mark.parametrize("access", [ca.read, ca.mut])
async def test_tensor_of_this_device_in_a_launch_elsewhere(device, elsewhere, kernels, access):
    """Case C39 the other way round: a GPU's tensor given to the host device."""
    mine = await ca.full(8, 1.0)
    there = await ca.zeros(8).schedule(ca.SingleStream(device=elsewhere))
    launch = kernels.copy_floats.launch(1, 8, access(mine), ca.mut(there), 8)
    with pytest.raises(ca.ContextError, match=rf"argument 0 .*is on {device}, but this runs on {elsewhere}"):
        await launch.schedule(ca.SingleStream(device=elsewhere))
    assert not (await there.to_host()).any()


async def test_tensor_freed_between_binding_and_launch(device, kernels):
    """Case C39."""
    tensor = await ca.zeros(8)
    bound = kernels.affine.bind(1, 8, ca.mut(tensor), 8, 1.0, 0.0, device=device)
    await bound.launch()
    tensor.free()
    with pytest.raises(ca.ClosedError, match=r"affine: argument 0 .*freed"):
        await bound.launch()


@pytest.mark.parametrize(
    "value", [np.zeros(8, "f4"), [1.0], None, "x", ca.zeros(8)], ids=lambda v: type(v).__name__
)
def test_what_is_no_tensor(device, kernels, value):
    """Case C39: a NumPy array where a tensor is wanted, and other things."""
    for refused in (ca.read, ca.mut, ca.to_host, ca.copy, lambda v: ca.fill(v, 1), lambda v: ca.memcpy(v, v)):
        with pytest.raises(TypeError, match=type(value).__name__):
            refused(value)
    with pytest.raises(TypeError, match=f"argument 0 .*{type(value).__name__}"):
        kernels.affine.launch(1, 8, value, 8, 1.0, 0.0).sync()


@pytest.mark.parametrize("kind", [int, np.uint64, np.int64, ctypes.c_void_p, ctypes.c_uint64])
@pytest.mark.parametrize("told_by", ["signature", "PTX"])
async def test_address_as_an_integer(device, kind, told_by):
    """Case C39: refused where the kernel is known to take one, unless the memory is named."""
    function = store_kernel("s32", "i32")
    if told_by == "PTX":
        text = store("s32").replace(".param .u64 out", ".param .u64 .ptr .global .align 4 out")
        function = ca.Module.from_ptx(text).function("store")
    out = await ca.zeros(4, "int32")
    address = kind(out._address)
    for how in ("launch", "bind"):
        with pytest.raises(TypeError, match=r"argument 0 .*address as an integer.*uses=\["):
            await made(device, how, function, 1, 1, (address, 5))
    await function.launch(0, 1, kind(0), 5)  # a null pointer is of no memory
    await function.launch(1, 1, address, 5, uses=[ca.mut(out)])
    assert (await out.to_host())[0] == 5


async def test_bound_on_no_device(kernels):
    """A name is no device; the message says what is."""
    with pytest.raises(TypeError, match="device is 'host:0'; expected a Device"):
        kernels.affine.bind(1, 8, 1, 1.0, 1.0, device="host:0")


async def test_bound_on_another_device(device, elsewhere, kernels):
    """Case C39 for a bound launch."""
    there = ca.zeros(8).schedule(ca.SingleStream(device=elsewhere)).sync()
    bound = kernels.affine.bind(1, 8, ca.mut(there), 8, 1.0, 1.0, device=elsewhere)
    with pytest.raises(ca.LaunchError, match=rf"affine was bound on {elsewhere}, but this runs on {device}"):
        await bound.launch().schedule(ca.SingleStream(device=device))
    await bound.launch()
    assert (await there.to_host() == 1.0).all()


# ------------------------------------------------------------------------- other options


@pytest.mark.parametrize(
    ("grid", "cluster", "message"),
    [
        (4, 64, "a cluster of (64, 1, 1) has 64 blocks, the limit on"),
        (4, (2, 0, 1), "a cluster of (2, 0, 1) has 0 blocks"),
        (5, 2, "grid axis x is 5, which clusters of 2 do not divide"),
    ],
)
async def test_clusters_that_cannot_be(device, grid, cluster, message):
    if device.limits.max_cluster_blocks < 2:
        pytest.skip("no clusters here")
    out = await ca.full(4, -1, "int32")
    with pytest.raises(ca.LaunchError, match=re.escape(message)):
        await store_kernel("s32").launch(grid, 1, ca.mut(out), 7, cluster=cluster)
    assert (await out.to_host()).tolist() == [-1] * 4


async def test_uses_is_a_list(device):
    out = await ca.full(4, -1, "int32")
    with pytest.raises(
        TypeError, match=r"uses=\[...\] takes a list of read\(tensor\) and mut\(tensor\), got Tensor"
    ):
        store_kernel("s32").launch(1, 1, ca.mut(out), 7, uses=out)


@pytest.mark.parametrize(
    ("signature", "error", "message"),
    [
        ("ptr", TypeError, "a signature is a sequence .*got 'ptr'"),
        (b"ptr", TypeError, "a signature is a sequence .*got b'ptr'"),
        (5, TypeError, "a signature is a sequence .*got 5"),
        (["ptr", ["u32"]], ValueError, r"signature entry 1 is \['u32'\]; expected one of ptr"),
        (["ptr", 16], ValueError, "signature entry 1 is 16"),
        (["ptr", np.dtype("f4")], ValueError, "signature entry 1 is dtype"),
    ],
)
def test_signatures_that_are_none(signature, error, message):
    with pytest.raises(error, match=message):
        ca.Module.from_ptx(store("b32")).function("store", signature=signature)


async def test_a_signature_from_an_iterator(device):
    function = ca.Module.from_ptx(store("b32")).function("store", signature=iter(["ptr", "i32"]))
    assert await stored(function, -2, 4) == np.int32(-2).tobytes()
