"""Every driver call of small programs over the whole core fails, once: the error comes out, nothing is left behind.

A stepped device whose calls are counted: each program runs once to count them, then once for every call and every way
to fail (CI takes the first and the last of each name only, the slow tests take all). Work runs when somebody waits for
it, so as much as can be is pending when a call fails.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import threading
import time
import weakref

import numpy as np
import pytest

import cuda_async as ca
from cuda_async.driver import Driver, FunctionInfo, HostImage, ParameterInfo
from cuda_async.driver.host import HostDriver
from cuda_async.scheduling import _device, _kept_errors

N = 8
NOT_CALLS = ("close", "launch_failed")
CALLS = [n for n, f in vars(Driver).items() if callable(f) and not n.startswith("_") and n not in NOT_CALLS]
WAITING = ("event_synchronize", "stream_synchronize", "synchronize", "event_notify")
ALLOCATING = (
    "memory_alloc_async",
    "pinned_alloc",
    "module_load",
    "stream_create",
    "event_create",
    "graph_create",
)
PTX = (
    ".version 7.8\n.target sm_80\n.address_size 64\n"
    ".visible .entry two(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 2; ret; }\n"
)


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """What is there already is not looked at again by each collection."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Faults:
    """A device of which call number `at` fails with `error`; with `sticky`, all later ones too."""

    def __init__(self, at=None, error=None, sticky=False, notifies=True):
        self.driver = HostDriver(stepped=True, memory_bytes=16 << 20)
        self.device = ca.Device._make("host", 0, self.driver)
        self.driver.notifies = notifies
        self.names = []
        self.at, self.error, self.sticky = at, error, sticky
        self.failed = None
        self.on = False
        self.advancing = threading.RLock()
        for name in CALLS:
            setattr(self.driver, name, self.counted(name, getattr(self.driver, name)))

    def forget(self):
        """Let go of the frames that the error came through."""
        if self.error is not None:
            self.error.__traceback__ = self.error.__context__ = self.error.__cause__ = None

    def counted(self, name, call):
        @functools.wraps(call)
        def counting(*args, **kwargs):
            if self.on:
                number = len(self.names)
                self.names.append(name)
                on_main = threading.current_thread() is threading.main_thread()
                if number == self.at and (on_main or isinstance(self.error, Exception)):
                    self.failed = name
                    raise self.error
                if self.failed == name == "memory_alloc_async" and isinstance(
                    self.error, ca.OutOfMemoryError
                ):
                    raise self.error  # it is asked for again, once cached memory was given back
                if self.sticky and self.failed is not None:
                    raise ca.DeviceLostError("made to fail again")
            if name in WAITING:
                with self.advancing:  # by one thread at a time
                    self.driver.advance_all()
            if name not in ("event_synchronize", "stream_synchronize", "synchronize"):
                return call(*args, **kwargs)
            over = threading.Event()

            def go_on():  # what other threads enqueue meanwhile is waited for too
                while not over.wait(0.01):
                    with self.advancing:
                        self.driver.advance_all()

            thread = threading.Thread(target=go_on, daemon=True)
            thread.start()
            try:
                return call(*args, **kwargs)
            finally:
                over.set()
                thread.join()

        return counting


class Doubles:
    """A kernel that doubles N float32 in place."""

    info = FunctionInfo(
        name="doubles",
        parameters=(ParameterInfo(name="x", offset_bytes=0, size_bytes=8),),
        max_threads_per_block=64,
    )

    def start(self, launch):
        view = launch.memory.view(int.from_bytes(launch.arguments[:8], "little"), 4 * N, "write").view("f4")
        view *= 2
        yield


def doubles():
    return ca.Module.from_host_image(HostImage(functions={"doubles": Doubles()}, name="doubles")).function(
        "doubles"
    )


def same(array, value):
    assert (np.asarray(array) == value).all(), (array, value)


def on_new_streams(device, count):
    return [ca.SingleStream(device.create_stream()) for _ in range(count)]


# ------------------------------------------------------------------------------- the programs


def allocate(device):
    ca.empty(N).sync()
    same(ca.full(N, 3.0).to_host().sync(), 3)


def upload_and_download(device):
    same(ca.from_host(np.arange(N)).to_host().sync(), np.arange(N))
    tensor = ca.zeros(N).sync()
    ca.memcpy(tensor, np.ones(N, "f4")).sync()
    same(tensor.to_host().sync(), 1)


def strided_and_converted(device):
    tensor = ca.from_host(np.arange(2 * N, dtype="f4")).sync()
    same(ca.copy(tensor[::2]).to_host().sync(), np.arange(0, 2 * N, 2))
    same(tensor.astype("i4").to_host().sync(), np.arange(2 * N))


def large_upload(device):
    array = np.ones(1 << 19, "f4")
    same(ca.from_host(array).to_host().sync(), 1)


def launches(device):
    kernel = doubles()
    x = ca.full(N, 1.0).sync()
    kernel.launch(1, 1, ca.mut(x)).then(lambda _: kernel.launch(1, 1, ca.mut(x))).sync()
    same(x.to_host().sync(), 4)
    bound = kernel.bind(1, 1, ca.mut(x), device=device)
    bound.launch().sync()
    kernel.launch(1, 1, ca.mut(x), cluster=(1, 1, 1)).sync()
    same(x.to_host().sync(), 16)


def module_from_ptx(device):
    x = ca.zeros(N, "i4").sync()
    module = ca.Module.from_ptx(PTX)
    module.function("two").launch(1, 1, ca.mut(x)).sync()
    assert x.to_host().sync()[0] == 2


def combinators(device):
    a, b = ca.zip(ca.full(N, 1.0), ca.full(N, 2.0)).sync()
    same(ca.copy(a).to_host().sync(), 1)
    parts = ca.parallel(ca.copy(a), ca.copy(b).to_host(), ca.copy(b)).sync()
    same(parts[1], 2)
    arrays = ca.collect(t.to_host() for t in (a, b)).sync()
    same(arrays[1], 2)


def shared(device):
    op = ca.full(N, 2.0).shared()
    first, second = on_new_streams(device, 2)
    one = op.then(ca.copy).to_host().start(first)
    two = op.then(ca.copy).to_host().start(second)
    same(one.sync(), 2)
    same(two.sync(), 2)


def futures_across_streams(device):
    first, second = on_new_streams(device, 2)
    x = ca.full(N, 1.0).start(first)
    y = ca.copy(x.sync()).start(second)
    ca.fill(x.sync(), 5.0).start(first).sync()
    same(y.sync().to_host().sync(), 1)


def dropped_on_two_streams(device):
    first, second = on_new_streams(device, 2)
    x = ca.full(N, 1.0).sync_on(first.next_stream())
    y = ca.copy(x).sync_on(second.next_stream())
    del x, y
    device.collect()
    ca.empty(N).sync()
    device.synchronize()
    device.trim()


def events(device):
    stream, other = device.create_stream(), device.create_stream()
    began = stream.record()
    x = ca.full(N, 1.0).sync_on(stream)
    ended = stream.record()
    other.wait(ended)
    ended.synchronize()
    assert ended.elapsed_ms(began) >= 0
    assert ended.is_done
    began.close()
    ended.close()
    del x
    stream.close()
    other.close()


def look_and_go_on(device):
    x = ca.full(N, 2.0).sync()
    op = x.to_host().map(lambda a: float(a.sum())).then(lambda s: ca.fill(x, s)).to_host()
    same(op.sync(), 2 * N)


def graph(device):
    kernel = doubles()
    x = ca.full(N, 1.0).sync()
    graph = kernel.launch(1, 1, ca.mut(x)).then(lambda _: ca.copy(x)).graph().sync()
    same(graph.launch().sync().to_host().sync(), 2)
    same(graph.launch().sync().to_host().sync(), 4)
    graph.close()


def graph_on_two_streams(device):
    first, second = on_new_streams(device, 2)
    x = ca.zeros(N).sync()
    graph = ca.fill(x, 1.0).then(lambda _: ca.full(N, 4.0)).graph().sync()
    for policy in (first, second, first):
        graph.launch().start(policy).sync()
    del graph
    gc.collect()
    same(x.to_host().sync(), 1)


def foreign(device):
    x = ca.full(N, 1.0).sync()
    assert ca.foreign(lambda stream: 5, reads=[x]).sync() is None or True
    same(x.to_host().sync(), 1)


def limit(device):
    device.memory_limit = 4096
    x = ca.empty(512).sync()
    with pytest.raises(ca.OutOfMemoryError):
        ca.empty(2048).sync()
    del x
    ca.empty(1024).sync()
    device.memory_limit = None


def statistics(device):
    x = ca.zeros(N).sync()
    assert device.memory_stats().used_bytes == x.size * 4
    assert device.driver.stream_query(device.create_stream().handle)


def drained(device):
    ca.full(N, 1.0).to_host().start()
    ca.drain().sync()
    device.synchronize()


async def awaited(device):
    x = await ca.full(N, 1.0)
    same(await x.to_host(), 1)
    future = ca.copy(x).start()
    await future
    event = device.create_stream().record()
    await event


async def tasks(device):
    async def one(value):
        same(await ca.full(N, value).to_host(), value)

    await asyncio.gather(*(one(float(v)) for v in range(3)))


async def shared_by_tasks(device):
    op = ca.full(N, 2.0).shared()

    async def one():
        same(await op.then(ca.copy).to_host(), 2)

    await asyncio.gather(one(), one())


async def cancelled(device):
    async def waits():
        await ca.full(N, 1.0).to_host()

    await waits()
    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        pass
    same(await ca.full(N, 2.0).to_host(), 2)


async def graph_awaited(device):
    x = await ca.zeros(N)
    graph = await ca.zip(ca.fill(x, 3.0), ca.copy(x)).graph()
    await graph.launch()
    await asyncio.gather(*(wait(graph.launch()) for _ in range(2)))
    same(await x.to_host(), 3)
    await graph.aclose()


async def shared_replay(device):
    x = await ca.full(N, 1.0)
    graph = await ca.graph_input("x", (N,), "float32").then(ca.copy).graph()
    replay = graph.replay(x=x).shared()

    async def one():
        same(await replay.then(ca.copy).to_host(), 1)

    await asyncio.gather(one(), one(), wait(graph.replay(x=x)))
    await graph.aclose()


async def wait(op):
    return await op


async def streams_closed(device):
    async with device.create_stream() as stream:
        await ca.full(N, 1.0).schedule(ca.SingleStream(stream))


PROGRAMS = (
    *(
        allocate,
        upload_and_download,
        strided_and_converted,
        large_upload,
        launches,
        module_from_ptx,
        combinators,
    ),
    *(
        shared,
        futures_across_streams,
        dropped_on_two_streams,
        events,
        look_and_go_on,
        graph,
        graph_on_two_streams,
    ),
    *(foreign, limit, statistics, drained),
    *(awaited, tasks, shared_by_tasks, cancelled, graph_awaited, shared_replay, streams_closed),
)
KEEPS_QUIET = ("limit", "drained", "cancelled")
"""Programs in which an error belongs to nobody: they ask for it, or drop or cancel what it is about."""
ASKING = ("bind", "event_query", "event_synchronize", "pool_trim")
"""Calls that may fail without anybody hearing of it: work that is done is done, whatever happened to who asked."""


# ----------------------------------------------------------------------------------- the sweep


def run(faults, program, monkeypatch):
    """What the program raised, or None."""
    device = faults.device
    monkeypatch.setattr(_device, "_default", device)
    monkeypatch.setitem(_device._registry, "host:0", device)
    device.policy.next_stream()
    # Where memory is short, and errors of earlier runs are kept, what they hold is freed and the call made again.
    monkeypatch.setattr(_kept_errors, "_keepers", weakref.WeakSet())
    faults.on = True
    try:
        started = program(device)
        if inspect.iscoroutine(started):
            asyncio.run(asyncio.wait_for(started, 20))
    except BaseException as error:
        return error
    finally:
        faults.on = False
    return None


def said(error, injected):
    """Whether an exception is the injected one, or was made of it."""
    seen, todo = set(), [error]
    while todo:
        error = todo.pop()
        if error is injected or "made to fail" in str(error):
            return True
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            todo += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return False


def what_is_left(device):
    """Streams that hold or wait for something, and bytes that are used."""
    gc.collect()
    used = device.memory_stats().used_bytes
    return [stream for stream in device._streams if stream._retained or stream._pending], used


def until_nothing_is_left(device, look=lambda: None):
    """Worker and waiter threads may be on their way back."""
    until = time.monotonic() + 5
    while True:
        look()
        left = what_is_left(device)
        if left == ([], 0) or time.monotonic() > until:
            return left


def check_clean(faults):
    """Nothing is used or held, and the device works."""
    device = faults.device
    faults.forget()

    def finish():
        with faults.advancing:
            faults.driver.advance_all()
        try:
            device.synchronize()
        except ca.CudaAsyncError as unreported:
            if not said(unreported, faults.error):
                raise

    assert until_nothing_is_left(device, finish) == ([], 0)
    assert all(stream._done >= stream._next - 1 for stream in device._streams)
    same(ca.full(N, 3.0).then(ca.copy).to_host().sync(), 3)
    assert not device._lock.locked()


def count(program, monkeypatch, **options):
    faults = Faults(**options)
    error = run(faults, program, monkeypatch)
    if error is not None:
        raise error
    check_clean(faults)
    names = list(faults.names)
    faults.device.close()
    return names


def invalid(name):
    return ca.DriverError(name, 1, "CUDA_ERROR_INVALID_VALUE", "made to fail")


def no_memory(name):
    return ca.OutOfMemoryError("made to fail: out of memory", 1, 0, 0)


WAYS = {
    "invalid": (invalid, lambda name: True),
    "no memory": (no_memory, lambda name: name in ALLOCATING),
    "interrupt": (lambda name: KeyboardInterrupt("made to fail"), lambda name: True),
}


def chosen(names, thorough):
    """Positions of the calls to fail."""
    if thorough:
        return range(len(names))
    ends = {name: (names.index(name), len(names) - 1 - names[::-1].index(name)) for name in names}
    return sorted({at for both in ends.values() for at in both})


THOROUGH = [False, pytest.param(True, marks=pytest.mark.slow)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("thorough", THOROUGH, ids=["ends", "all"])
@pytest.mark.parametrize("notifies", [True, False], ids=["notified", "by thread"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_each_call_fails_once(program, notifies, thorough, monkeypatch):
    if not notifies and not inspect.iscoroutinefunction(program):
        pytest.skip("waits in no loop")
    names = count(program, monkeypatch, notifies=notifies)
    for at in chosen(names, thorough):
        for way, (make, applies) in WAYS.items():
            if not applies(names[at]):
                continue
            faults = Faults(at, make(names[at]), notifies=notifies)
            error = run(faults, program, monkeypatch)
            where = f"{way} at call {at} of {len(names)}, {faults.failed}"
            quiet = program.__name__ in KEEPS_QUIET or (error is None and faults.failed in ASKING)
            assert faults.failed is None or quiet or said(error, faults.error), f"{where}: {error!r}"
            del error
            try:
                check_clean(faults)
            except BaseException as left:
                raise AssertionError(where) from left
            faults.device.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("thorough", THOROUGH, ids=["ends", "all"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_device_is_lost_at_each_call(program, thorough, monkeypatch):
    """Everything pending fails, everything new too, memory is accounted for, and another device works."""
    other = Faults().device
    names = count(program, monkeypatch)
    for at in chosen(names, thorough):
        faults = Faults(at, ca.DeviceLostError("made to fail"), sticky=True)
        error = run(faults, program, monkeypatch)
        device = faults.device
        where = f"call {at} of {len(names)}, {faults.failed}"
        quiet = faults.failed is None or program.__name__ in KEEPS_QUIET
        assert quiet or said(error, faults.error), f"{where}: {error!r}"
        del error
        faults.on = True
        faults.failed = faults.failed or "none"
        with pytest.raises(ca.DeviceLostError, match="made to fail"):
            ca.full(N, 1.0).sync()
        assert not device.is_healthy, where
        faults.forget()
        assert until_nothing_is_left(device) == ([], 0), where
        assert not device._lock.locked(), where
        with ca.use_device(other):
            same(ca.full(N, 2.0).to_host().sync(), 2)
        device.close()
