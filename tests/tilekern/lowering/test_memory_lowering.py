"""Bytecode of accesses to memory: valid for every element type, and assembled on a covering sample."""

import functools
import itertools

import pytest

import tilekern as tk
from tilekern import ir, tileir
from tilekern.dtypes import DTYPES

ARCHITECTURES = ["sm_80", "sm_90", "sm_100", "sm_120"]
M = tk.meta
STORED = [d for d in DTYPES.values() if d not in (tk.tfloat32, tk.float4_e2m1fn)]
ATOMIC = ("add", "max", "min", "and", "or", "xor", "xchg", "cas")


@tk.kernel
def accesses(out: tk.Tensor2D, x: tk.Tensor2D, index: tk.Tensor1D, at: tk.Pointer, i: int):
    order, scope = tk.MemoryOrder, tk.MemoryScope
    rows = tk.load(index, 0, 8)
    columns = tk.arange(16, dtype=tk.int32)[None, :]
    picked = tk.gather(x, (rows[:, None], columns), mask=columns < i, latency=2)
    tk.scatter(out, (rows[:, None], columns), picked, memory_order=order.RELEASE)
    some = tk.load_advanced_indexing(x, (rows, tk.Slice(i, 16)))
    tk.store_advanced_indexing(out, (rows, tk.Slice(0, 16)), some)
    windows = x.tiled_view((8, 16), traversal_steps=(4, 16))
    view = out.tiled_view((8, 16))
    for k in range(windows.num_tiles(0)):
        view.store((k, 0), windows.load((k, 0), latency=3))
    tk.store(
        out.slice(0, 1, 17),
        (1, 0),
        tk.load(x, (i, 0), (8, 16), memory_order=order.ACQUIRE, memory_scope=scope.SYS),
    )
    memory = out.get_raw_memory()
    memory.store_offset(rows, memory.load_offset(rows + 1, mask=rows > 0))
    where = at + rows
    for _ in range(i):
        where = where + 8
    where.store(where.load(memory_order=order.RELAXED), mask=rows < i)
    tk.store(tk.make_tensor(at, (i, 16)), (0, 0), picked)


@tk.kernel
def atomics(out: tk.Tensor1D, x: tk.Tensor1D, modes: tk.Constant[tuple]):
    i = tk.arange(16, dtype=tk.int32)
    values = tk.load(x, 0, 16)
    view = out.tiled_view(16)
    for mode in tk.static_iter(modes):
        if mode == "cas":
            values = tk.atomic_cas(out, i, values, values, memory_order=tk.MemoryOrder.RELAXED)
        else:
            function = {
                "add": tk.atomic_add,
                "max": tk.atomic_max,
                "min": tk.atomic_min,
                "and": tk.atomic_and,
                "or": tk.atomic_or,
                "xor": tk.atomic_xor,
                "xchg": tk.atomic_xchg,
            }[mode]
            values = function(out, i, values, memory_scope=tk.MemoryScope.SYS)
        if mode == "add":
            view.atomic_store_add(1, values)
        elif mode == "max":
            view.atomic_store_max(1, values)
        elif mode == "min":
            view.atomic_store_min(1, values)
        elif mode == "and":
            view.atomic_store_and(1, values)
        elif mode == "or":
            view.atomic_store_or(1, values)
        elif mode == "xor":
            view.atomic_store_xor(1, values)
    tk.store(out, 0, values)


def modes_of(dtype):
    return tuple(mode for mode in ATOMIC if dtype.short in ir.atomic_types(mode))


WITH_ATOMICS = [d for d in STORED if modes_of(d)]


@functools.cache
def bytecode_of_accesses(dtype, shape=(64, 64)):
    return accesses.bytecode(M(shape, dtype).mut(), M(shape, dtype), M(8, "i4"), M(64, dtype).mut(), 3)


@functools.cache
def bytecode_of_atomics(dtype):
    return atomics.bytecode(M(64, dtype).mut(), M(64, dtype), modes_of(dtype))


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_every_access_is_valid_tile_ir(dtype, disassemble):
    text = disassemble(bytecode_of_accesses(dtype))
    for op in ("load_ptr_tko", "store_ptr_tko", "make_gather_scatter_view", "make_strided_view"):
        assert op in text


def test_accesses_of_wide_tensors_are_valid_tile_ir(disassemble):
    text = disassemble(bytecode_of_accesses(tk.float32, (1 << 33, 64)))
    assert "tile<8x16xi64>" in text


@pytest.mark.parametrize("dtype", WITH_ATOMICS, ids=str)
def test_every_atomic_is_valid_tile_ir(dtype, disassemble):
    text = disassemble(bytecode_of_atomics(dtype))
    assert "atomic_rmw_tko" in text
    assert "atomic_red_view_tko" in text


def has(arch, dtype):
    if dtype is tk.float8_e8m0fnu:
        return arch in ("sm_100", "sm_120")
    return arch != "sm_80" or "f8" not in dtype.short


COVERING = {("f32", "sm_90"), ("bool", "sm_80"), ("bf16", "sm_120"), ("f8e4m3fn", "sm_100")}


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param(d, a, id=f"{d}-{a}", marks=() if (d.short, a) in COVERING else pytest.mark.slow)
        for d, a in itertools.product(STORED, ARCHITECTURES)
        if has(a, d)
    ],
)
def test_every_access_assembles(dtype, arch, assembles):
    assembles(bytecode_of_accesses(dtype), arch)


COVERING_ATOMICS = {("i32", "sm_80"), ("f32", "sm_90"), ("u64", "sm_120"), ("bf16", "sm_100")}


@pytest.mark.parametrize(
    ("dtype", "arch"),
    [
        pytest.param(d, a, id=f"{d}-{a}", marks=() if (d.short, a) in COVERING_ATOMICS else pytest.mark.slow)
        for d, a in itertools.product(WITH_ATOMICS, ARCHITECTURES)
        if (d.short, a) != ("bf16", "sm_80")
    ],
)
def test_every_atomic_assembles(dtype, arch, assembles):
    assembles(bytecode_of_atomics(dtype), arch)


def test_bfloat16_addition_is_refused_where_there_is_none(disassemble):
    bytecode = atomics.bytecode(M(64, tk.bfloat16).mut(), M(64, tk.bfloat16), ("add",), locations=True)
    with pytest.raises(tileir.errors.ArchitectureError, match="sm_80"):
        tileir.assemble(bytecode, "sm_80")


def test_promises_of_bounds_take_newer_bytecode(disassemble):
    @tk.kernel
    def copy(out, x, check: tk.Constant[bool]):
        tk.store(out, 0, tk.load(x, 0, 8, check_bounds=check), check_bounds=check)
        tk.store(out, 1, tk.load(x, 1, 8))

    args = (M(64, "f4").mut(), M(64, "f4"))
    assert copy.bytecode(*args, True)[8:10] == bytes([13, 3])
    promised = copy.bytecode(*args, False)
    assert promised[8:10] == bytes([13, 4])
    assert "inbounds" in disassemble(promised)


def test_stores_of_a_loop_over_tiles_are_not_put_in_order(disassemble):
    @tk.kernel
    def scale(x):
        for i in range(tk.num_tiles(x, 0, 8)):
            tk.store(x, i, 2 * tk.load(x, i, 8))

    text = disassemble(scale.bytecode(M(64, "f4").mut()))
    load = next(line for line in text.splitlines() if "load_view_tko" in line)
    assert "token = " not in load.replace("%result_token = ", "")
    assert "join_tokens" in text


def test_indexing_takes_64_bits_only_where_it_has_to(disassemble):
    @tk.kernel
    def pick(out, x):
        out.store(tk.gather(x, out.index[0] + tk.arange(8, dtype=tk.int32)))

    out = M(64, "f4").partition(8)
    assert "i64" not in disassemble(pick.bytecode(out, M(1 << 20, "f4")))
    assert "i64" in disassemble(pick.bytecode(out, M(1 << 32, "f4")))
