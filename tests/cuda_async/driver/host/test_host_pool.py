"""The stream-ordered pool: reuse, statistics, limits. Source: CUDA Driver API, stream-ordered allocation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_async.driver.host import HostDriver
from cuda_async.driver.host._memory import HostMemory
from cuda_async.errors import DriverError, MemoryFault, OutOfMemoryError

MIB = 1 << 20


@pytest.fixture
def host():
    return HostDriver(stepped=True, memory_bytes=64 * MIB)


@pytest.fixture
def streams(host):
    return host.stream_create(), host.stream_create()


def test_address_is_known_at_once_and_aligned(host, streams):
    a, b = (host.memory_alloc_async(100, streams[0]) for _ in range(2))
    assert a % 256 == b % 256 == 0
    assert abs(a - b) >= 100


def test_same_stream_reuses_before_the_free_is_executed(host, streams):
    a = host.memory_alloc_async(MIB, streams[0])
    host.memory_free_async(a, streams[0])
    assert host.memory_alloc_async(MIB, streams[0]) == a


def test_other_stream_reuses_only_after_the_free_is_executed(host, streams):
    a = host.memory_alloc_async(MIB, streams[0])
    host.memory_free_async(a, streams[0])
    b = host.memory_alloc_async(MIB, streams[1])
    assert b != a
    host.advance_all()
    assert host.memory_alloc_async(MIB, streams[1]) == a


def test_freed_on_the_stream_that_frees(host, streams):
    """A free on another stream than the allocation's counts in the order of the other stream."""
    a = host.memory_alloc_async(MIB, streams[0])
    host.advance_all()
    host.memory_free_async(a, streams[1])
    assert host.memory_alloc_async(MIB, streams[0]) != a
    assert host.memory_alloc_async(MIB, streams[1]) == a


def test_pieces_of_a_pending_range(host, streams):
    """A part of it is given out again and freed again before the first free is executed."""
    a = host.memory_alloc_async(MIB, streams[0])
    host.memory_free_async(a, streams[0])
    b = host.memory_alloc_async(MIB // 2, streams[0])
    assert b == a
    host.memory_free_async(b, streams[0])
    host.advance(streams[0], 2)
    # The upper half has passed, the lower is freed by an entry that is still to come.
    assert host.memory_alloc_async(MIB // 2, streams[1]) == a + MIB // 2
    host.advance_all()
    assert host.freed == [a, a]
    assert host.memory_alloc_async(MIB // 2, streams[1]) == a


def test_free_whose_memory_was_all_taken_again(host, streams):
    a, b = host.memory_alloc_async(256, streams[0]), host.memory_alloc_async(512, streams[0])
    host.memory_free_async(a, streams[0])
    host.memory_free_async(b, streams[0])
    assert host.memory_alloc_async(512, streams[0]) == b
    host.advance_all()
    assert host.stream_query(streams[0])
    assert host.memory_alloc_async(256, streams[1]) == a


def test_freed_neighbours_are_joined(host, streams):
    blocks = [host.memory_alloc_async(8 * MIB, streams[0]) for _ in range(8)]
    for block in blocks:
        host.memory_free_async(block, streams[0])
    host.advance_all()
    assert host.memory_alloc_async(64 * MIB, streams[1]) == min(blocks)


def test_limit_and_cached_blocks(host, streams):
    """Take 32 MiB, drop it; 48 fits; 32 more do not; drop all; 60 fits."""
    a = host.memory_alloc_async(32 * MIB, streams[0])
    host.memory_free_async(a, streams[0])
    host.advance_all()
    b = host.memory_alloc_async(48 * MIB, streams[0])
    with pytest.raises(OutOfMemoryError, match="out of memory") as caught:
        host.memory_alloc_async(32 * MIB, streams[0])
    error = caught.value
    assert (error.requested_bytes, error.used_bytes, error.limit_bytes) == (32 * MIB, 48 * MIB, 64 * MIB)
    host.memory_free_async(b, streams[0])
    host.advance_all()
    c = host.memory_alloc_async(60 * MIB, streams[0])
    host.memory_free_async(c, streams[0])
    assert host.pool_statistics().used_bytes == 0


def test_short_of_memory_waits_for_another_streams_free(host, streams):
    """Rather than fail, an allocation takes what another stream frees, and its stream waits for that."""
    a = host.memory_alloc_async(60 * MIB, streams[0])
    host.fill_async(a, b"\1", 4, streams[0])
    host.memory_free_async(a, streams[0])
    b = host.memory_alloc_async(50 * MIB, streams[1])
    host.fill_async(b, b"\2", 4, streams[1])
    assert host.advance(streams[1]) == 0
    assert host.is_blocked(streams[1])
    host.advance(streams[0], 3)
    assert host.advance(streams[1], 10) == 3
    assert host.memory.view(b, 1)[0] == 2


def test_out_of_memory_leaves_the_pool_as_it_was(host, streams):
    a = host.memory_alloc_async(40 * MIB, streams[0])
    before, pending = host.pool_statistics(), host.pending()
    with pytest.raises(OutOfMemoryError):
        host.memory_alloc_async(40 * MIB, streams[0])
    assert (host.pool_statistics(), host.pending()) == (before, pending)
    host.memory_free_async(a, streams[0])


def test_statistics_count_used_and_reserved(host, streams):
    a = host.memory_alloc_async(4 * MIB, streams[0])
    b = host.memory_alloc_async(2 * MIB, streams[0])
    host.memory_free_async(a, streams[0])
    now = host.pool_statistics()
    assert (now.used_bytes, now.used_high_bytes) == (2 * MIB, 6 * MIB)
    assert (now.reserved_bytes, now.reserved_high_bytes) == (6 * MIB, 6 * MIB)
    host.pool_trim()
    assert host.pool_statistics().reserved_bytes == 6 * MIB, "a pending block cannot be given back"
    host.advance_all()
    host.pool_trim(5 * MIB)
    assert host.pool_statistics().reserved_bytes == 5 * MIB
    host.pool_trim()
    assert host.pool_statistics().reserved_bytes == 2 * MIB
    host.memory_free_async(b, streams[0])


@pytest.mark.parametrize(("threshold", "kept"), [(0, 0), (MIB, MIB), (1 << 40, 4 * MIB), (None, 4 * MIB)])
def test_release_threshold_counts_at_synchronization(threshold, kept):
    host = HostDriver(memory_bytes=64 * MIB)
    stream = host.stream_create()
    if threshold is not None:
        host.pool_set_release_threshold(threshold)
    host.memory_free_async(host.memory_alloc_async(4 * MIB, stream), stream)
    host.stream_synchronize(stream)
    assert host.pool_statistics().reserved_bytes == kept
    host.close()


def test_access_before_the_allocation_is_a_fault(host, streams):
    a = host.memory_alloc_async(64, streams[0])
    host.fill_async(a, b"\1", 64, streams[1])
    host.advance(streams[1])
    with pytest.raises(MemoryFault, match="not in a live allocation"):
        host.stream_query(streams[1])


def test_access_after_the_free_is_a_fault(host, streams):
    a = host.memory_alloc_async(64, streams[0])
    host.memory_free_async(a, streams[0])
    host.fill_async(a, b"\1", 64, streams[1])
    host.advance(streams[0], 2)
    host.advance(streams[1])
    with pytest.raises(MemoryFault, match="freed"):
        host.stream_query(streams[1])


def test_liveness_follows_execution_not_calls(host, streams):
    """The free is enqueued but not executed: an earlier entry may still use the memory."""
    a = host.memory_alloc_async(64, streams[0])
    host.fill_async(a, b"\1", 64, streams[0])
    host.memory_free_async(a, streams[0])
    host.advance_all()
    assert host.stream_query(streams[0])


def test_bounds_are_the_size_asked_for(host, streams):
    a = host.memory_alloc_async(100, streams[0])
    host.fill_async(a, b"\1", 101, streams[0])
    host.advance_all()
    with pytest.raises(MemoryFault, match="1 bytes past the end"):
        host.stream_query(streams[0])


@pytest.mark.parametrize("delta", [0, 256])
def test_freeing_what_is_not_allocated_is_refused(host, streams, delta):
    a = host.memory_alloc_async(1024, streams[0])
    if not delta:
        host.memory_free_async(a, streams[0])
    with pytest.raises(
        DriverError, match=r"cuMemFreeAsync: CUDA_ERROR_INVALID_VALUE \(1\).*not an allocation"
    ):
        host.memory_free_async(a + delta, streams[0])


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_positive(host, streams, size):
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_VALUE"):
        host.memory_alloc_async(size, streams[0])


@pytest.mark.parametrize("poison", ["0", "1"])
def test_freed_memory_is_poisoned_when_asked(monkeypatch, poison):
    monkeypatch.setenv("CUDA_ASYNC_POISON_FREED", poison)
    host = HostDriver(stepped=True, memory_bytes=MIB)
    stream = host.stream_create()
    a = host.memory_alloc_async(64, stream)
    host.fill_async(a, b"\1", 64, stream)
    host.memory_free_async(a, stream)
    host.advance(stream, 2)
    view = host.memory.view(a, 64)
    assert (view == 1).all()
    host.advance(stream)
    assert (view == (0xDD if poison == "1" else 1)).all()


def test_memory_of_a_failed_stream_is_freed(host, streams):
    """Work behind a failure is skipped, frees are not."""
    a = host.memory_alloc_async(64, streams[0])
    host.fill_async(8, b"\1", 1, streams[0])
    host.memory_free_async(a, streams[0])
    host.advance_all()
    assert host.freed == [a]
    with pytest.raises(MemoryFault, match="null"):
        host.stream_synchronize(streams[0])


def test_freed_pages_go_back_to_the_system(host, streams):
    a = host.memory_alloc_async(8 * MIB, streams[0])
    host.fill_async(a, b"\1", 8 * MIB, streams[0])
    host.memory_free_async(a, streams[0])
    host.advance_all()
    host.pool_trim()
    assert host.memory_alloc_async(8 * MIB, streams[0]) == a
    host.advance_all()
    assert not host.memory.view(a, 8 * MIB).any()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alloc", "free", "advance", "trim"]), st.integers(0, 2), st.integers(1, 3 * MIB)
        ),
        max_size=60,
    ),
    st.randoms(use_true_random=False),
)
@settings(max_examples=200, deadline=None)
def test_random_use_never_overlaps_and_nothing_is_lost(steps, random):
    host = HostDriver(stepped=True, memory_bytes=16 * MIB)
    streams = [host.stream_create() for _ in range(3)]
    used = {}
    for action, number, size in steps:
        stream = streams[number]
        if action == "alloc":
            try:
                address = host.memory_alloc_async(size, stream)
            except OutOfMemoryError:
                continue
            assert all(address + size <= a or a + s <= address for a, (s, _) in used.items())
            used[address] = (size, stream)
        elif action == "free" and used:
            address = random.choice(list(used))
            allocated_on = used.pop(address)[1]
            if allocated_on != stream:
                event = host.event_create()
                host.event_record(event, allocated_on)
                host.stream_wait_event(stream, event)
            host.memory_free_async(address, stream)
        elif action == "advance":
            host.advance(stream, 1 + size % 4)
        elif action == "trim":
            host.pool_trim(size)
        now = host.pool_statistics()
        assert now.used_bytes == sum(-(-s // 256) * 256 for s, _ in used.values())
        assert now.used_bytes <= now.reserved_bytes <= 16 * MIB
    host.advance_all()
    for address in used:
        host.memory_free_async(address, streams[0])
    assert host.advance_all() >= len(used)
    assert host.pending() == 0
    for stream in streams:
        assert host.stream_query(stream)
    host.pool_trim()
    assert host.pool_statistics().reserved_bytes == 0
    assert host.memory.unreserved_bytes == 16 * MIB


@pytest.mark.parametrize("interrupted", ["behind it", "before it"])
def test_interrupted_free_that_is_done_again_leaves_the_next_owner_alone(
    host, streams, interrupted, monkeypatch
):
    """What an interrupt stopped the engine does once more; the pool may have given the address to another stream."""
    first, second = streams
    address = host.memory_alloc_async(MIB, first)
    host.advance_all()
    host.memory_free_async(address, first)
    (free,) = host._streams[first].entries
    if interrupted == "behind it":
        free.start()
    else:
        with monkeypatch.context() as patched:
            patched.setattr(HostMemory, "deactivate", interrupt)
            with pytest.raises(KeyboardInterrupt):
                free.start()
        assert host.memory_alloc_async(MIB, second) != address  # it is not free yet
        free.start()
    again = host.memory_alloc_async(MIB, second)
    assert again == address
    host.advance(second, entries=2)
    free.start()
    assert host.memory.is_live(address)


def interrupt(*_, **__):
    raise KeyboardInterrupt
