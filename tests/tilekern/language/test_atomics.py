"""Atomics, against NumPy taking elements one by one."""

import ml_dtypes
import numpy as np
import pytest

import cuda_async as ca
import tilekern as tk
from tilekern import ir

WORDS = ["i4", "u4", "i8", "u8"]
FLOATS = [np.float16, ml_dtypes.bfloat16, "f4", "f8"]
FUNCTIONS = {
    "add": (tk.atomic_add, np.add),
    "max": (tk.atomic_max, np.maximum),
    "min": (tk.atomic_min, np.minimum),
    "and": (tk.atomic_and, np.bitwise_and),
    "or": (tk.atomic_or, np.bitwise_or),
    "xor": (tk.atomic_xor, np.bitwise_xor),
    "xchg": (tk.atomic_xchg, lambda old, new: new),
}
CASES = [(mode, dtype) for mode in FUNCTIONS for dtype in WORDS]
CASES += [("add", dtype) for dtype in FLOATS] + [("xchg", "f4"), ("xchg", "f8")]


def ids(value):
    return np.dtype(value).name if isinstance(value, type) else None


@tk.kernel
def update(memory, old, index, values, function: tk.Constant[object]):
    i = tk.load(index, 0, 8)
    tk.store(old, 0, function(memory, i, tk.load(values, 0, 8)))


@pytest.mark.parametrize(("mode", "dtype"), CASES, ids=ids)
def test_distinct_elements(mode, dtype, device):
    """Every element once: the order does not matter, so that old values are known too."""
    if device.kind == "cuda" and dtype is ml_dtypes.bfloat16 and device.compute_capability < (9, 0):
        pytest.skip("no bfloat16 atomics here")
    function, meaning = FUNCTIONS[mode]
    rng = np.random.default_rng(3)
    before = rng.integers(0, 100, 10).astype(dtype)
    values = rng.integers(0, 100, 8).astype(dtype)
    if np.dtype(dtype).kind == "i":
        before, values = before - 50, values - 50
    index = np.array([3, 0, 9, 10, 7, -1, 1, 4], "i4")
    inside = (index >= 0) & (index < 10)
    memory, old = ca.from_host(before).sync(), ca.zeros((8,), dtype).sync()
    update(ca.mut(memory), ca.mut(old), ca.from_host(index), ca.from_host(values), function).grid(1).sync()
    expected = before.copy()
    chosen = index[inside]
    expected[chosen] = (
        meaning(before[chosen].astype("f8"), values[inside].astype("f8")).astype(dtype)
        if np.dtype(dtype).kind not in "iu"
        else meaning(before[chosen], values[inside])
    )
    assert np.array_equal(memory.to_host().sync(), expected)
    assert np.array_equal(old.to_host().sync()[inside], before[chosen])


@tk.kernel
def histogram(counts, x):
    tk.atomic_add(counts, tk.load(x, tk.bid(0), 64), 1)


def test_histogram_over_blocks(device):
    x = np.random.default_rng(0).integers(0, 10, 64 * 40).astype("i4")
    counts = ca.zeros((10,), "i4").sync()
    histogram(ca.mut(counts), ca.from_host(x)).grid(40).sync()
    assert np.array_equal(counts.to_host().sync(), np.bincount(x, minlength=10))


@tk.kernel
def tickets(counter, out):
    """Every block draws a ticket; no two get the same."""
    tk.store(out, tk.bid(0), tk.atomic_add(counter, 0, 1))


def test_every_block_does_its_own(device):
    counter, out = ca.zeros((1,), "i4").sync(), ca.zeros((100,), "i4").sync()
    tickets(ca.mut(counter), ca.mut(out)).grid(100).sync()
    assert sorted(out.to_host().sync().tolist()) == list(range(100))
    assert counter.to_host().sync()[0] == 100


def test_elements_of_a_tile_are_taken_in_row_major_order_on_the_host_device(host):
    @tk.kernel
    def exchange(memory, old):
        i = tk.full((2, 4), 0, tk.int32)
        new = tk.arange(8, dtype=tk.int32).reshape((2, 4))
        tk.store(old, (0, 0), tk.atomic_xchg(memory, i, new))

    memory, old = ca.from_host(np.array([-1], "i4")).sync(), ca.zeros((2, 4), "i4").sync()
    exchange(ca.mut(memory), ca.mut(old)).grid(1).sync()
    assert old.to_host().sync().tolist() == [[-1, 0, 1, 2], [3, 4, 5, 6]]
    assert memory.to_host().sync()[0] == 7


def test_repeated_float_additions_round_each(host):
    @tk.kernel
    def add_often(memory):
        tk.atomic_add(memory, tk.full((64,), 0, tk.int32), 1.0)

    memory = ca.from_host(np.array([2048], np.float16)).sync()
    add_often(ca.mut(memory)).grid(1).sync()
    assert memory.to_host().sync()[0] == 2048  # 2049 is a tie, to even


@tk.kernel
def swap(memory, old, index, expected, desired):
    i = tk.load(index, 0, 4)
    e, d = tk.load(expected, 0, 4), tk.load(desired, 0, 4)
    tk.store(old, 0, tk.atomic_cas(memory, i, e, d))


@pytest.mark.parametrize("dtype", [*WORDS, "f4", "f8"])
def test_compare_and_swap(dtype, device):
    memory = ca.from_host(np.array([5, 6, 7], dtype)).sync()
    old = ca.zeros((4,), dtype).sync()
    index, expected = np.array([0, 1, 3, -1], "i4"), np.array([5, 5, 8, 9], dtype)
    swap(
        ca.mut(memory), ca.mut(old), *map(ca.from_host, (index, expected, np.array([1, 2, 3, 4], dtype)))
    ).grid(1).sync()
    assert memory.to_host().sync().tolist() == [1, 6, 7]
    assert old.to_host().sync().tolist() == [5, 6, 8, 9]


def test_compare_and_swap_compares_bits(device):
    memory = ca.from_host(np.array([-0.0, np.nan], "f4")).sync()
    old = ca.zeros((4,), "f4").sync()
    index, expected = np.array([0, 1, 2, 2], "i4"), np.array([0.0, np.nan, 0, 0], "f4")
    swap(ca.mut(memory), ca.mut(old), *map(ca.from_host, (index, expected, np.ones(4, "f4")))).grid(1).sync()
    result = memory.to_host().sync()
    assert result[0] == 0
    assert np.signbit(result[0])
    assert result[1] == 1


@tk.kernel
def locked(lock, total):
    """A lock around a read and a write that are not atomic."""
    order = tk.MemoryOrder
    while tk.atomic_cas(lock, 0, 0, 1, memory_order=order.ACQUIRE) != 0:
        pass
    tk.store(total, 0, tk.load(total, 0, 1) + 1)
    tk.atomic_xchg(lock, 0, 0, memory_order=order.RELEASE)


@pytest.mark.gpu
def test_a_lock_orders_other_memory():
    """Blocks of the host device run in step, so that none may wait for another: GPU only."""
    lock, total = ca.zeros((1,), "i4").sync(), ca.zeros((1,), "i4").sync()
    locked(ca.mut(lock), ca.mut(total)).grid(64).sync()
    assert total.to_host().sync()[0] == 64


@tk.kernel
def with_mask(memory, limit: int):
    i = tk.arange(8, dtype=tk.int32)
    tk.atomic_add(
        memory,
        i,
        i * 10,
        mask=i < limit,
        check_bounds=False,
        memory_order=tk.MemoryOrder.RELAXED,
        memory_scope=tk.MemoryScope.BLOCK,
    )


def test_mask_order_and_scope(device):
    memory = ca.zeros((5,), "i4").sync()
    with_mask(ca.mut(memory), 5).grid(1).sync()
    assert memory.to_host().sync().tolist() == [0, 10, 20, 30, 40]


# ------------------------------------------------------------------ what is refused


def max_of_floats(x):
    tk.atomic_max(x, 0, 1.0)


def add_of_bytes(x):
    tk.atomic_add(x, 0, 1)


def weak(x):
    tk.atomic_add(x, 0, 1, memory_order=tk.MemoryOrder.WEAK)


def no_scope(x):
    tk.atomic_add(x, 0, 1, memory_scope=tk.MemoryScope.NONE)


def text_for_an_order(x):
    tk.atomic_add(x, 0, 1, memory_order="relaxed")


FLOATS8, BYTES8, WORDS8 = (tk.meta((8,), kind) for kind in ("f4", "i1", "i4"))


@pytest.mark.parametrize(
    ("body", "x", "message"),
    [
        (max_of_floats, FLOATS8.mut(), "atomic_max is for int32, int64, uint32, uint64; x holds float32"),
        (add_of_bytes, BYTES8.mut(), "atomic_add is for .*float64; x holds int8"),
        (add_of_bytes, WORDS8, "x is given for reading"),
        (weak, WORDS8.mut(), "the memory_order of an atomic is RELAXED, ACQUIRE, RELEASE, ACQ_REL, got WEAK"),
        (no_scope, WORDS8.mut(), "ACQ_REL needs a memory_scope: BLOCK, DEVICE or SYS"),
        (text_for_an_order, WORDS8.mut(), "memory_order is one of tk.MemoryOrder, got 'relaxed'"),
    ],
)
def test_refused_at_the_line(body, x, message):
    with pytest.raises(tk.KernelError, match=message) as caught:
        tk.kernel(body).ir(x)
    assert "tk.atomic_" in str(caught.value)


@pytest.mark.parametrize("mode", [*FUNCTIONS, "cas"])
def test_types_of_the_table(mode):
    """The types that Tile IR has each atomic for."""
    words = {"i32", "i64", "u32", "u64"}
    more = {"add": {"f16", "bf16", "f32", "f64"}, "xchg": {"f32", "f64"}, "cas": {"f32", "f64"}}
    assert set(ir.atomic_types(mode)) == words | more.get(mode, set())
