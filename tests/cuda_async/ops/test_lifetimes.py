"""Threads that end, weak references, cycles through futures, and signals, with work in flight."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import weakref

import anyio
import pytest

import cuda_async as ca
from cuda_async.errors import KernelError

N = 256


@pytest.fixture
def memory_is_back(device):
    """Used bytes are at the end what they were."""

    def used():
        ca.drain().sync()  # a worker thread may still be at the end of what another test left
        gc.collect()
        ca.drain().sync()
        return device.memory_stats().used_bytes

    before = used()
    yield
    assert used() == before


@pytest.mark.parametrize("how", ["start", "drop", "keep"])
def test_thread_ends_with_work_in_flight(device, memory_is_back, how):
    """What it started goes on, what it dropped is freed, what it kept may be used by others."""
    kept = []

    def works():
        with ca.use_device(device):
            future = ca.full(N, 3.0).then(ca.copy).to_host().start()
            if how != "drop":
                kept.append(future)
            if how == "keep":
                kept.append(ca.full(N, 4.0).sync())
                kept.append(device.create_stream())

    threads = [threading.Thread(target=works) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    for thing in kept:
        if isinstance(thing, ca.DeviceFuture):
            assert (thing.sync() == 3).all()
        elif isinstance(thing, ca.Tensor):
            assert (thing.to_host().sync() == 4).all()
        else:
            thing.close()
    kept.clear()


def test_loop_s_thread_ends_under_a_future(device, memory_is_back):
    """A future that a task awaited on a thread that is gone is awaited by another loop."""
    futures = []

    async def starts():
        futures.append(ca.full(N, 5.0).to_host().start())

    thread = threading.Thread(target=lambda: asyncio.run(starts()))
    with ca.use_device(device):
        thread.start()
    thread.join(20)

    async def awaits():
        return await futures[0]

    assert (asyncio.run(awaits()) == 5).all()
    futures.clear()


class Node:
    """Something that refers to itself through a future."""


@pytest.mark.parametrize("state", ["in flight", "done", "failed", "cancelled"])
def test_cycle_through_a_future(device, memory_is_back, state):
    """Future, its value and its callbacks in a cycle: the collector takes them, and the memory comes back."""
    release = threading.Event()

    class Gated(ca.DeviceOp):
        def prepare(self, ctx):
            assert release.wait(20)

        def execute(self, ctx):
            return 1

    node = Node()
    node.tensor = ca.zeros(N).sync()

    def uses(_, node=node):
        if state == "failed":
            raise KeyError("planned")
        return ca.copy(node.tensor)

    op = ca.value(1)
    if state in ("in flight", "cancelled"):
        op = op.then(lambda _: Gated())
    node.future = op.then(uses).start()
    if state == "cancelled":
        assert node.future.cancel()
    if state == "done":
        node.other = node.future.sync()
    if state == "failed":
        with pytest.raises(KeyError):
            node.future.sync()
    release.set()
    gone = weakref.ref(node)
    del node, op, uses
    ca.drain().sync()
    gc.collect()
    assert gone() is None


def test_weak_references_do_not_keep(stepped):
    """A tensor in use is gone from Python at once; its memory when the device is past it."""
    tensor = ca.full(N, 1.0).start()
    stepped.driver.advance_all()
    value = tensor.result()
    del tensor
    future = ca.copy(value).start()
    gone = weakref.ref(value)
    freed = len(stepped.driver.freed)
    del value
    gc.collect()
    assert gone() is None
    stepped.collect()
    assert len(stepped.driver.freed) == freed
    stepped.driver.advance_all()
    assert len(stepped.driver.freed) == freed + 1
    assert future.done


def test_callbacks_of_weak_references_may_build_but_not_run(host):
    """They come wherever the collector runs, in the middle of a burst too: an error then, no deadlock."""
    seen = []

    def gone(_):
        try:
            ca.zeros(4).sync()
        except ca.ReentrancyError as error:
            seen.append(error)

    node = Node()
    reference = weakref.ref(node, gone)
    box = [node]
    del node
    ca.value(1).map(lambda _: box.clear()).sync()
    assert reference() is None
    assert len(seen) == 1


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.anyio
async def test_signal_beside_an_await(device):
    """A handler of the loop's kind runs device work while an await goes on."""
    with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
        future = ca.full(N, 1.0).to_host().start()
        os.kill(os.getpid(), signal.SIGUSR1)
        async for _ in signals:
            assert (await ca.full(N, 2.0).to_host() == 2).all()
            break
        assert (await future == 1).all()


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_signal_does_not_end_a_blocking_wait(stepped):
    """A handler that returns: the waiting goes on."""
    seen = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.set())
    future = ca.full(N, 1.0).start()
    submission = future._submission
    main = threading.get_ident()

    def tells():
        while not submission.sleepers:
            pass
        for _ in range(
            400
        ):  # one that comes just before the thread sleeps does not wake it, and waits for the next
            signal.pthread_kill(main, signal.SIGUSR1)
            if seen.wait(0.05):
                break
        stepped.driver.advance_all()

    thread = threading.Thread(target=tells)
    thread.start()
    try:
        assert future.sync().shape == (N,)
    finally:
        thread.join(20)
        signal.signal(signal.SIGUSR1, before)
    assert seen.is_set()


@pytest.mark.parametrize("call", ["bind", "event_query"])
@pytest.mark.parametrize(
    "error",
    [ca.OutOfMemoryError("made to fail", 1, 0, 1), ca.DriverError("a call", 1, "ERROR", "made to fail")],
    ids=["no memory", "refused"],
)
def test_failure_to_ask_is_not_the_works(stepped, call, error):
    """Who waits is told; what the work uses is in use until the device has been asked successfully."""

    class Used:
        pass

    full = ca.full(N, 3.0).start()
    stepped.driver.advance_all()
    x = full.result()
    stream = stepped.create_stream()
    used = Used()
    seen = weakref.ref(used)
    ca.ExecutionContext(stepped, stream).retain(used)
    del used
    future = ca.fill(x, 4.0).start(ca.SingleStream(stream))
    stepped.driver.fail_next(call, error)
    with pytest.raises(type(error), match="made to fail"):
        future.result()
    assert seen() is not None
    again = stream._submit()
    stepped.driver.advance_all()
    assert again.poll()
    assert seen() is None


FAILURES = {"of the caller's": ValueError, "ours": ca.CudaAsyncError}


@pytest.mark.parametrize("kind", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("how", ["alone", "graph", "stream closed"])
def test_a_failed_call_keeps_nothing_of_its_function(host, how, kind):
    """Neither its variables nor what it refers to: streams and events remember the failure."""
    stream = host.create_stream()
    gc.collect()
    ca.drain().sync()
    before = host.memory_stats().used_bytes

    def use():
        x = ca.zeros(1000).sync()

        def fail(_):
            mine = x
            try:
                raise LookupError(f"what is behind it, {mine.size}")
            except LookupError as error:
                raise kind(f"as planned, {mine.size}, {stream.name}") from error

        op = ca.foreign(fail, writes=[x])
        if how == "graph":
            op = op.graph().sync().launch()
        future = op.start(ca.SingleStream(stream))
        with pytest.raises(KernelError, match="as planned, 1000") as caught:
            stream.close() if how == "stream closed" else future.sync()
        told = caught.value.__notes__[0]  # where it happened
        assert "in fail" in told
        assert "what is behind it, 1000" in told
        assert how == "stream closed" or isinstance(caught.value.__cause__, kind)

    use()
    ca.drain().sync()
    gc.collect()
    ca.drain().sync()
    assert host.memory_stats().used_bytes == before


def test_errors_that_refer_to_each_other_are_told(host):
    """The chain of what went wrong may be a ring, or a group."""

    def fail(_):
        first, second = ValueError("as planned"), TypeError("behind it")
        first.__cause__, second.__cause__ = second, first
        raise first

    def fail_together(_):
        raise ExceptionGroup("as planned", [ValueError("one"), TypeError("another")])

    for call, words in ((fail, "behind it"), (fail_together, "another")):
        with pytest.raises(KernelError, match="as planned") as caught:
            ca.foreign(call).sync()
        assert words in caught.value.__notes__[0]
