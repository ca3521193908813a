"""Bytecode of kernels: accepted by NVIDIA's verifier for every operation and element type, and assembled."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import tilekern as tk
from tilekern import ir, lowering, tileir
from tilekern.dtypes import DTYPES
from tilekern.kernels.raw import add, matmul, rms_norm, row_softmax, saxpy

ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_120"]
PLAIN = [d for d in DTYPES.values() if not d.restricted]
STORED = [d for d in DTYPES.values() if d not in (tk.tfloat32, tk.float4_e2m1fn)]

M = tk.meta
LIBRARY = [
    pytest.param(kernel, args, id=f"{kernel.name}-{label}")
    for kernel, label, args in (
        (add, "f32", (M(1000, "f4").partition(256), M(1000, "f4"), M(1000, "f4"))),
        (add, "bf16", (M(4096, tk.bfloat16).partition(1024), M(4096, tk.bfloat16), M(4096, tk.bfloat16))),
        (saxpy, "f32", (M(4096, "f4").partition(1024), 2.0, M(4096, "f4"))),
        (saxpy, "f64", (M(4097, "f8").partition(1024), 2.0, M(4097, "f8"))),
        (row_softmax, "f32", (M((4096, 1024), "f4").partition((1, 1024)), M((4096, 1024), "f4"))),
        (row_softmax, "f32-ragged", (M((1797, 10), "f4").partition((4, 16)), M((1797, 10), "f4"))),
        (row_softmax, "bf16", (M((64, 4096), tk.bfloat16).partition((1, 4096)), M((64, 4096), tk.bfloat16))),
        (
            rms_norm,
            "bf16",
            (
                M((64, 4096), tk.bfloat16).partition((1, 4096)),
                M((64, 4096), tk.bfloat16),
                M(4096, tk.bfloat16),
                1e-5,
            ),
        ),
        (matmul, "bf16", tuple(M((512, 512), tk.bfloat16) for _ in range(3))),
        (matmul, "f32", tuple(M((100, 100), "f4") for _ in range(3))),
        (matmul, "f64", tuple(M((128, 128), "f8") for _ in range(3))),
    )
]


def arguments(kernel, args):
    return (args[0].partition((64, 64)), *args[1:], 32) if kernel is matmul else args


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize(("kernel", "args"), LIBRARY)
def test_library_kernel_assembles(kernel, args, arch, disassemble):
    bytecode = kernel.bytecode(*arguments(kernel, args))
    assert tileir.assemble(bytecode, arch, kernel=kernel.name).cubin[:4] == b"\x7fELF"


@pytest.mark.parametrize(("kernel", "args"), LIBRARY)
def test_front_end_to_bytecode_is_quick(kernel, args, disassemble):
    """50 ms a kernel, on an idle machine; twice that here."""
    import time

    args = arguments(kernel, args)
    kernel.bytecode(*args)
    best = min(timed(lambda: kernel.bytecode(*args), time.perf_counter) for _ in range(3))
    assert best < 0.1


def timed(call, clock):
    start = clock()
    call()
    return clock() - start


# ------------------------------------------------------------------ everything of one element type in one kernel

FLOAT_FUNCTIONS = (
    *(tk.exp, tk.exp2, tk.log, tk.log2, tk.sqrt, tk.rsqrt, tk.sin, tk.cos, tk.tan, tk.sinh, tk.cosh, tk.tanh),
    *(tk.floor, tk.ceil),
)
NUMBER_FUNCTIONS = (lambda t: -t, tk.abs, lambda t: t**3)
TWO_NUMBERS = (
    *(lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a % b, lambda a, b: a // b),
    *(tk.minimum, tk.maximum, lambda a, b: tk.maximum(a, b, propagate_nan=False)),
    *(lambda a, b: tk.where(a < b, a, b), lambda a, b: tk.where((a == b) | (a != b), a, b)),
)
TWO_FLOATS = (lambda a, b: a / b, lambda a, b: a**b, lambda a, b: tk.fma(a, b, a))
TWO_INTEGERS = (
    *(
        lambda a, b: a & b,
        lambda a, b: a | b,
        lambda a, b: a ^ b,
        lambda a, b: ~(a << 1) >> 1,
        lambda a, b: a // 4 % 8,
    ),
)


def functions_of(dtype):
    """Functions of two tiles that between them use every operation on that element type."""
    found = [lambda a, b, f=f: f(a) for f in NUMBER_FUNCTIONS] + list(TWO_NUMBERS)
    if dtype.is_float:
        found += [lambda a, b, f=f: f(a) for f in FLOAT_FUNCTIONS] + list(TWO_FLOATS)
    else:
        found += list(TWO_INTEGERS)
    found += [lambda a, b, f=f: f(a, 1)[:, None] + b for f in (tk.sum, tk.prod, tk.max, tk.min)]
    found += [lambda a, b, f=f: f(a, 0).astype(a.dtype)[None, :] + b for f in (tk.argmax, tk.argmin)]
    found += [lambda a, b: tk.cumsum(a, 1), lambda a, b: tk.cumprod(a, 0, reverse=True)]
    found += [lambda a, b: tk.max(a, propagate_nan=False) + b]
    found += [
        lambda a, b: tk.extract(tk.cat((a, b), 0), (1, 0), (4, 8)),
        lambda a, b: a.transpose().reshape((4, 8)),
    ]
    found += [lambda a, b: tk.arange(8, dtype=a.dtype) + b, lambda a, b: tk.full((4, 8), 3, a.dtype)]
    return tuple(found)


@tk.kernel
def everything(out: tk.Tile2D, x: tk.Tensor2D, y: tk.Tensor2D, functions: tk.Constant[tuple]):
    a, b = tk.load_like(x, out), tk.load_like(y, out)
    total = out.load()
    for function in tk.static_iter(functions):
        total = total + function(a, b)
    out.store(total)


def numbers():
    return [d for d in PLAIN if d.kind != "bool"]


def tensor(dtype):
    return tk.meta((64, 64), dtype)


@pytest.mark.parametrize("dtype", numbers(), ids=str)
def test_every_operation_is_valid_tile_ir(dtype, disassemble):
    t = tensor(dtype)
    disassemble(everything.bytecode(t.partition((4, 8)), t, t, functions_of(dtype)))


COVERING = [("f32", "sm_90"), ("i32", "sm_120"), ("bf16", "sm_80"), ("u8", "sm_100")]


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param(d, a, id=f"{d}-{a}", marks=() if (d.short, a) in COVERING else pytest.mark.slow)
        for d, a in itertools.product(numbers(), ARCHITECTURES)
    ],
)
def test_every_operation_assembles(dtype, arch, assembles):
    t = tensor(dtype)
    bytecode = everything.bytecode(t.partition((4, 8)), t, t, functions_of(dtype))
    assembles(bytecode, arch)


# ------------------------------------------------------------------ conversions


@tk.kernel
def convert_all(out: tk.Tile2D, x: tk.Tensor2D, dtypes: tk.Constant[tuple]):
    t = tk.load_like(x, out)
    total = out.load()
    for dtype in tk.static_iter(dtypes):
        total = total + t.astype(dtype).astype(tk.float32)
    out.store(total)


def has(arch, dtype):
    return tileir.refused_type(arch, tileir.types.number("i8" if not dtype.is_float else dtype.short)) is None


@pytest.mark.parametrize("source", STORED, ids=str)
def test_every_conversion_is_valid_tile_ir(source, disassemble):
    disassemble(
        convert_all.bytecode(tensor(tk.float32).partition((4, 8)), tensor(source), tuple(DTYPES.values()))
    )


@pytest.mark.parametrize(
    ("source", "arch"),
    [
        pytest.param(
            d,
            a,
            id=f"{d}-{a}",
            marks=() if (d.short, a) in (("f32", "sm_90"), ("i64", "sm_80")) else pytest.mark.slow,
        )
        for d, a in itertools.product(STORED, ARCHITECTURES)
        if has(a, d)
    ],
)
def test_every_conversion_assembles(source, arch, assembles):
    targets = tuple(d for d in DTYPES.values() if has(arch, d))
    bytecode = convert_all.bytecode(tensor(tk.float32).partition((4, 8)), tensor(source), targets)
    assembles(bytecode, arch)


# ------------------------------------------------------------------ matrix products, memory, control flow


@tk.kernel
def product(out: tk.Tile2D, x: tk.Tensor2D, y: tk.Tensor2D, kept: tk.Constant[object]):
    acc = tk.zeros((64, 64), kept)
    for k in range(tk.num_tiles(x, 1, (64, 64))):
        acc = tk.mma(tk.load(x, (tk.bid(0), k), (64, 64)), tk.load(y, (k, tk.bid(1)), (64, 64)), acc)
    out.store(acc)


PRODUCTS = [(a, c) for a, kept in ir.MMA_TYPES.items() for c in kept if a is not tk.tfloat32]


@pytest.mark.parametrize(("dtype", "kept"), PRODUCTS, ids=str)
def test_every_product_is_valid_tile_ir(dtype, kept, disassemble):
    t = tk.meta((256, 256), dtype)
    disassemble(product.bytecode(tk.meta((256, 256), kept).partition((64, 64)), t, t, kept))


@pytest.mark.parametrize(
    ("dtype", "kept", "arch"),
    [
        pytest.param(
            d, k, a, id=f"{d}-{k}-{a}", marks=() if (d.short, a) == ("f16", "sm_90") else pytest.mark.slow
        )
        for (d, k), a in itertools.product(PRODUCTS, ARCHITECTURES)
        if has(a, d)
    ],
)
def test_every_product_assembles(dtype, kept, arch, assembles):
    t = tk.meta((256, 256), dtype)
    bytecode = product.bytecode(tk.meta((256, 256), kept).partition((64, 64)), t, t, kept)
    assembles(bytecode, arch)


@pytest.mark.parametrize("dtype", STORED, ids=str)
@pytest.mark.parametrize("strides", [(64, 1), (65, 1), (1, 64), (128, 2)], ids=str)
def test_copies_of_any_layout_are_valid_tile_ir(dtype, strides, disassemble):
    @tk.kernel
    def copy(out, x):
        out.store(tk.load_like(x, out))

    t = tk.meta((64, 64), dtype, strides)
    disassemble(copy.bytecode(t.partition((8, 16)), t))


def test_bool_arguments_go_as_bytes(disassemble):
    @tk.kernel
    def choose(out, flag: bool):
        out.store(1.0 if flag else 2.0)

    text = disassemble(choose.bytecode(tk.meta(8, "f4").partition(8), True))
    assert "tile<i8>" in text.splitlines()[1] + text.splitlines()[0] + text.splitlines()[2]


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
def test_tma_and_tensor_cores_are_used(arch, disassemble):
    """What the assumptions about addresses and strides are for."""
    args = (
        M((512, 512), tk.bfloat16).partition((128, 128)),
        M((512, 512), tk.bfloat16),
        M((512, 512), tk.bfloat16),
        64,
    )
    remarks = tileir.assemble(matmul.bytecode(*args), arch, remarks=True).remarks_text
    assert "TMA Load instruction" in remarks
    assert "TMA Store instruction" in remarks
    assert "successfully optimized to use Tensor Cores" in remarks
    assert "Global-memory" not in remarks


def test_refusal_of_an_architecture_names_the_line(disassemble):
    @tk.kernel
    def eight_bits(out, x):
        t = tk.load_like(x, out)
        out.store(t.astype(tk.float32))

    bytecode = eight_bits.bytecode(
        tk.meta(64, "f4").partition(16), tk.meta(64, ml_dtypes.float8_e4m3fn), locations=True
    )
    with pytest.raises(tileir.errors.ArchitectureError, match="sm_80"):
        tileir.assemble(bytecode, "sm_80")


def test_locations_are_in_the_bytecode_only_on_request(disassemble):
    args = (M(64, "f4").partition(16), M(64, "f4"), M(64, "f4"))
    without = add.bytecode(*args)
    assert b"_elementwise.py" not in without
    assert b"_elementwise.py" in add.bytecode(*args, locations=True)
    disassemble(add.bytecode(*args, locations=True))


def test_bytecode_is_the_same_every_time():
    args = (M((64, 4096), tk.bfloat16).partition((1, 4096)), M((64, 4096), tk.bfloat16))
    assert row_softmax.bytecode(*args) == row_softmax.bytecode(*args)


def test_older_bytecode_is_refused_where_it_lacks_something():
    function = ir.parse("func @f(%x: f32) {\n  %y = exp %x : f32\n  return\n}")
    assert lowering.lower(function, version=(13, 1))[8:10] == bytes([13, 1])
    assert np.frombuffer(lowering.lower(function)[8:10], np.uint8).tolist() == [13, 3]
