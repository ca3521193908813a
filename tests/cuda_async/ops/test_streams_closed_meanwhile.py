"""Streams that are closed while an operation is still enqueueing there: nothing reaches the driver by them any more."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import numpy as np
import pytest

import cuda_async as ca
from cuda_async.errors import KernelError
from cuda_async.testing import checked_device

pytestmark = pytest.mark.anyio

SAXPY = Path(__file__).resolve().parents[3] / "examples" / "simt" / "saxpy.ptx"


def launch(device, x, out):
    function = ca.Module.from_file(SAXPY).function("saxpy_f32")
    return lambda: function.launch(1, 4, 4, 2.0, ca.read(x), ca.read(x), ca.mut(out))


def bound(device, x, out):
    function = ca.Module.from_file(SAXPY).function("saxpy_f32")
    return function.bind(1, 4, 4, 2.0, ca.read(x), ca.read(x), ca.mut(out), device=device).launch


STEPS = {
    "launch": launch,
    "bound launch": bound,
    "graph": lambda device, x, out: ca.fill(x, 3.0).graph().sync().launch,
    "fill": lambda device, x, out: lambda: ca.fill(x, 2.0),
    "copy": lambda device, x, out: lambda: ca.copy(x),
    "strided copy": lambda device, x, out: lambda: ca.copy(x[::2]),
    "astype": lambda device, x, out: lambda: ca.value(x).astype(ca.float64),
    "from_host": lambda device, x, out: lambda: ca.from_host(np.ones(4, np.float32)),
    "to_host": lambda device, x, out: x.to_host,
    "memcpy": lambda device, x, out: lambda: ca.memcpy(x, np.ones(4, np.float32)),
    "empty": lambda device, x, out: lambda: ca.empty(4),
    "foreign": lambda device, x, out: lambda: ca.foreign(lambda stream: None, writes=[x]),
    "parallel": lambda device, x, out: lambda: ca.parallel(ca.fill(x, 2.0), ca.empty(4)),
    "shared": lambda device, x, out: lambda: ca.fill(x, 2.0).shared(),
}


@pytest.fixture(params=STEPS)
def step(request, device):
    x, out = ca.zip(ca.ones(4), ca.empty(4)).sync()
    make = STEPS[request.param](device, x, out)
    make().sync()
    return make


def close_from_another_thread(stream):
    thread = threading.Thread(target=stream.close)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    "close", [lambda s: s.close(), close_from_another_thread], ids=["callback", "thread"]
)
def test_the_next_step_says_so(device, step, close):
    stream = device.create_stream(name="short-lived")
    step().sync_on(stream)  # what is bound to the stream by now is not used again
    with pytest.raises(ca.ClosedError, match=r"Stream\('short-lived' .*closed.* is closed; create another"):
        ca.ones(4).inspect(lambda _: close(stream)).then(lambda _: step()).sync_on(stream)
    step().sync()  # the device is well


async def test_aclose_while_a_chain_is_prepared(device, step):
    """The chain goes on on a worker thread, behind the one who closed the stream."""
    stream = device.create_stream()
    goes_on = threading.Event()

    class Prepared(ca.DeviceOp[None]):
        def prepare(self, ctx):
            goes_on.wait(10)

        def execute(self, ctx):
            return None

    await step().schedule(ca.SingleStream(stream))
    future = ca.ones(4).then(lambda _: Prepared()).then(lambda _: step()).start(ca.SingleStream(stream))
    await stream.aclose()
    goes_on.set()
    with pytest.raises(ca.ClosedError, match="is closed; create another"):
        await future
    await step()


def test_what_is_enqueued_while_closing_is_waited_for(device, monkeypatch):
    """Closing looks again once it has waited: what came meanwhile would else lose what it retains."""
    stream = device.create_stream()
    x = ca.zeros(4).sync_on(stream)
    late = []
    submit = stream._submit_rest

    def submit_and_enqueue():
        submission = submit()
        if not late:
            late.append(ca.fill(x, 5.0).start(ca.SingleStream(stream)))
        return submission

    monkeypatch.setattr(type(stream), "_submit_rest", lambda self: submit_and_enqueue())
    stream.close()
    assert late[0].done
    assert stream._closed
    monkeypatch.undo()
    assert x.to_host().sync().tolist() == [5.0] * 4


def test_a_closed_stream_is_forgotten_by_kernels(device):
    x, out = ca.zip(ca.ones(4), ca.empty(4)).sync()
    launches = [launch(device, x, out), bound(device, x, out)]
    forgotten = []
    for _ in range(3):
        stream = device.create_stream()
        for make in launches:
            make().sync_on(stream)
        stream.close()
        forgotten.append(weakref.ref(stream))
    with pytest.raises(ca.ClosedError, match="is closed"):
        stream.handle  # noqa: B018
    del stream
    ca.fill(x, 1.0).sync()  # tensors know who used them last
    ca.fill(out, 1.0).sync()
    gc.collect()
    assert [made() for made in forgotten] == [None] * 3


async def test_many_closed_streams_and_chains(device):
    """Whatever the moment, a chain gives its values or says that its stream is closed."""
    x, out = await ca.zip(ca.ones(4), ca.empty(4))
    make = launch(device, x, out)
    await make()
    values, closed = 0, 0

    def chain(length):
        op = ca.fill(out, 0.0).map(lambda filled: (filled,))
        for _ in range(length):
            op = op.then(lambda _: make())
        return op.then(lambda outputs: outputs[-1].to_host())

    async def one(n):
        nonlocal values, closed
        stream = device.create_stream()
        task = chain(n % 7).start(ca.SingleStream(stream))
        thread = threading.Thread(target=stream.close)
        thread.start()
        try:
            assert (await task).tolist() == [3.0 if n % 7 else 0.0] * 4
            values += 1
        except ca.ClosedError:
            closed += 1
        thread.join()

    for n in range(40):
        await one(n)
    assert values + closed == 40


def fails(*_):
    raise ValueError("as planned")


def until_it_waits(stream):
    """Until somebody sleeps on the first of what the stream has, or is to be called."""
    while not any(submission.sleepers or submission.callbacks for submission in list(stream._pending)):
        time.sleep(1e-3)


@pytest.mark.parametrize("how", ["close", "aclose"])
def test_work_behind_a_failure_is_waited_for(host, how):
    """The work that closing waits for fails; what came meanwhile still runs, in memory that must stay its own."""
    stream = host.create_stream()
    on_it = ca.SingleStream(stream)
    x, other = ca.zip(ca.zeros(4), ca.empty(1)).sync()
    began, goes_on, enqueued = threading.Event(), threading.Event(), threading.Event()
    errors = []

    def wait_and_fail(_):
        began.set()
        assert goes_on.wait(10)
        fails()

    def close():
        try:
            stream.close() if how == "close" else asyncio.run(stream.aclose())
        except ca.CudaAsyncError as error:
            errors.append(error)

    ca.foreign(lambda _: None).sync_on(stream)  # prepares it
    failed = ca.foreign(wait_and_fail, writes=[other]).start(on_it)
    assert began.wait(10)
    thread = threading.Thread(target=close)
    thread.start()
    until_it_waits(stream)
    behind = ca.foreign(lambda _: enqueued.wait(10)).then(lambda _: ca.fill(x, 7.0)).start(on_it)
    goes_on.set()
    enqueued.set()
    thread.join(10)
    assert not thread.is_alive()
    assert behind.done
    assert stream._closed
    assert x.to_host().sync().tolist() == [7.0] * 4
    assert ["as planned" in str(error) for error in errors] == [True]
    with pytest.raises(KernelError, match="as planned"):
        failed.sync()


def test_a_driver_that_does_not_say_leaves_the_stream_open(stepped):
    """Nobody knows whether the work is done, so it is not taken for done."""
    stream = stepped.create_stream()
    other = ca.SingleStream(stepped.create_stream())
    made = ca.ones(4).start(other)
    stepped.driver.advance_all()
    x = made.result()
    ca.fill(x, 7.0).start(ca.SingleStream(stream))
    for call in ("event_query", "event_synchronize"):
        stepped.driver.fail_next(call, ca.DriverError("cuEvent", 999, "CUDA_ERROR_UNKNOWN", "planted"))
    with pytest.raises(ca.DriverError, match="planted"):
        stream.close()
    assert not stream._closed
    copied = ca.copy(x).to_host().start(other)
    while copied.state == "enqueueing":
        time.sleep(1e-3)
    stepped.driver.advance_all()
    assert copied.result().tolist() == [7.0] * 4
    stream.close()
    assert stream._closed


CALLS = {
    "drain": lambda device, stream: ca.drain().sync(),
    "device.synchronize": lambda device, stream: device.synchronize(),
    "device.collect": lambda device, stream: device.collect(),
    "stream.synchronize": lambda device, stream: stream.synchronize(),
    "stream.is_done": lambda device, stream: stream.is_done,
    "stream.close": lambda device, stream: stream.close(),
    "stream.aclose": lambda device, stream: asyncio.run(stream.aclose()),
}


@pytest.mark.parametrize("is_known_elsewhere", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_a_stream_that_is_closed_under_a_call(host, monkeypatch, call, is_known_elsewhere):
    """Between the call's look and the lock, another thread closes it, under an operation that goes on there."""
    stream = host.create_stream()
    ca.ones(4).sync_on(stream)
    if is_known_elsewhere:
        stream.handle  # noqa: B018
    host.synchronize()  # or binding would be asked for under the lock, to look at what is pending
    bind, me, armed = host.driver.bind, threading.get_ident(), [True]

    def close_in_a_chain():
        with pytest.raises(ca.ClosedError):
            ca.ones(4).inspect(lambda _: stream.close()).then(lambda x: ca.fill(x, 2.0)).sync_on(stream)

    def bind_later():
        bind()
        if armed and threading.get_ident() == me:
            armed.clear()
            thread = threading.Thread(target=close_in_a_chain)
            thread.start()
            thread.join()

    monkeypatch.setattr(host.driver, "bind", bind_later)
    CALLS[call](host, stream)
    assert not armed
    assert stream._closed


def test_a_stream_that_is_closed_while_the_driver_waits_for_it(host, monkeypatch):
    """It is given back once the call has returned."""
    stream = host.create_stream()
    ca.ones(4).sync_on(stream)
    stream.handle  # noqa: B018  # now the driver is asked to wait
    inside, goes_on, destroyed = threading.Event(), threading.Event(), []
    wait, destroy = host.driver.stream_synchronize, host.driver.stream_destroy
    handle = stream.handle

    def wait_long(waited):
        if waited == handle:
            inside.set()
            assert goes_on.wait(10)
            assert destroyed == []
        wait(waited)

    monkeypatch.setattr(host.driver, "stream_synchronize", wait_long)
    monkeypatch.setattr(host.driver, "stream_destroy", lambda h: (destroyed.append(h), destroy(h)))
    thread = threading.Thread(target=host.synchronize)
    thread.start()
    assert inside.wait(10)
    stream.close()
    assert stream._closed
    goes_on.set()
    thread.join(10)
    assert destroyed == [handle]


@pytest.mark.parametrize("is_known_elsewhere", [False, True])
def test_values_of_work_that_is_done_are_not_lost(device, is_known_elsewhere):
    """The stream is closed in the last callback, when everything on it is done."""
    stream = device.create_stream()
    x = ca.zeros(4).sync()
    if is_known_elsewhere:
        stream.handle  # noqa: B018
    assert ca.fill(x, 2.0).map(lambda _: (stream.close(), 5)[1]).sync_on(stream) == 5
    assert x.to_host().sync().tolist() == [2.0] * 4


def test_memory_that_is_mapped_ahead_comes_back(host, monkeypatch):
    stream = host.create_stream()
    allocate, armed = host.driver.memory_alloc_async, [True]
    host.synchronize()
    before = host.driver.pool_statistics().used_bytes

    def allocate_and_close(size, handle):
        address = allocate(size, handle)
        if armed and size == 64 << 20:
            armed.clear()
            stream.close()
        return address

    monkeypatch.setattr(host.driver, "memory_alloc_async", allocate_and_close)
    with pytest.raises(ca.ClosedError):
        ca.empty(64 << 20, "uint8").start(ca.SingleStream(stream)).sync()
    assert not armed
    host.synchronize()
    assert host.driver.pool_statistics().used_bytes == before


@pytest.mark.parametrize("kind", ["of a graph", "known outside"])
@pytest.mark.parametrize("use", [ca.copy, ca.to_host])
async def test_a_step_that_is_refused_keeps_nothing(host, kind, use):
    """Also where the memory is kept by each use: the stream, which lives on, has let go of it."""
    gc.collect()
    await ca.drain()
    before = host.memory_stats().used_bytes
    stream = host.create_stream()
    if kind == "of a graph":
        graph = await ca.zeros(4).then(ca.copy).graph()
        source = graph.launch()
        del graph
    else:
        x = await ca.zeros(4)
        np.from_dlpack(x)
        source = ca.value(x)
        del x

    begun, goes_on = threading.Event(), threading.Event()

    class Prepared(ca.DeviceOp[None]):
        def prepare(self, ctx):
            begun.set()
            assert goes_on.wait(10)

        def execute(self, ctx):
            return None

    op = source.then(lambda x: Prepared().then(lambda _: use(x)))
    future = op.start(ca.SingleStream(stream))
    await anyio.to_thread.run_sync(begun.wait, 10)
    await stream.aclose()
    goes_on.set()
    with pytest.raises(ca.ClosedError, match="is closed; create another"):
        await future
    del op, source, future
    await ca.drain()  # the worker thread may still be at its end
    gc.collect()
    await ca.drain()
    assert host.memory_stats().used_bytes == before


async def test_aclose_gives_the_loop_back(host):
    """Also where the last work failed and more was enqueued meanwhile."""
    stream = host.create_stream()
    on_it = ca.SingleStream(stream)
    await ca.foreign(lambda _: None).schedule(on_it)
    first, second = threading.Event(), threading.Event()
    failed = ca.foreign(lambda _: first.wait(10) and fails()).start(on_it)
    turns = 0
    async with anyio.create_task_group() as group:

        async def close():
            with pytest.raises(KernelError, match="as planned"):
                await stream.aclose()
            group.cancel_scope.cancel()

        group.start_soon(close)
        await anyio.to_thread.run_sync(until_it_waits, stream)
        ca.foreign(lambda _: second.wait(10)).start(on_it)
        first.set()
        while not failed.done:
            await anyio.lowlevel.checkpoint()
        for _ in range(50):
            turns += 1
            await anyio.lowlevel.checkpoint()
        second.set()
        await anyio.sleep_forever()
    assert turns == 50
    assert stream._closed


def test_a_device_that_is_closed_under_a_chain_gives_no_value():
    """It waits for nothing, so nobody knows whether what was enqueued was done."""
    device = checked_device()
    stream = device.create_stream()
    x = ca.zeros(4).sync_on(stream)
    with pytest.raises(ca.ClosedError, match="planned"):
        ca.fill(x, 2.0).map(lambda _: device._close("planned")).sync_on(stream)


def test_a_failure_that_the_one_who_closed_has_had_is_no_value_either(host):
    """The stream is closed, by another thread, when the chain has enqueued all and not looked at it yet."""
    stream = host.create_stream()
    x = ca.zeros(4).sync()
    ca.foreign(lambda _: None).sync_on(stream)

    def close(_):
        with pytest.raises(KernelError, match="as planned"):
            stream.close()

    with pytest.raises(KernelError, match="as planned"):
        ca.foreign(fails, writes=[x]).map(close).sync_on(stream)
