"""The cache of page-locked staging memory."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver.host import HostDriver, _memory
from cuda_async.memory import PinnedPool, _pinned, free_left_behind
from cuda_async.memory._pinned import SLAB_BYTES, SMALLEST_BYTES


@pytest.fixture
def pool(stepped):
    return PinnedPool(stepped[1])


@pytest.mark.parametrize(
    ("size", "capacity"),
    [(0, SMALLEST_BYTES), (1, 4096), (4096, 4096), (4097, 8192), (2**20, 2**20), (2**20 + 1, 2**21)],
)
def test_capacity_is_the_next_power_of_two(pool, size, capacity):
    assert pool.capacity_for(size) == capacity
    assert pool.take(size).capacity_bytes == capacity


def test_small_blocks_share_one_driver_call(stepped, pool):
    _, controls = stepped
    blocks = [pool.take(5000) for _ in range(SLAB_BYTES // 8192)]
    assert controls.calls["pinned_alloc"] == 1
    assert pool.reserved_bytes == SLAB_BYTES
    ranges = sorted((b.address, b.address + b.capacity_bytes) for b in blocks)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
    pool.take(5000)
    assert controls.calls["pinned_alloc"] == 2


def test_dropped_block_is_reused(stepped, pool):
    _, controls = stepped
    assert pool.take_cached(100) is None
    block = pool.take(1 << 21)
    address = block.address
    assert pool.take_cached(1 << 21) is None
    del block
    again = pool.take_cached(1 << 21)
    assert again is not None
    assert again.address == address
    assert controls.calls["pinned_alloc"] == 1


def test_array_keeps_its_block(pool):
    block = pool.take(4 * 12)
    address = block.address
    array = block.array((3, 4), np.dtype(np.int32))
    del block
    view = array[1]
    del array
    taken = [pool.take(48) for _ in range(SLAB_BYTES // SMALLEST_BYTES)]
    assert address not in [b.address for b in taken]
    del view
    assert pool.take_cached(48).address == address


def test_array_without_elements(pool):
    assert pool.take(0).array((0, 3), np.dtype(np.int32)).shape == (0, 3)


def test_cached_blocks_can_be_had_while_the_driver_allocates(stepped, pool):
    """An event loop's thread takes cached blocks; a worker's slow allocation must not hold it up."""
    _, controls = stepped
    pool.take(100)  # and dropped at once
    allocating, go_on = threading.Event(), threading.Event()
    allocate = controls.pinned_alloc

    def slow(size_bytes):
        allocating.set()
        assert go_on.wait(30)
        return allocate(size_bytes)

    controls.pinned_alloc = slow
    worker = threading.Thread(target=pool.take, args=(1 << 22,))
    worker.start()
    try:
        assert allocating.wait(30)
        assert pool.take_cached(100) is not None
    finally:
        go_on.set()
        worker.join()


@pytest.mark.parametrize("size", [100, 5000, SLAB_BYTES, 3 * SLAB_BYTES])
def test_trimmed_slabs_go_back_when_all_of_their_blocks_have(stepped, pool, size):
    _, controls = stepped
    blocks = [pool.take(size) for _ in range(2 * SLAB_BYTES // pool.capacity_for(size) or 2)]
    slabs = controls.calls["pinned_alloc"]
    assert slabs == 2
    kept = blocks.pop()
    del blocks
    pool.trim()
    assert controls.calls["pinned_free"] == 1
    assert pool.reserved_bytes == max(SLAB_BYTES, kept.capacity_bytes)
    if kept.capacity_bytes < SLAB_BYTES:  # the others of its slab are still to be had
        assert pool.take_cached(size) is not None
    assert pool.take_cached(2 * kept.capacity_bytes) is None
    del kept
    pool.trim()
    assert controls.calls["pinned_free"] == 2
    assert pool.reserved_bytes == 0
    assert pool.take_cached(size) is None
    assert pool.take(size).address


def test_closed_devices_leave_no_staging_memory():
    def once():
        device = ca.Device._make("host", 0, HostDriver(memory_bytes=1 << 20))
        with ca.use_device(device):
            assert ca.from_host(np.arange(1000.0)).to_host().sync()[-1] == 999
        device.close()

    once()
    before = len(_memory._pinned)
    for _ in range(3):
        once()
    assert len(_memory._pinned) == before


def test_memory_that_is_taken_as_the_device_is_closed_goes_back(stepped, pool):
    _, controls = stepped
    allocate = controls.pinned_alloc

    def closed_meanwhile(size_bytes):
        address = allocate(size_bytes)
        pool.leave()
        return address

    controls.pinned_alloc = closed_meanwhile
    block = pool.take(100)
    free_left_behind()
    assert pool in _pinned._left
    del block
    free_left_behind()
    assert pool not in _pinned._left
    assert controls.calls["pinned_free"] == 1


def test_memory_that_cannot_be_given_back_is_no_error_of_others(stepped, pool):
    _, controls = stepped
    pool.take(100)

    def refuse(address):
        raise ca.DeviceLostError("as planned")

    controls.pinned_free = refuse
    pool.leave()
    assert pool not in _pinned._left
