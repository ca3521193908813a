"""The host device's address space: element access, views, allocation, foreign memory."""

import contextlib
import gc
import itertools
import random
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async.driver.host import HostMemory
from cuda_async.driver.host._memory import memory_window, pinned_allocate, pinned_release
from cuda_async.errors import ContextError, MemoryFault, OutOfMemoryError

MIB = 1 << 20


@pytest.fixture
def memory():
    return HostMemory(16 * MIB)


def addresses(base, count, step=4):
    return np.uint64(base) + np.arange(count, dtype=np.uint64) * np.uint64(step)


@pytest.mark.parametrize(
    "dtype", ["u1", "i2", "f2", "f4", "i8", "f8", "c8", "c16", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
)
def test_store_then_load_round_trips(memory, dtype):
    dtype = np.dtype(dtype)
    values = np.random.default_rng(1).integers(0, 100, 50).astype(dtype)
    where = addresses(memory.allocate(50 * dtype.itemsize), 50, dtype.itemsize)
    memory.store(where[::-1], values)
    np.testing.assert_array_equal(memory.load(where.reshape(5, 10), dtype), values[::-1].reshape(5, 10))


def test_numpy_sees_the_same_memory(memory):
    address = memory.allocate(64)
    view = memory.array(address, "i4", (4, 4))
    memory.store(addresses(address, 16), np.arange(16, dtype="i4"))
    assert view.ctypes.data == address
    np.testing.assert_array_equal(view, np.arange(16).reshape(4, 4))


def test_scalar_and_empty_addresses(memory):
    address = memory.allocate(8)
    memory.store(np.array(address, np.uint64), np.array(7, "i4"))
    assert memory.load(np.array(address, np.uint64), "i4").shape == ()
    assert memory.load(np.array(address, np.uint64), "i4") == 7
    assert memory.load(np.empty((3, 0), np.uint64), "i4").shape == (3, 0)
    memory.store(np.empty(0, np.uint64), np.empty(0, "i4"))


def test_last_of_duplicates_is_stored(memory):
    address = memory.allocate(8)
    memory.store(np.full(100, address, np.uint64), np.arange(100, dtype="i4"))
    assert memory.view(address, 4).view("i4")[0] == 99


def test_access_spans_several_allocations(memory):
    bases = [memory.allocate(4 * n) for n in (3, 100, 7)]
    where = np.concatenate([addresses(base, 3) for base in bases])
    mixed = np.random.default_rng(2).permutation(where)
    memory.store(mixed, np.arange(9, dtype="i4"))
    np.testing.assert_array_equal(memory.load(mixed, "i4"), np.arange(9))
    for base in bases:
        np.testing.assert_array_equal(
            memory.view(base, 12).view("i4"), [np.flatnonzero(mixed == a)[0] for a in addresses(base, 3)]
        )


@pytest.mark.parametrize("size", [4, 1000, 4096])
@pytest.mark.parametrize("access", ["read", "write"])
def test_one_past_the_end_is_a_fault(memory, size, access):
    """Bounds are those asked for, not those rounded up to 256."""
    address = memory.allocate(size)
    where = addresses(address, size // 4 + 1)
    with pytest.raises(MemoryFault, match="out of bounds") as caught:
        memory.load(where, "i4") if access == "read" else memory.store(where, where.astype("i4"))
    fault = caught.value
    assert (fault.address, fault.size_bytes, fault.access) == (address + size, 4, access)
    assert fault.index == size // 4


def test_faulting_store_writes_nothing(memory):
    address = memory.allocate(16)
    memory.view(address, 16)[:] = 5
    with pytest.raises(MemoryFault):
        memory.store(addresses(address, 5), np.zeros(5, "i4"))
    assert (memory.view(address, 16) == 5).all()


@pytest.mark.parametrize(
    ("shift", "reason"),
    [(2, "misaligned"), (-4, "out of bounds"), (10, "misaligned"), (1 << 40, "out of bounds")],
)
def test_fault_says_why(memory, shift, reason):
    address = memory.allocate(16)
    with pytest.raises(MemoryFault, match=reason):
        memory.load(np.array([address + shift], np.uint64), "i4")


def test_element_across_the_end_is_a_fault(memory):
    address = memory.allocate(12)
    with pytest.raises(MemoryFault, match="4 bytes past the end"):
        memory.load(addresses(address, 2, 8), "i8")


@pytest.mark.parametrize("address", [0, 8, 4092])
def test_null_pointers_are_named(memory, address):
    memory.allocate(16)
    with pytest.raises(MemoryFault, match="null pointer"):
        memory.load(np.array([address], np.uint64), "i4")


def test_released_memory_is_a_fault(memory):
    address = memory.allocate(64)
    memory.release(address)
    for use in (lambda: memory.load(addresses(address, 2), "i4"), lambda: memory.view(address, 4)):
        with pytest.raises(MemoryFault, match="freed"):
            use()
    with pytest.raises(ValueError, match="released already"):
        memory.release(address)


def test_past_the_end_where_a_larger_one_was_freed_names_both(memory):
    earlier = memory.allocate(1 << 16)
    memory.release(earlier)
    address = memory.allocate(1024)
    assert address == earlier
    with pytest.raises(
        MemoryFault, match=rf"0 bytes past the end of the .*{address:#x}.*, or freed: it was in"
    ):
        memory.load(np.array([address + 1024], np.uint64), "i4")


def test_access_before_activation_is_a_fault(memory):
    address = memory.reserve(64)
    with pytest.raises(MemoryFault):
        memory.load(addresses(address, 2), "i4")
    memory.activate(address, 8)
    memory.load(addresses(address, 2), "i4")
    memory.deactivate(address)
    with pytest.raises(MemoryFault):
        memory.load(addresses(address, 2), "i4")


def test_poisoned_memory_reads_0xdd(memory):
    address = memory.reserve(64)
    memory.activate(address, 64)
    view = memory.view(address, 64)
    memory.deactivate(address, poison=True)
    assert (view == 0xDD).all()


@pytest.mark.parametrize("dtype", ["f4", "u1"])
def test_strided_arrays(memory, dtype):
    address = memory.allocate(24 * 4)
    memory.array(address, "f4", (24,))[:] = np.arange(24)
    columns = memory.array(address + 4, "f4", (4, 3), (24, 8))
    np.testing.assert_array_equal(columns, np.arange(24).reshape(4, 6)[:, 1::2])
    backwards = memory.array(address + 23 * 4, "f4", (24,), (-4,))
    np.testing.assert_array_equal(backwards, np.arange(24)[::-1])
    assert memory.array(address, "f4", (3, 4), (0, 4)).tolist() == [[0, 1, 2, 3]] * 3
    assert memory.array(0, "f4", (3, 0)).shape == (3, 0)


@pytest.mark.parametrize(
    ("shift", "shape", "strides"),
    [(0, (25,), None), (0, (2, 13), (48, 4)), (0, (2,), (-4,)), (96, (1,), None), (2, (3,), None)],
)
def test_strided_arrays_are_bounds_checked(memory, shift, shape, strides):
    address = memory.allocate(96)
    with pytest.raises(MemoryFault):
        memory.array(address + shift, "f4", shape, strides)


def test_allocations_are_aligned_and_disjoint(memory):
    blocks = [(memory.allocate(size, alignment), size) for size in (1, 300, 4000) for alignment in (16, 4096)]
    for (address, _), alignment in zip(blocks, [256, 4096] * 3):
        assert address % alignment == 0
    ordered = sorted(blocks)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(ordered))


def test_out_of_memory_tells_sizes(memory):
    memory.allocate(10 * MIB)
    with pytest.raises(OutOfMemoryError, match="CUDA_ASYNC_HOST_MEMORY") as caught:
        memory.allocate(7 * MIB)
    error = caught.value
    assert (error.requested_bytes, error.used_bytes, error.limit_bytes) == (7 * MIB, 10 * MIB, 16 * MIB)


def test_trim_gives_pages_back(memory):
    address = memory.allocate(8 * MIB)
    memory.view(address, 8 * MIB)[:] = 1
    memory.release(address)
    memory.trim()
    address = memory.allocate(8 * MIB)
    assert not memory.view(address, 8 * MIB).any()


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60), st.randoms())
@settings(max_examples=50, deadline=None)
def test_random_allocations_never_overlap_and_all_comes_back(steps, random):
    memory = HostMemory(1 * MIB)
    live = {}
    for size, free in steps:
        if free and live:
            memory.release(live.pop(random.choice(list(live)))[0])
        address = memory.allocate(size)
        assert all(address + size <= a or a + s <= address for a, s in live.values())
        live[address] = (address, size)
    for address in live:
        memory.release(address)
    assert memory.unreserved_bytes == 1 * MIB
    assert memory.reserve(1 * MIB) is not None


def test_foreign_memory_is_accessible_until_removed(memory):
    array = np.arange(10, dtype="f8")
    address = array.ctypes.data
    with pytest.raises(MemoryFault):
        memory.load(addresses(address, 10, 8), "f8")
    borrowed = memory.add_foreign(address, 80, array)
    np.testing.assert_array_equal(memory.load(addresses(address, 10, 8), "f8"), array)
    memory.store(addresses(address, 2, 8), np.array([5.0, 6.0]))
    assert array[:2].tolist() == [5, 6]
    memory.remove_foreign(borrowed)
    with pytest.raises(MemoryFault):
        memory.view(address, 8)
    with pytest.raises(ValueError, match="not foreign memory"):
        memory.remove_foreign(borrowed)


def test_foreign_and_own_memory_in_one_access(memory):
    array = np.arange(4, dtype="i4")
    memory.add_foreign(array.ctypes.data, 16, array)
    own = memory.allocate(16)
    memory.array(own, "i4", (4,))[:] = [10, 11, 12, 13]
    where = np.stack([addresses(own, 4), addresses(array.ctypes.data, 4)])
    np.testing.assert_array_equal(memory.load(where, "i4"), [[10, 11, 12, 13], [0, 1, 2, 3]])
    memory.store(where, np.arange(8, dtype="i4").reshape(2, 4))
    assert array.tolist() == [4, 5, 6, 7]


def test_overlapping_imports_of_one_array(memory):
    array = np.arange(100, dtype="i4")
    whole = memory.add_foreign(array.ctypes.data, 400, array)
    memory.add_foreign(array[50:].ctypes.data, 200, array)
    memory.remove_foreign(whole)
    assert memory.view(array[50:].ctypes.data, 200).view("i4").tolist() == list(range(50, 100))
    with pytest.raises(MemoryFault):
        memory.view(array.ctypes.data, 4)


def test_imports_from_one_address_go_one_by_one(memory):
    array = np.arange(100, dtype="i4")
    head = memory.add_foreign(array.ctypes.data, 40, array)
    whole = memory.add_foreign(array.ctypes.data, 400, array)
    memory.remove_foreign(head)
    assert memory.view(array.ctypes.data, 400).view("i4").tolist() == list(range(100))
    memory.remove_foreign(whole)
    with pytest.raises(MemoryFault):
        memory.view(array.ctypes.data, 4)


def test_read_only_foreign_memory(memory):
    array = np.arange(4, dtype="i4")
    array.flags.writeable = False
    memory.add_foreign(array.ctypes.data, 16, array, writable=False)
    assert memory.load(addresses(array.ctypes.data, 4), "i4").tolist() == [0, 1, 2, 3]
    with pytest.raises(MemoryFault, match="read-only"):
        memory.store(addresses(array.ctypes.data, 4), np.zeros(4, "i4"))
    with pytest.raises(MemoryFault, match="read-only"):
        memory.view(array.ctypes.data, 4, "write")


def test_foreign_memory_is_writable_where_one_import_is(memory):
    """Elements 2 to 8 come in to be read only, 4 to 12 to be written, and 0 to 2 too."""
    array = np.zeros(12, "i4")
    base = array.ctypes.data
    for first, last, writable in [(2, 8, False), (4, 12, True), (0, 3, True)]:
        memory.add_foreign(base + 4 * first, 4 * (last - first), array, writable=writable)
    memory.store(addresses(base, 12)[[0, 2, 4, 11]], np.array([1, 2, 3, 4], "i4"))
    memory.view(base + 16, 32, "write").view("i4")[1:3] = 5
    assert array.tolist() == [1, 0, 2, 0, 3, 5, 5, 0, 0, 0, 0, 4]
    assert memory.load(addresses(base, 12), "i4").tolist() == array.tolist()
    for refused in (lambda: memory.store(addresses(base, 12), array), lambda: memory.view(base, 48, "write")):
        with pytest.raises(MemoryFault, match="is read-only there"):
            refused()


def test_import_of_memory_the_device_has(memory):
    """An exported tensor that comes back, and arrays in pinned memory: nothing changes but who is kept alive."""
    pinned, own = pinned_allocate(4096), memory.allocate(4096)
    for base in (pinned, own):
        borrowed = [memory.add_foreign(base + 256, size, None) for size in (64, 32)]
        where = addresses(base, 1024)
        memory.store(where, np.arange(1024, dtype="i4"))
        mixed = np.concatenate([where, addresses(own, 4)])
        assert memory.load(mixed, "i4")[:1024].tolist() == list(range(1024))
        for each in borrowed:
            memory.remove_foreign(each)
        assert memory.view(base + 256, 64).view("i4")[0] == 64
        with pytest.raises(ValueError, match="not foreign"):
            memory.remove_foreign(borrowed[0])
    pinned_release(pinned)


def test_import_across_the_arenas_edge_is_refused(memory):
    with pytest.raises(ValueError, match="only partly"):
        memory.add_foreign(memory.base - 16, 32, None)


def test_removal_in_the_middle_of_an_addition(memory, monkeypatch):
    """A finalizer runs while another import is under way: neither is lost."""
    arrays = [np.arange(4, dtype="i4") for _ in range(3)]
    first, _ = [memory.add_foreign(array.ctypes.data, 16, array) for array in arrays[:2]]
    replace = HostMemory._replace_foreign

    def interrupted(self, *given):
        monkeypatch.undo()
        self.remove_foreign(first)
        replace(self, *given)

    monkeypatch.setattr(HostMemory, "_replace_foreign", interrupted)
    memory.add_foreign(arrays[2].ctypes.data, 16, arrays[2])
    assert memory.view(arrays[1].ctypes.data, 16).size == memory.view(arrays[2].ctypes.data, 16).size == 16
    with pytest.raises(MemoryFault):
        memory.view(arrays[0].ctypes.data, 16)


@pytest.mark.parametrize("interrupts", [False, True])
def test_blocks_are_the_unions_of_random_imports(memory, monkeypatch, interrupts):
    """Also behind changes that an interrupt came into; those that are far away are not looked at."""
    chance = random.Random(5)
    array = np.zeros(4096, np.uint8)
    base, there = array.ctypes.data, []
    replace = HostMemory._replace_foreign

    def maybe(self, blocks, entries):
        if interrupts and chance.random() < 0.2:
            replace(self, blocks, entries[: chance.randrange(len(entries) + 1)])
            raise KeyboardInterrupt
        if not interrupts:
            assert len(entries) <= len(there) // 2 + 12
        replace(self, blocks, entries)

    monkeypatch.setattr(HostMemory, "_replace_foreign", maybe)
    for _ in range(400):
        with contextlib.suppress(KeyboardInterrupt):
            if there and chance.random() < 0.45:
                one = there[chance.randrange(len(there))]
                memory.remove_foreign(one)
                there.remove(one)
            else:
                start, size = chance.randrange(0, 4032), chance.randrange(1, 24)
                there.append(memory.add_foreign(base + start, size, array, writable=chance.random() < 0.5))
    monkeypatch.undo()
    memory.remove_foreign(memory.add_foreign(base, 1, array))
    known, writable = np.zeros(4096, bool), np.zeros(4096, bool)
    for entry in there:
        span = slice(entry.address - base, entry.address - base + entry.size_bytes)
        known[span] = True
        writable[span] |= entry.writable
    for i in range(4096):
        for access, allowed in (("read", known), ("write", writable)):
            if allowed[i]:
                memory.view(base + i, 1, access)
            else:
                with pytest.raises(MemoryFault):
                    memory.view(base + i, 1, access)


def test_foreign_owner_lives_until_removed(memory):
    class Owner:
        pass

    array, owner = np.zeros(4), Owner()
    alive = weakref.ref(owner)
    borrowed = memory.add_foreign(array.ctypes.data, 32, owner)
    del owner
    gc.collect()
    assert alive() is not None
    memory.remove_foreign(borrowed)
    del borrowed
    gc.collect()
    assert alive() is None


def test_pinned_memory_is_shared_by_devices(memory):
    address = pinned_allocate(100)
    memory.store(addresses(address, 25), np.arange(25, dtype="i4"))
    assert HostMemory(MIB).load(addresses(address, 25), "i4").tolist() == list(range(25))
    pinned_release(address)
    with pytest.raises(MemoryFault):
        memory.view(address, 4)


def test_windows_reach_other_devices(memory):
    other = HostMemory(MIB)
    address = other.allocate(16)
    memory_window(memory, address, 16, "write")[:] = 3
    assert (other.view(address, 16) == 3).all()
    with pytest.raises(MemoryFault):
        memory.view(address, 16)


def test_memory_size_from_the_environment(monkeypatch):
    monkeypatch.setenv("CUDA_ASYNC_HOST_MEMORY", "3MiB")
    assert HostMemory().size_bytes == 3 * MIB
    monkeypatch.setenv("CUDA_ASYNC_HOST_MEMORY", "lots")
    with pytest.raises(ContextError, match="CUDA_ASYNC_HOST_MEMORY"):
        HostMemory()
    monkeypatch.setenv("CUDA_ASYNC_HOST_MEMORY", "1000000T")
    with pytest.raises(ContextError, match="cannot map"):
        HostMemory()


def test_default_memory_is_not_committed(monkeypatch):
    monkeypatch.delenv("CUDA_ASYNC_HOST_MEMORY", raising=False)
    memories = [HostMemory() for _ in range(4)]
    assert all(memory.size_bytes >= 64 * MIB for memory in memories)


def test_odd_element_sizes_are_refused(memory):
    with pytest.raises(TypeError, match="power of two"):
        memory.load(np.array([memory.allocate(16)], np.uint64), np.dtype([("a", "i2"), ("b", "u1")]))
