"""The limit of a device's pool, and blocks that it keeps."""

from __future__ import annotations

import gc
import random
import threading
import weakref

import anyio.lowlevel
import pytest

import cuda_async as ca
from cuda_async.scheduling._kept_errors import collect_kept_errors

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
async def limited(device, memory_is_back):
    """The device with a limit of 64 MiB above what is used."""
    device.memory_limit = memory_is_back + 64 * MIB
    yield device
    device.memory_limit = None


def mebibytes(count):
    return ca.empty(count * MIB, "uint8")


async def test_limit_and_cached_blocks(limited, memory_is_back):
    """Case C37, word for word."""
    taken = await mebibytes(32)
    del taken
    await ca.drain()
    taken = await mebibytes(48)
    with pytest.raises(ca.OutOfMemoryError, match=rf"{32 * MIB}.*{memory_is_back + 48 * MIB}") as info:
        await mebibytes(32)
    error = info.value
    assert isinstance(error, MemoryError)
    assert error.requested_bytes == 32 * MIB
    assert error.used_bytes == memory_is_back + 48 * MIB
    assert error.limit_bytes == memory_is_back + 64 * MIB
    del taken, error, info
    gc.collect()
    taken = await mebibytes(60)
    assert limited.memory_stats().used_bytes == memory_is_back + 60 * MIB
    del taken
    await ca.drain()
    assert limited.memory_stats().used_bytes == memory_is_back


@pytest.mark.parametrize("seed", range(5))
async def test_limit_in_any_order(limited, memory_is_back, seed):
    """Case C37 for random sizes: what fits is given, what does not is refused, whatever is cached."""
    chance = random.Random(seed)
    live, sizes = [], []
    for _ in range(60):
        if live and chance.random() < 0.45:
            at = chance.randrange(len(live))
            del live[at], sizes[at]
        size = chance.choice([1, 3, 8, 17, 30])
        if sum(sizes) + size <= 64:
            live.append(await mebibytes(size))
            sizes.append(size)
        else:
            with pytest.raises(ca.OutOfMemoryError):
                await mebibytes(size)
        assert limited.memory_stats().used_bytes == memory_is_back + sum(sizes) * MIB
    live.clear()


async def test_memory_that_is_still_in_use_counts(limited, latch):
    """Case C37: a tensor that was dropped while the device is at it makes room in stream order, not before its time."""
    gate = latch()
    async with limited.create_stream() as a, limited.create_stream() as b:
        tensor = await mebibytes(40)
        held = gate.hold(ca.mut(tensor)).start(ca.SingleStream(a))
        del tensor
        taken = mebibytes(40).start(ca.SingleStream(b))
        gate.open()
        await held
        assert (await taken).nbytes == 40 * MIB
        del taken, held


async def test_refused_allocation_leaves_a_chain_clean(limited, memory_is_back):
    """Case C37: the part of a chain that did fit is freed again."""
    with pytest.raises(ca.OutOfMemoryError):
        await ca.zip(mebibytes(30), mebibytes(30), mebibytes(30))
    gc.collect()
    await ca.drain()
    assert limited.memory_stats().used_bytes == memory_is_back


@pytest.mark.parametrize("size", [0, -1, 1.5, None, 1 << 70])
async def test_limits_that_make_no_sense(device, size):
    """Case C37: a number of bytes or None."""
    before = device.memory_limit
    try:
        if size is None or size in (0, 1 << 70):
            device.memory_limit = size
            assert device.memory_limit == size
        else:
            with pytest.raises((ValueError, TypeError), match="memory limit"):
                device.memory_limit = size
            assert device.memory_limit == before
    finally:
        device.memory_limit = before


@pytest.mark.timing
@pytest.mark.parametrize("times", [0.9, 4])
async def test_more_than_the_device_has(device, memory_is_back, times):
    """Case C37 without a limit: an out-of-memory error with the same facts, and the device works on."""
    total = device.properties.total_memory_bytes
    size = int(times * total)
    held = await ca.empty(total // 5, "uint8") if times < 1 else None
    with pytest.raises(ca.OutOfMemoryError) as info:
        await ca.empty(size, "uint8")
    assert info.value.requested_bytes == size
    assert info.value.limit_bytes > 0
    del info, held
    gc.collect()
    await ca.drain()
    assert device.memory_stats().reserved_bytes < total // 4  # nothing of what did not suffice was kept
    assert (await ca.ones(4).to_host()).tolist() == [1] * 4


def fails_with(how, tensors):
    """An operation that takes 32 MiB, hands them to a callback, and fails there."""

    def fail(tensor):
        tensors.append(weakref.ref(tensor))
        raise ValueError("as planned")

    op = mebibytes(32).map(fail)
    return {
        "start": lambda: op.start().sync(),
        "shared": lambda: op.shared().sync(),
        "component": lambda: op.unzip(2)[0].sync(),
        "await": lambda: op.sync(),
    }[how]


@pytest.mark.parametrize("how", ["start", "shared", "component", "await"])
async def test_what_a_kept_error_holds_makes_room(limited, how):
    """The frames of an error that a future keeps hold tensors in a cycle, which nothing but the collector frees."""
    tensors = []
    gc.disable()
    try:
        with pytest.raises(ValueError, match="as planned") as info:
            fails_with(how, tensors)()
        del info
        taken = await mebibytes(60)
        assert taken.nbytes == 60 * MIB
        assert tensors[0]() is None
    finally:
        gc.enable()


async def test_an_error_that_somebody_has_keeps_its_tensors(limited):
    with pytest.raises(ValueError, match="as planned") as info:
        fails_with("start", [])()
    with pytest.raises(ca.OutOfMemoryError):
        await mebibytes(60)
    del info
    assert (await mebibytes(60)).nbytes == 60 * MIB


class Unprepared(ca.DeviceOp):
    """Cannot be prepared; holds a tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def prepare(self, ctx):
        raise ValueError("not prepared")

    def execute(self, ctx):
        return None


@pytest.mark.parametrize("how", ["await", "sync", "start", "parallel"])
async def test_what_a_failed_preparation_holds_makes_room(limited, how):
    async def run(how, op):
        if how == "sync":
            op.sync()
        else:
            await (op.start() if how == "start" else op)

    def make():
        op = mebibytes(32).then(Unprepared)
        return ca.parallel(op, ca.value(1)) if how == "parallel" else op

    gc.disable()
    try:
        with pytest.raises(ValueError, match="not prepared") as info:
            await run(how, make())
        del info
        await ca.drain()  # a worker that told the error may hold it for a moment still
        assert (await mebibytes(60)).nbytes == 60 * MIB
    finally:
        gc.enable()


async def test_what_a_device_failure_that_nobody_took_holds_makes_room(host):
    def fail(_):
        raise ValueError("on the device")

    host.memory_limit = host.memory_stats().used_bytes + 64 * MIB
    gc.disable()
    try:
        stream = host.create_stream()
        future = ca.foreign(fail, writes=[await mebibytes(32)]).start(ca.SingleStream(stream))
        while future.state == "enqueueing":
            await anyio.lowlevel.checkpoint()
        del future
        stream.record().synchronize()
        stream.close()  # its last submission, that of the event, has not failed
        del stream
        assert (await mebibytes(60)).nbytes == 60 * MIB
    finally:
        gc.enable()
        host.memory_limit = None


async def test_finalizers_may_use_the_library_when_memory_is_short(limited):
    """The collector that makes room runs them: they are no callbacks of the operation that asks for memory."""
    ends = []

    class Finalized:
        def __init__(self):
            self.me = self

        def __del__(self):
            ends.append(ca.full(2, 3.0).to_host().sync().tolist())

    gc.disable()
    try:
        with pytest.raises(ValueError, match="as planned") as info:
            fails_with("start", [])()
        del info
        Finalized()
        assert (await mebibytes(60)).nbytes == 60 * MIB
    finally:
        gc.enable()
    assert ends == [[3.0, 3.0]]


async def test_a_collection_on_another_thread_is_waited_for(limited):
    """Python's collector does nothing while it is at work on another thread."""
    began, goes_on = threading.Event(), threading.Event()

    class Slow:
        def __init__(self):
            self.me = self

        def __del__(self):
            began.set()
            goes_on.wait(0.2)

    gc.disable()
    try:
        with pytest.raises(ValueError, match="as planned") as info:
            fails_with("start", [])()
        del info
        Slow()
        other = threading.Thread(target=collect_kept_errors)
        other.start()
        assert began.wait(10)
        assert mebibytes(60).sync().nbytes == 60 * MIB
        goes_on.set()
        other.join()
    finally:
        gc.enable()
